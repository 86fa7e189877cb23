"""``dyart plane``: a small training on points of the plane, its boundary drawn while it moves."""

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dyart.boundary.points import BoundaryPoints
from dyart.boundary.progress import Counter
from dyart.boundary.search import closest_boundary_points
from dyart.cli.places import make_folder
from dyart.data import DataSet, load
from dyart.data.augment import Augment
from dyart.data.loader import Loader, as_tensors
from dyart.dynamics.plane import Moment, Probe, Stretch, field, grid_logits, moment, moved, watched_training
from dyart.dynamics.step import method_update
from dyart.engine.fabric import make_fabric
from dyart.methods.base import Method, find
from dyart.methods.constructor import settings_of
from dyart.methods.natural import Natural
from dyart.models import build
from dyart.report import style
from dyart.report.animation import Frame, write_animation
from dyart.report.drawing import Scene
from dyart.report.plane import curve_figure, movement_figure, soft_figure

RADIUS = 0.06
# In the unit square and l2; a method takes those settings that it has.
SETTINGS: dict[str, Any] = {"norm": "l2", "radius": RADIUS, "step_size": RADIUS / 4, "r0": 2 * RADIUS, "lam": 10.0}
NATURAL, ROBUST, BATCH, LR = 160, 240, 64, 0.05
# Examples in the animation and, fewer for the sake of clarity, in the figures; points on a side of a field.
WATCHED, DRAWN, GRID = 120, 32, 161
# How far the boundary goes in the first figure, at most examples: enough to be seen, little enough for straight arrows.
MOVE, MOST = 0.03, 0.85
# Gradient descent on all points behind the second figure, from so early that the boundary is still nearly straight.
FLOW_FROM, FLOW_STEPS, FLOW_LR = 60, 60, 0.5
# Between two steps of that flow; a closest point that goes farther has changed to another part of the boundary.
JUMP = 0.03
# Times at which a moving boundary is drawn.
TIMES = 6
# A soft boundary far enough from the exact one to be seen apart; DyART trains with 5.
SOFT_STEPS, SOFT_BETA, SOFT_GRID = 60, 0.6, 401


def plane_command(options: argparse.Namespace) -> None:
    """Train, draw the three figures and the animation, and say where they are."""
    if options.frames < 2:
        raise ValueError(f"--frames must be at least 2, got {options.frames}")
    started, device, out = time.monotonic(), make_fabric(options.device).device, Path(options.out)
    data = load("moons")
    model, probe = _network(data, options.seed, device), Probe(*as_tensors(data.test, slice(0, WATCHED), device))
    method = _method(options.method)
    make_folder(out)
    steps = NATURAL + ROBUST
    every = math.ceil(steps / (options.frames - 1))
    counter = Counter(sys.stderr.isatty(), steps + math.ceil((steps - 1) / every) + 1, "the plane")
    moments = watched_training(
        model,
        _loader(data, BATCH, options.seed, device),
        [Stretch(Natural(), NATURAL), Stretch(method, ROBUST)],
        probe,
        every=every,
        also=(FLOW_FROM, NATURAL),
        lr=LR,
        tick=counter.tick,
    )
    at = {m.step: m.weights for m in moments}
    few = Probe(probe.inputs[:DRAWN], probe.labels[:DRAWN])
    written = _movement(model, at[NATURAL], method, few, _loader(data, BATCH, options.seed + 1, device), out)
    written += _curve(model, at[FLOW_FROM], few, _loader(data, len(data.fit), options.seed, device), out)
    written += _soft(options.seed, device, out)
    shown = [m for m in moments if m.step % every == 0 or m.step == steps - 1]
    frames = [Frame(m.step, m.phase, field(model, 0, GRID, m.weights), _scene(m)) for m in shown]
    written.append(write_animation(frames, out / "animation.gif", RADIUS, tick=counter.tick))
    pictures = [str(path) for path in written if path.suffix in (".png", ".gif")]
    print("\n".join(pictures) + f"\n(each figure also as .pdf and .svg) {time.monotonic() - started:.0f} s in all")


def _movement(
    model: nn.Module, weights: dict[str, Tensor], method: Method[Any], probe: Probe, loader: Loader, out: Path
) -> list[Path]:
    """Draw one update of the method, of a size that shows, and what lies between before and after."""
    model.load_state_dict(weights)
    batch = next(loader.epoch(0))
    update = method_update(model, method, batch)
    now = moment(model, 0, method.name, probe, update)
    size = MOVE / float(now.speed[now.found.found].abs().quantile(MOST))
    scene = _scene(now)._replace(speed=size * now.speed.cpu().numpy())
    times = np.linspace(0, size, TIMES)
    fields = [field(model, 0, GRID, moved(weights, update, t)) for t in times]
    paths, found = [], now.found
    for t in times:
        model.load_state_dict(moved(weights, update, t))
        found = _follow(model, found)
        paths.append(np.where(found.found[:, None].cpu().numpy(), found.points.cpu().numpy(), np.nan))
    return style.save(movement_figure(scene, fields, np.stack(paths), RADIUS), out / "movement")


