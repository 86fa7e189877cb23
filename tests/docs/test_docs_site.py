"""The site as `make docs` builds it: a link that leads nowhere is an error."""

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
