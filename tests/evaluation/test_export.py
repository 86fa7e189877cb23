"""An exported network is the run's own, bit for bit, where this package does not exist."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from dyart.cli import main
from dyart.data import load
from dyart.data.loader import as_tensors
from dyart.engine.run import make_model
from dyart.engine.stored import RunError, averaged_weights, read_config
from dyart.evaluation.export import export
from dyart.evaluation.submission import submission
from dyart.models import NAMES, build
from dyart.models.standalone import definition

WORDS = ["--data.limit", "256", "--train.epochs", "1", "--train.batch_size", "128", "--eval.steps", "1"]
WORDS += ["--train.loggers", "csv", "--train.device", "cpu", "--eval.attack", "none", "--quiet"]

# A fresh interpreter in which this package cannot be imported.
ELSEWHERE = """
import sys
sys.modules["dyart"] = None
sys.path.insert(0, sys.argv[1])
import numpy as np, torch
from network import load
torch.set_num_threads(1)
inputs = torch.from_numpy(np.load(sys.argv[2]))
model = load()
assert not model.training
with torch.no_grad():
    np.save(sys.argv[3], model(inputs).numpy())
assert not [name for name in sys.modules if name.startswith("dyart.")]
"""


def logits_elsewhere(folder, inputs, tmp_path):
    np.save(tmp_path / "inputs.npy", inputs.numpy())
    command = [sys.executable, "-B", "-c", ELSEWHERE, folder, tmp_path / "inputs.npy", tmp_path / "logits.npy"]
    subprocess.run([str(word) for word in command], check=True, timeout=120)
    return torch.from_numpy(np.load(tmp_path / "logits.npy"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "run"
    model = ["--model.normalization", "group", "--model.activation", "silu", "--model.mean", "[0.3]"]
    words = ["train", "fashion-mini-cnn-at", *WORDS, *model, "--model.std", "[0.35]", "--out", str(folder)]
    assert main(words) == 0
    return folder


def test_the_folder_gives_the_runs_logits_without_this_package(run, tmp_path):
    folder = export(run, tmp_path / "out")
    config, data = read_config(run), load("fashion-mini")
    own = make_model(config, data).eval()
    own.load_state_dict(averaged_weights(run))
    inputs, _ = as_tensors(data.test, slice(0, 50), torch.device("cpu"))
    with torch.no_grad():
        expected = own(inputs)
    assert torch.equal(logits_elsewhere(folder, inputs, tmp_path), expected)


def test_both_files_hold_the_same_weights(run, tmp_path):
    from safetensors.torch import load_file

    folder = export(run, tmp_path / "out")
    one, two = load_file(folder / "model.safetensors"), torch.load(folder / "model.pt", weights_only=True)
    assert one.keys() == two.keys() == averaged_weights(run).keys()
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_the_exported_weights_bring_their_network(run, tmp_path, capsys):
    from dyart.models import load as load_network

    folder = export(run, tmp_path / "out")
    inputs, _ = as_tensors(load("fashion-mini").test, slice(0, 50), torch.device("cpu"))
    own = make_model(read_config(run), load("fashion-mini")).eval()
    own.load_state_dict(averaged_weights(run))
    with torch.no_grad():
        assert torch.equal(load_network(folder / "model.safetensors")(inputs), own(inputs))
    words = ["--attack", "clean", "--count", "40", "--device", "cpu", "--out", str(tmp_path / "evaluation")]
    assert main(["evaluate", str(folder / "model.safetensors"), *words]) == 0
    assert "cnn, weights of" in capsys.readouterr().out


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("changed", [False, True], ids=["defaults", "all options"])
def test_every_network_of_this_package_can_be_written_down(name, changed):
    options = {"normalization": "group", "activation": "silu", "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.2, 0.2)}
    options = {**options, "bn_momentum": 0.05} if changed else {}
    source = definition(name, 7, (3, 16, 16), **options)
    assert "dyart." not in source
    space = {"__name__": "network", "__file__": "network.py"}
    exec(compile(source, "network.py", "exec"), space)
    device = "meta" if name.startswith("wrn") else "cpu"  # the wide ones take seconds to fill
    with torch.device(device):
        torch.manual_seed(0)
        written = space["build"]().eval()
        torch.manual_seed(0)
        own = build(name, 7, (3, 16, 16), **options).eval()
        assert str(written) == str(own)
        x = torch.rand(2, 3, 16, 16)
        shapes = [{key: value.shape for key, value in model.state_dict().items()} for model in (written, own)]
        assert shapes[0] == shapes[1]
        assert device == "meta" or torch.equal(written(x), own(x))


def test_the_record_has_what_is_known_and_lists_what_is_not(run, tmp_path):
    record = json.loads((export(run, tmp_path / "out") / "robustbench.json").read_text())
    info = record["model_info"]
    assert set(info) == {
        *("link", "name", "authors", "additional_data", "number_forward_passes", "dataset", "venue", "architecture"),
        *("eps", "clean_acc", "reported", "autoattack_acc", "footnote", "unreliable"),
    }
    assert info["dataset"] == "fashion-mini"
    assert info["eps"] == "0.1"
    assert info["additional_data"] is False
    recorded = json.loads((run / "evaluation.json").read_text())
    assert info["clean_acc"] == f"{100 * recorded['clean']:.2f}"
    assert info["autoattack_acc"] is None
    assert {"link", "authors", "autoattack_acc"} <= set(record["unknown"])
    assert all(info.get(key, record["issue"].get(key)) is None for key in record["unknown"])
    assert any("dyart evaluate" in note for note in record["notes"])


def test_autoattack_counts_only_as_autoattack(run):
    config, data = read_config(run), load("fashion-mini")
    evaluation = {"clean": 0.8, "robust": {"0.1": 0.5}, "norm": "linf", "attack": "words", "alarms": []}
    assert submission(config, data, {**evaluation, "tier": "apgd"})["model_info"]["autoattack_acc"] is None
    full = submission(config, data, {**evaluation, "tier": "autoattack", "inferred": {"0.1": 7}, "strict": False})
    assert full["model_info"]["autoattack_acc"] == "50.00"
    assert full["model_info"]["unreliable"] is False
    assert any("7 examples" in note and "--strict" in note for note in full["notes"])
    alarmed = {**evaluation, "tier": "autoattack", "alarms": [{"kind": "k", "message": "masked"}]}
    record = submission(config, data, alarmed)
    assert record["model_info"]["unreliable"] is True
    assert "alarm: masked" in record["notes"]


def test_a_checkpoint_that_was_not_evaluated_claims_no_accuracy(run, tmp_path):
    (path,) = [path for path in (run / "checkpoints").iterdir() if path.is_dir()]
    card = (export(path, tmp_path / "one") / "README.md").read_text()
    assert "| clean |" in card, "the only checkpoint is the best one"
    recorded = json.loads((run / "evaluation.json").read_text())
    (run / "evaluation.json").write_text(json.dumps(recorded | {"checkpoint": "epoch-0099"}))
    try:
        folder = export(run, tmp_path / "two")
    finally:
        (run / "evaluation.json").write_text(json.dumps(recorded))
    assert "Nothing is recorded" in (folder / "README.md").read_text()
    assert json.loads((folder / "robustbench.json").read_text())["model_info"]["clean_acc"] is None


def test_an_evaluation_of_other_weights_claims_no_accuracy(run, tmp_path):
    """As of a training that went on after it was measured."""
    recorded = json.loads((run / "evaluation.json").read_text())
    assert recorded["network"], "the record says which weights it is of"
    for changed in ({"network": "0" * 16}, {"asked": {"network": "0" * 16}}):
        (run / "evaluation.json").write_text(json.dumps(recorded | changed))
        try:
            folder = export(run, tmp_path / "other")
        finally:
            (run / "evaluation.json").write_text(json.dumps(recorded))
        assert "Nothing is recorded" in (folder / "README.md").read_text()


def test_the_command_writes_into_the_run_and_leaves_other_folders_alone(run, tmp_path, capsys):
    assert main(["export", str(run)]) == 0
    out = capsys.readouterr().out
    assert "bit for bit" in out
    assert {path.name for path in (run / "export").iterdir()} == {
        *("README.md", "model.pt", "model.safetensors", "network.py", "robustbench.json"),
    }
    assert main(["export", str(run)]) == 0, "an earlier export is replaced"
    capsys.readouterr()
    (tmp_path / "thesis.tex").write_text("years of work")
    assert main(["export", str(run), "--out", str(tmp_path)]) == 2
    assert "thesis.tex" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    assert main(["export", "no-such-run"]) == 2


def test_the_export_of_another_run_stays(run, tmp_path, capsys):
    out = export(run, tmp_path / "out")
    before = contents(out)
    other = shutil.copytree(run, tmp_path / "other", ignore=shutil.ignore_patterns("export"))
    assert main(["export", str(other), "--out", str(out)]) == 2
    assert f"{out} holds the export of another run, run: choose another folder with --out" in capsys.readouterr().err
    assert contents(out) == before
    assert str(run.parent).encode() not in before["robustbench.json"], "where it lay is nobody's business"
    export(other)
    export(other.rename(tmp_path / "moved"))
    export(run, out)


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors", "network.py"])
def test_files_that_no_export_wrote_stay(run, tmp_path, name, capsys):
    (tmp_path / name).write_text("weeks of training")
    assert main(["export", str(run), "--out", str(tmp_path)]) == 2
    assert (
        f"{tmp_path / name} is of no export, which has its robustbench.json: choose another" in capsys.readouterr().err
    )
    assert contents(tmp_path) == {name: b"weeks of training"}


def test_an_export_that_was_interrupted_is_made_anew(run, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dyart.evaluation.export._check", interrupted)
        with pytest.raises(KeyboardInterrupt):
            export(run, tmp_path)
    assert not (tmp_path / "README.md").exists()
    assert (export(run, tmp_path) / "README.md").is_file()


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def fill_in(path, **entries):
    """Write entries into a record as a person would, and leave the rest of it alone."""
    record = json.loads(path.read_text())
    for key, value in entries.items():
        (record["issue"] if key in record["issue"] else record["model_info"])[key] = value
    path.write_text(json.dumps(record))


def test_what_was_filled_in_stays_through_later_exports(run, tmp_path, capsys):
    path = export(run, tmp_path / "out") / "robustbench.json"
    fresh = json.loads(path.read_text())
    mine = {"link": "https://example.org", "authors": "A, B", "license": "MIT", "autoattack_acc": "41.00", "mine": 1}
    fill_in(path, **mine, dataset="another")
    for _ in range(2):
        assert main(["export", str(run), "--out", str(tmp_path / "out")]) == 0
        record = json.loads(path.read_text())
        assert {**record["model_info"], **record["issue"]} == {**fresh["model_info"], **fresh["issue"], **mine}
        assert record["unknown"] == [key for key in fresh["unknown"] if key not in mine]
        assert "filled in by hand, and kept: link, authors, autoattack_acc, mine, license" in capsys.readouterr().out
        card = (tmp_path / "out" / "README.md").read_text()
        assert f"to be filled in: {', '.join(record['unknown'])}." in card


def test_what_an_earlier_export_knew_of_other_weights_does_not_stay(run, tmp_path):
    path = export(run, tmp_path / "out") / "robustbench.json"
    fill_in(path, name="mine")
    assert json.loads(path.read_text())["model_info"]["clean_acc"]
    recorded = (run / "evaluation.json").read_text()
    (run / "evaluation.json").write_text(json.dumps(json.loads(recorded) | {"network": "0" * 16}))
    try:
        info = json.loads((export(run, tmp_path / "out") / "robustbench.json").read_text())["model_info"]
    finally:
        (run / "evaluation.json").write_text(recorded)
    assert info["clean_acc"] is None
    assert info["name"] == "mine"


@pytest.mark.parametrize("text", ['{"model_info": {"link": "x",}}', '{"link": "x"}', "[]"])
def test_a_record_that_cannot_be_read_is_not_replaced(run, tmp_path, text):
    (tmp_path / "robustbench.json").write_text(text)
    with pytest.raises(RunError, match=r"robustbench\.json.*move"):
        export(run, tmp_path)
    assert contents(tmp_path) == {"robustbench.json": text.encode()}


def test_a_card_that_was_edited_or_is_not_of_an_export_is_not_replaced(run, tmp_path, capsys):
    (other := tmp_path / "other").mkdir()
    (other / "README.md").write_text("hi\n")
    folder = export(run, tmp_path / "out")
    card = (folder / "README.md").read_text()
    (folder / "README.md").write_text(card.replace("## Use", "## How to use"))
    for place in (other, folder):
        before = contents(place)
        assert main(["export", str(run), "--out", str(place)]) == 2
        err = capsys.readouterr().err
        assert f"{place / 'README.md'} was edited, or no export wrote it" in err
        assert "choose another folder with --out, or move the file away" in err
        assert contents(place) == before
    (folder / "README.md").write_text(card)
    export(run, folder)
    assert (folder / "README.md").read_text() == card
    (folder / "README.md").unlink()
    export(run, folder)
    assert (folder / "README.md").read_text() == card


def test_a_network_of_the_users_own_is_named_not_copied(tmp_path, monkeypatch):
    (tmp_path / "export_mine.py").write_text(
        "import torch\ndef net(classes, shape):\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["train", "fashion-mini-cnn-at", *WORDS, "--model.name", "export_mine:net", "--out", "run"]) == 0
    folder = export(tmp_path / "run")
    source = (folder / "network.py").read_text()
    assert "export_mine:net" in source
    assert "torch alone" not in source
    assert "export_mine and dyart" in (folder / "README.md").read_text()
