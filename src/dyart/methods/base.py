"""What a training method is: the points it trains on, and the loss at those points.

The two halves run under different conditions, which is why they are two: points are crafted with the network in eval
mode and no parameter gradients, as one static piece of work without host synchronisation (so that it can be compiled
and captured); the loss is taken in training mode. A method is one file with one class here, registered by its name.
"""

import importlib
import inspect
import pkgutil
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, ClassVar, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dyart.boundary import validation
from dyart.boundary.margins import at_least_float32
from dyart.boundary.model import Model, evaluation_mode, logits_of, ordinary, unchanged
from dyart.boundary.validation import Bounds
from dyart.data import draws
from dyart.data.loader import Batch
from dyart.data.ranks import Shard, team_here
from dyart.methods.meeting import obstacle, shard_here
from dyart.models.factory import load_named

Metrics = dict[str, Tensor]
Crafted = TypeVar("Crafted")
M = TypeVar("M", bound="type[Method[Any]]")

_REGISTERED: dict[str, "type[Method[Any]]"] = {}


class Method(ABC, Generic[Crafted]):
    """A training method. Its hyper-parameters are the arguments of its constructor.

    The engine calls ``craft`` and ``loss``; calling the object does both, in anybody's training loop. Points are
    crafted in eval mode (BatchNorm's running statistics); the loss is taken in the mode that the model is in.
    """

    name: ClassVar[str] = ""
    needs_burn_in: ClassVar[bool] = False
    """The method trains on boundary points, of which an untrained network has none worth having."""
    crafting: ClassVar[torch.dtype] = torch.bfloat16
    """What the network computes in while points are crafted, where ``train.precision`` is ``"bf16"``."""
    compiled: bool = False
    """Compile the crafting's own tensor work; the engine says so where it captures the step, on a GPU."""
    static: bool = False
    """The network is called with one shape alone; the engine says so where it compiles it."""
    crafts: ClassVar[bool] = True
    """Points are crafted from the inputs, inside the bounds."""
    bounds: Bounds = (0.0, 1.0)
    """Of inputs and points: ``(low, high)``, numbers or tensors; None: none. Radii and steps are in the same unit."""
    _checked: bool = False
    _warned: bool = False
    _calls: int = 0
    _shared_calls: int = 0

    @abstractmethod
    def craft(self, model: Model, batch: Batch) -> Crafted:
        """Return what the loss needs beside the batch, e.g. adversarial points.

        The model is in eval mode. No host synchronisation, no shape that depends on values.
        """

    @abstractmethod
    def loss(self, model: Model, batch: Batch, crafted: Crafted) -> tuple[Tensor, Metrics]:
        """Return the loss, to be differentiated, and detached scalars to log. The model is in training mode.

        Without host synchronisation the whole step is captured on a GPU; with it (``item()``, a branch on a value)
        the crafting alone.
        """

    @property
    def stage(self) -> Hashable:
        """The settings of ``craft`` and ``loss`` that change during a training.

        When this value changes, the step is captured anew.
        """
        return None

    @property
    def couples(self) -> bool:
        """Whether, by now, an example's loss depends on the others of the batch, e.g. by weights relative to theirs.

        In a loop of one's own under DistributedDataParallel, batches of such a method have a ``shard``.
        """
        return False

    def prepare(self, examples: int, device: torch.device) -> None:
        """Make room for what is kept per example; called once, before the first step or before a state is loaded.

        Args:
            examples: indices of batches are below this.
            device: where batches are.
        """

    def advance(self, fraction: float) -> None:
        """Take note that this fraction of the training is done, from 0 on; called before every epoch."""

    @contextmanager
    def perturbed(self, model: nn.Module, forward: Model, batch: Batch, crafted: Crafted) -> Iterator[None]:
        """Move the weights for as long as the loss and its gradient are taken (AWP); the optimizer's step comes after.

        Without host synchronisation, as ``loss``.

        Args:
            model: whose parameters are moved in place, in training mode.
            forward: the same network, possibly compiled, to call.
            batch: of the step.
            crafted: what was crafted for it.
        """
        yield

    def rank(self, clean: float, robust: float) -> tuple[float, float]:
        """Return what checkpoints are compared by: robust validation accuracy, then clean."""
        return robust, clean

    def state_dict(self) -> dict[str, Tensor]:
        """Return what the method keeps from step to step; most keep nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take it back."""
        if state:
            raise ValueError(f"the method {self.name!r} keeps no state, the checkpoint has {sorted(state)}")

    def __call__(self, model: Model, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Metrics]:
        """Return the loss of a batch, to be differentiated, and what to log.

        Points are crafted in eval mode (BatchNorm with its running statistics); the loss is taken in the mode that
        the model is in. Random starts differ from call to call and from process to process, and leave torch's
        generators alone.

        Where examples of a batch have a say in each other's loss (AWP, GAIRAT, MAIL with ``normalize``, DyART with
        ``relative``: see ``couples``) and the model is a DistributedDataParallel, the batch is that of all processes,
        in the order of their ranks: batches of equal size have the gradient of one process with all the examples, and
        random starts are those of that process. Every process must make the same calls, as the wrapper itself asks
        (it weighs processes alike, whatever the sizes of their batches); a call exchanges the sizes, with one host
        synchronisation. What is logged is of the process's own examples where the loss does not need more. Under
        ``no_grad`` nothing is exchanged; nor in eval mode, inside ``no_sync()`` or with ``join()``, where processes
        need not call alike, and without the wrapper around the model (in a LightningModule, say): a warning tells once
        that each process is by itself.

        The first call checks the batch (see ``check``), which costs host synchronisation; later ones have none but
        what the method itself has.
        """
        first = not self._checked
        if first:
            self.check(model, inputs, labels)
            self._checked = True
        self._check_size(inputs)
        batch = self._batch(inputs, labels, self._shard(model, inputs))
        with self._nameless():
            crafted = self.crafted(model, batch)
            if first:
                self._check_crafted(crafted)
            return self.loss_alone(model, batch, crafted)

    def _batch(self, inputs: Tensor, labels: Tensor, shard: Shard | None) -> Batch:
        """Return the batch of a call, with draws of its own."""
        if shard is None:
            rank, first = team_here().rank, 0
            self._calls = number = self._calls + 1
        else:  # counted apart: one process may have calls of its own between them, to log a loss
            rank, first = 0, shard.first
            self._shared_calls = number = self._shared_calls + 1
        index = torch.arange(first, first + len(inputs), device=inputs.device)
        key = torch.full((), draws.key(rank, "call", number), dtype=torch.int64, device=inputs.device)
        return Batch(inputs, labels, index, key, shard=shard)

    def _shard(self, model: Model, inputs: Tensor) -> Shard | None:
        """Return which examples of all processes' these are; None where they are not to be brought together."""
        if not (self.couples and torch.is_grad_enabled()) or (processes := team_here().count) == 1:
            return None
        if (reason := obstacle(model)) is None:
            return shard_here(len(inputs), inputs.device)
        if not self._warned:
            warnings.warn(
                f"the method {self.name!r} works on a whole batch, and {processes} processes run here: each takes its "
                f"own examples for the whole ({reason}). For the steps of one process with all examples, call it with "
                "the DistributedDataParallel model, or train with the engine (dyart train --devices)",
                stacklevel=3,
            )
            self._warned = True
        return None

    def check(self, model: Model, inputs: Tensor, labels: Tensor) -> None:
        """Raise unless a batch in a loop of one's own can be trained on: one forward pass, host synchronisation.

        Inputs must be inside the bounds and labels classes of the model, which must return logits. Warns of a function
        whose network is in training mode: no mode can be set through it.
        """
        crafting = self._crafting_model(model)
        if self.crafts:
            validation.check_inputs(inputs, self.bounds)
        validation.check_labels(labels, inputs)
        self._check_size(inputs)
        self.check_settings()
        if self.crafts:
            validation.warn_of_training(crafting, "Wrap it in an nn.Module, whose mode can be set", stacklevel=4)
        with evaluation_mode(crafting), unchanged(crafting, inputs.device):
            logits = validation.first_logits(crafting, inputs)
        torch.clear_autocast_cache()  # older torch would use weights cast without a graph again
        validation.check_logits(logits, len(inputs))
        validation.check_label_range(labels, logits.shape[1])

    def check_settings(self) -> None:
        """Raise or warn where settings do not suit a loop of one's own, e.g. a radius larger than the bounds allow."""

    def _check_crafted(self, crafted: Crafted) -> None:
        """Warn where there is nothing to train on in what the first call in a loop of one's own has crafted."""

    def _check_size(self, inputs: Tensor) -> None:
        if len(inputs) == 0:
            raise ValueError(f"{type(self).__name__} needs at least one example")

    @contextmanager
    def _nameless(self) -> Iterator[None]:
        """Do without what is kept per example: in anybody's training loop nobody says whose examples these are."""
        yield

    def _crafting_model(self, model: Model) -> Model:
        """Return the network that points are crafted with, where that is not the one that is trained.

        Of a DistributedDataParallel the one inside: crafting has no gradients that processes would have to share, and
        passes through the wrapper would be counted as a part of its training step.
        """
        return model.module if isinstance(model, DistributedDataParallel) else model

    def loss_alone(self, model: Model, batch: Batch, crafted: Crafted) -> tuple[Tensor, Metrics]:
        """Return ``loss`` where nobody enters ``perturbed``: in anybody's training loop."""
        return self.loss(model, batch, crafted)

    def crafted(self, model: Model, batch: Batch) -> Crafted:
        """Return ``craft`` with the model put into eval mode and left as it was."""
        device, model = batch.inputs.device, self._crafting_model(model)
        with torch.inference_mode(False), evaluation_mode(model), unchanged(model, device):
            batch = replace(batch, inputs=ordinary(batch.inputs), labels=ordinary(batch.labels))
            return self.craft(model, batch)


