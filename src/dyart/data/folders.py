"""Readers of pictures in one folder per class: a user's own, CIFAR-100 as PNG files, Tiny-ImageNet."""

import re
from collections import Counter
from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from dyart.data.errors import DataError
from dyart.data.pictures import Progress, Size, is_picture, read_pictures
from dyart.data.raw import Raw
from dyart.data.sets import SEED, Images, NumberedBy, part_of_each_class
from dyart.data.trees import Tree, find

TRAIN, TEST = ("train", "training"), ("test", "testing", "val", "valid", "validation")
SHOWN = 3
TEST_SHARE = 5  # one example in five, where the user's set has no test part

Pairs = list[tuple[str, str]]  # (name of the file, name of its class)


def _by_class(tree: Tree, prefix: str) -> Pairs:
    """Return the pictures below ``prefix``, sorted by class and name; the class is the first folder after it."""
    start = len(prefix)
    pictures = [name for name in tree.names if name.startswith(prefix) and is_picture(name)]
    found = [(name, name[start:].split("/", 1)[0]) for name in pictures if "/" in name[start:]]
    return sorted(found, key=lambda pair: (pair[1], pair[0]))


def _root(tree: Tree, wanted: Sequence[str]) -> tuple[str, str] | None:
    """Return (prefix of the set, name of the folder) for the outermost folder with one of the names ``wanted``.

    Raises:
        DataError: several sets lie side by side.
    """
    places = {
        (len(parts[:depth]), "".join(part + "/" for part in parts[:depth]), folder)
        for name in filter(is_picture, tree.names)
        for parts in [name.split("/")]
        for depth, folder in enumerate(parts[:-2])  # the class and the file follow
        if folder.lower() in wanted
    }
    if not places:
        return None
    first = min(places)
    sets = sorted({prefix for depth, prefix, _ in places if depth == first[0]})
    if len(sets) > 1:
        raise DataError(f"there are {len(sets)} sets: {', '.join(sets[:SHOWN])}; name the folder of one of them")
    return first[1:]


def read_class_folders(
    tree: Tree,
    progress: Progress | None = None,
    classes: tuple[str, ...] = (),
    where: str = "the folder",
    size: Size | None = None,
    advice: str = "resize all to one size first",
) -> Raw | None:
    """Return pictures in ``train/<class>/`` and ``test/<class>/`` (or ``val/``), or in ``<class>/`` alone.

    Without a test part, a fifth of every class, drawn with a fixed seed, becomes the test set. A test part alone, which
    is enough to measure a network, leaves the training part empty.

    Args:
        tree: the files.
        progress: called with (words, done, total).
        classes: the names that must be there; empty: those found, in alphabetical order.
        where: the set's place in words, for errors.
        size: width and height that all pictures are brought to; None: they must have one.
        advice: what to do about pictures of several sizes.
    """
    prefix, tests, alone = _parts(tree)
    train = _by_class(tree, prefix)
    if not train:
        return None
    names = classes or tuple(sorted({label for _, label in train}))
    empty = _empty_classes(tree, prefix, names)
    if alone and not classes:
        # Empty folders are classes of the network that nothing is measured of.
        holding = {entry[len(prefix) :].split("/", 1)[0] for entry in tree.names if entry.startswith(prefix)}
        absent = [name for name in empty if name not in holding and not name.startswith("_")]
        names, empty = tuple(sorted([*names, *absent])), [name for name in empty if name not in absent]
    if empty:
        raise DataError(f"{where}: no picture in the folder of {', '.join(empty)}; add pictures or remove the folder")
    unused = [f"{tests[0]} is the test part; {', '.join(tests[1:])} not used"] if len(tests) > 1 else []
    by: NumberedBy = "" if classes else "folders"
    read = partial(read_pictures, tree, label="reading pictures", progress=progress, size=size, advice=advice)
    if alone:
        images, changes = read([name for name, _ in train])
        return _test_alone(images, train, names, changes + unused, by)
    test = _by_class(tree, tests[0]) if tests else []
    numbers = {name: number for number, name in enumerate(names)}
    for name, label in train + test:
        if label not in numbers:
            raise DataError(f"{tree.where(name)}: there is no class {label!r} in the training part of {where}")
    labels = np.array([numbers[label] for _, label in train + test], dtype=np.int64)
    is_test = np.arange(len(labels)) >= len(train) if test else draw_test(labels)
    images, changes = read([name for name, _ in train + test])
    notes = changes + ([] if test else [no_test_note(is_test)]) + unused
    rows = None if test else np.flatnonzero(is_test)
    files = tuple(name for (name, _), chosen in zip(train + test, is_test, strict=True) if chosen)
    parts = images[~is_test], labels[~is_test], images[is_test], labels[is_test]
    return Raw(*parts, names, False, tuple(notes), rows, files, by)


def _test_alone(images: Images, test: Pairs, names: tuple[str, ...], notes: list[str], by: NumberedBy) -> Raw:
    labels = np.array([names.index(label) for _, label in test], dtype=np.int64)
    files = tuple(name for name, _ in test)
    return Raw(images[:0], labels[:0], images, labels, names, False, tuple(notes), None, files, by)


