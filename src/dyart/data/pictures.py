"""Pictures to uint8 arrays [C, H, W]. Needs Pillow, imported where used."""

import io
import re
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from dyart.data.errors import DataError
from dyart.data.trees import Tree

Pixels = npt.NDArray[np.uint8]
Progress = Callable[[str, int, int], None]
Size = tuple[int, int]  # width, height

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
# How Pillow calls the layout of a file with 16 bits per channel, of which it would keep the upper 8 of a coloured one.
DEEP = re.compile(r";16[BLN]")


def is_picture(name: str) -> bool:
    """Return whether a file name ends like a picture's."""
    return name.lower().endswith(SUFFIXES)


def decode(data: bytes, where: str) -> Pixels:
    """Return a picture as uint8 [1 or 3, H, W]; transparency is dropped if the picture is opaque everywhere."""
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError("reading pictures needs Pillow: pip install pillow (or dyart's extra 'train')") from error
    try:
        with Image.open(io.BytesIO(data)) as image:
            deep = any(DEEP.search(str(tile[3])) for tile in image.tile)  # loading forgets it
            image.load()
            if deep or image.mode.startswith(("I", "F")):
                raise DataError(f"{where} has more than 8 bits per channel (mode {image.mode}); save it with 8 bits")
            grey = image.mode in ("1", "L", "LA", "La")
            alpha = image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info
            if not alpha:
                return np.atleast_3d(np.asarray(image.convert("L" if grey else "RGB"))).transpose(2, 0, 1)
            pixels = np.asarray(image.convert("RGBA")).transpose(2, 0, 1)
    except DataError:
        raise
    except Exception as error:  # Pillow raises many kinds, down to SyntaxError and struct.error
        raise DataError(f"{where} is no readable picture, truncated or altered ({error})") from error
    if pixels[3].min() < 255:
        raise DataError(f"{where} has transparent pixels; put it on a background of your choice and save it as RGB")
    return pixels[:1] if grey else pixels[:3]


def fitted(pixels: Pixels, size: Size) -> Pixels:
    """Return a picture [C, H, W] in another size: cut to the shape of that around its centre, then resized.

    The filter is Pillow's bilinear one, which takes in every pixel when it shrinks: what torchvision's ``Resize`` and
    ``CenterCrop`` do to pictures, but for rounding. One that has the size keeps its pixels.
    """
    from PIL import Image, ImageOps

    if pixels.shape[:0:-1] == size:
        return pixels
    image = Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    fit = ImageOps.fit(image, size, Image.Resampling.BILINEAR)
    return np.atleast_3d(np.asarray(fit)).transpose(2, 0, 1)


def read_pictures(
    tree: Tree,
    names: Sequence[str],
    label: str,
    progress: Progress | None = None,
    size: Size | None = None,
    advice: str = "resize all to one size first",
) -> tuple[Pixels, list[str]]:
    """Return pictures of one size as uint8 [N, C, H, W], and notes if some were resized, or grey ones made RGB.

    The rule for colours: if any picture has colour, every grey one is made RGB by three equal channels; if none has,
    C = 1.

    Args:
        tree: the files.
        names: of the pictures.
        label: what is done, for progress.
        progress: called with (words, done, total).
        size: width and height that all are brought to; None: they must have one.
        advice: what to do about several sizes.
    """
    pictures: Pixels | None = None
    sizes: Counter[Size] = Counter()
    example: dict[Size, str] = {}
    grey = np.zeros(len(names), dtype=bool)
    for position, name in enumerate(names):
        pixels = decode(tree.read(name), tree.where(name))
        own = pixels.shape[:0:-1]
        sizes[own] += 1
        example.setdefault(own, tree.where(name))
        pixels = pixels if size is None else fitted(pixels, size)
        if pictures is None:
            pictures = np.empty((len(names), 3, *pixels.shape[1:]), dtype=np.uint8)
        if pixels.shape[1:] == pictures.shape[2:]:
            pictures[position] = pixels  # one channel fills all three
        grey[position] = len(pixels) == 1
        if progress is not None and (position % 100 == 99 or position == len(names) - 1):
            progress(label, position + 1, len(names))
    if pictures is None:
        raise DataError(f"{label}: no pictures ({', '.join(SUFFIXES)}) found")
    if len(sizes) > 1 and size is None:
        raise DataError(f"{_mixed(sizes, example)}; {advice}")
    notes = [] if size is None else _resized(sizes, size)
    if grey.all():
        return np.ascontiguousarray(pictures[:, :1]), notes
    return pictures, notes + ([_made_rgb(names, grey)] if grey.any() else [])


def _made_rgb(names: Sequence[str], grey: npt.NDArray[np.bool_]) -> str:
    """Return the words for grey pictures among coloured ones, with an example of the rarer kind."""
    count, others = int(grey.sum()), int((~grey).sum())
    example = f" (e.g. {names[int((grey if count <= others else ~grey).argmax())]})"
    first, second = (example, "") if count <= others else ("", example)
    return f"{count:,} grey{first}, {others:,} in colour{second}: the grey images were made RGB by three equal channels"


def _mixed(sizes: Counter[Size], example: dict[Size, str]) -> str:
    listed = "; ".join(
        f"{count:,} of {width} x {height} (e.g. {example[width, height]})"
        for (width, height), count in sizes.most_common(4)
    )
    more = f"; and {len(sizes) - 4} more sizes" if len(sizes) > 4 else ""
    return f"the images have {len(sizes)} sizes (width x height): {listed}{more}"


def _resized(sizes: Counter[Size], size: Size) -> list[str]:
    """Return the words for pictures that were brought to one size; none where all had it."""
    changed = sum(count for own, count in sizes.items() if own != size)
    if not changed:
        return []
    small = sum(count for (width, height), count in sizes.items() if width < size[0] or height < size[1])
    enlarged = f"; {small:,} of them were smaller, and are enlarged" if small else ""
    return [
        f"{changed:,} of {sizes.total():,} images were cut to the shape of {size[0]} x {size[1]} (width x height) "
        f"around their centre and resized to it (bilinear){enlarged}"
    ]
