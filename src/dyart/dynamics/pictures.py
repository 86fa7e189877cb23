"""Images and their closest boundary points as one small file, for a page to show."""

import io

import numpy as np
import torch
from torch import Tensor

from dyart.boundary.points import BoundaryPoints

# The end of a file's name beside a search's CSV: what a user may have there is more likely to be called .npz alone.
PICTURED = ".pictures.npz"


def packed(found: BoundaryPoints, index: Tensor, rows: Tensor) -> bytes:
    """Return an ``.npz`` of some examples: ``index``, ``inputs`` and ``points`` in 8 bits, ``steps`` with a ``scale``.

    The most vulnerable are closer than one grey level: their steps, in eight bits each, have a scale per example.

    Args:
        found: images ``[N, C, H, W]`` in [0, 1] with their points.
        index: what each is called, ``[N]``.
        rows: which ones.
    """
    content = io.BytesIO()
    displacement = found.displacement[rows].cpu()
    largest = displacement.abs().flatten(1).amax(1).clamp_min(1e-12)
    steps = (127 * displacement / largest[:, None, None, None]).round().to(torch.int8)
    np.savez_compressed(
        content,
        index=index[rows.to(index.device)].cpu().numpy(),
        inputs=_bytes(found.inputs[rows]),
        points=_bytes(found.points[rows]),
        steps=steps.numpy(),
        scale=(largest / 127).numpy(),
    )
    return content.getvalue()


def _bytes(images: Tensor) -> np.ndarray:
    return (images * 255).round().clamp(0, 255).to(torch.uint8).cpu().numpy()