def _curve(model: nn.Module, weights: dict[str, Tensor], probe: Probe, loader: Loader, out: Path) -> list[Path]:
    """Draw the longest curve of a closest point under natural gradient descent on all points at once."""
    model.load_state_dict(weights)
    stretch = Stretch(Natural(), FLOW_STEPS)
    flow = watched_training(model, loader, [stretch], probe, every=1, lr=FLOW_LR, momentum=0.0)
    points = np.stack([m.found.points.cpu().numpy() for m in flow])  # [T, N, 2]
    known = np.stack([m.found.optimal.cpu().numpy() for m in flow]).all(axis=0)
    ways = np.linalg.norm(np.diff(points, axis=0), axis=2)
    length = np.where(known & (ways.max(axis=0) < JUMP), ways.sum(axis=0), 0.0)
    chosen = int(length.argmax())
    label = int(probe.labels[chosen])
    drawn = [flow[place] for place in np.linspace(0, len(flow) - 1, TIMES).round().astype(int)]
    fields = [field(model, label, GRID, m.weights) for m in drawn]
    example = probe.inputs[chosen].cpu().numpy()
    figure = curve_figure(example, label, points[:, chosen], fields, _scene(flow[0]))
    return style.save(figure, out / "curve")


def _soft(seed: int, device: torch.device, out: Path) -> list[Path]:
    """Draw the soft boundary of a class beside the exact one, on three classes."""
    data = load("three-blobs")
    model, probe = _network(data, seed, device), Probe(*as_tensors(data.test, slice(0, 60), device))
    natural = [Stretch(Natural(), SOFT_STEPS)]
    *_, last = watched_training(model, _loader(data, BATCH, seed, device), natural, probe, every=SOFT_STEPS, lr=LR)
    logits = grid_logits(model, SOFT_GRID)
    # The example of class 0 nearest to where all three meet: there the two boundaries differ most.
    corner = int((logits.amax(dim=1) - logits.amin(dim=1)).argmin())
    place = torch.tensor([corner % SOFT_GRID, corner // SOFT_GRID], device=device) / (SOFT_GRID - 1)
    far = (probe.inputs - place).norm(dim=1)
    chosen = int(torch.where((probe.labels == 0) & last.found.correct, far, torch.inf).argmin())
    x, y = probe.inputs[chosen : chosen + 1], probe.labels[chosen : chosen + 1]
    ends = [
        closest_boundary_points(model.eval(), x, y, norm="l2", boundary=kind, beta=SOFT_BETA, tol=1e-4).points[0]
        for kind in ("exact", "soft")
    ]
    figure = soft_figure(
        x[0].cpu().numpy(),
        logits.argmax(dim=1).reshape(SOFT_GRID, SOFT_GRID).cpu().numpy(),
        field(model, 0, SOFT_GRID),
        field(model, 0, SOFT_GRID, boundary="soft", beta=SOFT_BETA),
        (ends[0].cpu().numpy(), ends[1].cpu().numpy()),
        _scene(last),
        f", $\\beta$ = {SOFT_BETA:g}",
    )
    return style.save(figure, out / "soft")


def _follow(model: nn.Module, found: BoundaryPoints) -> BoundaryPoints:
    """Search from the old points, so that each stays the same local point."""
    return closest_boundary_points(
        model.eval(), found.inputs, found.labels, norm=found.norm, start=found.points, tol=1e-4, steps=30
    )


def _network(data: DataSet, seed: int, device: torch.device) -> nn.Module:
    centre, spread = [0.5, 0.5], [0.15, 0.15]
    network = build("mlp", len(data.classes), data.shape, activation="silu", mean=centre, std=spread, seed=seed)
    return network.to(device)


def _loader(data: DataSet, size: int, seed: int, device: torch.device) -> Loader:
    return Loader(data.train, data.fit, size, seed, device, Augment(), len(data.classes))


def _method(name: str) -> Method[Any]:
    """Return a method with those of the plane's settings that it has."""
    cls = find(name)
    has = {parameter.name for parameter in settings_of(cls)}
    return cls(**{key: value for key, value in SETTINGS.items() if key in has})


def _scene(at: Moment) -> Scene:
    found = at.found
    values = (found.inputs, found.labels, found.points, found.margin, at.speed)
    return Scene(*(value.detach().cpu().numpy() for value in values))
