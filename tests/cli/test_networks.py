"""Networks as people have them: factories with arguments, state dicts with prefixes, other people's checkpoints."""

import argparse
import re
import shutil
import types

import numpy as np
import pytest
import torch
from torch import nn

from dyart.cli import main
from dyart.cli.network_options import add_network_options, parse_arguments, parse_numbers
from dyart.cli.networks import named_examples, named_network, recorded_accuracy, sample
from dyart.data import load
from dyart.engine.stored import RunError
from dyart.models import build

CPU = torch.device("cpu")


def options(*words):
    parser = argparse.ArgumentParser()
    add_network_options(parser)
    return parser.parse_args([str(word) for word in [*words, "--device", "cpu"]])


@pytest.fixture
def zoo(monkeypatch):
    """A module as timm, Hugging Face and RobustBench offer them."""
    module = types.ModuleType("zoo")

    def create_model(model_name, pretrained=False, num_classes=1000, **kwargs):
        if kwargs:
            raise TypeError(f"unexpected keyword argument {next(iter(kwargs))!r}")
        network = nn.Sequential(nn.Flatten(), nn.Linear(2, num_classes))
        network.made = (model_name, pretrained)
        return network

    class Output:
        def __init__(self, logits):
            self.logits = logits

    class Auto(nn.Module):
        def __init__(self, scale):
            super().__init__()
            self.linear, self.scale = nn.Linear(2, 3), scale

        @classmethod
        def from_pretrained(cls, pretrained_model_name_or_path, *args, **kwargs):
            assert pretrained_model_name_or_path == "some/model-18"
            return cls(**kwargs)

        def forward(self, pixel_values):
            return Output(self.linear(pixel_values) * self.scale)

    def own(classes, shape):
        return nn.Linear(shape[0], classes)

    def fixed():
        return nn.Linear(2, 3)

    def picky(depth, classes=2):
        raise ValueError(f"depth must be 8, 14 or 20, not {depth}")

    def offline():
        raise RuntimeError("no network")

    def huge():
        raise torch.OutOfMemoryError("it needs a larger machine")

    def lazy(width, classes):
        return nn.Sequential(nn.LazyLinear(width), nn.Linear(width, classes))

    module.create_model, module.Auto, module.own, module.lazy = create_model, Auto, own, lazy
    module.picky, module.offline, module.huge, module.fixed = picky, offline, huge, fixed
    module.greedy = lambda **kwargs: create_model("x", **kwargs)
    monkeypatch.setitem(__import__("sys").modules, "zoo", module)
    return module


# Factories


def test_a_factory_of_timms_kind_gets_the_users_arguments_and_the_number_of_classes(zoo):
    words = [
        "--model",
        "zoo:create_model",
        "--data",
        "three-blobs",
        "--model-args",
        "model_name=resnet18,pretrained=false",
    ]
    model, data, _, folder = named_network(options(*words))
    assert model.made == ("resnet18", False)
    assert model[1].out_features == len(data.classes) == 3
    assert folder is None
    assert not model.training


def test_dotted_factories_and_outputs_of_hugging_faces_kind(zoo):
    arguments = "pretrained_model_name_or_path=some/model-18,scale=2.5"
    words = ["--model", "zoo:Auto.from_pretrained", "--model-args", arguments, "--data", "three-blobs"]
    model, *_ = named_network(options(*words))
    assert model.scale == 2.5
    assert model(torch.rand(2, 2)).logits.shape == (2, 3)


def test_stored_weights_of_lazy_layers_have_places(zoo, tmp_path):
    words = ["--model", "zoo:lazy", "--model-args", "width=6", "--data", "three-blobs"]
    made, *_ = named_network(options(*words))
    torch.save(made.state_dict(), tmp_path / "w.pt")
    loaded, *_ = named_network(options(*words, "--weights", str(tmp_path / "w.pt")))
    assert torch.equal(loaded[0].weight, made[0].weight)
    assert loaded[0].weight.shape == (6, 2)


def test_kwargs_are_left_alone_once_arguments_are_given(zoo):
    model, *_ = named_network(
        options("--model", "zoo:greedy", "--model-args", "num_classes=3", "--data", "three-blobs")
    )
    assert model[1].out_features == 3
    with pytest.raises(RunError, match="--model-args") as error:
        named_network(options("--model", "zoo:greedy", "--data", "three-blobs"))
    made = "zoo:greedy(classes=3, shape=(2,)) failed: TypeError: unexpected keyword argument 'classes'"
    assert made in str(error.value), "what it was called with"


