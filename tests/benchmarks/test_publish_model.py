"""Publishing a model: only what was measured, and a card that says what it is."""

import pytest
import torch
from bench_cases import module
from safetensors.torch import save_file

from dyart.cli import main as cli
from dyart.cli.networks import sample
from dyart.data import load
from dyart.data.loader import as_tensors
from dyart.models import build

publish, run_records, plan = (module(name) for name in ("publish_model", "run_records", "plan"))
NAME, COUNT = "tiny-dyart-seed0", 64


@pytest.fixture
def place(tmp_path):
    """A network of the embedded set in 16 bit, and the record of an evaluation of it."""
    data = load("fashion-mini")
    network = build("cnn", len(data.classes), data.shape, activation="silu", seed=1).eval()
    network.load_state_dict({name: value.half().to(value.dtype) for name, value in network.state_dict().items()})
    (tmp_path / "weights").mkdir()
    file = tmp_path / "weights" / f"{NAME}.safetensors"
    save_file({k: v.half() if v.is_floating_point() else v for k, v in network.state_dict().items()}, file)
    inputs, labels = as_tensors(data.test, sample(len(data.test), COUNT, 0), torch.device("cpu"))
    with torch.no_grad():
        right = (network(inputs).argmax(dim=1) == labels).numpy()
    settings = {
        "model": {"name": "cnn", "normalization": "batch", "activation": "silu", "mean": None},
        "method": {"name": "dyart", "alpha": 3.0, "r0": "16/255"},
        "optim": {"lr": 0.1, "schedule": "cosine", "warmup": 0.05, "momentum": 0.9, "weight_decay": 5e-4, "clip": 1.5,
                  "average": 0.995},
        "train": {"batch_size": 128, "precision": "fp32"}, "data": {"auxiliary": None}, "eval": {"norm": "linf"},
    }  # fmt: skip
    one = {
        "checkpoint": "best", "tier": "apgd", "attack": "some attacks", "norm": "linf", "images": COUNT,
        "clean": float(right.mean()), "robust": {"0.1": 0.0625}, "intervals": {"clean": [0.0, 0.3], "0.1": [0.02, 0.1]},
        "resists": {"clean": run_records.packed(right)}, "alarms": [], "view": {"device": "cpu"}, "wall_seconds": 3.0,
    }  # fmt: skip
    made = {
        "name": NAME, "data": "fashion-mini", "classes": 10, "shape": list(data.shape), "normalization": "batch",
        "recipe": "fashion-mini-cnn-dyart", "settings": settings, "seed": 0, "epochs": 16, "burn_in": 4, "gpu": "cpu",
        "wall_seconds": 50.0, "versions": {"torch": "2.13"}, "best_epoch": 15,
        "weights": {"best": publish.digest(file)},
    }  # fmt: skip
    run_records.write(tmp_path / "results" / f"{NAME}.json", run_records.with_evaluation(made, one))
    return tmp_path


def call(place, *words):
    return publish.main([NAME, "--results", str(place / "results"), "--out", str(place / "models"), *map(str, words)])


def test_a_model_and_its_card(place, capsys, monkeypatch):
    assert call(place, "--weights", place / "weights") == 0
    file = place / "models" / f"{NAME}.safetensors"
    assert publish.weights_digest(file) == publish.digest(place / "weights" / f"{NAME}.safetensors")
    card = (place / "models" / f"{NAME}.md").read_text()
    for words in ("dyart (alpha 3.0, r0 16/255)", "16 epochs, 4 of them natural", "| 0.1 | 6.25 | 2.0 to 10.0 |",
                  "seed 0", "upper bounds", publish.digest(file)):  # fmt: skip
        assert words in card
    # The command of the card is one that works, as it stands.
    (command,) = [line for line in card.splitlines() if line.startswith("dyart evaluate")]
    monkeypatch.chdir(place)
    quick = ["--attack", "clean", "--count", "40", "--device", "cpu", "--out", str(place / "evaluation")]
    assert cli([*command.split()[1:], *quick]) == 0
    assert "clean" in capsys.readouterr().out
    # So is its Python.
    code = card.partition("```python\n")[2].partition("```")[0]
    namespace: dict = {}
    exec(code, namespace)
    assert namespace["model"](torch.rand(1, *load("fashion-mini").shape)).shape == (1, 10)


def test_other_weights_are_refused(place, capsys):
    path = place / "weights" / f"{NAME}.safetensors"
    network = build("cnn", 10, load("fashion-mini").shape, activation="silu", seed=2)
    save_file({k: v.half() if v.is_floating_point() else v for k, v in network.state_dict().items()}, path)
    assert call(place, "--weights", place / "weights") == 1
    assert "sha256" in capsys.readouterr().err
    stored = run_records.read(place / "results" / f"{NAME}.json")
    run_records.write(place / "results" / f"{NAME}.json", stored | {"weights": {"best": publish.digest(path)}})
    assert call(place, "--weights", place / "weights") == 1
    assert "otherwise than recorded" in capsys.readouterr().err
    assert list((place / "models").iterdir()) == []


def test_what_is_too_large_or_not_measured_is_refused(place, capsys, monkeypatch):
    monkeypatch.setattr(publish, "LARGEST", 1000)
    assert call(place, "--weights", place / "weights") == 1
    assert "16 bit" in capsys.readouterr().err
    run_records.write(place / "results" / f"{NAME}.json", {"name": NAME})
    assert call(place, "--weights", place / "weights") == 1
    assert "no evaluation" in capsys.readouterr().err
    assert call(place, "--card") == 1


def test_the_card_is_renewed_from_a_new_record(place):
    assert call(place, "--weights", place / "weights", "--images", 0) == 0
    stored = run_records.read(place / "results" / f"{NAME}.json")
    more = stored["evaluations"][0] | {"tier": "autoattack", "attack": "more attacks"}
    run_records.write(place / "results" / f"{NAME}.json", run_records.with_evaluation(stored, more))
    assert call(place, "--card") == 0
    assert "more attacks" in (place / "models" / f"{NAME}.md").read_text()


def test_a_network_s_arguments_reach_the_file(place):
    from dyart.models.described import description_of

    record = run_records.read(place / "results" / f"{NAME}.json")
    record["settings"]["model"] |= {"bn_momentum": None}
    file = place / "weights" / f"{NAME}.safetensors"
    publish.describe(record, file)
    described = description_of(file)
    assert (described.name, described.data, described.classes) == ("cnn", "fashion-mini", 10)
    assert described.settings == {"normalization": "batch", "activation": "silu"}
