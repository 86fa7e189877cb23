"""Augmentation on the device: every image for itself, as a function of (seed, epoch, index).

Images stay uint8 until the end. The last step of the loader turns them into float32 in [0, 1].
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dyart.data import draws, placement


@dataclass(frozen=True)
class Augment:
    """What is done to a training image."""

    crop: int = 0
    """Pixels of zero padding before a random crop back to the image's size; 0: none."""
    flip: bool = False
    """Mirror left to right with probability one half."""
    cutout: int = 0
    """Side of a square set to zero, its centre anywhere in the image; 0: none."""
    cutmix: float = 0.0
    """Probability that a rectangle of an image comes from another of the batch, and its share of the label."""

    def __post_init__(self) -> None:
        """Refuse what is no size or no probability."""
        if self.crop < 0 or self.cutout < 0:
            raise ValueError(f"crop and cutout are sizes in pixels, got crop={self.crop}, cutout={self.cutout}")
        if not 0 <= self.cutmix <= 1:
            raise ValueError(f"cutmix is the probability to mix, from 0 to 1, got {self.cutmix}")

    def placement(self, images: Tensor, index: Tensor, seed: int, epoch: int) -> Tensor | None:
        """Return where the augmented images lie in their originals (see ``placement``); None: they are not moved."""
        moved = images.ndim == 4 and (self.crop or self.flip)
        return placement.drawn(index, seed, epoch, self.crop, self.flip) if moved else None

    def __call__(self, images: Tensor, index: Tensor, seed: int, epoch: int, places: Tensor | None = None) -> Tensor:
        """Return augmented images of the same shape and dtype, ``[N, C, H, W]``; vectors are returned as they are.

        ``places`` is what ``placement`` returned, if that was asked for already.
        """
        if images.ndim != 4:
            return images
        places = self.placement(images, index, seed, epoch) if places is None else places
        if places is not None:
            images = placement.placed(images, places)
        if self.cutout:
            # Channels last again: over broadcast channels, torch would choose the other layout.
            inside = self._square(images, index, seed, epoch)[..., None]
            images = images.permute(0, 2, 3, 1).masked_fill(inside, 0).permute(0, 3, 1, 2)
        return images

    def mixed(self, images: Tensor, index: Tensor, seed: int, epoch: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the images after cutmix, each one's partner in the batch ``[N]`` and the partner's share ``[N]``.

        As in the CutMix paper with Beta(1, 1): the rectangle's area is a uniform share of the image's, its centre
        anywhere; what juts out is cut off, so that the share that counts is 0.32 on average.
        """
        partner = torch.arange(len(index), device=index.device).roll(1)
        if images.ndim != 4 or not self.cutmix:
            return images, partner, torch.zeros(len(index), device=index.device)
        height, width = images.shape[2:]
        take = draws.uniform(draws.key(seed, "cutmix", epoch), index) < self.cutmix
        side = draws.uniform(draws.key(seed, "cutmix-size", epoch), index).sqrt()
        centre_y = draws.integers(draws.key(seed, "cutmix-y", epoch), index, height)
        centre_x = draws.integers(draws.key(seed, "cutmix-x", epoch), index, width)
        rows = _near(centre_y, side * height, height)
        columns = _near(centre_x, side * width, width)
        inside = rows[:, :, None] & columns[:, None, :] & take[:, None, None]
        images = torch.where(inside[:, None], images[partner], images)
        return images, partner, inside.float().mean(dim=(1, 2))

    def _square(self, images: Tensor, index: Tensor, seed: int, epoch: int) -> Tensor:
        height, width = images.shape[2:]
        centre_y = draws.integers(draws.key(seed, "cutout-y", epoch), index, height)
        centre_x = draws.integers(draws.key(seed, "cutout-x", epoch), index, width)
        side = torch.full_like(centre_y, self.cutout).float()
        return _near(centre_y, side, height)[:, :, None] & _near(centre_x, side, width)[:, None, :]


def _near(centre: Tensor, side: Tensor, size: int) -> Tensor:
    """Return where a coordinate lies in the interval of length ``side`` around ``centre``, ``[N, size]``."""
    from_start = torch.arange(size, device=centre.device)[None, :] - centre[:, None] + side[:, None] / 2
    return (from_start >= 0) & (from_start < side[:, None])
