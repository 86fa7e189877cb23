"""Checkpoints: whole or not at all, checked when read, nothing executed."""

import errno
import hashlib
import json
import os
import pickle
import resource
from pathlib import Path

import pytest
import torch
from engine_cases import last_checkpoint, last_state, make_config, numbers

from dyart.engine import checkpoint as store
from dyart.engine import files
from dyart.engine.callbacks import Callback
from dyart.engine.checkpoint import CheckpointError
from dyart.engine.fit import TrainingError
from dyart.engine.metrics import MetricsFile
from dyart.engine.run import train
from dyart.engine.stored import averaged_weights


@pytest.fixture
def run(tmp_path):
    """A finished run that is asked to go on for an epoch."""
    train(make_config(tmp_path / "run", optim_schedule="constant"))
    return make_config(tmp_path / "run", optim_schedule="constant", train_epochs=4)


def place_of(config):
    return last_checkpoint(Path(config.out))


FILES = ("model.safetensors", "averaged.safetensors", "state.pt")


def flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def shortened(path):
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize("name", [*FILES, store.CONFIG])
@pytest.mark.parametrize("damage", [flipped, shortened, os.remove])
def test_a_damaged_file_is_named(run, name, damage):
    path = place_of(run) / name
    damage(path)
    with pytest.raises(CheckpointError, match=f"{path}.*use another checkpoint"):
        averaged_weights(path.parent)


@pytest.mark.parametrize("content", ["{}", '{"format": 2, "files": {}}', '{"format": 2}', '{"format": 1, "files": 3}'])
def test_a_damaged_manifest_is_named(run, content):
    path = place_of(run) / store.MANIFEST
    path.write_text(content)
    with pytest.raises(CheckpointError, match=f"{path} is damaged"):
        averaged_weights(path.parent)


def test_every_byte_of_a_manifest_counts(run):
    """Of a flipped bit in it, none goes unnoticed, but for those that leave the same facts (e.g. white space)."""
    path = place_of(run) / store.MANIFEST
    content, facts = path.read_bytes(), store.read_facts(place_of(run))
    for position in range(0, len(content), 7):
        altered = bytearray(content)
        altered[position] ^= 1 << (position % 7)
        path.write_bytes(altered)
        try:
            assert store.read_facts(path.parent) == facts
        except CheckpointError:
            continue


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"best": "epoch-0001"}', b'{"last": "../other"}'])
def test_a_damaged_index_is_named(run, content):
    path = place_of(run).parent / store.INDEX
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=str(path)):
        averaged_weights(Path(run.out))


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_nothing_is_executed(run, tmp_path, how, caplog):
    """Also not if whoever altered the file altered the manifest, too."""
    place, evidence = place_of(run), tmp_path / "executed"
    path = place / "state.pt"
    if how == "torch":
        torch.save({"epoch": Malicious(evidence)}, path)
    else:
        path.write_bytes(pickle.dumps(Malicious(evidence), protocol=2))
    manifest = json.loads((place / store.MANIFEST).read_text())
    content = path.read_bytes()
    manifest["files"]["state.pt"] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (place / store.MANIFEST).write_text(json.dumps(manifest))
    manifest["sha256"] = store._seal({key: value for key, value in manifest.items() if key != "sha256"})
    (place / store.MANIFEST).write_text(json.dumps(manifest))
    store.read_facts(place)
    with pytest.raises(CheckpointError, match=str(path)):
        store.read_state(place)
    train(run, resume=True)  # goes back to the one before
    assert str(path) in caplog.text
    assert not evidence.exists()
    pickle.loads(pickle.dumps(Malicious(evidence)))  # the trap works
    assert evidence.exists()


class NoRoomAfter(Callback):
    """From an epoch on no file of this process may grow beyond some bytes: the system refuses, as on a full disk.

    A share of 1 lets the weights pass, and not the optimizer's state.
    """

    def __init__(self, epoch, share):
        self.epoch, self.share = epoch, share

    def on_record(self, training, record):
        if record["kind"] == "epoch" and record["epoch"] == self.epoch:
            sizes = [(last_checkpoint(training.folder) / name).stat().st_size for name in FILES]
            assert sizes[0] == sizes[1] < sizes[2]
            limit(int(self.share * sizes[0]))


