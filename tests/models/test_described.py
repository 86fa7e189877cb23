"""Files of weights that say which network they belong to."""

import argparse
import json

import pytest
import torch
from safetensors.torch import save_file

from dyart.cli.main import main
from dyart.cli.network_options import add_network_options
from dyart.cli.networks import named_network
from dyart.engine.stored import RunError
from dyart.models import Description, build, load, save
from dyart.models.described import ENTRY, description_of

SETTINGS = {"activation": "silu", "mean": [0.4, 0.6], "std": [0.5, 2.0]}
ABOUT = Description("mlp", 3, (2,), "three-blobs", SETTINGS)


@pytest.fixture
def network():
    return build("mlp", 3, (2,), seed=3, **SETTINGS).eval()


def test_a_file_brings_its_network(network, tmp_path):
    save(network.state_dict(), tmp_path / "w.safetensors", ABOUT)
    assert description_of(tmp_path / "w.safetensors") == ABOUT
    loaded = load(tmp_path / "w.safetensors")
    assert not loaded.training
    inputs = torch.rand(5, 2)
    with torch.no_grad():
        assert torch.equal(loaded(inputs), network(inputs))


def test_weights_in_16_bit_are_read_into_32(network, tmp_path):
    save({name: value.half() for name, value in network.state_dict().items()}, tmp_path / "w.safetensors", ABOUT)
    loaded = load(str(tmp_path / "w.safetensors"))
    assert all(value.dtype == torch.float32 for value in loaded.state_dict().values())


def described_by(tmp_path, network, text):
    save_file(network.state_dict(), tmp_path / "w.safetensors", None if text is None else {ENTRY: text})
    return tmp_path / "w.safetensors"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "does not say which network"),
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"name": "mlp"}', "cannot be read"),
        (json.dumps({"name": "os:system", "classes": 3, "shape": [2], "data": "x"}), "not 'os:system'"),
        (json.dumps({"name": "mlp", "classes": 4, "shape": [2], "data": "x"}), "are not of the mlp"),
        (json.dumps({"name": "mlp", "classes": 10**11, "shape": [2], "data": "x"}), "are not of the mlp"),
        (json.dumps({"name": "mlp", "classes": 3, "shape": [2], "data": "x", "colour": 1}), "cannot be read"),
        (json.dumps({"name": "mlp", "classes": 3, "shape": [2], "data": "/etc/passwd"}), "must be the name"),
        (json.dumps({"name": "mlp", "classes": 3, "shape": [2], "settings": {"depth": 3}}), "unknown settings depth"),
        (json.dumps({"name": "mlp", "classes": 3, "shape": [2], "settings": {"seed": 3}}), "unknown settings seed"),
        (json.dumps({"name": "mlp", "classes": 3, "shape": [2], "settings": [1]}), "must be a dictionary"),
        (json.dumps({"name": "mlp", "classes": 3, "shape": [2], "settings": {"mean": 3, "std": 1}}), "cannot be read"),
        pytest.param("[" * 100_000, "cannot be read", id="deep"),
    ],
)
def test_what_a_file_says_is_not_believed_blindly(text, words, network, tmp_path):
    with pytest.raises(ValueError, match=words):
        load(described_by(tmp_path, network, text))


def test_the_network_does_not_depend_on_the_surroundings(network, tmp_path):
    save(network.state_dict(), tmp_path / "w.safetensors", ABOUT)
    before = torch.random.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            loaded = load(tmp_path / "w.safetensors")
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(value.dtype == torch.float32 and value.device.type == "cpu" for value in loaded.state_dict().values())
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(value, network.state_dict()[name]) for name, value in loaded.state_dict().items())


def test_only_what_can_be_read_is_written(network, tmp_path):
    with pytest.raises(ValueError, match="ends in"):
        save(network.state_dict(), tmp_path / "w.bin", ABOUT)
    with pytest.raises(ValueError, match="are not of the mlp"):
        save(network.state_dict(), tmp_path / "w.safetensors", Description("mlp", 4, (2,), "x", SETTINGS))
    with pytest.raises(FileNotFoundError, match="there is no file"):
        load(tmp_path / "w.safetensors")
    assert not list(tmp_path.iterdir())


def test_code_of_others_is_not_described(network, tmp_path):
    with pytest.raises(ValueError, match="only networks of this package"):
        save(network.state_dict(), tmp_path / "w.safetensors", Description("zoo:own", 3, (2,), "x"))
    assert not (tmp_path / "w.safetensors").exists()


