"""The configuration of a training: what every key of a recipe means.

``method`` is not here: its keys are the constructor arguments of the class that ``method.name`` names. Floats may be
written as fractions (8/255) and are kept as written.
"""

import os
from dataclasses import dataclass, field
from typing import Any, Literal

from dyart.attacks.pgd import AttackNorm
from dyart.data.loader import Residency
from dyart.models.layers import ActivationName, Normalization

Schedule = Literal["cosine", "step", "one-cycle", "constant"]
Averaging = Literal["all", "released"]
Precision = Literal["fp32", "bf16"]
Switch = Literal["auto", "on", "off"]
Strategy = Literal["ddp", "fsdp"]
Logger = Literal["csv", "tensorboard", "wandb", "mlflow"]
Attack = Literal["pgd", "margins", "none"]
Select = Literal["method", "mean"]
Probe = Literal["train", "holdout", "batch"]
BurnIn = Literal["natural", "at"]

BURN_INS: dict[BurnIn, str] = {"natural": "natural training", "at": "adversarial training"}
# What fits into a float32, in which torch computes.
LARGEST = 3e38


@dataclass
class Data:
    """Which images, and what is done to them.

    Args:
        name: of the data set (``dyart data list``), a .npz file, a folder of .npy files or an image folder.
        root: where data sets lie; None: $DYART_DATA, else the user's cache folder.
        limit: train on so many images only, for trials: the first, or drawn ones where a set is stored class by class.
        crop: pixels of zero padding before a random crop; 0: none.
        flip: mirror half of the images.
        cutout: side of a square set to zero; 0: none.
        cutmix: probability to mix an image with another.
        label_smoothing: share of every label that is spread over all classes, in every cross-entropy.
        residency: keep the set on the device, stream it, or decide by its size.
        auxiliary: a .npy of uint8 images to mix into every batch; or a data set of the same classes, as ``name`` takes
            it, whose training images are mixed in with their labels.
        auxiliary_labels: of a .npy of images, a .npy with their labels; or a run's folder, whose network labels them
            (kept beside them).
        auxiliary_fraction: share of every batch that comes from there.
    """

    name: str = "fashion-mini"
    root: str | None = None
    limit: int | None = None
    crop: int = 0
    flip: bool = False
    cutout: int = 0
    cutmix: float = 0.0
    label_smoothing: float = 0.0
    residency: Residency = "auto"
    auxiliary: str | None = None
    auxiliary_labels: str | None = None
    auxiliary_fraction: float = 0.7

    def __post_init__(self) -> None:
        """Check the ranges of the values."""
        self.root, self.auxiliary = _place(self.root), _place(self.auxiliary)
        self.auxiliary_labels = _place(self.auxiliary_labels)
        _at_least("data.limit", self.limit, 1)
        _share("data.label_smoothing", self.label_smoothing)
        if (str(self.auxiliary).lower().endswith(".npy")) != (self.auxiliary_labels is not None):
            raise ValueError(
                "data.auxiliary and data.auxiliary_labels go together: a .npy of images and their labels. A data set "
                f"has its own (data.auxiliary {self.auxiliary}, data.auxiliary_labels {self.auxiliary_labels})"
            )


@dataclass
class Model:
    """Which network.

    Args:
        name: a network of this package, or package.module:factory for your own.
        normalization: BatchNorm or GroupNorm.
        activation: None: the network's own.
        mean: per channel, subtracted inside the model; None: the network's own, mostly none.
        std: per channel, divided by inside the model.
        bn_momentum: share of a batch in BatchNorm's running statistics; None: the network's own.
    """

    name: str = "cnn"
    normalization: Normalization = "batch"
    activation: ActivationName | None = None
    mean: list[float] | None = None
    std: list[float] | None = None
    bn_momentum: float | None = None

    def __post_init__(self) -> None:
        """Check the ranges of the values."""
        if self.bn_momentum is not None and not 0 < self.bn_momentum <= 1:
            raise ValueError(f"model.bn_momentum must be above 0 and at most 1, got {self.bn_momentum}")


