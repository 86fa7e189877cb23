"""What a command runs in: versions of Python, torch and the optional packages, and the GPU."""

import platform
from importlib import metadata

import torch

import dyart

# The optional packages, by what they are for.
PACKAGES = {
    "train": ("jsonargparse", "lightning-fabric", "matplotlib", "pillow", "pyyaml", "rich", "safetensors", "scipy"),
    "eval": ("pyautoattack",),
    "report": ("plotly",),
    "integrations": ("pytorch-lightning", "transformers", "torchmetrics", "foolbox", "scikit-learn", "timm", "adv-lib"),
}


def version_of(package: str) -> str | None:
    """Return the version of an installed package; None if it is not. Nothing is imported."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def gpu_words() -> str:
    """Return what GPU torch can use, and why none."""
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        return f"{', '.join(names)} (CUDA {torch.version.cuda})"
    if torch.version.cuda is None:
        return "none (this torch is built for the CPU)"
    return f"none (torch is built for CUDA {torch.version.cuda}, and finds no GPU)"


def version_text() -> str:
    """Return what ``dyart --version`` prints: one line for each thing that a bug report should name."""
    lines = [
        f"dyart {dyart.__version__}",
        f"python {platform.python_version()} on {platform.system()} {platform.machine()}",
        f"torch {torch.__version__}",
        f"gpu {gpu_words()}",
    ]
    for extra, packages in PACKAGES.items():
        found = {package: version_of(package) for package in packages}
        lines.append(f"{extra}: " + ", ".join(f"{name} {version or '(missing)'}" for name, version in found.items()))
    return "\n".join(lines)