def test_a_command_takes_the_file_alone(network, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save(network.state_dict(), "mine.safetensors", ABOUT)
    assert main(["evaluate", "mine.safetensors", "--attack", "clean", "--device", "cpu"]) == 0
    assert "mlp, weights of mine.safetensors" in capsys.readouterr().out
    record = json.loads((tmp_path / "evaluation-mine" / "evaluation.json").read_text())
    assert (record["model"], record["weights"]) == ("mlp", "mine.safetensors")
    assert main(["margins", "mine.safetensors", "--count", "20", "--steps", "5", "--device", "cpu"]) == 0
    assert (tmp_path / "margins.csv").is_file()


def test_a_network_s_name_does_not_overrule_its_file(network, tmp_path):
    """An activation no weight shows: another one makes another network of the same weights."""
    save(network.state_dict(), tmp_path / "mine.safetensors", ABOUT)
    parser = argparse.ArgumentParser()
    add_network_options(parser)
    words = ["--weights", str(tmp_path / "mine.safetensors"), "--data", "three-blobs", "--device", "cpu", "--model"]
    named, *_ = named_network(parser.parse_args([*words, "mlp"]))
    inputs = torch.rand(5, 2)
    with torch.no_grad():
        assert torch.equal(named(inputs), network(inputs))
    with pytest.raises(RunError, match="is of the network mlp, not of cnn: leave --model out"):
        named_network(parser.parse_args([*words, "cnn"]))


def test_a_training_from_such_a_file_has_its_activation(tmp_path, capsys):
    about = Description("mlp", 3, (2,), "three-blobs", {"activation": "silu"})
    save(build("mlp", 3, (2,), activation="silu").state_dict(), tmp_path / "w.safetensors", about)
    words = ["train", "fashion-mini-cnn-natural", "--data.name", "three-blobs", "--model.name", "mlp", "--quiet"]
    words += [
        "--train.burn_in_from",
        str(tmp_path / "w.safetensors"),
        "--train.epochs",
        "1",
        "--train.batch_size",
        "32",
    ]
    words += ["--data.crop", "0", "--data.flip", "false", "--eval.attack", "none", "--out", str(tmp_path / "run")]
    assert main([*words, "--model.activation", "relu"]) != 0
    assert "model.activation silu" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mine", "did you mean mine.safetensors?"),
        (".", "did you mean mine.safetensors?"),
        ("mine.pt", "mine.safetensors may: name that"),
        ("card.md", "no file of weights"),
        ("run/checkpoints/epoch-0001/averaged.safetensors", "name its folder"),
    ],
)
def test_what_else_is_named_is_set_right(name, words, network, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save(network.state_dict(), "mine.safetensors", ABOUT)
    torch.save(network.state_dict(), "mine.pt")
    (tmp_path / "card.md").write_text("text")
    inside = tmp_path / "run" / "checkpoints" / "epoch-0001"
    inside.mkdir(parents=True)
    save_file(network.state_dict(), inside / "averaged.safetensors")
    assert main(["evaluate", name, "--attack", "clean"]) != 0
    assert words in capsys.readouterr().err


def test_data_of_another_shape_is_refused(network, tmp_path, capsys):
    save(network.state_dict(), tmp_path / "w.safetensors", ABOUT)
    assert main(["evaluate", str(tmp_path / "w.safetensors"), "--data", "fashion-mini"]) != 0
    assert "inputs of shape 2 (three-blobs), fashion-mini has 1x28x28" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
def test_a_file_that_says_nothing_is_asked_about(name, network, tmp_path, capsys):
    save_file(network.state_dict(), tmp_path / name)
    assert main(["evaluate", str(tmp_path / name), "--attack", "clean"]) != 0
    error = capsys.readouterr().err
    assert "does not say which network it belongs to" in error
    assert "--model" in error


def test_a_misspelt_name_is_set_right(network, tmp_path, capsys):
    save(network.state_dict(), tmp_path / "mine.safetensors", ABOUT)
    assert main(["margins", str(tmp_path / "mime.safetensors")]) != 0
    assert "did you mean" in capsys.readouterr().err


def test_a_damaged_file_is_named(tmp_path, capsys):
    (tmp_path / "w.safetensors").write_bytes(b"nothing of the kind")
    assert main(["margins", str(tmp_path / "w.safetensors")]) != 0
    assert "no .safetensors file" in capsys.readouterr().err


def test_of_a_run_s_folder_the_way_to_its_network_is_told(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"is a folder: if it is a run, dyart export .*model\.safetensors"):
        load(tmp_path)
