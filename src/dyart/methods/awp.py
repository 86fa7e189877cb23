"""AWP: adversarial weight perturbation (Wu et al., NeurIPS 2020), around any method: ``at-awp``, ``trades-awp``, ...

    theta <- theta - lr grad L(theta + gamma v),   v_l = grad_l L(theta) ||theta_l||_F / ||grad_l L(theta)||_F

with L the wrapped method's loss at its points, crafted at theta, and l the tensors of more than one dimension whose
name has "weight" in it: convolutions and linear layers. The gradient for v is one more training-mode pass, from which
BatchNorm's running statistics are protected. What a method logs about a batch is what that pass saw, at theta.

The weights are back before the optimizer's step: weight decay acts on theta. The released code steps at theta + gamma v
and subtracts gamma v afterwards, the same but for weight decay, which acts on the moved weights there (a difference of
lr * decay * gamma v). In anybody's loop the method is a loss like any other, with this value and gradient.
"""

import copyreg
import inspect
import math
import types
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, ClassVar, SupportsIndex

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel

from dyart.boundary.model import Model, by_all_names, unchanged
from dyart.data import ranks
from dyart.data.loader import Batch
from dyart.methods.base import Method, Metrics, find
from dyart.methods.constructor import settings_of

SUFFIX = "-awp"
# Shown in lists; every other method's name with the suffix works as well.
LISTED = ("at", "trades", "dyart")
# Gamma and warm-up: AT-AWP's, and TRADES-AWP's for all others.
DEFAULTS = {"at": (0.01, 0.0)}
OTHER_DEFAULTS = (0.005, 0.05)
TINY = 1e-20
MEANINGS = (
    "    gamma: size of the weights' perturbation, relative to the weights; 0: none.",
    "    awp_warmup: fraction of the training before the first perturbation.",
)

Move = tuple[str, nn.Parameter, Tensor]


class AWP(Method[Any]):
    """What ``with_awp`` puts in front of a method's class; everything else passes through to that.

    Args:
        settings: of the wrapped method.
        gamma: size of the weights' perturbation, relative to the weights; 0: none.
        awp_warmup: fraction of the training before the first perturbation.
    """

    around: ClassVar[type[Method[Any]]]
    """The wrapped method's class."""

    def __init__(self, *settings: Any, gamma: float, awp_warmup: float, **named: Any) -> None:  # noqa: ANN401
        """Check and keep the settings."""
        if not 0 <= gamma < math.inf:
            raise ValueError(f"gamma must be finite and at least 0, got {gamma}")
        if not 0 <= awp_warmup <= 1:
            raise ValueError(f"awp_warmup is a fraction of the training, from 0 to 1, got {awp_warmup}")
        self.gamma, self.awp_warmup = gamma, awp_warmup
        super().__init__(*settings, **named)  # which may call advance
        # Where nobody says how much of the training is done, there is no warm-up.
        self.awp_active = True
        self._unmoved: Metrics = {}

    def advance(self, fraction: float) -> None:
        """Begin once the warm-up is over."""
        super().advance(fraction)
        self.awp_active = fraction >= self.awp_warmup

    @property
    def stage(self) -> Hashable:
        """Steps before and after the warm-up's end are captured apart."""
        return super().stage, self.awp_active

    @property
    def couples(self) -> bool:
        """The perturbation is the whole batch's."""
        return super().couples or (self.awp_active and self.gamma > 0)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:  # noqa: ANN401
        """Be pickled by the wrapped class: no module has a name for the one that ``with_awp`` makes."""
        cls, usual = type(self), super().__reduce_ex__(max(2, int(protocol)))
        if "around" not in vars(cls) or isinstance(usual, str) or usual[0] is not copyreg.__newobj__:  # type: ignore[attr-defined]
            return usual  # a class of somebody's own, or a way of its own
        _, (_, *given), *state = usual
        return _new, (cls.around, cls.name, *given), *state

    @contextmanager
    def perturbed(self, model: nn.Module, forward: Model, batch: Batch, crafted: Any) -> Iterator[None]:  # noqa: ANN401
        """Move the weights towards a larger loss, and put back exactly what was there."""
        with super().perturbed(model, forward, batch, crafted):
            moves, self._unmoved = self.awp_moves(model, forward, batch, crafted)
            before = [(weight, weight.detach().clone()) for _, weight, _ in moves]
            try:
                with torch.no_grad():
                    for _, weight, move in moves:
                        weight.add_(move)
                del moves
                # Autocast keeps the weights of the pass above in bfloat16, as they were.
                torch.clear_autocast_cache()
                yield
            finally:
                with torch.no_grad():
                    for weight, old in before:
                        weight.copy_(old)
                torch.clear_autocast_cache()
                self._unmoved = {}

    def loss(self, model: Model, batch: Batch, crafted: Any) -> tuple[Tensor, Metrics]:  # noqa: ANN401
        """Return the wrapped method's loss where the weights are, and what to log of where they belong."""
        loss, metrics = super().loss(model, batch, crafted)  # type: ignore[safe-super]  # that of the wrapped method
        return loss, metrics | self._unmoved

    def loss_alone(self, model: Model, batch: Batch, crafted: Any) -> tuple[Tensor, Metrics]:  # noqa: ANN401
        """Return the loss at the moved weights, as a function of the weights where they are.

        Of a DataParallel the network inside is called, on one device: its copies would not have the moved weights.
        """
        while isinstance(model, nn.DataParallel):
            model = model.module
        if not isinstance(model, nn.Module):
            raise TypeError(
                f"the method {self.name!r} moves the network's weights: it needs the nn.Module that has them, got "
                f"{type(model).__name__}"
            )
        # What is inside a DistributedDataParallel is perturbed without it: its hooks are for one backward pass a step.
        inner, prefix = (model.module, "module.") if isinstance(model, DistributedDataParallel) else (model, "")
        moves, unmoved = self.awp_moves(inner, inner, batch, crafted)
        moved = {prefix + name: weight + move for name, weight, move in moves}
        loss, metrics = super().loss_alone(_Moved(model, moved), batch, crafted)
        return loss, metrics | unmoved

    def awp_moves(
        self,
        model: nn.Module,
        forward: Model,
        batch: Batch,
        crafted: Any,  # noqa: ANN401
    ) -> tuple[list[Move], Metrics]:
        """Return gamma v for every weight, by name, and what to log; nothing during the warm-up.

        Buffers, gradients, random generators and what the wrapped method keeps per example stay as they are; but a
        step that is recorded as a CUDA graph draws its dropout twice.
        """
        weights = [(name, p) for name, p in model.named_parameters() if p.requires_grad and _is_moved(name, p)]
        if not (weights and self.awp_active and self.gamma > 0):
            return [], {}
        kept = {name: tensor.clone() for name, tensor in self.state_dict().items()}
        tensors = [weight for _, weight in weights]
        with unchanged(model, batch.inputs.device), torch.enable_grad():
            loss, seen = self.loss(forward, batch, crafted)
            gradients = ranks.summed(torch.autograd.grad(loss, tensors, allow_unused=True), tensors, batch.shard)
        if kept:
            self.load_state_dict(kept)
        pairs = zip(weights, gradients, strict=True)
        return [(name, w, self.gamma * _scaled(g, w.detach())) for (name, w), g in pairs if g is not None], seen


