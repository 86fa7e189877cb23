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


def read_pictures(
    tree: Tree, names: Sequence[str], label: str, progress: Progress | None = None
) -> tuple[Pixels, list[str]]:
    """Return pictures of one size as uint8 [N, C, H, W], and a note if grey ones among them were made RGB.

    The rule for colours: if any picture has colour, every grey one is made RGB by three equal channels; if none has,
    C = 1.
    """
    pictures: Pixels | None = None
    sizes: Counter[tuple[int, int]] = Counter()
    example: dict[tuple[int, int], str] = {}
    grey = np.zeros(len(names), dtype=bool)
    for position, name in enumerate(names):
        pixels = decode(tree.read(name), tree.where(name))
        size = pixels.shape[1:]
        sizes[size] += 1
        example.setdefault(size, tree.where(name))
        if pictures is None:
            pictures = np.empty((len(names), 3, *size), dtype=np.uint8)
        if size == pictures.shape[2:]:
            pictures[position] = pixels  # one channel fills all three
        grey[position] = len(pixels) == 1
        if progress is not None and (position % 100 == 99 or position == len(names) - 1):
            progress(label, position + 1, len(names))
    if pictures is None:
        raise DataError(f"{label}: no pictures ({', '.join(SUFFIXES)}) found")
    if len(sizes) > 1:
        raise DataError(_mixed(sizes, example))
    if grey.all():
        return np.ascontiguousarray(pictures[:, :1]), []
    return pictures, [_made_rgb(names, grey)] if grey.any() else []


def _made_rgb(names: Sequence[str], grey: npt.NDArray[np.bool_]) -> str:
    """Return the words for grey pictures among coloured ones, with an example of the rarer kind."""
    count, others = int(grey.sum()), int((~grey).sum())
    example = f" (e.g. {names[int((grey if count <= others else ~grey).argmax())]})"
    first, second = (example, "") if count <= others else ("", example)
    return f"{count:,} grey{first}, {others:,} in colour{second}: the grey images were made RGB by three equal channels"


def _mixed(sizes: Counter[tuple[int, int]], example: dict[tuple[int, int], str]) -> str:
    listed = "; ".join(
        f"{count:,} of {width} x {height} (e.g. {example[height, width]})"
        for (height, width), count in sizes.most_common(4)
    )
    more = f"; and {len(sizes) - 4} more sizes" if len(sizes) > 4 else ""
    return f"the images have {len(sizes)} sizes (width x height): {listed}{more}. Resize all to one size first"