@dataclass
class Optim:
    """SGD, its schedule and the averaging of weights.

    Args:
        lr: the peak.
        momentum: of SGD.
        nesterov: look ahead.
        weight_decay: of weights.
        decay_all: decay norm parameters and biases, too.
        schedule: per step: cosine to zero, step (x 0.1 at half and at three quarters), the released code's one-cycle
            (per epoch, with its momentum), or constant.
        warmup: share of the training with a rising rate.
        clip: largest norm of the gradient; None: no limit.
        average: decay of the averaged weights; 0: no averaging.
        averaging: "all" averages BatchNorm's statistics like weights; "released" takes the raw network's.
        burn_in_lr: rate of the burn-in, constant after the warm-up; None: lr.
        burn_in_clip: largest norm of the gradient in the burn-in.
    """

    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    decay_all: bool = False
    schedule: Schedule = "cosine"
    warmup: float = 0.025
    clip: float | None = None
    average: float = 0.995
    averaging: Averaging = "all"
    burn_in_lr: float | None = None
    burn_in_clip: float | None = None

    def __post_init__(self) -> None:
        """Check the ranges of the values."""
        _positive("optim.lr", self.lr)
        _positive("optim.clip", self.clip)
        _positive("optim.burn_in_lr", self.burn_in_lr)
        _positive("optim.burn_in_clip", self.burn_in_clip)
        _share("optim.momentum", self.momentum)
        _share("optim.average", self.average)
        _share("optim.warmup", self.warmup)
        _at_least("optim.weight_decay", self.weight_decay, 0)


@dataclass
class Train:
    """How long, in what steps.

    Args:
        epochs: of the method, after the burn-in.
        burn_in: epochs of another method first.
        burn_in_method: natural training; or at: adversarial training at eval.radius, ten steps of a quarter of it.
        burn_in_from: begin with the weights of a run or checkpoint instead, or with those in a file (.safetensors, or
            .pt with tensors alone).
        batch_size: images per step of the optimizer.
        accumulate: split every batch into so many parts, to save memory.
        precision: fp32, or bf16 for the network's inside, where the device is a GPU that has it; dyart then searches in
            fp16.
        compile: torch.compile and, on a GPU, CUDA graphs; auto: on a GPU.
        deterministic: the same bits in every run on one GPU: deterministic algorithms, uncompiled, which takes longer
            (on a CPU a run has the same bits anyway).
        device: auto, cpu, cuda or cuda:1.
        devices: processes per machine, one for each GPU; they share every batch, so that the steps are those of one,
            but for the statistics of BatchNorm (sync_batchnorm).
        num_nodes: machines.
        strategy: of several processes: ddp, a whole network in each; fsdp is refused, with the reason.
        sync_batchnorm: BatchNorm with the statistics of the whole batch; false: of every process's own share.
        checkpoint_every: epochs between checkpoints.
        keep: so many of the newest checkpoints are kept, and the best in any case; from 2 on, a damaged one can be done
            without.
        log_every: steps between two lines of metrics.jsonl.
        skip_bad_batches: leave out a batch whose loss or gradient is not finite, and count it (skipped_steps), instead
            of stopping there; 20 in a row stop.
        early_stop: end after so many epochs without a better validation; None: never.
        loggers: in addition to metrics.jsonl; wandb and mlflow need their packages.
    """

    epochs: int = 30
    burn_in: int = 0
    burn_in_method: BurnIn = "natural"
    burn_in_from: str | None = None
    batch_size: int = 128
    accumulate: int = 1
    precision: Precision = "fp32"
    compile: Switch = "auto"
    deterministic: bool = False
    device: str = "auto"
    devices: int = 1
    num_nodes: int = 1
    strategy: Strategy = "ddp"
    sync_batchnorm: bool = False
    checkpoint_every: int = 1
    keep: int = 2
    log_every: int = 50
    skip_bad_batches: bool = False
    early_stop: int | None = None
    loggers: list[Logger] = field(default_factory=lambda: ["csv", "tensorboard"])

    def __post_init__(self) -> None:
        """Check the ranges of the values."""
        self.burn_in_from = _place(self.burn_in_from)
        for name in ("epochs", "batch_size", "accumulate", "checkpoint_every", "keep", "log_every", "early_stop"):
            _at_least(f"train.{name}", getattr(self, name), 1)
        _at_least("train.devices", self.devices, 1)
        _at_least("train.num_nodes", self.num_nodes, 1)
        _at_least("train.burn_in", self.burn_in, 0)
        if self.batch_size % self.accumulate:
            raise ValueError(f"train.accumulate {self.accumulate} does not divide train.batch_size {self.batch_size}")
        if self.burn_in and self.burn_in_from:
            raise ValueError(
                f"train.burn_in is {self.burn_in}, and excludes train.burn_in_from: to begin with weights, "
                "add --train.burn_in 0"
            )
        if self.deterministic and self.compile == "on":
            raise ValueError("train.deterministic needs train.compile off: compiled sums have no fixed order")


