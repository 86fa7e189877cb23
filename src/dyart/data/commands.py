"""What ``dyart data list`` and ``dyart data get`` do; the command line only parses their arguments."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from dyart.data.catalogue import Listed, listing
from dyart.data.errors import megabytes
from dyart.data.obtain import get
from dyart.data.pictures import Size
from dyart.data.store import data_root, manifest

HEAD = ("name", "classes", "shape", "training", "test", "here", "from")


def list_command(root: Path | None = None) -> None:
    """Print the data sets, one line each."""
    rows = [HEAD, *(_row(line) for line in listing(root))]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print(f"folder: {data_root() if root is None else root} (DYART_DATA changes it)")


def _row(line: Listed) -> tuple[str, ...]:
    shape = " x ".join(str(length) for length in line.shape)
    here = "yes" if line.present else "no"
    return (line.name, str(line.classes), shape, f"{line.train:,}", f"{line.test:,}", here, line.source)


def get_command(
    name: str,
    root: Path | None = None,
    source: Path | None = None,
    size: Size | None = None,
    replace: bool = False,
) -> Path:
    """Get a data set with a progress bar, print where it is and what was done to it, and return its folder."""
    shown = _Bar()
    try:
        folder = get(name, root, source, shown.report, size, replace)
    finally:
        shown.close()
    content = manifest(folder)
    if content is None:
        print(f"{name} comes with the package; nothing is needed")
        return folder
    counts, stored = content["counts"], sum(entry["bytes"] for entry in content["files"].values())
    print(f"{name}: {counts['train']:,} training and {counts['test']:,} test images in {folder} ({megabytes(stored)})")
    print(f"checked by: {content['checked']}")
    for note in content["notes"]:
        print(f"note: {note}")
    return folder


class _Bar:
    """Progress on the terminal: rich's bars where it is installed, one line of text otherwise, nothing into a file."""

    def __init__(self) -> None:
        """Show nothing yet."""
        self.length = 0
        self.tasks: dict[str, Any] = {}
        self.bars: Any = None
        with suppress(ImportError):
            from rich.console import Console
            from rich.progress import Progress as Bars

            self.bars = Bars(console=Console(stderr=True))

    def report(self, words: str, done: int, total: int) -> None:
        """Show how far ``words`` is; a total of 0 is unknown."""
        if self.bars is not None:
            if words not in self.tasks:
                self.bars.start()
                self.tasks[words] = self.bars.add_task(words)
            self.bars.update(self.tasks[words], completed=done, total=total or None)
        elif sys.stderr.isatty():
            text = f"{words}: {100 * done // total} %" if total else f"{words}: {done:,}"
            print(f"\r{text.ljust(self.length)}", end="", file=sys.stderr, flush=True)
            self.length = len(text)

    def close(self) -> None:
        """End the line."""
        if self.tasks:
            self.bars.stop()
        elif self.length:
            print(file=sys.stderr)