def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@pytest.fixture
def no_limit():
    """Return a function that takes the limit away; at the latest it goes in the end."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    yield lambda: limit(before)
    limit(before)


def content_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_no_room_for_the_weights_or_the_state(tmp_path, no_limit, share):
    config = make_config(tmp_path, train_epochs=4)
    with pytest.raises(TrainingError, match=rf"File too large \({tmp_path}\).*epoch-0002.*--resume"):
        train(config, callbacks=[NoRoomAfter(3, share)])
    no_limit()
    assert last_checkpoint(tmp_path).name == "epoch-0002"
    assert not list((tmp_path / "checkpoints").glob(".*"))
    assert last_state(tmp_path)
    train(config, resume=True)
    assert last_checkpoint(tmp_path).name == "epoch-0004"


@pytest.mark.parametrize("when", ["manifest", "index", "metrics"])
def test_no_room_for_the_small_files(tmp_path, monkeypatch, when):
    folder = tmp_path / "run"
    config = make_config(folder, train_epochs=4)
    train(make_config(folder, train_epochs=2))
    before = content_of(folder / "checkpoints")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        if when == "metrics":
            patch.setattr(MetricsFile, "write", full)
        else:
            wanted = store.MANIFEST if when == "manifest" else store.INDEX
            whole = files.write_whole
            patch.setattr(files, "write_whole", lambda path, text: full() if path.name == wanted else whole(path, text))
        with pytest.raises(TrainingError, match=f"No space left on device .*{folder}.*epoch-0002"):
            train(config, resume=True)
    assert not list((folder / "checkpoints").glob(".*"))
    after = content_of(folder / "checkpoints")
    assert all(after[path] == content for path, content in before.items())
    train(config, resume=True)
    assert [record["epoch"] for record in numbers(folder) if record["kind"] == "epoch"] == [1, 2, 3, 4]


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path, no_limit):
    path = tmp_path / "file.json"
    files.write_json(path, {"old": 1})
    with pytest.raises(TypeError):
        files.write_json(path, {"new": object()})
    limit(50_000)
    with pytest.raises(OSError, match="File too large"):
        files.write_whole(path, "x" * 60_000)
    no_limit()
    assert json.loads(path.read_text()) == {"old": 1}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("keep", "kept"), [(1, {2, 5}), (2, {2, 4, 5}), (3, {2, 3, 4, 5}), (9, {1, 2, 3, 4, 5})])
def test_keep(tmp_path, keep, kept):
    """The best, here the second, is never removed."""
    folder = tmp_path / "checkpoints"
    weights = {"model": {"a": torch.ones(2)}}
    for epoch in range(1, 6):
        name = f"epoch-{epoch:04d}"
        store.save(folder, name, weights, None, {"epoch": epoch, "step": 10 * epoch})
        best = {"best": "epoch-0002" if epoch > 1 else "epoch-0001"}
        store.write_index(folder, {"last": name} | best, keep)
    found = {int(path.name[-4:]) for path in folder.iterdir() if path.is_dir()}
    assert found == kept
    assert all(store.read_facts(folder / f"epoch-{epoch:04d}")["epoch"] == epoch for epoch in kept)


def test_weights_come_back_as_they_were(tmp_path):
    shared = torch.rand(4, 3)
    tensors = {
        "a": shared,
        "b": shared,
        "transposed": shared.T,
        "part": shared[1],
        "channels": torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "count": torch.tensor(7),
        "bf16": torch.rand(3).bfloat16(),
    }
    place = store.save(tmp_path, "one", {"model": tensors}, {"list": [1.5, 2]}, {})
    found = store.read_weights(place, "model")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], value) and found[name].dtype == value.dtype for name, value in tensors.items())
    assert store.read_state(place) == {"list": [1.5, 2]}
    umask = os.umask(0)
    os.umask(umask)
    assert place.stat().st_mode & 0o777 == 0o777 & ~umask


def test_saving_again_replaces(tmp_path):
    store.save(tmp_path, "one", {"model": {"a": torch.zeros(1)}, "averaged": {"a": torch.zeros(1)}}, None, {})
    place = store.save(tmp_path, "one", {"model": {"a": torch.ones(1)}}, None, {})
    store.read_facts(place)
    assert torch.equal(store.read_weights(place, "model")["a"], torch.ones(1))
    with pytest.raises(CheckpointError, match=r"averaged\.safetensors"):
        store.read_weights(place, "averaged")


def test_an_error_names_the_file_that_was_to_be_written(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        files.write_whole(tmp_path / "nowhere" / "page.html", "text")
    assert caught.value.filename == str(tmp_path / "nowhere" / "page.html")