@dataclass
class Eval:
    """How checkpoints are compared while training, and what is measured afterwards.

    Args:
        radius: of the validation attack after every epoch.
        steps: of that attack.
        norm: of radius and radii: that of the method, if it has one.
        every: epochs between two validations.
        select: the best epoch has the highest robust accuracy on the hold-out (natural training: clean accuracy), as
            the method says; or the highest mean of both, which is less a matter of chance with few images, and does not
            give up much of one for a little of the other.
        train_examples: measure clean and robust accuracy on so many of the training images, too, at every validation
            and as it does; 0: none; None: as many as are held out, where the training is watched (monitor.every), else
            none. So many more cost as much as the validation itself.
        radii: of the evaluation after training.
        attack: of the evaluation after training: pgd (20 steps, margin loss), margins (one boundary search for all
            radii), or none.
    """

    radius: float = 8 / 255
    steps: int = 20
    norm: AttackNorm = "linf"
    every: int = 1
    select: Select = "method"
    train_examples: int | None = None
    radii: list[float] = field(default_factory=lambda: [2 / 255, 4 / 255, 8 / 255, 12 / 255, 16 / 255])
    attack: Attack = "pgd"

    def __post_init__(self) -> None:
        """Check the ranges of the values."""
        _positive("eval.radius", self.radius)
        for name in ("steps", "every"):
            _at_least(f"eval.{name}", getattr(self, name), 1)
        _at_least("eval.train_examples", self.train_examples, 0)
        for radius in self.radii:
            _positive("eval.radii", radius)
        if not self.radii and self.attack != "none":
            raise ValueError(f"eval.radii is empty: give eval.attack {self.attack} a radius, or set eval.attack none")


@dataclass
class Monitor:
    """Watching the decision boundary while training: margins and speeds of a few examples, in monitor.jsonl.

    Args:
        every: steps from one observation to the next, e.g. 50; None: no observations.
        examples: how many are watched.
        probe: which: the first that are trained on (train), the same at every observation, so that their margins can
            be followed; the first of the hold-out (holdout): does it carry over? Or the first of the step's own batch
            (batch), as in the paper: the share of negative speed is lower there than among examples that the step has
            not seen.
        radius: examples with a margin below it are vulnerable; None: eval.radius.
        steps: of the boundary search.
    """

    every: int | None = None
    examples: int = 64
    probe: Probe = "train"
    radius: float | None = None
    steps: int = 20

    def __post_init__(self) -> None:
        """Check the ranges of the values."""
        for name, least in (("every", 1), ("examples", 1), ("steps", 2)):
            _at_least(f"monitor.{name}", getattr(self, name), least)
        _positive("monitor.radius", self.radius)


@dataclass
class Config:
    """A training, whole.

    Args:
        recipe: the name it came from.
        note: what the recipe reproduces, and whose values it has.
        seed: of everything random.
        out: the run's folder; None: runs/ and the recipe's name.
        method: name and hyper-parameters.
        data: which images.
        model: which network.
        optim: the optimizer.
        train: how long.
        eval: how it is measured.
        monitor: how it is watched.
    """

    recipe: str = ""
    note: str = ""
    seed: int = 0
    out: str | None = None
    method: dict[str, Any] = field(default_factory=lambda: {"name": "dyart"})
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    optim: Optim = field(default_factory=Optim)
    train: Train = field(default_factory=Train)
    eval: Eval = field(default_factory=Eval)
    monitor: Monitor = field(default_factory=Monitor)

    def __post_init__(self) -> None:
        """Refuse what torch's generators do not take."""
        self.out = _place(self.out)
        _at_least("seed", self.seed, 0)
        _at_most("seed", self.seed, 2**63 - 1)


SECTIONS: dict[str, type[Any]] = {
    "data": Data,
    "model": Model,
    "optim": Optim,
    "train": Train,
    "eval": Eval,
    "monitor": Monitor,
}


def _place(path: str | None) -> str | None:
    """Return a path with ~ as the user's folder: in a recipe, and after --key=, no shell has done that."""
    return None if path is None else os.path.expanduser(path)


def _positive(name: str, value: float | None) -> None:
    if value is not None and not value > 0:
        raise ValueError(f"{name} must be positive, got {value}")
    _at_most(name, value, LARGEST)


def _share(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be at least 0 and below 1, got {value}")


def _at_least(name: str, value: float | None, least: float) -> None:
    if value is not None and not value >= least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    _at_most(name, value, LARGEST)


def _at_most(name: str, value: float | None, most: float) -> None:
    if value is not None and value > most:
        raise ValueError(f"{name} must be at most {most:.4g}, got {value:.4g}")
