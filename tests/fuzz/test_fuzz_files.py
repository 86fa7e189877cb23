"""Altered files: what is read is what was written, or a message names the file."""

import gzip
import json
import pickle
import shutil

import numpy as np
import pytest
import torch
from fuzzing import alterations, fuzz, refused
from hypothesis import given
from hypothesis import strategies as st

from dyart.data import DataError, load
from dyart.data.cifar import read_pickle
from dyart.data.idx import parse_idx
from dyart.data.trees import gunzip
from dyart.engine import checkpoint as store
from dyart.engine.recovery import newest_good
from dyart.engine.stored import RunError
from dyart.engine.weights import read_weights

NAMES = ("model.safetensors", "averaged.safetensors", "state.pt", store.CONFIG, store.MANIFEST)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two checkpoints, and what is in them by their step."""
    folder, known = tmp_path_factory.mktemp("run") / "checkpoints", {}
    for step in (1, 2):
        weights = {name: {"a": torch.full((40,), float(step)), "b": torch.ones(2, 3)} for name in ("model", "averaged")}
        state = {"epoch": step, "momentum": torch.full((9,), 0.5 * step), "best_epoch": 1, "words": ["x", 1.5, None]}
        store.save(folder, f"epoch-{step:04d}", weights, state, {"step": step}, f"step: {step}\n")
        store.write_index(folder, {"last": f"epoch-{step:04d}", "best": "epoch-0001"}, 2)
    for step in (1, 2):
        known[step] = content(folder / f"epoch-{step:04d}")
    return folder, known


def content(place):
    weights = {name: store.read_weights(place, name) for name in ("model", "averaged")}
    tensors = {f"{name}.{key}": value.tolist() for name, found in weights.items() for key, value in found.items()}
    state = store.read_state(place)
    state = {key: value.tolist() if isinstance(value, torch.Tensor) else value for key, value in state.items()}
    return tensors, state, (place / store.CONFIG).read_text()


@fuzz
@given(
    st.sampled_from(NAMES), st.sampled_from(["epoch-0001", "epoch-0002"]), alterations(), alterations(), st.booleans()
)
def test_a_checkpoint(tmp_path_factory, run, name, where, alter, alter_index, index_too):
    """What comes back is one of the two that were saved, whole; and one is always found where one is whole."""
    folder, known = run
    place = tmp_path_factory.getbasetemp() / "fuzzed-run"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(folder, place)
    path = place / where / name
    path.write_bytes(alter(path.read_bytes()))
    if index_too:
        path = place / store.INDEX
        path.write_bytes(alter_index(path.read_bytes()))
    try:
        good = newest_good(place)
    except store.FormatError:
        assert name == store.MANIFEST
        return
    assert good is not None
    assert content(good.place) in known.values()
    if where == "epoch-0001" and not index_too:
        assert content(good.place) == known[2]


@fuzz
@given(st.sampled_from(NAMES[:3]), alterations())
def test_a_checkpoint_whose_checksums_were_altered_with_it(tmp_path_factory, run, name, alter):
    """By somebody who means harm: nothing but a message, or values of another checkpoint."""
    place = tmp_path_factory.getbasetemp() / "forged"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(run[0] / "epoch-0002", place)
    (place / name).write_bytes(alter((place / name).read_bytes()))
    manifest = json.loads((place / store.MANIFEST).read_text())
    manifest["files"][name] = store._described(place / name)
    del manifest["sha256"]
    (place / store.MANIFEST).write_text(json.dumps(manifest | {"sha256": store._seal(manifest)}))
    store.read_facts(place)
    with refused(store.CheckpointError, about=place / name):
        content(place)


def arrays(folder):
    np.savez(folder / "set.npz", images=np.zeros((20, 4, 4), np.uint8), labels=np.arange(20) % 2)
    torch.save({"layer.weight": torch.ones(3, 4)}, folder / "weights.pt")
    from safetensors.torch import save_file

    save_file({"layer.weight": torch.ones(3, 4)}, folder / "weights.safetensors")
    batch = {"data": np.zeros((2, 12), np.uint8), "labels": [0, 1]}
    (folder / "batch").write_bytes(pickle.dumps(batch, protocol=2))
    (folder / "idx.gz").write_bytes(gzip.compress(b"\0\0\x08\x02\0\0\0\x02\0\0\0\x03" + b"abcdef"))
    np.save(folder / "images.npy", np.zeros((20, 4, 4), np.uint8))
    np.save(folder / "labels.npy", np.arange(20) % 2)


@fuzz
@given(
    st.sampled_from(["set.npz", "weights.pt", "weights.safetensors", "batch", "idx.gz", "images.npy", "labels.npy"]),
    alterations(),
)
def test_data_and_weights(tmp_path_factory, name, alter):
    folder = tmp_path_factory.getbasetemp() / "fuzzed-files"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    arrays(folder)
    path = folder / name
    path.write_bytes(alter(path.read_bytes()))
    with refused(DataError, RunError, about=folder):
        if name == "set.npz":
            load(str(path))
        elif name.endswith(".npy"):
            (folder / "set.npz").unlink()
            load(str(folder))
        elif name.startswith("weights"):
            read_weights(path)
        elif name == "batch":
            read_pickle(path.read_bytes(), str(path))
        else:
            parse_idx(gunzip(path.read_bytes(), str(path)), str(path))
