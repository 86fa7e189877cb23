"""What mkdocs needs beyond its plugins: notebooks as pages, the repository's JSON files and pictures in the site, and
the help texts of all commands.

Notebooks are committed with their outputs (a test runs them), so that to show one is to write its cells as Markdown.
"""

import argparse
import base64
import json
import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# Folders whose JSON files and pictures pages may link to, as the files lie in the repository.
SHOWN = ("benchmarks/results", "results", "results/paper")
KINDS = {".csv", ".json", ".png"}
COMMANDS = "<!-- commands -->"
# In a table, what is not to be broken over two lines: a number and its deviation, the two ends of an interval.
TOGETHER = re.compile(r"(?<=\d) ± (?=\d)|(?<=\d), (?=[+-]?[\d.]+\])")
# Where a name in a cell may be broken: after a slash, an underscore or colons, and nowhere else (docs/extra.css).
CELL, NAME = re.compile(r"<td.*?</td>", re.DOTALL), re.compile(r"(?<=<code>)[^<]*(?=</code>)")
JOINT = re.compile(r"(?<=[/_:])(?=\w)")
OUTSIDE = re.compile(r"\]\(((?:\.\./)+(?:benchmarks/results|results)/[\w./-]+\.(?:csv|json|png))\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for every notebook, and the files of the repository that pages link to."""
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        files.remove(file)
        path = Path(config.docs_dir, file.src_uri)
        text, pictures = page_of(json.loads(path.read_text(encoding="utf-8")), path.stem)
        folder = posixpath.dirname(file.src_uri)
        files.append(File.generated(config, f"{folder}/{path.stem}.md", content=text))
        for name, content in pictures.items():
            files.append(File.generated(config, f"{folder}/{name}", content=content))
        files.append(File.generated(config, f"{folder}/{path.name}", abs_src_path=str(path)))
    for folder in SHOWN:
        for path in sorted((ROOT / folder).iterdir()):
            if path.suffix in KINDS:
                files.append(File.generated(config, f"{folder}/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links that leave docs/ for the repository's results into links to their copies; insert help texts; keep
    numbers of tables together.
    """
    if COMMANDS in markdown:
        markdown = markdown.replace(COMMANDS, help_texts())
    lines = markdown.splitlines()
    markdown = "\n".join(unbroken(line) if line.startswith("| ") else line for line in lines) + "\n"
    return OUTSIDE.sub(lambda link: f"]({link[1].removeprefix('../')})", markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let long names in the cells of tables be broken between their words."""
    return CELL.sub(lambda cell: NAME.sub(lambda name: JOINT.sub("<wbr>", name[0]), cell[0]), html)


def unbroken(row: str) -> str:
    """Return a table's row with non-breaking spaces within its numbers."""
    return TOGETHER.sub(lambda found: found[0].replace(" ", "\N{NO-BREAK SPACE}"), row)


def page_of(notebook: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and its pictures by file name."""
    parts, pictures = [], {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                picture = f"{name}-{len(pictures) + 1}.png"
                pictures[picture] = base64.b64decode(data["image/png"])
                parts.append(f"![output of the cell above]({picture})")
            else:
                words = "".join(output.get("text") or data.get("text/plain") or "").rstrip()
                parts.append(f"```text\n{words}\n```")
    parts.append(f"[This notebook as a file]({name}.ipynb)")
    return "\n\n".join(parts) + "\n", pictures


def help_texts() -> str:
    """Return the help of every command of ``dyart``, each under a heading."""
    from dyart.cli.main import _parser

    os.environ["COLUMNS"] = "100"  # argparse wraps its texts at it
    parts = []
    for name, parser in _commands(_parser()):
        parts.append(f"## dyart {name}\n\n```text\n{parser.format_help().rstrip()}\n```")
    return "\n\n".join(parts)


def _commands(parser: argparse.ArgumentParser) -> list[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return list(action.choices.items())
    return []
