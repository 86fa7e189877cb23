"""A network in half precision whose two ends are finer: what it sees, and what it says.

bfloat16 has 8 bits. Between 1/2 and 1 it knows 128 values, as many as a pixel has: moves of less than 1/255 are lost or
doubled. And logits around 10 are multiples of 1/16. Where margins are small that misleads a boundary search: an example
can lie on the other side of the boundary than in the network itself. float16 has 11 bits, which is still coarse for
single pixels. Both ends cost next to nothing.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from dyart.boundary.model import logits_of

# Of a first convolution: where there are as few, GPUs fill them up to 8 anyway.
CHANNELS = 4
# The bits of a float32 that a half precision keeps: sign, exponent and 7 or 10 bits of the fraction.
CUT = {torch.bfloat16: -1 << 16, torch.float16: -1 << 13}


class FirstConv2d(nn.Conv2d):
    """A convolution of one group that under autocast takes its inputs in two parts, to lose none of their bits."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the outputs."""
        weight = torch.cat((self.weight, self.weight), dim=1)
        outputs: Tensor = self._conv_forward(torch.cat(_parts(input), dim=-3), weight, self.bias)
        return outputs


class FirstLinear(nn.Linear):
    """The same, linear."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the outputs."""
        weight = torch.cat((self.weight, self.weight), dim=1)
        return functional.linear(torch.cat(_parts(input), dim=-1), weight, self.bias)


class LastLinear(nn.Linear):
    """A linear layer in float32, whatever autocast says, and whatever its weights are stored in."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the outputs, float32 or better."""
        with torch.autocast(input.device.type, enabled=False):
            wide = torch.promote_types(input.dtype, torch.float32)
            bias = None if self.bias is None else self.bias.to(wide)
            return functional.linear(input.to(wide), self.weight.to(wide), bias)


class Ends(NamedTuple):
    """The layers at the two ends of a network, where there are any of a kind that can be made finer."""

    first: nn.Module | None
    last: nn.Module | None


def ends_of(network: nn.Module, example: Tensor | None = None) -> Ends:
    """Return the layer that sees the inputs and the one that returns the logits.

    Args:
        network: in eval mode.
        example: a few inputs, of any values: one pass shows who does. None: in the order of the modules.
    """
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    if example is None:
        return Ends(layers[0], layers[-1]) if layers else Ends(None, None)
    seen: list[tuple[nn.Module, Tensor]] = []

    def note(layer: nn.Module, _: object, output: Tensor) -> None:
        seen.append((layer, output))

    hooks = [layer.register_forward_hook(note) for layer in layers]
    try:
        with torch.no_grad():
            logits = logits_of(network(example))
    except Exception:  # the search itself will say what is wrong
        return Ends(None, None)
    finally:
        for hook in hooks:
            hook.remove()
    last = next((layer for layer, output in seen if output.data_ptr() == logits.data_ptr()), None)
    return Ends(seen[0][0] if seen else None, last)


def fine_ends(network: nn.Module, ends: Ends | None = None) -> nn.Module:
    """Return the network, its first and last layer finer from now on where they are of a kind that can be.

    Layers with hooks or of derived classes stay as they are.

    Args:
        network: a copy for the purpose; no tensor of it changes.
        ends: its layers; None: the first and the last in the order of the modules.
    """
    first, last = ends or ends_of(network)
    if type(last) is nn.Linear and _unhooked(last):
        last.__class__ = LastLinear
    if type(first) is nn.Linear and _unhooked(first):
        first.__class__ = FirstLinear
    if type(first) is nn.Conv2d and _unhooked(first) and first.groups == 1 and first.in_channels <= CHANNELS:
        first.__class__ = FirstConv2d
    return network


def _parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return two parts of the inputs, of which autocast does not round the first; the gradient goes through that.

    The first is cut off by its bits. Compilers take a rounding there and back for nothing, and leave it out.
    """
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    if dtype not in CUT or x.dtype != torch.float32:
        return x, torch.zeros_like(x)
    rest = x - (x.detach().view(torch.int32) & CUT[dtype]).view(torch.float32)
    rest = rest.detach()
    return x - rest, rest


def _unhooked(layer: nn.Module) -> bool:
    return not layer._forward_pre_hooks and not layer._forward_hooks