def check_parts(method: Method[Any], parts: int) -> None:
    """Raise if a method cannot be trained on batches that are split into parts."""
    if parts > 1 and perturbs(method):
        # Each part would have a perturbation of its own.
        raise ValueError(f"{method.name} perturbs the weights for a whole step: train.accumulate must be 1")


def perturbs(method: Method[Any]) -> bool:
    """Return whether a method moves the weights on the way to its loss."""
    return type(method).perturbed is not Method.perturbed


def classification_loss(logits: Tensor, batch: Batch) -> Tensor:
    """Return the mean cross-entropy against the batch's labels, or its label distributions after cutmix."""
    return _cross_entropy(logits, batch, "mean")


def classification_losses(logits: Tensor, batch: Batch) -> Tensor:
    """Return what ``classification_loss`` is the mean of, ``[N]``."""
    return _cross_entropy(logits, batch, "none")


def _cross_entropy(logits: Tensor, batch: Batch, reduction: str) -> Tensor:
    targets = batch.labels.long() if batch.targets is None else batch.targets
    return F.cross_entropy(at_least_float32(logits), targets, reduction=reduction)


def logits_of_both(model: Model, first: Tensor, second: Tensor, joint: bool) -> tuple[Tensor, Tensor]:
    """Return the logits at two batches, e.g. clean and adversarial images: in two passes, in this order, or in one."""
    if not joint:
        return logits_of(model(first)), logits_of(model(second))
    both = logits_of(model(torch.cat([first, second])))
    return both[: len(first)], both[len(first) :]


def accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the share of a batch that is classified as labelled."""
    return (logits.detach().argmax(dim=1) == labels).float().mean()


def start_key(batch: Batch, purpose: str) -> Tensor:
    """Return the key of a step's draws for one purpose."""
    return batch.key ^ draws.key(0, purpose)


def register(name: str) -> Callable[[M], M]:
    """Make a class known as the method ``name``."""

    def named(cls: M) -> M:
        # The same class again, from a reloaded module or a notebook's cell run twice, takes its own place.
        if name in _REGISTERED and str(_REGISTERED[name]) != str(cls):
            raise ValueError(f"the method {name!r} is registered twice: {_REGISTERED[name]} and {cls}")
        cls.name = name
        _REGISTERED[name] = cls
        return cls

    return named


def registered() -> dict[str, "type[Method[Any]]"]:
    """Return every method of this package, by name: each module in it is imported and registers its own."""
    package = importlib.import_module("dyart.methods")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"dyart.methods.{module.name}")
    awp = importlib.import_module("dyart.methods.awp")
    around = {f"{name}{awp.SUFFIX}": awp.with_awp(_REGISTERED[name]) for name in awp.LISTED if name in _REGISTERED}
    return dict(sorted((around | _REGISTERED).items()))


def find(name: str) -> "type[Method[Any]]":
    """Return the class of a method: a registered name, or ``package.module:Class`` for anybody's own.

    Either with ``-awp`` at its end is that method with adversarial weight perturbation around it.

    Raises:
        ValueError: there is none; the message names the nearest.
    """
    awp = importlib.import_module("dyart.methods.awp")
    if name.endswith(awp.SUFFIX) and (":" in name or name not in registered()):
        around: type[Method[Any]] = awp.with_awp(find(name.removesuffix(awp.SUFFIX)))
        return around
    if ":" in name:
        try:
            found = load_named(name, "method", "package.module:Class")
        except (ImportError, AttributeError, ValueError) as error:
            words = str(error).removeprefix(f"{name!r}: ").removesuffix(f", got {name!r}")  # it is named already
            raise ValueError(f"no method {name!r}: {words}") from error
        if not (inspect.isclass(found) and issubclass(found, Method)):
            raise ValueError(f"{name!r} is no subclass of dyart.methods.base.Method")
        if "name" not in vars(found):  # of its own: a subclass of AT is not "at"
            found.name = name
        return found
    methods = registered()
    if name not in methods:
        near = _with_colon(name) or get_close_matches(name.lower(), methods, 1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise ValueError(
            f"no method {name!r}{hint} Known: {', '.join(methods)}, any other with -awp, or package.module:Class"
        )
    return methods[name]


def _with_colon(name: str) -> list[str]:
    """Return ``module:Class`` for a name that is written ``module.Class``, by its capital: nothing is imported."""
    module, _, attribute = name.rpartition(".")
    return [f"{module}:{attribute}"] if module and attribute[:1].isupper() else []
