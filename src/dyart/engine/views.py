"""Views of one network for the phases of a step, each compiled once.

Compiling one module and then toggling its mode or its parameters' flags compiles it again and again. So the search has
a view of its own: a second module over the same storage, always in eval mode, without parameter gradients.
"""

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import torch
from torch import Tensor, nn

from dyart.boundary.model import Model, for_evaluation
from dyart.engine.fine_ends import ends_of, fine_ends
from dyart.engine.folded import FoldedView
from dyart.engine.tensors import check_shared
from dyart.recipes.config import Switch

VARIANTS = 32


def frozen_view(model: nn.Module) -> nn.Module:
    """Return a module in eval mode that shares every parameter and buffer with ``model`` and asks for no gradients.

    The optimizer's updates, which are in place, show in it at once.
    """
    shared: dict[int, object] = {}
    for parameter in model.parameters():
        shared[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=False)
    for buffer in model.buffers():
        shared[id(buffer)] = buffer
    return for_evaluation(copy.deepcopy(model, shared))


def compiled(model: nn.Module, on: bool) -> Model:
    """Return the network compiled for static shapes, or as it is."""
    if not on:
        return model
    # Views of one network share its code, and each of their shapes and modes is a variant of it.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, VARIANTS)
    return cast(Model, torch.compile(model, dynamic=False))


def wants_compile(switch: Switch, device: torch.device) -> tuple[bool, str]:
    """Return whether to compile, and one line to say why not where that was asked for or is usual."""
    if switch == "off" or (switch == "auto" and device.type != "cuda"):
        return False, ""
    if device.type == "cuda":
        try:
            import triton  # noqa: F401
        except ImportError:
            return False, "uncompiled: torch.compile on a GPU needs the package triton"
    return True, ""


class Views:
    """The network itself, to be updated, and its frozen view, to search with.

    Args:
        model: the network.
        compile: compile both; the view is folded then, and follows the network when it is refreshed.
        half: what the search computes in, under autocast; its view has finer ends then. None: in float32.
        example: a few inputs, of any values, to see which layers the ends are; None: in the order of the modules.

    Raises:
        NetworkError: a copy of the network does not share its tensors.
    """

    def __init__(
        self, model: nn.Module, compile: bool, half: torch.dtype | None = None, example: Tensor | None = None
    ) -> None:
        """Make the two; compilation happens at their first call."""
        self.model, self.half = model, half
        self.update: Model = compiled(model, compile)
        frozen = frozen_view(model)
        check_shared(model, frozen)
        ends = None if half is None else ends_of(frozen, example)
        self.folded = FoldedView(model, frozen, half) if compile else None
        self.search: Model = compiled(frozen if ends is None else fine_ends(frozen, ends), compile)

    def searching(self, device: torch.device) -> AbstractContextManager[object]:
        """Return the context in which the search's view is called."""
        return nullcontext() if self.half is None else torch.autocast(device.type, self.half)

    def refresh(self) -> None:
        """Let the search's view see the weights as they are now."""
        if self.folded is not None:
            self.folded.refresh()
