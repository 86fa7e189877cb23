"""Files of weights as people have them: prefixes of wrappers, checkpoints around them, damage, other people's code."""

import argparse

import numpy as np
import pytest
import torch
from torch import nn

from dyart.engine.stored import RunError
from dyart.engine.weights import fit_weights, read_weights


def small():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


def loaded(weights):
    model = small()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    fit_weights(model, weights, "w.pt", 3)
    return model


@pytest.mark.parametrize("prefix", ["module.", "model.", "_orig_mod.", "module.model.", "backbone.net."])
def test_prefixes_of_wrappers_are_taken_off_and_said(prefix, capsys):
    state = small().state_dict()
    model = loaded({prefix + key: value for key, value in state.items()})
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    out = capsys.readouterr().out
    assert repr(prefix) in out
    assert len(out.strip().splitlines()) == 1


def test_other_entries_beside_a_prefix_are_left_out_and_counted(capsys):
    state = small().state_dict()
    extra = {f"model.{key}": value for key, value in state.items()} | {"loss.weight": torch.ones(3)}
    loaded(extra)
    assert "1 other entries are left out" in capsys.readouterr().out


def test_a_prefix_of_the_network_is_put_on(capsys):
    model = nn.ModuleDict({"inner": small()})
    fit_weights(model, small().state_dict(), "w.pt", 3)
    assert "'inner.' is put on" in capsys.readouterr().out


def test_weights_that_fit_say_nothing(capsys):
    state = small().state_dict()
    model = loaded(state)
    assert torch.equal(model[0].weight, state["0.weight"])
    assert capsys.readouterr().out == ""


def test_counters_that_old_files_lack_are_no_matter():
    state = {key: value for key, value in small().state_dict().items() if "num_batches" not in key}
    assert torch.equal(loaded(state)[2].weight, state["2.weight"])


def test_a_mismatch_names_keys_and_shapes_in_one_line():
    state = small().state_dict()
    del state["2.bias"]
    state["fc.bias"] = torch.zeros(3)
    state["0.weight"] = torch.zeros(9, 2)
    with pytest.raises(RunError) as caught:
        loaded(state)
    text = str(caught.value)
    assert "1 of its 9 entries are missing (2.bias)" in text
    assert "1 entries are unknown to it (fc.bias)" in text
    assert "0.weight is 9x2 in the file and 4x2 in the network" in text
    assert "\n" not in text
    assert "size mismatch" not in text


def test_another_number_of_classes_is_said():
    state = small().state_dict() | {"2.weight": torch.zeros(100, 4), "2.bias": torch.zeros(100)}
    with pytest.raises(RunError, match="of a network for 100 classes, the data has 3"):
        loaded(state)


def test_long_lists_of_keys_are_cut():
    with pytest.raises(RunError, match="and 5 more"):
        loaded({"a": torch.zeros(1)})


@pytest.mark.parametrize("name", ["state_dict", "model", "net", "something"])
def test_state_dicts_inside_of_checkpoints_are_found(tmp_path, capsys, name):
    state = small().state_dict()
    torch.save({"epoch": 3, name: state, "best": 0.5}, tmp_path / "c.pt")
    assert read_weights(tmp_path / "c.pt").keys() == state.keys()
    assert name in capsys.readouterr().out


def test_the_likelier_of_two_is_taken_and_the_other_named(tmp_path, capsys):
    torch.save({"ema": {"a": torch.zeros(1)}, "state_dict": {"a": torch.ones(1)}}, tmp_path / "c.pt")
    assert read_weights(tmp_path / "c.pt")["a"] == 1
    assert "not: ema" in capsys.readouterr().out


class Evil:
    def __reduce__(self):
        return (open, (EVIL_PATH, "w"))


EVIL_PATH = ""


def test_code_in_weights_is_not_executed(tmp_path, monkeypatch):
    target = tmp_path / "executed"
    monkeypatch.setitem(globals(), "EVIL_PATH", str(target))
    torch.save({"state_dict": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(RunError, match="without executing code") as caught:
        read_weights(tmp_path / "evil.pt")
    assert not target.exists()
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["damaged.pt", "damaged.safetensors"])
def test_damaged_files_are_named(tmp_path, name):
    (tmp_path / name).write_bytes(b"nothing of the kind")
    with pytest.raises(RunError, match=name):
        read_weights(tmp_path / name)


def test_files_without_a_state_dict_are_named_and_what_they_hold(tmp_path):
    for content, held in (([1, 2], "list"), ({"epoch": 3, "lr": 0.1}, "the entries epoch, lr")):
        torch.save(content, tmp_path / "w.pt")
        with pytest.raises(RunError, match=f"no state dict, but {held}: save one with torch.save"):
            read_weights(tmp_path / "w.pt")


@pytest.mark.parametrize("kind", ["module", "script"])
def test_a_whole_model_is_not_run_and_the_message_gives_the_lines_that_save_its_weights(tmp_path, kind):
    path, network = tmp_path / "model.pt", small()
    torch.save(network, path) if kind == "module" else torch.jit.save(torch.jit.script(network), path)
    with pytest.raises(RunError) as caught:
        read_weights(path)
    lines = {
        "module": f"held = torch.load({str(path)!r}, weights_only=False)",
        "script": f"torch.save(torch.jit.load({str(path)!r}).state_dict(), ",
    }
    assert lines[kind] in str(caught.value)
    model = torch.load(path, weights_only=False) if kind == "module" else torch.jit.load(path)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    assert read_weights(tmp_path / "weights.pt").keys() == network.state_dict().keys()


def test_the_lines_for_a_checkpoint_with_objects_beside_its_weights_work(tmp_path):
    path, network = tmp_path / "checkpoint.pth", small()
    torch.save({"state_dict": network.state_dict(), "args": argparse.Namespace(lr=0.1)}, path)
    with pytest.raises(RunError) as caught:
        read_weights(path)
    words = str(caught.value)
    first, second = words[words.index("held = ") :].split(", then ", 1)
    names: dict = {"torch": torch}
    exec(first, names)
    line = second[: second.index(", with the entry")].replace('"weights.pt"', repr(str(tmp_path / "weights.pt")))
    exec(line, names)
    assert read_weights(tmp_path / "weights.pt").keys() == network.state_dict().keys()


def test_an_archive_of_arrays_is_no_file_of_torchs(tmp_path):
    np.savez(tmp_path / "w.npz", a=np.zeros(3))
    with pytest.raises(RunError, match=r"holds arrays of numpy: data goes with --data"):
        read_weights(tmp_path / "w.npz")
