"""Files of weights that say which network they belong to."""

import json

import pytest
import torch
from safetensors.torch import save_file

from dyart.cli.main import main
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
        ("{", "cannot read"),
        ("[]", "cannot read"),
        ('{"name": "mlp"}', "cannot read"),
        (json.dumps({"name": "os:system", "classes": 3, "shape": [2], "data": "x"}), "not 'os:system'"),
        (json.dumps({"name": "mlp", "classes": 4, "shape": [2], "data": "x"}), "are not of the mlp"),
        (json.dumps({"name": "mlp", "classes": 3, "shape": [2], "data": "x", "colour": 1}), "cannot read"),
    ],
)
def test_what_a_file_says_is_not_believed_blindly(text, words, network, tmp_path):
    with pytest.raises(ValueError, match=words):
        load(described_by(tmp_path, network, text))


def test_code_of_others_is_not_described(network, tmp_path):
    with pytest.raises(ValueError, match="only networks of this package"):
        save(network.state_dict(), tmp_path / "w.safetensors", Description("zoo:own", 3, (2,), "x"))
    assert not (tmp_path / "w.safetensors").exists()


def test_a_command_takes_the_file_alone(network, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save(network.state_dict(), "mine.safetensors", ABOUT)
    assert main(["evaluate", "mine.safetensors", "--attack", "clean", "--device", "cpu"]) == 0
    assert "mlp, weights of mine.safetensors" in capsys.readouterr().out
    assert (tmp_path / "evaluation-mine" / "evaluation.json").is_file()
    assert main(["margins", "mine.safetensors", "--count", "20", "--steps", "5", "--device", "cpu"]) == 0
    assert (tmp_path / "margins.csv").is_file()


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