def _parts(tree: Tree) -> tuple[str, list[str], bool]:
    """Return the folder that holds the classes, those that could be the test part, and whether there is nothing else.

    Without a training part, folders that are all called like test parts are those, and no classes.
    """
    root = _root(tree, TRAIN)
    if root:
        return f"{root[0]}{root[1]}/", _test_folders(tree, root[0]), False
    base = _common(tree)
    tests = _test_folders(tree, base)
    if tests and all(folder.lower() in TEST for _, folder in _by_class(tree, base)):
        return tests[0], tests, True
    return base, [], base.removesuffix("/").rsplit("/", 1)[-1].lower() in TEST


def _test_folders(tree: Tree, base: str) -> list[str]:
    """Return the folders in ``base`` that could be the test part, the likeliest first."""
    beside = {name[len(base) :].split("/", 1)[0] for name in tree.names if name.startswith(base)}
    likely = sorted((folder for folder in beside if folder.lower() in TEST), key=lambda f: TEST.index(f.lower()))
    return [f"{base}{folder}/" for folder in likely if _by_class(tree, f"{base}{folder}/")]


def _common(tree: Tree) -> str:
    """Return the folders that all pictures share, so that an archive with one folder around the classes is read."""
    parts = [name.split("/")[:-2] for name in tree.names if is_picture(name) and "/" in name]
    shared = ""
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        shared += level[0] + "/"
    return shared


def _empty_classes(tree: Tree, prefix: str, names: tuple[str, ...]) -> list[str]:
    path = getattr(tree, "path", None)
    if path is None or not (path / prefix).is_dir():
        return []
    folders = {entry.name for entry in (path / prefix).iterdir() if entry.is_dir() and not entry.name.startswith(".")}
    return sorted(folders - set(names))


def draw_test(labels: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which examples become the test set of a set without one: a fifth of each class, the same ones always."""
    order = np.random.RandomState(SEED + 1).permutation(len(labels))  # not the permutation of the hold-out
    chosen = np.zeros(len(labels), dtype=bool)
    chosen[part_of_each_class(labels, order, TEST_SHARE)] = True
    return chosen


def no_test_note(is_test: npt.NDArray[np.bool_]) -> str:
    """Return the words for a set whose test part was drawn."""
    first = ", ".join(map(str, np.flatnonzero(is_test)[:SHOWN]))
    return (
        f"no test part was given: {int(is_test.sum()):,} of {len(is_test):,} examples, a fifth of each class and at "
        f"least one, became it (rows {first}, ...; counted from 0)"
    )


def read_tiny_imagenet(tree: Tree, classes: tuple[str, ...], progress: Progress | None = None) -> Raw | None:
    """Return Tiny-ImageNet in the official layout. Its ``val`` is the test set: the labels of ``test`` are secret.

    Grey pictures (single-channel JPEGs) are made RGB by three equal channels.
    """
    annotations = find(tree, "val_annotations.txt")
    if annotations is None:
        return None
    base = annotations.removesuffix("val/val_annotations.txt")
    found = _by_class(tree, f"{base}train/")
    train = [name for name, wnid in sorted(found, key=lambda pair: (pair[1], _natural(pair[0])))]
    train_wnids = sorted(wnid for _, wnid in found)
    wnids = tuple(sorted(set(train_wnids)))
    number = {wnid: position for position, wnid in enumerate(wnids)}
    test, test_wnids = [], []
    for line in tree.read(annotations).decode("utf-8").splitlines():
        file, wnid, *_ = [*line.split("\t"), ""]
        if wnid not in number:
            raise DataError(f"{tree.where(annotations)}: {file!r} has the class {wnid!r}, which train/ has not")
        test.append(f"{base}val/images/{file}")
        test_wnids.append(wnid)
    present = set(tree.names)
    gone = [name for name in test if name not in present]
    if gone:
        raise DataError(f"{tree.where(gone[0])} is missing ({len(gone):,} of {len(test):,} test pictures are)")
    images, colours = read_pictures(tree, train + test, "reading pictures", progress)
    labels = np.array([number[wnid] for wnid in train_wnids + test_wnids], dtype=np.int64)
    return Raw(
        images[: len(train)],
        labels[: len(train)],
        images[len(train) :],
        labels[len(train) :],
        _words(tree, base, wnids),
        False,
        tuple(colours),
        test_files=tuple(test),
    )


def _natural(name: str) -> tuple[int, ...]:
    """Order of the numbers in a file name: n01443537_2 before n01443537_10."""
    return tuple(int(digits) for digits in re.findall(r"\d+", name.rsplit("/", 1)[-1]))


def _words(tree: Tree, base: str, wnids: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first word of each WordNet number, with the number where a word repeats; numbers without words.txt."""
    if f"{base}words.txt" not in tree.names:
        return wnids
    lines = (line.split("\t", 1) for line in tree.read(f"{base}words.txt").decode("utf-8").splitlines() if "\t" in line)
    words = {wnid: text.split(",")[0].strip() for wnid, text in lines}
    named = [(words.get(wnid, wnid), wnid) for wnid in wnids]
    times = Counter(word for word, _ in named)
    return tuple(word if times[word] == 1 else f"{word} ({wnid})" for word, wnid in named)
