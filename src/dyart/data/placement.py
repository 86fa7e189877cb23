"""Where an augmented image lies in its original: a shift and perhaps a mirroring, one row ``[N, 3]`` per image.

The rows are (down, right, mirrored): pixel (i, j) of the augmented image is pixel (i + down, j' + right) of the
original, with j' counted from the right if mirrored, and zero outside. What is known of an example in one epoch, such
as the way to its closest boundary point, is brought to another epoch's placement through the original's.
"""

import torch
from torch import Tensor

from dyart.data import draws


def drawn(index: Tensor, seed: int, epoch: int, crop: int, flip: bool) -> Tensor:
    """Return the placements of an epoch, int64 ``[N, 3]``: shifts of up to ``crop`` pixels, mirrored or not."""
    placement = torch.zeros(len(index), 3, dtype=torch.int64, device=index.device)
    if crop:
        placement[:, 0] = draws.integers(draws.key(seed, "crop-y", epoch), index, 2 * crop + 1) - crop
        placement[:, 1] = draws.integers(draws.key(seed, "crop-x", epoch), index, 2 * crop + 1) - crop
    if flip:
        placement[:, 2] = draws.uniform(draws.key(seed, "flip", epoch), index) < 0.5
    return placement


def placed(originals: Tensor, placement: Tensor) -> Tensor:
    """Return images ``[N, C, H, W]`` as the augmentation shows them."""
    rows, columns = _grid(originals)
    columns = torch.where(placement[:, 2:] > 0, columns.flip(1), columns)
    return _taken(originals, rows + placement[:, :1], columns + placement[:, 1:2])


def original(images: Tensor, placement: Tensor) -> Tensor:
    """Return augmented images, or what has their shape, brought back; what was cropped off is zero."""
    rows, columns = _grid(images)
    columns = columns - placement[:, 1:2]
    columns = torch.where(placement[:, 2:] > 0, images.shape[3] - 1 - columns, columns)
    return _taken(images, rows - placement[:, :1], columns)


def _grid(images: Tensor) -> tuple[Tensor, Tensor]:
    count, _, height, width = images.shape
    rows = torch.arange(height, device=images.device).expand(count, height)
    return rows, torch.arange(width, device=images.device).expand(count, width)


def _taken(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return pixels by row ``[N, H]`` and column ``[N, W]``, zero outside; channels last in memory."""
    height, width = images.shape[2:]
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    every = torch.arange(len(images), device=images.device)[:, None, None]
    # Indices first, channels last: what convolutions on a GPU want, and one gather for shift and mirror together.
    pixels = images.permute(0, 2, 3, 1)[
        every, rows.clamp(0, height - 1)[:, :, None], columns.clamp(0, width - 1)[:, None]
    ]
    return (pixels * inside[..., None]).permute(0, 3, 1, 2)
