"""The completion scripts in the shells themselves."""

import shlex
import shutil
import subprocess

import pytest

from dyart.cli import main
from dyart.cli.completion import described
from dyart.cli.main import _parser
from dyart.cli.parsers import subparsers
from dyart.recipes import names

QUESTIONS = [
    ("dyart ev", ["evaluate"]),
    ("dyart --debug ma", ["margins"]),
    ("dyart margins --no", ["--norm"]),
    ("dyart margins --norm ", ["linf", "l2", "l1"]),
    ("dyart train fashion-mini-cnn-dyart-a", ["fashion-mini-cnn-dyart-awp"]),
    ("dyart train x --optim.sched", ["--optim.schedule"]),
    ("dyart train x --method.name gai", ["gairat"]),
    ("dyart data g", ["get"]),
    ("dyart data get cifar", ["cifar10", "cifar100"]),
    ("dyart data get cifar10 --fr", ["--from"]),
    ("dyart completion z", ["zsh"]),
    ("dyart doctor --sec", ["--seconds"]),
]


@pytest.fixture
def script(capsys, tmp_path):
    def written(shell):
        assert main(["completion", shell]) == 0
        path = tmp_path / f"dyart.{shell}"
        path.write_text(capsys.readouterr().out)
        return path

    return written


def test_bash(script):
    path = script("bash")
    lines = ["set -u", f"source {shlex.quote(str(path))}", "complete -p dyart"]
    for line, _ in QUESTIONS:
        words = " ".join(map(shlex.quote, line.split(" ")))
        lines.append(f"COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _dyart")
        lines.append('echo "${COMPREPLY[*]}"')
    lines += ['COMP_WORDS=(dyart margins --norm = l1); COMP_CWORD=4; _dyart; echo "${COMPREPLY[*]}"']
    lines += ["COMP_WORDS=(dyart report ''); COMP_CWORD=2; _dyart; echo \"files${COMPREPLY[*]}\""]
    done = subprocess.run(["bash", "--norc", "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    registered, *answers = done.stdout.splitlines()
    assert registered == "complete -o default -F _dyart dyart"
    expected = [" ".join(words) for _, words in QUESTIONS]
    assert answers == [*expected, "l1", "files"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish(script):
    path = script("fish")
    asked = [f"complete -C {shlex.quote(line)}; echo ---" for line, _ in QUESTIONS]
    program = "\n".join([f"source {shlex.quote(str(path))}", *asked])
    done = subprocess.run(["fish", "--no-config", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answers = [[row.split("\t")[0] for row in part.strip().splitlines()] for part in done.stdout.split("---\n")[:-1]]
    assert [sorted(answer) for answer in answers] == [sorted(words) for _, words in QUESTIONS]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_reads_it(script):
    done = subprocess.run(["zsh", "-n", str(script("zsh"))], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_option_and_recipe_is_in_it(script, shell):
    text = script(shell).read_text()
    for command in described(_parser()):
        for option in command.options:
            assert (option if shell != "fish" else f"'{option.lstrip('-')}'") in text
    assert all(name in text for name in (*subparsers(_parser()), *names()))
