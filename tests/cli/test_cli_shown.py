"""What the command line shows of itself: versions, overview, exit statuses, colours."""

import os
import pty
import re

import torch
from cli_cases import TINY, run

from dyart.cli.colours import paint
from dyart.cli.environment import PACKAGES
from dyart.cli.errors import EXIT_STATUS
from dyart.cli.main import _parser
from dyart.cli.overview import EXAMPLES
from dyart.cli.parsers import subparsers


def test_version_names_the_environment(capsys):
    status, out, _ = run(capsys, "--version")
    lines = out.splitlines()
    assert status == 0
    assert re.fullmatch(r"dyart \d+\.\d+\.\d+\S*", lines[0])
    assert f"torch {torch.__version__}" in lines
    assert lines[3].startswith("gpu ")
    assert all(package in out for packages in PACKAGES.values() for package in packages)


def test_exit_status_is_in_the_help(capsys):
    status, out, _ = run(capsys, "--help")
    assert status == 0
    assert EXIT_STATUS in out


def test_alone_it_shows_every_command_and_three_examples_that_parse(capsys):
    status, out, _ = run(capsys)
    assert status == 0
    assert all(f"\n  {name} " in out for name in subparsers(_parser()))
    examples = [line.strip() for line in EXAMPLES.splitlines() if line.strip().startswith("dyart ")]
    assert len(examples) == 3
    for example in examples:
        _, unknown = _parser().parse_known_args(example.split("  ")[0].split()[1:])
        assert unknown == []


def test_colours_on_a_terminal_alone(monkeypatch, tmp_path):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    first, second = pty.openpty()
    with open(second, "w") as terminal, (tmp_path / "file").open("w") as file:
        assert paint("ok", "green", terminal) == "\x1b[32mok\x1b[0m"
        assert paint("ok", "green", file) == "ok"
        monkeypatch.setenv("NO_COLOR", "1")
        assert paint("ok", "green", terminal) == "ok"
        monkeypatch.delenv("NO_COLOR")
        monkeypatch.setenv("TERM", "dumb")
        assert paint("ok", "green", terminal) == "ok"
    os.close(first)


def test_a_piped_training_has_no_colours(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(capsys, "train", "fashion-mini-cnn-at", *TINY, "--out", "run")
    assert status == 0
    assert "epoch" in out
    assert "\x1b" not in out + err
