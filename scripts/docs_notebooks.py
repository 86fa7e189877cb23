"""Run the notebooks of the documentation and keep their outputs: ``python scripts/docs_notebooks.py [NAME ...]``."""

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"


def run(path: Path) -> nbformat.NotebookNode:
    """Return a notebook with the outputs of a new run, in an empty folder, and nothing about who ran it."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        local = Config({"KernelManager": {"transport": "ipc", "ip": f"{folder}/kernel"}})  # no open port
        place = {"metadata": {"path": folder}}
        NotebookClient(notebook, config=local, kernel_name="python3", timeout=300, resources=place).execute()
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    for number, cell in enumerate(notebook.cells):
        cell.metadata, cell.id = {}, f"cell-{number}"
        for output in cell.get("outputs", []):
            output.pop("metadata", None)
            if "data" in output:
                output.metadata = {}
                if "image/png" in output.data:  # the picture alone, not the words that stand for it
                    output.data = {"image/png": output.data["image/png"]}
    return notebook


def main(names: list[str]) -> None:
    """Run and rewrite the notebooks of these names, or all."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        if not names or path.stem in names:
            nbformat.write(run(path), path)
            print(f"{path}: {path.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
