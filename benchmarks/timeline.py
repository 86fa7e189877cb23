"""What a GPU does in one training step, as a picture: the timeline of its kernels, and where Python is meanwhile.

    python benchmarks/timeline.py --methods at dyart
    python benchmarks/timeline.py --draw benchmarks/results/timeline.json    # docs/pictures/timeline.png

Random images, the recipes' settings, compiled and captured. Three steps in a row are profiled with torch's profiler;
the middle one is drawn, from its first kernel to the first of the next step. "host" is when Python is inside a step:
ahead of the GPU, and for the most part waiting in a launch because the GPU's queue is full.
"""

import argparse
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

from dyart.engine.timing import noise, ready, step_of
from harness import RESULTS, write

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "timeline.png"
KINDS = {
    "convolution": ("xmma", "cutlass", "convolve", "cudnn", "nhwc", "nchw", "gemm"),
    "normalization, activation": ("batch_norm", "group_norm", "silu"),
    "other compiled kernels": ("triton",),
    "other kernels": ("",),
}
COLOURS = {
    "convolution": "#2b6cb0",
    "normalization, activation": "#dd8a2e",
    "other compiled kernels": "#2f855a",
    "other kernels": "#b83280",
    "host": "#718096",
}


def profiled(method: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return one step's kernels as (begin, length) in ms by kind, and the host's spans."""
    from torch.profiler import ProfilerActivity, profile, record_function

    words = ["--train.device", "cuda", "--train.batch_size", str(options.batch), "--train.precision", "bf16"]
    words += ["--train.compile", "on"]
    if method.startswith("dyart"):
        words += ["--method.steps", str(options.search_steps)]
    step = step_of(ready(f"cifar10-{options.network}-{method}", words, noise(8 * options.batch)))
    for _ in range(6):
        step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(3):
            with record_function("one step"):
                step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = [event for event in json.loads(path.read_text())["traceEvents"] if "dur" in event]
    kernels = sorted((e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")), key=_begin)
    host = sorted((e for e in events if e["name"] == "one step" and e.get("cat") == "user_annotation"), key=_begin)
    each = len(kernels) // 3
    middle, begin = kernels[each : 2 * each], kernels[each]["ts"]
    length = kernels[2 * each]["ts"] - begin
    spans: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    for event in middle:
        spans[_kind(event["name"])].append((round((event["ts"] - begin) / 1000, 4), round(event["dur"] / 1000, 4)))
    spans["host"] = [
        (round((e["ts"] - begin) / 1000, 4), round(e["dur"] / 1000, 4))
        for e in host
        if e["ts"] < begin + length and e["ts"] + e["dur"] > begin
    ]
    busy = sum(event["dur"] for event in middle) / length
    print(f"{method}: {length / 1000:.2f} ms from step to step, {each} kernels, the GPU is busy {busy:.1%} of the time")
    return {"method": method, "network": options.network, "batch": options.batch, "ms": length / 1000,
            "kernels": each, "busy": busy, "spans": spans}  # fmt: skip


def _begin(event: dict[str, Any]) -> float:
    return float(event["ts"])


def _kind(name: str) -> str:
    lower = name.lower()
    first = "normalization, activation" if "norm" in lower and lower.startswith("triton") else None
    return first or next(kind for kind, words in KINDS.items() if any(word in lower for word in words))


def draw(records: list[dict[str, Any]], path: Path) -> None:
    """Draw the steps below one another, on one scale of time."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(len(records), 1, figsize=(9, 1.2 + 1.75 * len(records)), sharex=True, squeeze=False)
    lanes = [*KINDS, "host"]
    for axis, record in zip(axes[:, 0], records, strict=True):
        for place, lane in enumerate(reversed(lanes)):
            spans = record["spans"].get(lane, [])
            axis.broken_barh(spans, (place - 0.4, 0.8), color=COLOURS[lane], linewidth=0)
        axis.set_yticks(range(len(lanes)), list(reversed(lanes)), fontsize=8)
        axis.set_xlim(0, max(other["ms"] for other in records))
        axis.axvline(record["ms"], color="black", linewidth=0.8)
        words = (
            f"{record['method']}: {record['ms']:.1f} ms a step, {record['kernels']} kernels, busy {record['busy']:.0%}"
        )
        axis.set_title(words, fontsize=9, loc="left")
    axes[-1, 0].set_xlabel("milliseconds")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    print(f"written: {path}")


def main() -> None:
    """Profile and draw, or draw what was profiled."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=["at", "dyart"])
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--search-steps", type=int, default=8)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--draw", type=Path, help="a timeline.json, to draw and not to measure")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    if options.draw is not None:
        return draw(json.loads(options.draw.read_text())["records"], PICTURE)
    records = [profiled(method, options) for method in options.methods]
    write("timeline", torch.device("cuda"), {"precision": "bf16", "compile": True}, records, options.out)
    return draw(records, options.out / "timeline.png")


if __name__ == "__main__":
    main()