def test_a_factory_that_fails_is_shown_with_every_argument_and_asks_for_more_only_where_one_is_lacking(zoo):
    with pytest.raises(RunError) as error:
        named_network(options("--model", "zoo:picky", "--model-args", "depth=7", "--data", "three-blobs"))
    assert str(error.value).startswith("--model zoo:picky(depth=7, classes=3) failed: ValueError: depth must be 8")
    with pytest.raises(RunError) as error:
        named_network(options("--model", "zoo:offline", "--data", "three-blobs"))
    assert "zoo:offline() failed: RuntimeError: no network" in str(error.value)
    assert "--model-args" not in str(error.value)
    with pytest.raises(torch.OutOfMemoryError):
        named_network(options("--model", "zoo:huge", "--data", "three-blobs"))


def test_a_factory_that_is_not_there_is_named_once(zoo):
    with pytest.raises(RunError, match="'zoo' has no 'ow'") as error:
        named_network(options("--model", "zoo:ow", "--data", "three-blobs"))
    assert str(error.value).startswith("--model 'zoo:ow': ")
    assert str(error.value).count("zoo:ow") == 1


def test_input_normalisation_goes_in_front(zoo):
    words = ["--model", "zoo:own", "--data", "three-blobs"]
    torch.manual_seed(0)
    plain, *_ = named_network(options(*words))
    torch.manual_seed(0)
    normalised, *_ = named_network(options(*words, "--mean", "0.5,0.25", "--std", "1/2,2"))
    x = torch.rand(4, 2)
    expected = plain((x - torch.tensor([0.5, 0.25])) / torch.tensor([0.5, 2.0]))
    assert torch.allclose(normalised(x), expected)


def test_normalisation_of_a_network_of_this_package_replaces_its_own(tmp_path):
    network = build("mlp", 3, (2,), seed=0)
    torch.save(network.state_dict(), tmp_path / "w.pt")
    words = [
        "--model",
        "mlp",
        "--data",
        "three-blobs",
        "--weights",
        tmp_path / "w.pt",
        "--mean",
        "0.5,0.5",
        "--std",
        "2,2",
    ]
    model, *_ = named_network(options(*words))
    x = torch.rand(3, 2)
    assert torch.allclose(model(x), network((x - 0.5) / 2))


