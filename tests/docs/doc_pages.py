"""Does what a page of the documentation says, as a reader would: block after block, in one folder and one namespace.

What a block is for, by its language:

    python                   runs; what it prints must be in the `text` block that follows
    python title="name.py"   is written to that file (so is any other language with a title)
    console                  `$ command` lines run; the lines below a command, if any, must be what it prints
    bash                     every line is a command; what it prints is not compared

Stated output may have lines of `...` alone, which stand for any number of lines, and its numbers may differ a little:
by 5 per cent, or what a comment `<!-- tolerance: 30 % -->` before the block says. Which commands are run with less to
do, and which are parsed alone and why, stands in `doc_commands.py`.
"""

import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from doc_commands import commands_in, decided

from dyart.cli import main as cli

ROOT = Path(__file__).parents[2]
NUMBER = re.compile(r"-?\d+\.?\d*(?:e-?\d+)?")
TOLERANCE = 0.05


@dataclass(frozen=True)
class Block:
    """A fenced block, and what the lines before it say of how to treat it."""

    line: int
    language: str
    title: str | None
    body: str
    before: str

    @property
    def tolerance(self) -> float:
        found = re.search(r"<!-- tolerance: (\d+) % -->", self.before)
        return int(found[1]) / 100 if found else TOLERANCE


def blocks_of(text: str) -> list[Block]:
    """Return the fenced blocks of a page, indented ones (in tabs and notes) included."""
    blocks, lines, number, last = [], text.splitlines(), 0, 0
    while number < len(lines):
        opened = re.match(r"( *)```(\w+)(.*)$", lines[number])
        if not opened:
            number += 1
            continue
        indent, language, rest = opened.groups()
        end = number + 1
        while lines[end].strip() != "```":
            end += 1
        title = re.search(r'title="([^"]+)"', rest)
        body = "\n".join(line.removeprefix(indent) for line in lines[number + 1 : end]) + "\n"
        before = _paragraph(lines[last:number])
        blocks.append(Block(number + 1, language, title and title[1], body, before))
        number = last = end + 1
    return blocks


def _paragraph(lines: list[str]) -> str:
    """Return the last paragraph, and the comments after it."""
    parts = [part for part in "\n".join(line.strip() for line in lines).split("\n\n") if part.strip()]
    kept: list[str] = []
    for part in reversed(parts):
        kept.insert(0, part)
        if not part.strip().startswith("<!--"):
            break
    return "\n\n".join(kept)


@dataclass
class Reader:
    """Somebody who follows a page in an empty folder (the current one)."""

    capture: Any
    namespace: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    printed: str = ""

    def follow(self, page: str, text: str) -> None:
        for block in blocks_of(text):
            try:
                self._do(page, block)
            except SystemExit as error:
                pytest.fail(f"{page}:{block.line}: exit {error.code}: {self.capture.readouterr().err}")
            except Exception as error:
                error.add_note(f"in {page}, the block of line {block.line}")
                raise
        assert not self.printed, f"{page}: printed and not shown: {self.printed!r}"

    def _do(self, page: str, block: Block) -> None:
        if block.title:
            Path(block.title).write_text(block.body)
        elif block.language == "python":
            self.capture.readouterr()  # what commands before it printed is not its own
            exec(compile("\n" * block.line + block.body, page, "exec"), self.namespace)
            self.printed += self.capture.readouterr().out
        elif block.language == "text":
            compare(self.printed, block.body, block.tolerance)
            self.printed = ""
        elif block.language in ("console", "bash"):
            for line, stated in commands_of(block):
                for command in commands_in(line):
                    self._command(command, stated, block)

    def _command(self, command: str, stated: str, block: Block) -> None:
        words, as_stated = decided(command)
        if words is None:
            return parse(command)
        if words[0] == "dyart":
            status = cli(words[1:])
            out, err = self.capture.readouterr()
            assert status == 0, f"{command}: {err}"
        elif words[0] == "python":
            done = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{command}: {done.stderr}"
            out = done.stdout
        else:
            raise ValueError(f"{command}: a page may run dyart and python; doc_commands.py lists others, and why")
        if stated and as_stated:
            compare(out, stated, block.tolerance)


def commands_of(block: Block) -> list[tuple[str, str]]:
    """Return every command of a block, and the output that is stated below it."""
    body = block.body.replace("\\\n", " ")
    if block.language == "bash":
        lines = (line.split("  #")[0].strip() for line in body.splitlines())
        return [(line, "") for line in lines if line and not line.startswith("#")]
    parts = re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]
    return [(part.partition("\n")[0].strip(), part.partition("\n")[2]) for part in parts]


def parse(command: str) -> None:
    """Check a command that is not run: its verb, its options, its recipe; its make target; what pip would install."""
    words = shlex.split(command)
    if words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert words[-1] in targets, f"{command}: no such target"
    elif words[0] == "pip":
        _parse_pip(command, words)
    elif words[0] == "python":
        source = (ROOT / words[1]).read_text()
        strange = [word for word in words if word.startswith("--") and f'"{word}"' not in source]
        assert not strange, f"{command}: {words[1]} does not know {strange}"
    elif words[0] == "dyart":
        from dyart.cli.main import _parser
        from dyart.recipes import names

        options, rest = _parser().parse_known_args(words[1:])
        keys = options.command in ("train", "compare", "dynamics")
        assert keys or not rest, f"{command}: unknown arguments {rest}"
        recipes = [getattr(options, "recipe", None), *getattr(options, "recipes", [])]
        known = {*names(), None}
        wrong = [name for name in recipes if name not in known and not re.search(r"[/.]", name)]
        assert not wrong, f"{command}: no recipe {wrong}"
        if options.command == "train" and options.recipe in known and not options.help:
            assert cli([*words[1:], "--print_config"]) == 0, f"{command}: its keys are not right"
    else:
        raise AssertionError(f"{command}: nobody knows {words[0]}")


def _parse_pip(command: str, words: list[str]) -> None:
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert words[1] == "install", command
    for word in words[2:]:
        named = re.search(r"\[(.*)\]", word)
        assert not named or set(named[1].split(",")) <= set(extras), f"{command}: no such extra"
        assert "==" not in word or word in pins, f"{command}: another version than that of constraints.txt"
        assert not word.endswith(".txt") or (ROOT / word).is_file(), f"{command}: no file {word}"


def compare(printed: str, stated: str, tolerance: float) -> None:
    """Fail unless what was printed is what is stated, numbers to within a tolerance, `...` for any lines."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "..." else _loosely(line) + r"[ ]*\n" for line in stated.splitlines()
    )
    found = re.fullmatch(pattern, printed)
    assert found, f"stated:\n{stated}\nprinted:\n{printed}"
    said = NUMBER.findall(re.sub(r"^\s*\.\.\.$", "", stated, flags=re.MULTILINE))
    for got, wanted in zip(found.groups(), said, strict=True):
        slack = 0.01 if "." in wanted else 1
        limit = tolerance * abs(float(wanted)) + slack * max(1, tolerance / TOLERANCE)
        assert abs(float(got) - float(wanted)) <= limit, f"{got} instead of {wanted}:\n{printed}"


def _loosely(line: str) -> str:
    """Return a pattern for a line with other numbers, and with other widths of the columns around them."""
    parts = NUMBER.split(line.rstrip())
    words = [re.sub(r"(?:\\ )+", r"[ ]+", re.escape(part)) for part in parts]
    return rf"({NUMBER.pattern})".join(words)
