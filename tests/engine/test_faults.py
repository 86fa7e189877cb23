"""Faults for real: at every file operation of a save, a folder that cannot be written, two processes on one run."""

import errno
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
import torch
from engine_cases import SignalAt, last_checkpoint, make_config
from faults import ERRORS, Faults, Killed, faulty_save, lost, prepared, save
from processes import ended, started, stopped_when, trained

from dyart.cli import main
from dyart.engine import checkpoint as store
from dyart.engine import run as run_module
from dyart.engine.callbacks import Callback
from dyart.engine.fit import TrainingError
from dyart.engine.lock import FILE as LOCK
from dyart.engine.lock import LockedError, locked
from dyart.engine.run import train
from dyart.engine.stored import RunError
from dyart.recipes import dump

KINDS = ("kill", "power", *ERRORS[:2])
LEFT = ["epoch-0001", "epoch-0003", "epoch-0004", "index.json"]
STRIDE = 8  # all operations together: `make bars` meets each of them with every kind of fault


def end():
    raise Killed


@pytest.fixture(scope="module")
def operations(tmp_path_factory):
    """The number of file operations of a save."""
    folder = tmp_path_factory.mktemp("count")
    prepared(folder, again=True)
    faults = faulty_save(folder, None, "kill")
    assert {"mkdir", "open", "write", "fsync", "rename", "replace"} <= set(faults.names.values())
    return faults.count


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_at_any_file_operation(tmp_path, operations, kind, again):
    """Neither the last checkpoint before the fault nor the best; and the next save works."""
    prepared(tmp_path / "before", again)
    met, some = 0, range(2 * KINDS.index(kind) + again, operations, STRIDE)
    for at in some:
        folder = Path(shutil.copytree(tmp_path / "before", tmp_path / "checkpoints"))
        try:
            faults = faulty_save(folder, at, kind, end)
            met += faults.count > at
        except Killed:
            met += 1
        assert lost(folder) == "", f"operation {at}"
        save(folder, 4)
        assert lost(folder) == ""
        assert sorted(path.name for path in folder.iterdir()) == LEFT
        shutil.rmtree(folder)
    assert met >= len(some) - 1, "a save that replaces nothing has fewer operations"


def test_a_kill_for_real(tmp_path, operations):
    prepared(tmp_path, again=False)
    assert ended(started(faulty_save, tmp_path, 9, "power")) == -signal.SIGKILL
    assert (tmp_path / ".epoch-0004").is_dir(), "in the middle of it"
    assert lost(tmp_path) == ""


def test_the_loss_would_be_seen(tmp_path):
    prepared(tmp_path, again=False)
    shutil.rmtree(tmp_path / "epoch-0003")
    assert "number 1" in lost(tmp_path) or "number 2" in lost(tmp_path)


# A folder that cannot be written


class ReadOnlyAfter(Callback):
    """Makes the run's folders read-only after an epoch."""

    def on_record(self, training, record):
        if record["kind"] == "epoch" and record["epoch"] == 2:
            (training.folder / "checkpoints").chmod(0o555)


def in_read_only_folders(folder, said):
    """Meet a folder that is read-only from the beginning, and one that becomes so: the target of a process."""
    torch.set_num_threads(1)
    train(make_config(said.with_name("first")))  # imports what it needs while it may read everything
    if os.getuid() == 0:  # who may write everywhere
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    words = []
    for place, settings in (("fixed", {}), ("free", {"train_epochs": 4})):
        try:
            train(make_config(folder / place / "run", **settings), callbacks=[ReadOnlyAfter()])
        except (RunError, TrainingError) as error:
            words.append(str(error))
    print("\n".join(words), file=said.open("w"))


def test_a_read_only_folder():
    folder = Path(tempfile.mkdtemp())  # that others can enter, unlike pytest's
    try:
        folder.chmod(0o755)
        for name, mode in (("fixed", 0o555), ("free", 0o777), ("said", 0o777)):
            (folder / name).mkdir()
            (folder / name).chmod(mode)
        process = started(in_read_only_folders, folder, folder / "said" / "words")
        assert ended(process) == 0
        first, second = (folder / "said" / "words").read_text().splitlines()
        assert first == f"cannot write to {folder}/fixed/run: Permission denied; choose another folder with --out"
        run = folder / "free" / "run"
        assert second.startswith(f"Permission denied ({run}/checkpoints/.epoch-0002) at step ")
        (run / "checkpoints").chmod(0o755)
        assert last_checkpoint(run).name == "epoch-0001"
        store.read_facts(last_checkpoint(run))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# Two processes on one folder


def test_the_second_process_is_told_who_holds_the_folder(tmp_path, capsys):
    folder = tmp_path / "run"
    config = make_config(folder, "at", data_limit=640, train_epochs=8, train_log_every=1)
    process = trained(config)
    stopped_when(process, folder, bool)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    (tmp_path / "again.yaml").write_text(dump(config))
    assert main(["train", "--resume", str(folder)]) == 2
    words = capsys.readouterr().err
    assert words.startswith(f"dyart train: {folder} is in use by process {process.pid} on ")
    assert main(["train", str(tmp_path / "again.yaml")]) == 2
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    os.kill(process.pid, signal.SIGCONT)
    assert ended(process) == 0
    assert not (folder / LOCK).exists()


def test_a_lock_is_free_again_when_its_process_has_ended_in_any_way(tmp_path):
    (tmp_path / LOCK).write_text('{"process": 1, "host": "gone", "since": "yesterday"}')
    with locked(tmp_path):
        with pytest.raises(LockedError, match=f"in use by process {os.getpid()} on "), locked(tmp_path):
            pass
        with pytest.raises(LockedError), locked(tmp_path):
            pass
    with pytest.raises(KeyError), locked(tmp_path):
        raise KeyError
    with locked(tmp_path):
        pass
    assert not (tmp_path / LOCK).exists()


def test_a_run_that_was_begun_meanwhile_is_not_overwritten(tmp_path):
    folder = tmp_path / "run"

    config = make_config(folder)
    prepare = run_module.prepare

    def slow(*arguments, **named):
        ready = prepare(*arguments, **named)
        if not (folder / "config.yaml").exists():
            folder.mkdir()
            (folder / "config.yaml").write_text(dump(config))
        return ready

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "prepare", slow)
        with pytest.raises(RunError, match="holds a run without a checkpoint"):
            train(config)


def test_faults_are_met_where_they_are_said_to_be(tmp_path):
    with Faults(1, errno.EIO) as faults, pytest.raises(OSError, match="Input/output error"):
        (tmp_path / "file").write_bytes(b"1234")
    assert (tmp_path / "file").read_bytes() == b"12"
    assert faults.names == {0: "open", 1: "write"}
    assert os.fsync.__name__ == "fsync"


def test_a_full_disk_when_a_signal_wants_to_save(tmp_path, monkeypatch):
    config = make_config(tmp_path, train_epochs=4)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    class FullFrom(SignalAt):
        def on_step(self, training):
            super().on_step(training)
            if training.steps_done == self.step:
                training.saver.wait()  # the epoch's own checkpoint is written in the background
                monkeypatch.setattr(store, "_contents", full)

    with pytest.raises(TrainingError, match=r"No space left on device .*epoch-0002"):
        train(config, callbacks=[FullFrom(7)])
    assert last_checkpoint(tmp_path).name == "epoch-0002"
