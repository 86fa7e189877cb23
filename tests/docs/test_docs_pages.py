"""Every block of code in the documentation and the README does what it says."""

import random
import re
import sys

import numpy as np
import pytest
import torch
from doc_commands import INSTEAD, PARSED, QUICKER, commands_in, decided, listed, stand_ins
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


def test_the_readme_does_what_it_says(folder, capsys, monkeypatch):
    monkeypatch.setenv("DYART_DATA", str(folder / "data"))
    stand_ins(folder)
    torch.manual_seed(0)
    Reader(capsys).follow("README.md", (ROOT / "README.md").read_text())
    for made in ("runs/mine/report.html", "runs/mine/margins.csv", "runs/mine/dynamics.csv", "runs/demo/report.html"):
        assert (folder / made).is_file(), made


def test_contributors_are_told_commands_that_there_are(folder, capsys):
    Reader(capsys).follow("CONTRIBUTING.md", (ROOT / "CONTRIBUTING.md").read_text())


def test_what_is_said_of_commands_is_said_of_one_on_a_page():
    pages = [ROOT / page for page in (*PAGES, "README.md", "CONTRIBUTING.md")]
    blocks = [block for page in pages for block in blocks_of(page.read_text())]
    shells = [block for block in blocks if block.language in ("console", "bash")]
    commands = [one for block in shells for line, _ in commands_of(block) for one in commands_in(line)]
    for table in (QUICKER, INSTEAD, PARSED):
        assert set(table) == {found for one in commands if (found := listed(one, table))}, "one that no page has"
    assert all(len(reason) > 10 for reason in PARSED.values())
    for page in pages:  # they would do nothing
        assert not re.search(r"Not run by the tests|tests add", page.read_text()), f"{page}: say it in doc_commands.py"
    own = [one for one in commands if one.startswith("dyart ")]
    run = [one for one in own if decided(one)[0] is not None]
    assert len(own) - len(run) <= 8 < 25 < len(run), "most of ours are run"


def test_the_longest_line_decides():
    assert decided("dyart recipes") == (["dyart", "recipes"], True)
    assert decided("dyart evaluate runs/mine --attack margins") == (
        ["dyart", "evaluate", "runs/mine", "--attack", "margins"],
        True,
    )
    assert decided("dyart evaluate runs/mine")[1] is False
    assert decided("dyart evaluate runs/mine --devices 8")[0] is None
    assert decided("make demo")[0] == ["dyart", "demo", "--quick"]


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
    (block,) = blocks_of("```console\n$ dyart a \\\n    --b 1\nout\n$ c\n```\n")
    assert [(" ".join(command.split()), out) for command, out in commands_of(block)] == [
        ("dyart a --b 1", "out\n"),
        ("c", ""),
    ]


@pytest.mark.parametrize(
    "command",
    [
        "dyart margins RUN --nrom l2",
        "dyart train fashion-mini-cnn-dyrt",
        "make deom",
        'pip install ".[al]"',
        "pip install torch==1.0",
        "git clnoe",
        "python scripts/docs_tables.py --chek",
        "python scripts/docs_tabels.py",
    ],
)
def test_wrong_commands_are_not_parsed(command, capsys):
    with pytest.raises((AssertionError, SystemExit, FileNotFoundError)):
        parse(command)