class _Moved(nn.Module):
    """A network at other weights; its modes are those of the network itself."""

    def __init__(self, model: nn.Module, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.model, self.weights = model, by_all_names(model, weights)
        self.training = model.training

    def forward(self, x: Tensor) -> Any:  # noqa: ANN401
        return functional_call(self.model, self.weights, (x,), tie_weights=False)


@cache
def with_awp(cls: type[Method[Any]]) -> type[Method[Any]]:
    """Return a method's class with AWP around it: its settings, ``gamma`` and ``awp_warmup``.

    Raises:
        ValueError: the class has a setting of one of these names, e.g. because it has AWP around it already.
    """
    own = settings_of(cls)
    added = dict(zip(("gamma", "awp_warmup"), DEFAULTS.get(cls.name, OTHER_DEFAULTS), strict=True))
    if taken := sorted({parameter.name for parameter in own} & added.keys()):
        raise ValueError(f"no AWP around {cls.name or cls.__name__!r}: it has settings {taken} of its own")

    def __init__(self: AWP, *settings: Any, **named: Any) -> None:  # noqa: ANN401, N807
        AWP.__init__(self, *settings, **{**added, **named})

    # One signature of both, for whoever reads it: the recipes' parser, help().
    __init__.__doc__ = AWP.__init__.__doc__
    types_ = {parameter.name: parameter.annotation for parameter in own if parameter.annotation is not parameter.empty}
    __init__.__annotations__ = types_ | dict.fromkeys(added, float) | {"return": None}
    __init__.__dict__["__signature__"] = _joined(own, added)
    named = {
        "__init__": __init__,
        "__doc__": _documented(inspect.getdoc(cls) or ""),
        "__module__": __name__,
        "name": f"{cls.name}{SUFFIX}",
        "around": cls,
    }
    return types.new_class(f"{cls.__name__}WithAWP", (AWP, cls), exec_body=lambda body: body.update(named))


def _new(around: type[Method[Any]], name: str, *given: Any) -> Method[Any]:  # noqa: ANN401
    """Return an object of a class with AWP around it that knows no settings yet, for pickle."""
    # By its name where the class got one from that: another process may not have asked for it yet.
    cls = find(name) if ":" in name else with_awp(around)
    made: Method[Any] = cls.__new__(cls, *given)
    return made


def _is_moved(name: str, parameter: nn.Parameter) -> bool:
    return parameter.ndim > 1 and "weight" in name


def _scaled(gradient: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient with the weight's length."""
    scaled: Tensor = gradient * (torch.linalg.vector_norm(weight) / (torch.linalg.vector_norm(gradient) + TINY))
    return scaled


def _joined(own: list[inspect.Parameter], added: dict[str, float]) -> inspect.Signature:
    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    last = [parameter for parameter in own if parameter.kind is inspect.Parameter.VAR_KEYWORD]
    only = inspect.Parameter.KEYWORD_ONLY
    new = [inspect.Parameter(name, only, default=value, annotation=float) for name, value in added.items()]
    own = [parameter for parameter in own if parameter not in last]
    return inspect.Signature([first, *own, *new, *last], return_annotation=None)


def _documented(text: str) -> str:
    """Return a docstring that has AWP's settings among its ``Args:``."""
    before, found, after = text.partition("Args:\n")
    settings = "\n".join(MEANINGS)
    body = f"{before}Args:\n{settings}\n{after}" if found else f"{text}\n\nArgs:\n{settings}"
    return f"With adversarial weight perturbation, which costs one more training step's passes:\n\n{body}"
