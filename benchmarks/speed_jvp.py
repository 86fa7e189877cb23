"""Time and memory of `boundary_speed` against one forward and backward pass, and against per-sample gradients.

    python benchmarks/speed_jvp.py --device cuda

Network: the ResNet-18 of the pyautoattack wheel. Images: uniform noise unless --images names a .npy of uint8 images
[N, 32, 32, 3]; the cost does not depend on them. Everything runs in the same precision, plain float32 without TF32.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dyart
from harness import RESULTS, autoattack_resnet18, load_images, side_by_side, write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--steps", type=int, default=10, help="of the boundary search that gives the points")
    parser.add_argument("--images", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()

    device = torch.device(options.device)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    model = autoattack_resnet18(device)
    images = load_images(options.images, options.batch).to(device)
    found = dyart.closest_boundary_points(model, images, steps=options.steps)
    labels = found.labels
    update = dyart.update_direction(model, loss=lambda: F.cross_entropy(model(images), labels))
    parameters = list(model.parameters())

    def forward_backward() -> tuple[Tensor, ...]:
        return torch.autograd.grad(F.cross_entropy(model(found.points), labels), parameters)

    calls = {
        "forward and backward": forward_backward,
        "boundary_speed": lambda: dyart.boundary_speed(model, found, update),
        "per-sample gradients": lambda: per_sample_speed(model, found, update),
    }
    timings = side_by_side(calls, device, options.repeats)
    speed = dyart.boundary_speed(model, found, update)
    reference = per_sample_speed(model, found, update)
    error = float(((speed - reference).abs() / reference.abs().clamp(min=1e-12))[found.found].median())
    base = timings["forward and backward"]
    records = []
    for name, timing in timings.items():
        record = {"call": name, **timing, "time_ratio": timing["ms"] / base["ms"]}
        if "peak_mib" in timing:
            record["memory_ratio"] = timing["peak_mib"] / base["peak_mib"]
        records.append(record)
        print(
            ", ".join(f"{key} {value:.4g}" if isinstance(value, float) else str(value) for key, value in record.items())
        )
    print(f"median relative difference from per-sample gradients: {error:.2g}, method: {speed.derivative}")
    settings = {
        "network": "ResNet-18 (pyautoattack wheel, BatchNorm in eval mode)",
        "batch": options.batch,
        "found": int(found.found.sum()),
        "precision": "float32, TF32 off",
        "images": options.images.name if options.images else "uniform noise, seed 0",
        "repeats": options.repeats,
        "median_relative_difference_from_per_sample_gradients": error,
        "derivative": speed.derivative,
    }
    write("speed_jvp", device, settings, records, options.out)


def per_sample_speed(model: nn.Module, found: dyart.BoundaryPoints, update: dict[str, Tensor]) -> Tensor:
    """The speed as the paper computed it: the gradient of every example on its own, then a dot product each."""
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    buffers = dict(model.named_buffers())

    def value(parameters: dict[str, Tensor], point: Tensor, label: Tensor) -> Tensor:
        logits = torch.func.functional_call(model, (parameters, buffers), (point[None],))
        return dyart.logit_margin(logits, label[None])[0]

    gradients = torch.func.vmap(torch.func.grad(value), (None, 0, 0))(parameters, found.points, found.labels)
    rates = sum((gradients[name].flatten(1) @ update[name].flatten()) for name in update)
    return rates / found.multiplier()


if __name__ == "__main__":
    main()
