"""The user's model as attacks call it: counted, in a precision of their own, compiled where that pays.

Attacks search on a view; what they find counts only if the user's own model, in plain float32, agrees. A view neither
changes the model nor its gradients: derivatives go to the inputs alone.
"""

import copy
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dyart.boundary.margins import at_least_float32
from dyart.boundary.model import Model, for_evaluation, ieee_float32, logits_of
from dyart.engine.fine_ends import ends_of, fine_ends
from dyart.engine.folded import FoldedView
from dyart.engine.views import compiled, frozen_view

Precision = Literal["ieee", "tf32", "bf16"]
# The most examples that a compiled view takes at a time: as few as keep a GPU busy, so that little is filled up.
MOST: dict[Precision, int] = {"ieee": 250, "tf32": 250, "bf16": 1000}
# How many take little longer than one where a GPU waits for launches, by what a ResNet-18's own work takes on an H200.
ROOM: dict[Precision, int] = {"ieee": 125, "tf32": 250, "bf16": 1000}
# What torch's compiler advises where float32 is not to be TF32, which is meant here.
ADVICE = "TensorFloat32 tensor cores for float32 matrix multiplication available but not enabled"


@dataclass
class Count:
    """Examples that went through a model, forwards and backwards: the unit of cost."""

    forward: int = 0
    backward: int = 0


class View:
    """A differentiable callable from inputs to logits, float32 or better.

    Args:
        model: what is called.
        count: where passes are added up.
        precision: of its computations, forwards and backwards, whatever the caller's settings are.
        dtype: of the inputs that the model takes: attacks that know float32 alone are given a model that does.
        fast: the model compiled for batches of ``size``; larger ones are divided, smaller ones filled up with copies of
            an example, and those below a quarter go to the model itself.
        size: of those batches.
        room: how many examples take little longer than a few: a GPU launches as many kernels for one as for hundreds.
    """

    def __init__(
        self,
        model: Model,
        count: Count,
        precision: Precision = "ieee",
        dtype: torch.dtype = torch.float32,
        fast: Model | None = None,
        size: int = 0,
        room: int = 0,
    ) -> None:
        """Call nothing yet."""
        self.model, self.count, self.precision, self.dtype = model, count, precision, dtype
        self.fast, self.size, self.room, self.keeps = fast, size, room, False
        self.begun = False

    def __call__(self, x: Tensor) -> Tensor:
        """Return the logits of ``x``."""
        logits: Tensor = _Pass.apply(x, self)  # type: ignore[no-untyped-call]
        return logits

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep a forward pass for several backward passes, which takes memory until its result is dropped.

        Otherwise, and always in a compiled model, it is computed again for the second.
        """
        self.keeps = self.fast is None
        try:
            yield
        finally:
            self.keeps = False

    def plainly(self, x: Tensor) -> Tensor:
        """Return the logits of ``x`` in the view's precision, by batches of a known size on the way."""
        self.count.forward += len(x)
        parts = [x] if self.fast is None else x.split(self.size)
        logits = [self._part(part) for part in parts]
        return logits[0] if len(logits) == 1 else torch.cat(logits)

    def _part(self, x: Tensor) -> Tensor:
        if self.fast is None or len(x) < self.size / 4:
            return at_least_float32(logits_of(self.model(x.to(self.dtype))))
        short = self.size - len(x)
        filled = torch.cat([x, x[:1].detach().expand(short, *x.shape[1:])]) if short else x
        return at_least_float32(logits_of(self._fast(filled.to(self.dtype)))[: len(x)])

    def _fast(self, x: Tensor) -> object:
        """Call the compiled model, which is compiled at the first call."""
        assert self.fast is not None
        if self.begun:
            return self.fast(x)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=ADVICE)
            outputs = self.fast(x)
        self.begun = True
        return outputs

    def graph(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return a leaf like ``x`` and its logits, with what a backward pass needs."""
        with computing(self.precision, x.device), torch.enable_grad():
            leaf = x.detach().requires_grad_()
            return leaf, self.plainly(leaf)


class _Pass(torch.autograd.Function):
    """One call of a view. Its backward pass runs in the same precision as its forward pass, whoever starts it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, view: View) -> Tensor:  # noqa: ANN401
        if not ctx.needs_input_grad[0]:
            with computing(view.precision, x.device), torch.no_grad():
                return view.plainly(x)
        ctx.view, ctx.inner = view, view.graph(x)
        ctx.save_for_backward(x)
        logits: Tensor = ctx.inner[1].detach()
        return logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        view: View = ctx.view
        leaf, logits = view.graph(ctx.saved_tensors[0]) if ctx.inner is None else ctx.inner
        inner = None
        if logits.requires_grad:
            # What autocast chose on the way forwards is kept on the way back: it is not to choose again.
            with computing("tf32" if view.precision == "bf16" else view.precision, leaf.device):
                (inner,) = torch.autograd.grad(logits, leaf, gradient, retain_graph=view.keeps, allow_unused=True)
        if inner is None:
            raise ValueError(
                "the logits do not depend on the inputs through differentiable operations: gradient attacks need a "
                "model made of torch operations with gradients (no .detach(), argmax, rounding or numpy on the way)"
            )
        view.count.backward += len(leaf)
        ctx.inner = ctx.inner if view.keeps else None
        return inner, None


