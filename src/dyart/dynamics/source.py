"""What a run gives to measure dynamics on: its network, batches as large as its own, its optimizer, its method.

A network that was trained elsewhere has neither method nor optimizer: norm, radius and batch size are said by the user.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dyart.boundary.norms import Norm
from dyart.data import DataSet, load
from dyart.data.augment import Augment
from dyart.data.loader import Batch, Loader
from dyart.dynamics.settings import Chosen, choose, norm_of, norms_of, reach_of
from dyart.engine import checkpoint as store
from dyart.engine.optimizer import make_optimizer
from dyart.engine.phases import Phase, phases_of
from dyart.engine.run import make_model
from dyart.engine.stored import RunError, checkpoint_of, load_weights, read_config, run_folder
from dyart.recipes import Config, make_method
from dyart.recipes.config import Data, Eval, Model, Train

SplitName = Literal["train", "test"]


@dataclass(frozen=True, eq=False)
class Source:
    """A network to measure: a checkpoint of a run, opened, or one that was trained elsewhere."""

    folder: Path
    """Of the run; of another network, where its records would go."""
    checkpoint: Path | None
    """Of another network, the file of its weights; None: those that it is made with."""
    config: Config
    """Of another network, what a run on its data would have said; ``method`` has a norm alone."""
    data: DataSet
    model: nn.Module
    """In eval mode, on the device."""
    device: torch.device
    averaged: bool
    step: int
    """Steps of the run before the checkpoint."""
    named: Mapping[str, Any] = field(default_factory=dict)
    """What the user named a network by that was trained elsewhere, as plain values; of a run nothing."""

    @property
    def trained(self) -> bool:
        """It is of a run of this package."""
        return not self.named

    @property
    def norm(self) -> Norm:
        """In which the run's method works, else the one it is evaluated in."""
        return norm_of(self.config)

    @property
    def phase(self) -> tuple[Phase, float]:
        """The stretch of training that the checkpoint was saved in, and how much of it was done."""
        per_epoch = len(self.indices) // self.config.train.batch_size
        done = self.step / per_epoch
        phases = phases_of(self.config, make_method(self.config))
        # After the last step of the burn-in, the optimizer is still the burn-in's.
        phase = next((p for p in reversed(phases) if done > p.first), phases[0])
        return phase, min((math.floor(done) - phase.first) / phase.epochs, 1.0)

    @property
    def indices(self) -> np.ndarray:
        """Of the training images that the run trains on; of a network trained elsewhere, all may have been."""
        return self.data.fit[: self.config.data.limit] if self.trained else np.arange(len(self.data.train))


def open_source(place: Path, device: torch.device, averaged: bool = False) -> Source:
    """Open a run (its best checkpoint) or one checkpoint; raw weights, which a step starts from, unless averaged."""
    folder, checkpoint = run_folder(place), checkpoint_of(place)
    config = read_config(folder)
    data = load(config.data.name, Path(config.data.root) if config.data.root else None)
    model = make_model(config, data)
    facts = store.read_facts(checkpoint)
    load_weights(model, store.read_weights(checkpoint, "averaged" if averaged else "model"), str(checkpoint))
    return Source(folder, checkpoint, config, data, model.to(device).eval(), device, averaged, int(facts["step"]))


def source_elsewhere(
    model: nn.Module,
    data: DataSet,
    device: torch.device,
    *,
    folder: Path,
    weights: Path | None,
    named: Mapping[str, Any],
    norm: Norm,
    radius: float,
    batch_size: int,
) -> Source:
    """Return a network that was trained elsewhere, ready to be measured.

    Args:
        model: in eval mode, on the device.
        data: its data set.
        device: where batches go.
        folder: for its records.
        weights: their file; None: those that it is made with.
        named: what the user named it by, with its name as ``model``.
        norm: of margins and methods.
        radius: below which an example is vulnerable, and for methods without a recipe.
        batch_size: of the step that is measured.
    """
    config = Config(
        method={"name": "", "norm": norm},
        data=Data(name=data.name),
        model=Model(name=str(named["model"])),
        train=Train(batch_size=batch_size),
        eval=Eval(radius=radius),
    )
    return Source(folder, weights, config, data, model, device, False, 0, named)


