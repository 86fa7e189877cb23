"""The examples of an evaluation, given out batch by batch: memory does not grow with their number."""

import hashlib
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dyart.boundary.model import Model, ordinary
from dyart.boundary.validation import check_labels
from dyart.data import DataSet
from dyart.data.loader import to_unit

Arrays: TypeAlias = Tensor | npt.NDArray[np.generic]
Rows: TypeAlias = npt.NDArray[np.int64]

LOOKED_AT = 1024  # at a time, for the largest coordinate
# Of so many examples, evenly spread, the bytes enter the fingerprint of a set; of all of them, the labels.
SAMPLED = 1024


class Examples:
    """Inputs and labels that stay where they are; a batch of them is made on the device when it is asked for.

    Args:
        inputs: ``[N, ...]``, a tensor or an array (a memory map is read row by row). uint8 is taken as images and
            divided by 255; floating point is float32 or float64, and kept.
        labels: ``[N]``, integers.
        device: where batches go; None: where a tensor lies, for an array where the model is.
        model: to look for its device.
        index: places of the examples to take, in this order; None: all.

    Raises:
        TypeError: inputs or labels are of another type.
        ValueError: their lengths differ, or there are none.
    """

    def __init__(
        self,
        inputs: Arrays,
        labels: Arrays,
        device: torch.device | str | None,
        model: Model,
        index: npt.ArrayLike | None = None,
    ) -> None:
        """Look at shapes and types; nothing is copied."""
        kind = inputs.dtype if isinstance(inputs, Tensor | np.ndarray) else type(inputs)
        if str(kind).removeprefix("torch.") not in ("uint8", "float32", "float64"):
            raise TypeError(f"inputs must be a tensor or array of uint8, float32 or float64, got {kind}")
        if not isinstance(labels, Tensor | np.ndarray):
            raise TypeError(f"labels must be a tensor or array of integers, got {type(labels).__name__}")
        self.inputs, self.device = inputs, _device(inputs, device, model)
        given = labels.detach().cpu() if isinstance(labels, Tensor) else torch.from_numpy(np.array(labels))
        check_labels(given, torch.empty(()).expand(tuple(inputs.shape)))
        self.index: Rows = np.arange(len(inputs)) if index is None else _places(index)
        if len(self.index) == 0:
            raise ValueError(f"there are no examples to evaluate: {'inputs' if index is None else 'index'} is empty")
        if self.index.min() < 0 or self.index.max() >= len(inputs):
            raise ValueError(
                f"index must name places in 0..{len(inputs) - 1}, got {self.index.min()} to {self.index.max()}"
            )
        self.labels: Rows = given.long().numpy()[self.index]

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example."""
        return tuple(self.inputs.shape[1:])

    def batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return inputs, in [0, 1] where they are stored as uint8, and labels of some examples, on the device."""
        if isinstance(self.inputs, Tensor):
            chosen = ordinary(self.inputs)[torch.from_numpy(self.index[rows]).to(self.inputs.device)]
        else:
            chosen = torch.from_numpy(np.array(self.inputs[self.index[rows]]))
        return to_unit(chosen.to(self.device)), torch.from_numpy(self.labels[rows]).to(self.device)

    def largest(self) -> float:
        """Return the largest size of a coordinate: one look at all inputs, some at a time."""
        if str(self.inputs.dtype).removeprefix("torch.") == "uint8":
            return 1.0
        parts = (np.arange(start, min(start + LOOKED_AT, len(self))) for start in range(0, len(self), LOOKED_AT))
        return max(float(self.batch(rows)[0].nan_to_num().abs().max()) for rows in parts)

    def digest(self) -> str:
        """Return a fingerprint of the set: its size, all labels, and up to 1,024 inputs spread evenly over it."""
        seen = hashlib.sha256(f"{tuple(self.inputs.shape)} {self.inputs.dtype}".encode())
        seen.update(self.index.tobytes() + self.labels.tobytes())
        for row in np.unique(np.linspace(0, len(self) - 1, SAMPLED).astype(np.int64)):
            one = self.inputs[int(self.index[row])]
            seen.update((one.detach().cpu().numpy() if isinstance(one, Tensor) else np.asarray(one)).tobytes())
        return seen.hexdigest()[:16]


def data_digest(data: DataSet) -> str:
    """Return a fingerprint of a set's test part: a file may be another one under the same name."""
    return Examples(data.test.images, data.test.labels, "cpu", nn.Identity()).digest()


def model_digest(model: Model) -> str | None:
    """Return a fingerprint of a network's parameters and buffers; None for a callable, which has none to look at."""
    if not isinstance(model, nn.Module):
        return None
    seen = hashlib.sha256()
    for name, value in model.state_dict().items():
        seen.update(name.encode())
        if isinstance(value, Tensor):
            seen.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return seen.hexdigest()[:16]


def _places(index: npt.ArrayLike) -> Rows:
    given = np.asarray(index)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise TypeError(
            f"index is a list of places, whole numbers, got {given.dtype} of shape {given.shape}"
            + (": write np.flatnonzero(index)" if given.dtype == bool else "")
        )
    return given.astype(np.int64)


def _device(inputs: Arrays, device: torch.device | str | None, model: Model) -> torch.device:
    if device is not None:
        if torch.device(device).type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"device={str(device)!r}, but torch finds no GPU here: use device='cpu'")
        return torch.device(device)
    if isinstance(inputs, Tensor):
        return inputs.device
    parameter = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return torch.device("cpu") if parameter is None else parameter.device
