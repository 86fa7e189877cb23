"""Every block of code in the documentation and the README does what it says."""

import random
import re
import sys

import numpy as np
import pytest
import torch
from doc_pages import ROOT, Reader, blocks_of, commands_of, compare, parse

PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
LANGUAGES = {"python", "text", "console", "bash", "yaml", "json", "csv", "bibtex"}

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",  # of Lightning, Transformers and scikit-learn
    "ignore::FutureWarning",
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty current folder, from which modules can be imported; and the random state of a fresh process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    modules = set(sys.modules)
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    torch.manual_seed(0)
    yield tmp_path
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_does_what_it_says(page, folder, capsys):
    Reader(capsys).follow(page, (ROOT / page).read_text())


def test_the_readme_prints_what_it_says(folder, capsys):
    """Its commands are parsed alone: they are about runs that take minutes."""
    text = (ROOT / "README.md").read_text()
    Reader(capsys, commands=False).follow("README.md", text)
    for line in re.findall(r"^    (dyart .*|make .*)$", text, re.MULTILINE):
        parse(line.split("  #")[0])


@pytest.mark.parametrize("page", [*PAGES, "README.md", "CONTRIBUTING.md"])
def test_blocks_are_of_known_languages(page):
    """A block in a language that nobody runs, or without one, would never be checked."""
    text = (ROOT / page).read_text()
    assert {block.language for block in blocks_of(text)} <= LANGUAGES
    fences = re.findall(r"^ *```(.*)$", text, re.MULTILINE)
    assert len(fences) == 2 * len(blocks_of(text)), "a fence without a language"


def test_outputs_are_compared():
    compare("loss 0.512, 3 of 10\n", "loss 0.51, 3 of 10\n", 0.05)
    compare("a\nb 1\nc 2\n", "a\n...\nc 2\n", 0.05)
    for printed, stated in (("loss 0.9\n", "loss 0.5\n"), ("found 3\n", "lost 3\n"), ("a\nb\n", "a\n")):
        with pytest.raises(AssertionError):
            compare(printed, stated, 0.05)


def test_commands_are_read():
    (block,) = blocks_of(
        "Not run by the tests: a GPU is needed.\n\n```console\n$ dyart a \\\n    --b 1\nout\n$ c\n```\n"
    )
    assert block.skipped
    assert [(" ".join(command.split()), out) for command, out in commands_of(block)] == [
        ("dyart a --b 1", "out\n"),
        ("c", ""),
    ]


@pytest.mark.parametrize("command", ["dyart margins RUN --nrom l2", "dyart train fashion-mini-cnn-dyrt", "make deom"])
def test_wrong_commands_are_not_parsed(command, capsys):
    with pytest.raises((AssertionError, SystemExit)):
        parse(command)
