"""What a beginner meets: one line that says what to do, a documented exit status, the traceback behind --debug."""

import builtins
import contextlib
import errno
import io
import os
import re
import shlex
import subprocess
import sys

import pytest
import torch

from dyart.cli import main
from dyart.cli.errors import EXIT_STATUS, guarded
from dyart.cli.main import _parser, _user_errors
from dyart.cli.parsers import every_parser
from dyart.engine.fit import TrainingError

TINY = ["--data.name", "three-blobs", "--model.name", "mlp", "--train.epochs", "1", "--train.batch_size", "256",
        "--data.crop", "0", "--eval.steps", "2", "--train.loggers", "csv", "--train.device", "cpu"]  # fmt: skip


def run(capsys, line):
    """Return status, stdout and stderr of a command line."""
    try:
        status = main(shlex.split(line))
    except SystemExit as leave:
        status = leave.code
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a small run and with all kinds of things that are none."""
    folder = tmp_path_factory.mktemp("errors")
    with contextlib.chdir(folder):
        assert main(["train", "fashion-mini-cnn-at", *TINY, "--out", "run", "--quiet"]) == 0
    (folder / "empty").mkdir()
    (folder / "file.txt").write_text("x")
    (folder / "bad.yaml").write_text("a: [1")
    (folder / "comments.yaml").write_text("# my recipe\n")
    (folder / "garbage.pt").write_bytes(b"hello")
    (folder / "garbage.safetensors").write_bytes(b"hello")
    (folder / "own_errors.py").write_text("import torch\ndef net():\n    return torch.nn.Linear(2, 2)\n")
    (folder / "cut").mkdir()
    for path in (folder / "run").rglob("*"):
        if path.is_file():
            target = folder / "cut" / path.relative_to(folder / "run")
            target.parent.mkdir(parents=True, exist_ok=True)
            content = path.read_bytes()
            target.write_bytes(content[:50] if path.suffix == ".safetensors" else content)
    return folder


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("trian", "did you mean train?"),
        ("evalute run", "did you mean evaluate?"),
        ("train fashion-mini-cnn-dyar", "Did you mean fashion-mini-cnn-dyart"),
        ("train fashion-mini-cnn-at --quiett", "did you mean --quiet?"),
        ("train fashion-mini-cnn-at --lr 0.1", "did you mean optim.lr?"),
        ("train fashion-mini-cnn-at --method.name TRADES", "did you mean 'trades'?"),
        ("train fashion-mini-cnn-at --method.radius 8", "method.radius: the radius 8 is as large as the box"),
        ("train fashion-mini-cnn-mma --method.hinge 32", "method.hinge: the radius 32 is as large as the box"),
        (
            "train fashion-mini-cnn-dyart --method.kl 6 --method.kl_radius 8",
            "method.kl_radius: the radius 8 is as large as the box",
        ),
        ("train fashion-mini-cnn-dyart --method.r0 16", "method.r0: the radius 16 is as large as the box"),
        ("train fashion-mini-cnn-at --eval.radii 0.1,2", "eval.radii: the radius 2 is as large as the box"),
        ("train fashion-mini-cnn-at --optim.lr -1", "optim.lr must be positive, got -1"),
        ("train fashion-mini-cnn-at --method.radius -0.1", "radius must be positive, got -0.1"),
        ("train fashion-mini-cnn-at --method.name dyrt", "did you mean 'dyart'?"),
        ("train fashion-mini-cnn-at --data.name fashon-mini", "did you mean 'fashion-mini'?"),
        ("train bad.yaml", "bad.yaml is no YAML"),
        ("train missing.yaml", "missing.yaml"),
        ("train comments.yaml", "comments.yaml holds no settings: write some"),
        ("train empty --resume", "it has no config.yaml"),
        ("train --resume", "name the RUN to go on with, its folder: dyart train RUN --resume"),
        ("train fashion-mini-cnn-at --out file.txt", "choose another folder with --out"),
        ("compare", "RECIPE is missing"),
        ("compare fashion-mini-cnn-at --seeds a", "whole numbers"),
        ("compare fashion-mini-cnn-at --seeds 0,1,0", "a seed that comes twice says nothing new"),
        ("evaluate nowhere", "there is no such folder"),
        ("evaluate empty", "neither a run with checkpoints nor a checkpoint"),
        ("evaluate cut", "model.safetensors is damaged"),
        ("evaluate run --count -5", "--count must be at least 1, got -5"),
        ("evaluate run --devices 0", "--devices: a whole number of at least 1 is needed, got '0'"),
        ("margins run --devices -1", "--devices: a whole number of at least 1 is needed, got '-1'"),
        ("evaluate run --radii -8/255", "radii must be positive, got -8/255"),
        ("evaluate run --attack apdg", "did you mean apgd?"),
        ("evaluate --model own_errors:net --data moons --weights garbage.pt", "no file that torch.save wrote"),
        ("evaluate --model own_errors:net --data moons --weights garbage.safetensors", "no .safetensors file"),
        ("evaluate --model own_errors:nett --data moons", "did you mean 'net'?"),
        ("evaluate --model own_errors:net --data mons", "did you mean 'moons'?"),
        ("margins run --seed -1 --count 5", "--seed must be at least 0, got -1"),
        ("margins run --out empty --count 5", "name the CSV file"),
        ("margins run --out mine.json --count 5", "name the CSV file, e.g. mine.csv; a JSON goes beside it"),
        ("margins run --steps x", "--steps: a whole number is needed, got 'x'"),
        ("margins run --norm", "--norm: a value is needed"),
        ("export nowhere", "there is no such folder"),
        ("dynamics run --methods att", "did you mean 'at'?"),
        ("dynamics run --count -1", "count must be at least 1, got -1"),
        ("curves empty", "it has no config.yaml"),
        ("curves run --smoothing -1", "--smoothing must be at least 1"),
        ("curves run --paper nofile.csv", "nofile.csv: no such file"),
        ("plane --method dyrt", "did you mean 'dyart'?"),
        ("plane --frames -1", "--frames must be at least 2"),
        ("curves nofile.jsonl", "nofile.jsonl does not exist: look for a misspelt name"),
        ("report nowhere", "nowhere does not exist: look for a misspelt name"),
        ("report empty", "empty is no run, and nothing was measured there"),
        ("bench --batches -5", "positive whole numbers"),
        ("data get cifar-10", "did you mean 'cifar10'?"),
        ("data get mine --from nowhere", "nowhere does not exist"),
        ("data gett cifar10", "did you mean get?"),
        ("recipes a b", "unknown: b"),
        ("demo --out file.txt", "a folder is needed"),
        ("doctor --secs 3", "did you mean --seconds?"),
        ("doctor --seconds -1", "must be positive"),
        ("completion bsh", "did you mean bash?"),
    ],
)
def test_wrong_is_one_line_and_status_2(capsys, monkeypatch, place, line, expected):
    monkeypatch.chdir(place)
    monkeypatch.setenv("DYART_DATA", str(place / "data"))
    status, _, err = run(capsys, line)
    assert status == 2
    assert expected in err
    assert len(err.strip().splitlines()) == 1
    assert err.startswith("dyart")


FOLDERS = ["evaluate run --attack clean --count 5", "export run", "dynamics run --count 4", "plane --frames 2", "demo"]
FILES = ["margins run --count 5", "curves run", "report run", "bench --batches 8"]


@pytest.mark.parametrize("line", [*(f"{line} --out" for line in FOLDERS), "data get mine --from run --root"])
def test_a_folder_that_cannot_be_made_is_not_called_misspelt(capsys, monkeypatch, place, line):
    """The system says of ``/proc/foo`` that there is no such file."""
    if not os.path.isdir("/proc/self"):
        pytest.skip("needs a folder in which nobody can make one")
    monkeypatch.chdir(place)
    status, _, err = run(capsys, f"{line} /proc/foo")
    assert status == 2
    assert "/proc/foo: this folder cannot be made there: choose another place" in err


@pytest.mark.parametrize("line", FILES)
def test_a_file_where_none_can_be_written_is_refused_before_the_work(capsys, monkeypatch, place, line):
    if not os.path.isdir("/proc/self"):
        pytest.skip("needs a folder in which nobody can write")
    monkeypatch.chdir(place)
    for module in ("margins.look_at", "curves.write_curves", "bench._measured"):
        monkeypatch.setattr(f"dyart.cli.{module}", lambda *_, **__: pytest.fail("it works already"))
    for out, words in (
        ("/proc/foo", "cannot write into /proc (No such file or directory): choose another folder with --out"),
        ("/proc/foo/bar", "/proc/foo: this folder cannot be made there: choose another place"),
        ("file.txt/bar", "file.txt: is a file, and a folder is needed"),
    ):
        status, _, err = run(capsys, f"{line} --out {out}")
        assert status == 2
        assert words in err


@pytest.fixture
def read_only(place, monkeypatch):
    """The folder of the run as it is on a file system that is mounted read-only, which stops root, too."""
    monkeypatch.chdir(place)

    def refuse(module, name, writes):
        usual = getattr(module, name)

        def function(path, *arguments, **named):
            where = None if isinstance(path, int) else place / os.fsdecode(path)
            if where and where.is_relative_to(place) and writes(where, *arguments, **named):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), os.fspath(path))
            return usual(path, *arguments, **named)

        monkeypatch.setattr(module, name, function)

    for module in (io, builtins):
        refuse(module, "open", lambda _, mode="r", *__, **___: set(mode) & set("wax+"))
    refuse(os, "open", lambda _, flags, *__, **___: flags & (os.O_WRONLY | os.O_RDWR))
    refuse(os, "mkdir", lambda where, *_, **__: where.parent.is_dir() and not where.exists())
    for name in ("unlink", "rename", "replace"):
        refuse(os, name, lambda *_, **__: True)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("evaluate run --attack clean --count 5 --no-preflight", "run/evaluation-5: {}"),
        ("evaluate run --attack clean --fresh", "cannot write into run (Read-only file system): {hint}"),
        ("report run", "/run/report.html: {}"),
        ("export run", "run/export: {}"),
        ("dynamics run --count 4", "cannot write into run (Read-only file system): {hint}"),
        ("margins run --count 4 --out new/margins.csv", "new: {}"),
        ("plane --frames 2", "runs: {}"),
        ("demo", "runs: {}"),
    ],
)
def test_a_read_only_file_system_is_told_with_what_to_do(capsys, read_only, line, words):
    if line.startswith("report"):
        pytest.importorskip("plotly")
    status, _, err = run(capsys, line)
    hint = "choose another folder with --out"
    assert status == 2
    assert words.format(f"cannot be written, the file system is read-only: {hint}", hint=hint) in err
    assert ".part" not in err


@pytest.mark.parametrize("line", FOLDERS[:4])
def test_a_file_in_the_place_of_a_folder_is_said_to_be_one(capsys, monkeypatch, place, line):
    monkeypatch.chdir(place)
    for out in ("file.txt", "file.txt/in"):
        status, _, err = run(capsys, f"{line} --out {out}")
        assert status == 2
        assert "is a file" in err
        assert "a folder is needed" in err


@pytest.mark.parametrize("path", [path for path, _ in every_parser(_parser())])
def test_every_command_has_help_and_refuses_what_it_does_not_know(capsys, path):
    status, out, _ = run(capsys, f"{path} --help")
    assert status == 0
    assert f"dyart {path}" in out
    assert "--debug" in out
    required = {"train": "fashion-mini-cnn-at", "compare": "fashion-mini-cnn-at", "data": "list", "data get": "mnist"}
    words = required.get(path, "bash" if path == "completion" else "x" if path not in ("demo", "plane") else "")
    status, _, err = run(capsys, f"{path} {words} --no-such-option 3")
    assert status == 2
    assert len(err.strip().splitlines()) == 1


def test_a_new_parent_folder_is_made_for_margins(capsys, monkeypatch, place):
    monkeypatch.chdir(place)
    status, _, err = run(capsys, "margins run --count 5 --steps 5 --out new/folder/m.csv")
    assert status == 0, err
    assert (place / "new/folder/m.csv").is_file()


def test_a_report_replaces_pages_of_its_own_alone(capsys, monkeypatch, place):
    pytest.importorskip("plotly")
    monkeypatch.chdir(place)
    (place / "other.html").write_text("<!DOCTYPE html>\n<title>mine</title>\n<p>about the dyart report</p>\n")
    names = {path.name: path.read_bytes() for path in place.iterdir() if path.is_file()}
    assert {"own_errors.py", "garbage.safetensors", "other.html"} <= names.keys()
    for name, content in names.items():
        status, _, err = run(capsys, f"report run --out {name}")
        assert status == 2
        assert f"{name} is no page of dyart's, and would be replaced: choose another file with --out" in err
        assert (place / name).read_bytes() == content
    assert {path.name for path in place.iterdir() if path.is_file()} == names.keys()
    many = "run & " * 2000
    for title in (many, "second"):
        status, _, err = run(capsys, f"report run --out page.html --title '{title}'")
        assert status == 0, err
    assert "<h1>second</h1>" in (place / "page.html").read_text(encoding="utf-8")
    (place / "page.html").unlink()


@pytest.mark.parametrize("line", ["--debug recipes", "recipes --debug", "recipes"])
def test_what_nobody_foresaw_is_status_1_and_its_traceback_behind_debug(capsys, monkeypatch, line):
    def broken(pattern):
        raise TypeError("two kinds\nof things")

    monkeypatch.setattr("dyart.recipes.listing.table", broken)
    status, _, err = run(capsys, line)
    assert status == 1
    last = err.splitlines()[-1]
    assert "TypeError: two kinds of things" in last
    assert last.startswith("dyart recipes: ")
    assert "test_cli_errors.py, line " in last, "code of one's own is named"
    assert "--debug" in last
    assert ("Traceback" in err) == ("--debug" in line)


BUGS = """\
import torch
class Bug(torch.nn.Module):
    def __init__(self, lazy=False):
        super().__init__()
        self.layer = torch.nn.LazyLinear(2) if lazy else torch.nn.Linear(2, 2)
    def forward(self, x):
        return self.layer(x.undefined)
