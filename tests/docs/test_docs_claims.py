"""Names, tables and files that the documentation speaks of are there, and its numbers are those of the JSON files."""

import ast
import importlib
import re
import subprocess
import sys

import pytest
import yaml
from doc_pages import ROOT

from dyart.cli.main import _parser
from dyart.recipes import names

PAPER = (ROOT / "docs" / "paper.md").read_text()
SPANS = sorted(set(re.findall(r"`([^`\n]+)`", PAPER)))
TESTS = [span for span in SPANS if span.startswith("tests/")]
OBJECTS = [span for span in SPANS if re.fullmatch(r"dyart(\.\w+)+", span)]
FILES = [span for span in SPANS if re.fullmatch(r"(benchmarks|results)/[\w./-]+", span)]
RECIPES = [span for span in SPANS if re.match(r"(cifar10|tiny-imagenet|fashion-mini)-", span)]
COMMANDS = [span.split()[1] for span in SPANS if re.match(r"dyart \w+", span)]


@pytest.mark.parametrize("name", OBJECTS)
def test_a_name_of_the_map_exists(name):
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            annotated = part in getattr(found, "__annotations__", {})  # a dataclass's field is no attribute
            found = None if annotated and not hasattr(found, part) else getattr(found, part)
        return
    pytest.fail(name)


@pytest.mark.parametrize("place", TESTS)
def test_a_test_of_the_map_exists(place):
    path, _, name = place.partition("::")
    functions = {node.name for node in ast.walk(ast.parse((ROOT / path).read_text())) if hasattr(node, "name")}
    assert name in functions


def test_recipes_files_and_commands_of_the_map_exist():
    assert len(RECIPES) > 20
    assert set(RECIPES) <= set(names())
    assert [path for path in FILES if not (ROOT / path).exists()] == []
    (choices,) = [action.choices for action in _parser()._actions if isinstance(action.choices, dict)]
    assert set(COMMANDS) <= set(choices)


def test_the_map_has_every_numbered_thing_of_the_paper():
    """Equations 1 to 9 (10 and 11 in the appendix), tables 1 to 9, figures 1 to 6."""
    for number in range(1, 12):
        assert re.search(rf"eq\. {number}\b", PAPER), number
    tables = PAPER.partition("## Tables")[2].partition("## Figures")[0]
    assert re.findall(r"^\| (\d) \|", tables, re.MULTILINE) == list("123456789")
    figures = PAPER.partition("## Figures")[2]
    assert re.findall(r"\d", " ".join(re.findall(r"^\| ([\d, ]+) \|", figures, re.MULTILINE))) == list("123456")


def test_tables_are_what_the_json_files_say():
    script = ROOT / "scripts" / "docs_tables.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_check_of_the_tables_can_fail(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    tables = importlib.import_module("docs_tables")
    page = (ROOT / "docs" / "results" / "embedded.md").read_text()
    assert tables.rewritten(page) == page
    wrong = page.replace("| natural |", "| naturel |", 1)
    assert tables.rewritten(wrong) == page != wrong


def test_every_page_is_in_the_navigation():
    text = (ROOT / "mkdocs.yml").read_text()
    nav = set(re.findall(r"[\w/-]+\.md", yaml.safe_dump(yaml.safe_load(text)["nav"])))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    notebooks = {f"notebooks/{path.stem}.md" for path in (ROOT / "docs" / "notebooks").glob("*.ipynb")}
    assert nav == pages - {"scaling.md"} | notebooks or nav == pages | notebooks


def test_the_site_asks_no_other_host():
    """Neither fonts nor scripts: the documentation opens offline."""
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert config["theme"]["font"] is False
    assert "http" not in " ".join([*config.get("extra_css", []), *config.get("extra_javascript", [])])


def test_the_citation_is_that_of_the_paper_and_of_this_version():
    import dyart

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == dyart.__version__
    authors = [author["family-names"] for author in citation["preferred-citation"]["authors"]]
    assert authors == ["Xu", "Sun", "Goldblum", "Goldstein", "Huang"]
    assert f"## {dyart.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_worked_method_is_as_short_as_contributors_are_told():
    from doc_pages import blocks_of

    blocks = {b.title: b.body for b in blocks_of((ROOT / "docs/guides/method.md").read_text()) if b.title}
    lines = sum(len(blocks[name].splitlines()) for name in ("half_margin.py", "test_half_margin.py"))
    said = int(re.search(r"in (\d+) lines", (ROOT / "CONTRIBUTING.md").read_text())[1])
    assert lines == said < 100
