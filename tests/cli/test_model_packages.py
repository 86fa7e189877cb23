"""Networks of other packages, as they are: real classes of transformers (and of timm, where it is installed), small,
with weights in files of their own, through the commands that take any network.
"""

import csv
import json
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import dyart
from dyart.cli import main
from dyart.data import load
from dyart.data.loader import as_tensors

pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages' own

CLASSES, SIDE, TEST = 3, 16, 24
FACTORY = """\
from transformers import ResNetConfig, ResNetForImageClassification


def resnet(classes, shape):
    config = ResNetConfig(num_channels=shape[0], embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1],
                          layer_type="basic", num_labels=classes)
    return ResNetForImageClassification(config)
"""


@pytest.fixture(scope="module")
def transformers():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a data set: noise, in which one of three channels is brighter."""
    folder = tmp_path_factory.mktemp("packages")
    random = np.random.default_rng(0)
    parts = {}
    for name, count in (("train", 90), ("test", TEST)):
        labels = np.arange(count) % CLASSES
        images = random.integers(0, 120, (count, SIDE, SIDE, CLASSES))
        images[np.arange(count), :, :, labels] += 40
        parts |= {f"{name}_images": images.astype(np.uint8), f"{name}_labels": labels}
    np.savez(folder / "data.npz", **parts, classes=np.array(["red", "green", "blue"]))
    return folder


def fitted(model, folder):
    """Return the network after a few steps on the data set: it gets most right."""
    x, y = as_tensors(load(str(folder / "data.npz")).train, slice(0, None), torch.device("cpu"))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(25):
        optimizer.zero_grad()
        out = model(x)
        F.cross_entropy(out if isinstance(out, torch.Tensor) else out.logits, y).backward()
        optimizer.step()
    return model.eval()


def measured(folder, monkeypatch, out, *words):
    """Run both commands in the folder; return what they record, and the test examples."""
    monkeypatch.chdir(folder)
    network = [*words, "--data", "data.npz", "--device", "cpu"]
    assert main(["evaluate", *network, "--attack", "pgd", "--radii", "4/255,16/255,64/255", "--out", f"{out}-e"]) == 0
    assert main(["margins", *network, "--steps", "20", "--out", f"{out}.csv"]) == 0
    with (folder / f"{out}.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    data = load(str(folder / "data.npz"))
    return (
        json.loads((folder / f"{out}-e" / "evaluation.json").read_text()),
        lines,
        as_tensors(data.test, slice(0, TEST), torch.device("cpu")),
    )


def check(model, evaluation, lines, examples):
    """The records are those of the network in memory, and at a small radius margins and PGD agree."""
    x, y = examples
    with torch.no_grad():
        right = model(x).logits.argmax(dim=1) == y
    assert evaluation["images"] == len(lines) == TEST
    assert evaluation["clean"] == pytest.approx(right.float().mean().item())
    assert right.sum() > TEST / 2
    assert [line["correct"] == "1" for line in lines] == right.tolist()
    assert list(evaluation["robust"].values()) == sorted(evaluation["robust"].values(), reverse=True)
    assert evaluation["robust"]["4/255"] > 0 == evaluation["robust"]["64/255"]
    found = dyart.closest_boundary_points(model, x, y, steps=20)
    margins = torch.tensor([float(line["margin"] or "nan") for line in lines])
    torch.testing.assert_close(margins, found.margin, equal_nan=True, rtol=1e-3, atol=1e-5)
    assert evaluation["robust"]["4/255"] == pytest.approx((margins > 4 / 255).float().mean().item(), abs=1 / TEST)


def test_a_resnet_of_transformers_by_a_factory_and_a_safetensors_file(transformers, place, monkeypatch):
    (place / "mynets.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(place)
    import mynets

    torch.manual_seed(0)
    model = fitted(mynets.resnet(CLASSES, (CLASSES, SIDE, SIDE)), place)
    model.save_pretrained(place / "resnet")
    weights = place / "resnet" / "model.safetensors"
    check(model, *measured(place, monkeypatch, "resnet", "--model", "mynets:resnet", "--weights", str(weights)))


def test_a_vision_transformer_by_its_own_from_pretrained(transformers, place, monkeypatch):
    config = transformers.ViTConfig(
        image_size=SIDE, patch_size=4, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, num_labels=CLASSES,
    )  # fmt: skip
    torch.manual_seed(0)
    model = fitted(transformers.ViTForImageClassification(config), place)
    model.save_pretrained(place / "vit")
    words = ["--model", "transformers:ViTForImageClassification.from_pretrained"]
    words += ["--model-args", "pretrained_model_name_or_path=vit"]
    check(model, *measured(place, monkeypatch, "vit", *words))


def test_weights_of_another_network_are_refused(transformers, place, monkeypatch, capsys):
    (place / "mynets.py").write_text(FACTORY)
    monkeypatch.chdir(place)
    torch.save({"classifier.weight": torch.zeros(CLASSES, 16)}, place / "part.pt")
    words = ["--model", "mynets:resnet", "--weights", "part.pt", "--data", "data.npz", "--device", "cpu"]
    assert main(["evaluate", *words, "--attack", "clean"]) == 2
    assert "part.pt" in capsys.readouterr().err


def test_a_network_of_timm(place, monkeypatch):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    arguments = {"model_name": "test_resnet", "num_classes": CLASSES}
    model = fitted(timm.create_model(**arguments), place)
    torch.save(model.state_dict(), place / "timm.pt")
    words = ["--model", "timm:create_model", "--weights", str(place / "timm.pt")]
    words += ["--model-args", ",".join(f"{key}={value}" for key, value in arguments.items())]
    evaluation, lines, (x, y) = measured(place, monkeypatch, "timm", *words)
    with torch.no_grad():
        right = model(x).argmax(dim=1) == y
    assert evaluation["clean"] == pytest.approx(right.float().mean().item())
    assert [line["correct"] == "1" for line in lines] == right.tolist()
