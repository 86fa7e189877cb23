"""The notebooks run, and print what their committed outputs say."""

import subprocess
import sys

import nbformat
import pytest
from doc_pages import ROOT, compare

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
# A new run of a short training differs in its last digits from machine to machine, and what is counted with them.
TOLERANCE = 0.6
LARGEST = 500_000

RUN = """
import sys, nbformat
sys.path.insert(0, sys.argv[1])
from docs_notebooks import FOLDER, run
nbformat.write(run(FOLDER / sys.argv[2]), sys.argv[3])
"""


def texts(notebook):
    """What every cell prints, one text per cell."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return ["".join(output.get("text", "") for output in cell.outputs) for cell in cells]


def pictures(notebook):
    return sum("image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", []))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_what_it_shows(path, tmp_path):
    """In a process of its own: the kernel's client warns of things that are no business of these tests."""
    kept = nbformat.read(path, as_version=4)
    out = tmp_path / "run.ipynb"
    subprocess.run([sys.executable, "-c", RUN, ROOT / "scripts", path.name, out], check=True, capture_output=True)
    fresh = nbformat.read(out, as_version=4)
    assert pictures(fresh) == pictures(kept) > 0
    for printed, stated in zip(texts(fresh), texts(kept), strict=True):
        compare(printed, stated, TOLERANCE)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_and_whole(path):
    assert path.stat().st_size < LARGEST
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    errors = [o for cell in notebook.cells for o in cell.get("outputs", []) if o.output_type == "error"]
    assert not errors
    assert any(texts(notebook))


def test_there_are_three():
    assert len(NOTEBOOKS) == 3
