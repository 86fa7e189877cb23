"""From a name to a network."""

import difflib
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import get_args

import torch
from torch import nn

from dyart.boundary.validation import check_choice, check_count
from dyart.models.factory import call_factory, is_factory, load_factory
from dyart.models.layers import (
    ACTIVATIONS,
    Activation,
    ActivationName,
    InputNormalization,
    Normalization,
    replace_batch_norm,
    set_batch_norm_momentum,
)
from dyart.models.residual import PreActResNet18, ResNet18, WideResNet
from dyart.models.small import MLP, SmallCNN

CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_STD = (0.2471, 0.2435, 0.2616)


@dataclass(frozen=True)
class Network:
    """One row of the table: how to make a network, and its defaults."""

    make: Callable[[int, int, Activation, nn.Module], nn.Module]
    """From the number of channels (of features, if it does not take images), of classes, activation, first layer."""
    images: bool = True
    activation: ActivationName = "relu"
    normalizes_cifar: bool = False


NETWORKS: dict[str, Network] = {
    "wrn28-10": Network(
        partial(WideResNet, 28, 10, same=True, momentum=0.01), activation="silu", normalizes_cifar=True
    ),
    "wrn34-10": Network(partial(WideResNet, 34, 10, same=False, momentum=0.1)),
    "preactresnet18": Network(PreActResNet18),
    "resnet18": Network(ResNet18),
    "cnn": Network(SmallCNN),
    "mlp": Network(MLP, images=False),
}

NAMES: tuple[str, ...] = tuple(NETWORKS)
"""The networks that ``build`` knows by name."""


def build(
    name: str,
    classes: int,
    shape: tuple[int, ...],
    *,
    normalization: Normalization = "batch",
    activation: ActivationName | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    seed: int | None = None,
    bn_momentum: float | None = None,
) -> nn.Module:
    """Return a network with fresh weights, in training mode, on PyTorch's default device and dtype.

    ``wrn28-10`` is the paper's: SiLU, "SAME" padding, BatchNorm momentum 0.01, CIFAR's mean and standard deviation
    inside. ``wrn34-10`` is that of the usual baselines: ReLU, symmetric padding, momentum 0.1. ``preactresnet18`` and
    ``resnet18`` have a 3x3 stem of stride 1. ``cnn`` and ``mlp`` train in a minute on a CPU.

    A name ``package.module:factory`` calls ``factory(classes=..., shape=...)``, with those of the two, and of
    ``normalization``, ``activation``, ``mean``, ``std`` and ``bn_momentum`` if given, that its signature names. What it
    does not name is done here where that is possible: every BatchNorm replaced for "group" or given the momentum, the
    network put behind an ``InputNormalization`` for a mean and std (as ``model.network``, which is then where its
    weights are loaded).

    Args:
        name: one of ``NAMES``, or ``package.module:factory``.
        classes: number of logits, 2 or more.
        shape: of one example: (channels, height, width) for images of any size; ``mlp`` takes any shape.
        normalization: layers between convolutions: "batch" for BatchNorm, "group" for GroupNorm with gcd(32, channels)
            groups. Convolutions and linear layers of one seed are the same for both. ``mlp`` has no such layers, and
            this changes nothing there.
        activation: None for the network's own: SiLU in ``wrn28-10``, ReLU elsewhere.
        mean: of the input channels, for a normalisation inside the model; one number per channel, and ``std`` too. None
            for the network's own: CIFAR's in ``wrn28-10`` for three channels (mean zero and std one switch it off),
            none elsewhere.
        std: of the input channels.
        seed: draws the weights from this seed alone and leaves PyTorch's global random state as it was; None: from the
            global state.
        bn_momentum: share of a batch in BatchNorm's running statistics, above 0 and at most 1, in every BatchNorm; None
            for the network's own: 0.01 in ``wrn28-10``, 0.1 elsewhere. GroupNorm has no such statistics: ignored there.
    """
    shape = _checked_shape(name, shape)
    check_count("classes", classes, 2)
    check_choice("normalization", normalization, get_args(Normalization))
    if activation is not None:
        check_choice("activation", activation, tuple(ACTIVATIONS))
    if bn_momentum is not None and not 0 < bn_momentum <= 1:
        raise ValueError(f"bn_momentum must be above 0 and at most 1, got {bn_momentum}")
    if (mean is None) != (std is None):
        raise ValueError(f"give both mean and std, or neither: {'std' if std is None else 'mean'} is missing")
    if mean is not None and len(mean) != shape[0]:
        raise ValueError(f"mean has {len(mean)} numbers, but inputs of shape {shape} have {shape[0]} channels")
    if is_factory(name):
        return _own(name, classes, shape, normalization, activation, mean, std, seed, bn_momentum)
    with _seeded(seed):
        network = NETWORKS[name]
        if mean is None and network.normalizes_cifar and shape[0] == len(CIFAR_MEAN):
            mean, std = CIFAR_MEAN, CIFAR_STD
        size = shape[0] if network.images else math.prod(shape)
        act = ACTIVATIONS[activation or network.activation]
        model = network.make(size, classes, act, _input_layer(mean, std, shape))
        if bn_momentum is not None:
            set_batch_norm_momentum(model, bn_momentum)
        return replace_batch_norm(model) if normalization == "group" else model