def lazy():
    return Bug(lazy=True)
def factory():
    return torch.nn.undefined
"""


@pytest.mark.parametrize(
    ("name", "line"), [("Bug", "7, in forward"), ("lazy", "7, in forward"), ("factory", "11, in f")]
)
@pytest.mark.parametrize(
    "command", ["evaluate --data moons --model", f"train fashion-mini-cnn-at {' '.join(TINY)} --model.name"]
)
def test_a_bug_in_a_network_of_ones_own_is_named_with_its_line(capsys, monkeypatch, tmp_path, command, name, line):
    (tmp_path / "own_bugs.py").write_text(BUGS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_bugs", raising=False)
    status, _, err = run(capsys, f"{command} own_bugs:{name}")
    assert status == 2
    assert "has no attribute 'undefined'" in err.splitlines()[-1]
    assert f"({tmp_path / 'own_bugs.py'}, line {line}" in err.splitlines()[-1]
    assert "--debug shows" in err.splitlines()[-1]


def test_an_error_without_code_of_ones_own_names_no_place(capsys, monkeypatch, place):
    monkeypatch.chdir(place)
    status, _, err = run(capsys, "evaluate --model own_errors:net --data fashion-mini")
    assert status == 2
    assert "fails on inputs of shape 1x28x28" in err
    assert ", line " not in err


@pytest.mark.parametrize(
    "command",
    ["evaluate --data set --model", f"train fashion-mini-cnn-at {' '.join(TINY)} --data.name set --model.name"],
)
def test_a_network_that_fails_on_pictures_of_mixed_colours_is_told_with_the_mixture(
    capsys, monkeypatch, tmp_path, command
):
    images = pytest.importorskip("PIL.Image")
    for number in range(40):
        file = tmp_path / "set" / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        images.new("RGB" if number == 7 else "L", (8, 8)).save(file)
    (tmp_path / "own_grey.py").write_text("import torch\ndef net():\n    return torch.nn.Conv2d(1, 2, 8)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_grey", raising=False)
    status, _, err = run(capsys, f"{command} own_grey:net")
    assert status == 2
    assert "set: 39 grey, 1 in colour (e.g. b/7.png)" in err
    assert "fails on inputs of shape 3x8x8" in err.splitlines()[-1]


@pytest.mark.parametrize("line", ["--debug data get nothing", "data get nothing --debug", "data --debug get nothing"])
def test_debug_shows_where_a_users_error_comes_from(capsys, line):
    status, _, err = run(capsys, line)
    assert status == 2
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("dyart data get: there is no data set 'nothing'")


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (KeyboardInterrupt(), 130, "dyart train: interrupted\n"),
        (KeyboardInterrupt("what to do"), 130, "dyart train: interrupted; what to do\n"),
        (TrainingError("stopped by SIGINT after step 3; saved"), 130, "after step 3"),
        (TrainingError("stopped by SIGTERM after step 3; saved"), 143, "after step 3"),
        (TrainingError("the loss is not finite"), 2, "not finite"),
        (torch.OutOfMemoryError("CUDA out of memory.\nTried to"), 1, "--train.batch_size"),
        (MemoryError(), 1, "memory ran out"),
        (
            ModuleNotFoundError("No module named 'plotly'", name="plotly.io"),
            2,
            "pip install plotly (or dyart's extra 'report')",
        ),
        (PermissionError(13, "Permission denied", "/x/y"), 2, "/x/y: may not be read or written"),
        (OSError(28, "No space left on device", "/x/y"), 2, "/x/y: no space left on device"),
        (ZeroDivisionError("division by zero"), 1, "ZeroDivisionError: division by zero"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_exit_status_of_an_error(capsys, error, status, words):
    def work():
        raise error

    assert guarded(work, _user_errors, "train") == status
    err = capsys.readouterr().err
    assert words in err
    assert len(err.splitlines()) == 1
    assert re.search(rf"^  {status}\s", EXIT_STATUS, re.MULTILINE), "it is documented"


def test_a_reader_who_goes_away_is_no_error():
    """As in `dyart recipes | head -1`."""
    reading, writing = os.pipe()
    os.close(reading)
    program = "import sys; from dyart.cli import main; sys.exit(main(['recipes']))"
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=120, check=False
    )
    os.close(writing)
    assert done.returncode == 141
    assert done.stderr == ""
