"""The site as `make docs` builds it: a link that leads nowhere is an error."""

import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytest.importorskip("mkdocs", reason="needs the extra docs")


def built(folder: Path) -> subprocess.CompletedProcess:
    """Build with the options of the Makefile."""
    (words,) = re.findall(r"\$\(BIN\)/mkdocs (build.*)", (ROOT / "Makefile").read_text())
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "mkdocs", *words.split()]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("link", ["tutorials/train.md", "tutorials/nowhere.md"])
def test_a_link_that_leads_nowhere_fails_the_build(tmp_path, link):
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copyfile(ROOT / "mkdocs.yml", tmp_path / "mkdocs.yml")
    for name in ("src", "scripts", "results", "benchmarks", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    page = tmp_path / "docs" / "index.md"
    page.write_text(page.read_text() + f"\n[one more]({link})\n")
    done = built(tmp_path)
    assert (done.returncode == 0) == (link != "tutorials/nowhere.md"), done.stderr
    assert ("nowhere.md" in done.stderr) == (link == "tutorials/nowhere.md")


def test_tables_break_between_words_of_names_and_never_within_numbers(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    hooks = importlib.import_module("docs_hooks")
    row = hooks.unbroken("| AT, radius 0.15 | 77.83 ± 0.21 | +1.2 [-0.5, +2.0] | [0](a.json), [1](b.json) |")
    assert row == "| AT, radius 0.15 | 77.83\xa0±\xa00.21 | +1.2 [-0.5,\xa0+2.0] | [0](a.json), [1](b.json) |"
    cells = "<td><code>tests/a.py::test_b</code></td><td>1/2</td>"
    shown = hooks.on_page_content(f"<p><code>a_b</code></p>{cells}", None, None, None)
    assert shown == "<p><code>a_b</code></p><td><code>tests/<wbr>a.py::<wbr>test_<wbr>b</code></td><td>1/2</td>"
