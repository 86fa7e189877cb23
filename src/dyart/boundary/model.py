"""What this layer knows of a model: a callable from inputs to logits, left exactly as it was found."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

Model = Callable[[Tensor], Any]

_BATCH_NORM = nn.modules.batchnorm._BatchNorm


def logits_of(output: object) -> Tensor:
    """Return the logits in a model's output: the tensor itself, or its ``.logits`` (Hugging Face)."""
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor):
        raise TypeError(
            f"the model returned {type(output).__name__}; it must return a tensor of logits [N, K] or an object "
            "with a .logits attribute: wrap it, e.g. lambda x: model(x)[0]"
        )
    if logits.ndim == 1 or (logits.ndim == 2 and logits.shape[1] == 1):
        raise ValueError(
            f"the model returned logits of shape {tuple(logits.shape)}: one logit per example. A binary model with "
            "one logit z needs two classes: wrap it so that it returns "
            "torch.stack([-z.flatten(), z.flatten()], 1) / 2"
        )
    if logits.ndim != 2:
        raise ValueError(f"the model must return logits [N, K], got shape {tuple(logits.shape)}")
    return logits


def has_training_batch_norm(model: Model) -> bool:
    """Return whether some BatchNorm layer of ``model`` is in training mode."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    return any(isinstance(module, _BATCH_NORM) and module.training for module in modules)


def underlying(model: nn.Module) -> nn.Module:
    """Return the module inside ``torch.compile`` and (Distributed)DataParallel wrappers."""
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, parallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


@contextmanager
def evaluation_mode(model: Model) -> Iterator[None]:
    """Put every module in eval mode (BatchNorm uses its running statistics), and each back as it was."""
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    training = [module for module in modules if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def unchanged(model: Model, device: torch.device) -> Iterator[None]:
    """Leave buffers and the global random state as they are, whatever the model does to them.

    Parameters, their gradients and flags need no guard: nothing in this package writes to them.
    """
    buffers = list(model.buffers()) if isinstance(model, nn.Module) else []
    copies = [(buffer, buffer.detach().clone(), buffer._version) for buffer in buffers]
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, copy, version in copies:
                    if buffer._version != version:
                        buffer.copy_(copy)


@contextmanager
def ieee_float32(device: torch.device) -> Iterator[None]:
    """Compute in plain float32: no TF32, no autocast. Gradients on, whatever the caller's mode."""
    matmul, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn
