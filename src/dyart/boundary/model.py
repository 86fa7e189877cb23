"""What this layer knows of a model: a callable from inputs to logits, left exactly as it was found."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Model = Callable[[Tensor], Any]

_BATCH_NORM = nn.modules.batchnorm._BatchNorm
_MODAL = (_BATCH_NORM, nn.modules.dropout._DropoutNd)
_RECURRENT = (nn.RNN.forward, nn.LSTM.forward, nn.GRU.forward)


def logits_of(output: object) -> Tensor:
    """Return the logits in a model's output: the tensor itself, or its ``.logits`` (Hugging Face)."""
    logits = getattr(output, "logits", output)
    if isinstance(output, np.ndarray):
        raise TypeError(
            "the model returned an array of numpy, through which no gradient goes: let it return the tensor itself, "
            "without .detach() and .numpy()"
        )
    if not isinstance(logits, Tensor):
        part = "0"
        if isinstance(output, Mapping):
            part = repr("logits" if "logits" in output else next(iter(output), "logits"))
        raise TypeError(
            f"the model returned {type(output).__name__}; it must return a tensor of logits [N, K] or an object with a "
            f".logits attribute. In eval mode wrap it, e.g. lambda x: model(x)[{part}]; to train it, in a module (if "
            "it returns more than logits in training mode alone, as with auxiliary outputs, end the line with: if "
            "self.training else self[0](x)), by which its mode can be set: "
            f"class Logits(nn.Sequential): forward = lambda self, x: self[0](x)[{part}]"
        )
    if logits.ndim == 1 or (logits.ndim == 2 and logits.shape[1] == 1):
        raise ValueError(
            f"the model returned logits of shape {tuple(logits.shape)}: one logit per example, or no batch dimension. "
            "A binary model with one logit z, before any sigmoid, needs two classes: wrap it so that it returns "
            "torch.stack([-z.flatten(), z.flatten()], 1) / 2"
        )
    if logits.ndim != 2 or logits.shape[1] == 0:
        raise ValueError(f"the model must return logits [N, K], got shape {tuple(logits.shape)}")
    if not logits.is_floating_point():
        raise TypeError(f"logits must be floating point, got {logits.dtype}")
    return logits


def has_training_batch_norm(model: Model) -> bool:
    """Return whether some BatchNorm layer of ``model`` is in training mode."""
    return any(isinstance(module, _BATCH_NORM) and module.training for module in _modules(model))


def has_batch_statistics(model: Model) -> bool:
    """Return whether some BatchNorm layer of ``model`` has no running statistics, and takes the batch's in any mode."""
    return any(isinstance(module, _BATCH_NORM) and module.running_mean is None for module in _modules(model))


def training_behind(model: Model) -> list[str]:
    """Return the names of networks that a plain function refers to, and that compute otherwise in their training mode.

    They are called as they are: which networks a function calls is more than its names can tell.
    """
    if not inspect.isfunction(model):
        return []
    try:
        names = inspect.getclosurevars(model)
    except ValueError:  # a variable that is not set yet
        return []
    named = {**names.globals, **names.nonlocals}
    return sorted(
        name
        for name, value in named.items()
        if isinstance(value, nn.Module) and any(isinstance(m, _MODAL) and m.training for m in value.modules())
    )


def _modules(model: Model) -> list[nn.Module]:
    """Return the modules of a model, or of that whose method it is, that have modes: frozen TorchScript's have none."""
    owner = getattr(model, "__self__", model)
    modules = owner.modules() if isinstance(owner, nn.Module) else ()
    return [module for module in modules if hasattr(module, "training")]


def _is_recurrent(module: nn.Module) -> bool:
    """Return whether it is a layer of torch's whose modes differ by dropout alone."""
    return isinstance(module, nn.RNNBase) and type(module).forward in _RECURRENT


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


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name; a tied one by its first name alone."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def by_all_names(module: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors that replace some of a module's, by name, for ``functional_call(..., tie_weights=False)``.

    A tied one under the name of every layer that has it; a layer that has several names under its first alone. With
    ``tie_weights`` torch would swap such a layer's tensors twice, and put back what the first swap had put there.
    """
    own = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))
    given = {id(own[name]): tensor for name, tensor in tensors.items()}
    replaced: dict[str, Tensor] = {}
    for prefix, layer in module.named_modules():  # each once
        parts = (layer.named_parameters, layer.named_buffers)
        for name, tensor in (pair for part in parts for pair in part(prefix, recurse=False, remove_duplicate=False)):
            if id(tensor) in given:
                replaced[name] = given[id(tensor)]
    return replaced


@contextmanager
def evaluation_mode(model: Model) -> Iterator[None]:
    """Put every module in eval mode (BatchNorm uses its running statistics), and each back as it was."""
    modules = _modules(model)
    training = [(module, module.training) for module in modules]
    dropout: list[tuple[Any, float]] = [(module, module.dropout) for module in modules if _is_recurrent(module)]  # type: ignore[misc]
    for module in modules:
        # cuDNN's recurrent layers have no backward pass in eval mode.
        module.training = _is_recurrent(module)
    for recurrent, _ in dropout:
        recurrent.dropout = 0.0
    try:
        yield
    finally:
        for module, was_training in training:
            module.training = was_training
        for recurrent, rate in dropout:
            recurrent.dropout = rate


@contextmanager
def training_mode(model: nn.Module) -> Iterator[None]:
    """Put every module in training mode, and each back as it was; also what the model's own ``train()`` does."""
    modes = [(module, module.training) for module in model.modules()]
    before = model.training
    model.train()
    try:
        yield
    finally:
        model.train(before)
        for module, mode in modes:
            module.training = mode


def for_evaluation(own: nn.Module) -> nn.Module:
    """Put a network of our own, such as a copy, in the modes of ``evaluation_mode`` for good, and return it."""
    own.eval()
    for module in own.modules():
        if _is_recurrent(module):
            module.training, module.dropout = True, 0.0  # type: ignore[assignment]
    return own


@contextmanager
def unchanged(model: Model, device: torch.device) -> Iterator[None]:
    """Leave buffers and the global random state as they are, whatever the model does to them.

    Other tensors of modules come back where the model replaces them, not where it changes them in place.
    Not the random state of a GPU while a CUDA graph is recorded: the graph has its own, which nobody can set back.
    Parameters, their gradients and flags need no guard: nothing in this package writes to them. BatchNorm
    layers already in eval mode on entry are not guarded either. So a caller that changes modes does so first, around
    this.
    """
    every = _modules(model)
    modules = [module for module in every if module.training or not isinstance(module, _BATCH_NORM)]
    # Such as the weight that torch's old spectral_norm computes before every forward pass.
    others = [(vars(module), vars(module).copy()) for module in every]
    held = [(m._buffers, name, buffer) for m in modules for name, buffer in m._buffers.items() if buffer is not None]
    # An expanded buffer cannot be written to, by the model or by us.
    copies = [
        (owner, name, buffer, None if 0 in buffer.stride() else buffer.detach().clone()) for owner, name, buffer in held
    ]
    forked = [device] if device.type == "cuda" and not torch.cuda.is_current_stream_capturing() else []
    with torch.random.fork_rng(devices=forked):
        try:
            yield
        finally:
            # Past autograd's version counter: a graph of the caller's may hold the buffer.
            for owner, name, buffer, copy in copies:
                if copy is not None:
                    buffer.data.copy_(copy)
                owner[name] = buffer
            for attributes, before in others:
                tensors = {name for one in (before, attributes) for name, of in one.items() if isinstance(of, Tensor)}
                for name in tensors - before.keys():
                    del attributes[name]
                # Also what was None and is a tensor now, such as a mask that is made at the first call.
                attributes.update((name, before[name]) for name in tensors & before.keys())


@contextmanager
def ieee_float32(device: torch.device) -> Iterator[None]:
    """Compute in plain float32: no TF32, no autocast. Gradients on, whatever the caller's mode."""
    with _no_tf32(), torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
        yield


@contextmanager
def _no_tf32() -> Iterator[None]:
    backends: Any = torch.backends
    matmul, cudnn, mkldnn = backends.cuda.matmul, backends.cudnn, backends.mkldnn
    places: list[tuple[Any, str, Any, Any]]
    precision: str | None = None
    if hasattr(matmul, "fp32_precision"):  # torch 2.9 on: mixing it with the older switches is an error there
        owners = [(matmul, backends), (cudnn.conv, cudnn), (cudnn.rnn, cudnn)]
        owners += [(mkldnn.matmul, mkldnn), (mkldnn.conv, mkldnn)]
        # Reading gives the parent's setting where there is none of its own; "none" goes back to following it.
        before = [(owner, owner.fp32_precision, parent.fp32_precision) for owner, parent in owners]
        places = [(owner, "fp32_precision", "ieee", "none" if own == above else own) for owner, own, above in before]
    else:
        precision = torch.get_float32_matmul_precision()
        places = [(owner, "allow_tf32", False, owner.allow_tf32) for owner in (matmul, cudnn)]
    try:
        for owner, name, plain, _ in places:
            setattr(owner, name, plain)
        yield
    finally:
        for owner, name, _, old in places:
            setattr(owner, name, old)
        if precision is not None:  # allow_tf32 gives "medium" back as "high"
            torch.set_float32_matmul_precision(precision)


def ordinary(x: Tensor) -> Tensor:
    """Return ``x`` detached, and as a copy if it was made under inference_mode, where autograd cannot save it."""
    return x.detach().clone() if x.is_inference() else x.detach()