def test_weights_that_bring_their_own_normalisation_are_not_overruled(tmp_path):
    network = build("mlp", 3, (2,), mean=(0.1, 0.2), std=(1.0, 1.0))
    torch.save(network.state_dict(), tmp_path / "w.pt")
    words = [
        "--model",
        "mlp",
        "--data",
        "three-blobs",
        "--weights",
        tmp_path / "w.pt",
        "--mean",
        "0.5,0.5",
        "--std",
        "2,2",
    ]
    with pytest.raises(RunError, match="its own normalisation"):
        named_network(options(*words))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "name a run, a checkpoint or a published model"),
        (["--model", "zoo:own"], "--data"),
        (["--model", "zoo:create_model", "--data", "three-blobs"], "model_name"),
        (["--model", "zoo:own", "--data", "three-blobs", "--model-args", "depth=3"], "depth"),
        (
            ["--model", "zoo:create_model", "--data", "three-blobs", "--model-args", "model_name=a,num_classes=7"],
            "7 logits",
        ),
        (["--model", "zoo:own", "--data", "fashion-mini"], "fails on inputs of shape 1x28x28"),
        (["--model", "zoo:own", "--data", "three-blobs", "--mean", "0.5,0.5"], "go together"),
        (["--model", "zoo:own", "--data", "three-blobs", "--mean", "0.5,0.5,0.5", "--std", "1,1,1"], "2 channels"),
        (["--model", "mlp", "--data", "three-blobs", "--model-args", "depth=3"], "arguments of a factory"),
        (["nowhere"], "nowhere"),
        ([".", "--model", "zoo:own", "--data", "three-blobs"], "leave one of them out"),
        (["nowhere", "--weights", "w.pt"], "belong to --model"),
        (["nowhere", "--mean", "0.5", "--std", "0.5"], "--mean, --std belong"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_does_not_fit_is_said_in_a_line(zoo, words, expected):
    with pytest.raises((RunError, ValueError)) as caught:
        named_network(options(*words))
    assert expected in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_arguments_are_read_as_values():
    text = "name=resnet18, depth=18,layers=[2,2,(1,'a,b')],pretrained=false,ratio=1e-3,path=a/b-c,x=None,q='1,2',e="
    assert parse_arguments(text) == {
        "name": "resnet18",
        "depth": 18,
        "layers": [2, 2, (1, "a,b")],
        "pretrained": False,
        "ratio": 1e-3,
        "path": "a/b-c",
        "x": None,
        "q": "1,2",
        "e": "",
    }
    assert parse_numbers("0.5,125/255") == [0.5, 125 / 255]
    for wrong in ("resnet18", "=3", "a b=3"):
        with pytest.raises(argparse.ArgumentTypeError, match="KEY=VALUE"):
            parse_arguments(wrong)


def test_safetensors_by_position_with_a_model(tmp_path, zoo):
    from safetensors.torch import save_file

    save_file({"weight": torch.ones(3, 2), "bias": torch.zeros(3)}, tmp_path / "w.safetensors")
    model, *_ = named_network(options(tmp_path / "w.safetensors", "--model", "zoo:own", "--data", "three-blobs"))
    assert torch.equal(model.weight, torch.ones(3, 2))
    with pytest.raises(RunError, match="--model"):
        named_network(options(tmp_path / "w.safetensors"))


@pytest.mark.parametrize(
    ("words", "args", "advice"),
    [
        ("--model zoo:own", "--model-args classes=3", "add --model-args classes=3"),
        ("--model zoo:create_model --model-args model_name=a", "--model-args model_name=a,num_classes=3",
         "add num_classes=3 to --model-args"),
        ("--model mlp", None, "save the names of all classes"),
    ],
)  # fmt: skip
def test_a_test_part_without_the_highest_class_is_told_how_to_make_the_network_for_all(
    tmp_path, zoo, capsys, words, args, advice
):
    words = words.split()
    if words[1] == "mlp":
        torch.save(build("mlp", 3, (2,)).state_dict(), tmp_path / "w.pt")
    else:
        prefix = "" if words[1] == "zoo:own" else "1."
        torch.save({f"{prefix}weight": torch.ones(3, 2), f"{prefix}bias": torch.zeros(3)}, tmp_path / "w.pt")
    points, labels = np.random.RandomState(0).rand(6, 2), np.array([0, 1] * 3)
    more = ["--weights", tmp_path / "w.pt", "--data", tmp_path / "mine.npz"]
    np.savez(tmp_path / "mine.npz", test_images=points, test_labels=labels)
    with pytest.raises(RunError, match="for 3 classes, the data has 2; a test part need not show every class") as error:
        named_network(options(*words, *more))
    assert advice in str(error.value)
    if args is None:
        np.savez(tmp_path / "mine.npz", test_images=points, test_labels=labels, classes=np.array(["a", "b", "c"]))
    model, *_ = named_network(options(*words[:2], *(args or " ".join(words[2:])).split(), *more))
    assert model(torch.zeros(1, 2)).shape == (1, 3), "as it says"


def test_where_names_decide_the_labels_all_of_them_are_asked_for(tmp_path, zoo):
    torch.save({"weight": torch.ones(3, 2), "bias": torch.zeros(3)}, tmp_path / "w.pt")
    words = ["--model", "zoo:own", "--weights", tmp_path / "w.pt", "--data", tmp_path / "mine.npz"]
    arrays = {"test_images": np.random.RandomState(0).rand(6, 2), "test_labels": np.array(["b", "c"] * 3)}
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(RunError, match="need not show every class: save the names of all classes"):
        named_network(options(*words))
    np.savez(tmp_path / "mine.npz", **arrays, classes=np.array(["a", "b", "c"]))
    assert named_network(options(*words))[1].test.labels.tolist() == [1, 2] * 3


def test_a_training_part_knows_all_classes_so_nothing_is_advised(tmp_path, zoo):
    torch.save({"weight": torch.ones(3, 2), "bias": torch.zeros(3)}, tmp_path / "w.pt")
    with pytest.raises(RunError, match=r"of a network for 3 classes, the data has 2$"):
        named_network(options("--model", "zoo:own", "--weights", tmp_path / "w.pt", "--data", "moons"))


# Runs and examples


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("networks") / "run"
    words = ["--data.name", "three-blobs", "--model.name", "mlp", "--train.epochs", "2", "--train.batch_size", "256"]
    words += ["--data.crop", "0", "--eval.steps", "2", "--train.loggers", "csv", "--train.device", "cpu"]
    assert main(["train", "fashion-mini-cnn-at", *words, "--out", str(folder), "--quiet"]) == 0
    return folder


def test_a_run_on_data_of_other_classes_is_explained(run):
    with pytest.raises(RunError, match="of a network for 3 classes, the data has 2"):
        named_network(options(run, "--data", "moons"))


def test_the_recorded_accuracy_is_that_of_the_best_checkpoint_on_its_own_data(run):
    data = load("three-blobs")
    model, *_ = named_network(options(run))
    x, y, _ = named_examples(data, None, 0, CPU)
    with torch.no_grad():
        accuracy = (model(x).argmax(1) == y).float().mean().item()
    assert recorded_accuracy(run, data) == pytest.approx(accuracy)
    assert recorded_accuracy(run, load("moons")) is None
    assert recorded_accuracy(None, data) is None
    best = named_network(options(run))
    others = [path for path in (run / "checkpoints").iterdir() if path.is_dir()]
    known = [recorded_accuracy(path, data) for path in others]
    assert sum(value is not None for value in known) == 1
    assert best[3] == run


@pytest.mark.parametrize("content", ["", '{"clean": 0.', "[]", "null"])
def test_a_damaged_record_has_no_accuracy(run, tmp_path, content):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "evaluation.json").write_text(content)
    assert recorded_accuracy(tmp_path / "run", load("three-blobs")) is None


NETWORK = "from torch import nn\n\ndef make(classes, shape):\n    return nn.Linear(shape[0], classes)\n"


def test_measuring_a_run_tells_of_another_source_of_its_network(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "changed_network.py"
    source.write_text(NETWORK)
    words = ["--data.name", "three-blobs", "--model.name", "changed_network:make", "--train.epochs", "1"]
    words += ["--train.batch_size", "256", "--data.crop", "0", "--eval.attack", "none", "--train.device", "cpu"]
    assert main(["train", "fashion-mini-cnn-natural", *words, "--out", "begun", "--quiet"]) == 0
    (tmp_path / "begun").rename("moved")
    commands = (
        ["evaluate", "moved", "--attack", "clean", "--out", "e", "--device", "cpu"],
        ["margins", "moved", "--count", "5", "--out", "m.csv", "--device", "cpu"],
        ["dynamics", "moved", "--count", "5", "--steps", "2", "--methods", "natural", "--out", "d", "--device", "cpu"],
    )
    for changed in (False, True):
        if changed:
            source.write_text(NETWORK + "# another\n")
        for command in commands:
            capsys.readouterr()
            assert main(command) == 0, capsys.readouterr().err
            lines = [line for line in capsys.readouterr().err.splitlines() if "changed_network.py " in line]
            assert len(lines) == changed, command
            said = r"moved was trained with another source of its network: changed_network\.py \w{8} \(was \w{8}\)"
            assert all(re.fullmatch(said, line) for line in lines)


def test_examples_are_spread_over_the_set_and_the_same_for_a_seed():
    rows = sample(1000, 50, 3)
    assert np.array_equal(rows, sample(1000, 50, 3))
    assert not np.array_equal(rows, sample(1000, 50, 4))
    assert np.array_equal(rows, np.unique(rows))
    assert rows.max() > 800
    assert set(rows) <= set(sample(1000, 200, 3))
    assert np.array_equal(sample(7, None, 0), np.arange(7))
    assert np.array_equal(sample(7, 99, 0), np.arange(7))
    with pytest.raises(ValueError, match="--count"):
        sample(7, 0, 0)


def test_named_examples_are_those_of_their_places():
    data = load("fashion-mini")
    x, y, rows = named_examples(data, 30, 1, CPU)
    assert np.array_equal(y.numpy(), data.test.labels[rows])
    assert torch.equal((x * 255).round().to(torch.uint8), torch.from_numpy(np.array(data.test.images[rows])))


@pytest.mark.parametrize("factory", ["fixed", "own"])
def test_labels_that_count_from_one_are_told_so(tmp_path, zoo, factory):
    torch.save({"weight": torch.ones(3, 2), "bias": torch.zeros(3)}, tmp_path / "w.pt")
    arrays = {"test_images": np.random.RandomState(0).rand(6, 2), "test_labels": np.arange(6) % 3 + 1}
    np.savez(tmp_path / "from_one.npz", **arrays)
    words = ["--model", f"zoo:{factory}", "--weights", tmp_path / "w.pt", "--data", tmp_path / "from_one.npz"]
    with pytest.raises(RunError, match="no example has the label 0: if the labels count from 1, subtract 1"):
        named_network(options(*words))


def test_a_test_part_without_the_first_class_may_lack_others_too(tmp_path, zoo):
    """Labels 1 and 2 beside a network for four classes do not count from 1."""
    torch.save({"weight": torch.ones(4, 2), "bias": torch.zeros(4)}, tmp_path / "w.pt")
    arrays = {"test_images": np.random.RandomState(0).rand(6, 2), "test_labels": np.arange(6) % 2 + 1}
    np.savez(tmp_path / "part.npz", **arrays)
    with pytest.raises(RunError, match="a test part need not show every class: add --model-args classes=4"):
        named_network(options("--model", "zoo:own", "--weights", tmp_path / "w.pt", "--data", tmp_path / "part.npz"))