def batches_of(source: Source, count: int, split: SplitName = "train", seed: int = 0) -> list[Batch]:
    """Return whole batches of the training's size with at least ``count`` examples, as far as the split has them.

    Examples are drawn by the seed, without repetition: training images that could be trained on, or test images. They
    are not augmented, so that each can be looked up by its index.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    data, settings = source.data, source.config.data
    part, indices = (data.train, source.indices) if split == "train" else (data.test, np.arange(len(data.test)))
    size = min(source.config.train.batch_size, len(indices))
    # Streamed: a few batches are no reason to hold a large set on the device.
    drawn = Loader(
        part, indices, size, seed, source.device, Augment(), len(data.classes), None, "stream", settings.label_smoothing
    )
    return list(islice(drawn.epoch(0), math.ceil(count / size)))


def rows_of(data: DataSet, split: SplitName, index: Tensor) -> Tensor:
    """Return what records call examples at these places of a split: their rows in what the user gave, as one part."""
    if data.test_rows is None:
        return index
    rows = data.test_rows
    if split == "train":
        rows = np.delete(np.arange(len(data.train) + len(data.test)), data.test_rows)
    return torch.from_numpy(rows).to(index.device)[index]


def methods_of(
    source: Source,
    names: Sequence[str],
    overrides: Mapping[str, Mapping[str, Any]],
    split: SplitName = "train",
    radius: float | None = None,
) -> dict[str, Chosen]:
    """Return methods, ready for a step, with their settings and where these come from (see ``choose``).

    The run's own method is at the stage of training at which the checkpoint was saved, with what it keeps per training
    example; others are past all their warm-ups.
    """
    chosen = {name: choose(name, source.config, overrides.get(name, {}), radius) for name in names}
    examples = len(source.data.train if split == "train" else source.data.test)
    phase, fraction = source.phase if source.trained else (None, 1.0)
    for name, one in chosen.items():
        method = one.method
        norm = getattr(method, "norm", source.norm)
        if norm != source.norm:
            whose = "the run" if source.trained else "the search for margins (--norm)"
            words = f"{name} works in {norm}, {whose} in {source.norm}"
            if source.norm not in norms_of(name):
                raise ValueError(f"{words}, which it does not know: leave it out, e.g. --methods dyart")
            raise ValueError(
                f"{words}: give it the same, with a length to match, e.g. --{name}.norm {source.norm} "
                f"--{name}.{reach_of(one.settings)} 0.5"
            )
        own = phase is not None and phase.name == "train" and name == source.config.method["name"]
        state = _state(source) if own and split == "train" else {}
        # A state has rows for auxiliary images, too, after those of the set.
        method.prepare(max([examples, *map(len, state.values())]), source.device)
        if state:
            method.load_state_dict(state)
        method.advance(fraction if own else 1.0)
    return chosen


def optimizer_of(source: Source) -> tuple[Optimizer, str]:
    """Return the optimizer as the checkpoint has it, and words for it.

    Momentum and rate are those of the run's last step before the checkpoint; without a saved state the optimizer is a
    new one with the run's settings.

    Raises:
        RunError: the weights are averaged, from which no step is ever taken, or of no run.
    """
    if source.checkpoint is None or not source.trained:
        raise RunError("--update optimizer is a step of a run's optimizer, and this network is of no run: leave it out")
    if source.averaged:
        raise RunError("an optimizer steps from the raw weights: measure its step without --averaged")
    phase, _ = source.phase
    optimizer = make_optimizer(source.model, phase.optim)
    saved = (source.checkpoint / "state.pt").is_file()
    if saved:
        optimizer.load_state_dict(store.read_state(source.checkpoint)["optimizer"])
    group = optimizer.param_groups[0]
    words = f"SGD, rate {group['lr']:.3g}, momentum {group['momentum']:g}, decay {group['weight_decay']:g}, " + (
        "its state as saved" if saved else "no state saved: a new one"
    )
    return optimizer, words


def _state(source: Source) -> dict[str, Tensor]:
    """Return what the run's method keeps per example; nothing where no state was saved."""
    if source.checkpoint is None or not (source.checkpoint / "state.pt").is_file():
        return {}
    state: dict[str, Tensor] = store.read_state(source.checkpoint)["method"]
    return {name: value.to(source.device) for name, value in state.items()}
