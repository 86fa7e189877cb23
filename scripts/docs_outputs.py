"""Write what its code prints now into a page: ``python scripts/docs_outputs.py docs/tutorials/train.md``.

Runs the page in an empty folder, commands in full (without the words that tests add), and replaces the outputs that the
page shows. Outputs with lines of `...` are left as they are, and printed: shorten them by hand.
"""

import contextlib
import io
import os
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple
from unittest import mock

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "docs"))

import doc_commands  # noqa: E402
import doc_pages  # noqa: E402
import torch  # noqa: E402


class Captured(NamedTuple):
    """What a capture fixture of pytest returns."""

    out: str
    err: str


class Capture(io.StringIO):
    """Standard output, to be read piece by piece."""

    def readouterr(self) -> Captured:
        """Return what was printed since the last call."""
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        return Captured(text, "")


def main(page: Path) -> None:
    """Follow the page and rewrite it."""
    text = page.read_text(encoding="utf-8")
    changes: list[tuple[str, str]] = []

    def note(printed: str, stated: str, tolerance: float) -> None:
        if any(line.strip() == "..." for line in stated.splitlines()):
            print(f"--- now, in full:\n{printed}", file=sys.stderr)
        elif printed != stated:
            changes.append((stated, printed))

    torch.set_num_threads(1)
    torch.manual_seed(0)
    capture = Capture()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), contextlib.redirect_stdout(capture):
        sys.path.insert(0, folder)
        os.environ["COLUMNS"] = "120"
        with (
            mock.patch.object(doc_pages, "compare", note),
            mock.patch.dict(doc_commands.QUICKER, clear=True),
        ):
            doc_pages.Reader(capture).follow(page.name, text)
    for stated, printed in changes:
        lines = [line.rstrip() for line in printed.splitlines()]
        for indent in ("", "    "):  # in a tab or a note, blocks are indented
            old = "".join(f"{indent}{line}\n" for line in stated.splitlines())
            if old in text:
                text = text.replace(old, "".join(f"{indent}{line}\n".rstrip(" ") for line in lines), 1)
                break
    page.write_text(text, encoding="utf-8")
    print(f"{page}: {len(changes)} outputs changed", file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