def attack_view(
    model: Model,
    plain: View,
    device: torch.device,
    precision: Precision,
    compile: bool,
    batch: int,
    example: Tensor | None = None,
) -> View:
    """Return the view for attacks: the ``plain`` one in plain float32; else one of an evaluation copy of the model.

    On a GPU the copy of an image network has its channels last, with which convolutions are faster there. A compiled
    copy has its BatchNorm folded. It is compiled for one size: every further one would take another minute.
    ``example``, a few inputs on the device, shows which layers the ends of the network are.
    """
    if precision == "ieee" and not compile:
        return plain
    room = room_of(device, precision, batch)
    if not isinstance(model, nn.Module):
        return View(model, plain.count, precision, plain.dtype, room=room)
    try:
        own = for_evaluation(copy.deepcopy(model)).requires_grad_(False)
    except Exception:  # whatever a user's module may refuse to be copied with: then it is called itself
        return View(model, plain.count, precision, plain.dtype, room=room)
    if device.type == "cuda" and any(isinstance(module, nn.Conv2d) for module in own.modules()):
        own = own.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    half = torch.bfloat16 if precision == "bf16" and plain.dtype == torch.float32 else None
    frozen = frozen_view(own) if compile else own
    ends = ends_of(frozen, example) if half else None
    folded = FoldedView(own, frozen, half).module if compile else frozen
    folded = folded if ends is None else fine_ends(folded, ends)
    if not compile:
        return View(folded, plain.count, precision, plain.dtype, room=room)
    fast, size = compiled(folded, compile), min(batch, MOST[precision])
    return View(folded, plain.count, precision, plain.dtype, fast, size, room)


def room_of(device: torch.device, precision: Precision, batch: int) -> int:
    """Return how many of the ``batch`` examples that fit a view takes at little more cost than a few."""
    return min(batch, ROOM[precision]) if device.type == "cuda" else 0


def computing(precision: Precision, device: torch.device) -> AbstractContextManager[None]:
    """Return a context in which float32 computations have this precision."""
    return {"ieee": ieee_float32, "tf32": _tf32, "bf16": _bf16}[precision](device)


@contextmanager
def _bf16(device: torch.device) -> Iterator[None]:
    with torch.autocast(device.type, dtype=torch.bfloat16):
        yield


@contextmanager
def _tf32(device: torch.device) -> Iterator[None]:
    """Let matrix products and convolutions round their inputs to TF32. Two sets of switches, by release of torch."""
    backends: Any = torch.backends
    matmul, cudnn = backends.cuda.matmul, backends.cudnn
    with ieee_float32(device):  # which puts everything back
        if hasattr(matmul, "fp32_precision"):
            matmul.fp32_precision = cudnn.conv.fp32_precision = cudnn.rnn.fp32_precision = "tf32"
        else:
            matmul.allow_tf32 = cudnn.allow_tf32 = True
        yield