def _checked_shape(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape as a tuple, after checking the name and that the shape fits it."""
    if not is_factory(name) and name not in NETWORKS:
        near = difflib.get_close_matches(name.lower(), NAMES, n=1, cutoff=0.3)
        hint = f", did you mean {near[0]!r}?" if near else "."
        raise ValueError(
            f"there is no network {name!r}{hint} The names are {', '.join(NAMES)}; write your own as "
            "package.module:factory"
        )
    shape = tuple(shape)
    if not shape:
        raise ValueError("shape must be that of one example, e.g. (3, 32, 32) or (2,), got ()")
    for size in shape:
        check_count("every size in shape", size, 1)
    if not is_factory(name) and NETWORKS[name].images and len(shape) != 3:
        raise ValueError(f"{name!r} takes images: shape must be (channels, height, width), got {shape}; see 'mlp'")
    return shape


def _input_layer(mean: Sequence[float] | None, std: Sequence[float] | None, shape: tuple[int, ...]) -> nn.Module:
    if mean is None or std is None:
        return nn.Identity()
    return InputNormalization(mean, std, spatial=len(shape) - 1)


def _own(
    name: str,
    classes: int,
    shape: tuple[int, ...],
    normalization: str,
    activation: str | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    seed: int | None,
    bn_momentum: float | None,
) -> nn.Module:
    """Build a network of the user's and do what its factory leaves undone."""
    asked = {"normalization": normalization, "activation": activation, "bn_momentum": bn_momentum}
    options = {key: value for key, value in {**asked, "mean": mean, "std": std}.items() if value is not None}
    with _seeded(seed):
        factory = load_factory(name)
    with _seeded(seed):  # anew: the first import of a module may draw numbers, which the second does not
        model, done = call_factory(name, factory, {"classes": classes, "shape": shape}, options, shape)
    if activation is not None and "activation" not in done:
        raise ValueError(f"activation={activation!r} was asked for, but {name!r} takes no argument `activation`")
    if bn_momentum is not None and "bn_momentum" not in done:
        set_batch_norm_momentum(model, bn_momentum)
    if normalization == "group" and "normalization" not in done:
        model = replace_batch_norm(model)
    left = {"mean", "std"} - done
    if mean is None or not left:
        return model
    if len(left) == 1:
        raise ValueError(f"{name!r} takes only one of `mean` and `std`: let it take both, or neither")
    return nn.Sequential(OrderedDict(normalize=_input_layer(mean, std, shape), network=model))


@contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    """Draw from a seed of our own, and restore the state of the generators that weights are drawn from."""
    if seed is None:
        yield
        return
    device = torch.get_default_device()
    elsewhere = device.type not in ("cpu", "meta")
    # torch.manual_seed would seed every device's generator; only these two are saved.
    with torch.random.fork_rng(devices=[device] if elsewhere else [], device_type=device.type if elsewhere else "cuda"):
        torch.default_generator.manual_seed(seed)
        if elsewhere:
            torch.get_device_module(device).manual_seed(seed)
        yield
