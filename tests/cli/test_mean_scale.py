"""A mean and std of pixels from 0 to 255, where the network gets images from 0 to 1: refused, with what is meant."""

import argparse
import types

import numpy as np
import pytest
import torch
from torch import nn

from dyart.cli.network_options import add_network_options
from dyart.cli.networks import named_network
from dyart.engine.run import train
from dyart.engine.stored import RunError
from dyart.models.scale import in_unit_scale
from dyart.recipes import resolve


@pytest.fixture
def shop(monkeypatch):
    """Two factories: one leaves the normalisation to the command, one does it itself, on pixels from 0 to 255."""
    module = types.ModuleType("shop")

    def plain(classes, shape):
        return nn.Sequential(nn.Flatten(), nn.Linear(784, classes))

    class Pixels(nn.Module):
        def __init__(self, classes, mean, std):
            super().__init__()
            self.mean, self.std, self.linear = mean[0], std[0], nn.Linear(784, classes)

        def forward(self, x):
            return self.linear(((255 * x - self.mean) / self.std).flatten(1))

    def optional(classes, mean=None, std=None):
        return Pixels(classes, mean or [0.0], std or [255.0])

    def own(classes, mean=np.array([0.3, 0.3]), std=np.array([0.4, 0.4])):  # noqa: B008
        return Pixels(classes, mean, std)

    module.plain, module.pixels, module.optional, module.own = plain, Pixels, optional, own
    monkeypatch.setitem(__import__("sys").modules, "shop", module)


def named(model, mean=None, std=None, *more):
    parser = argparse.ArgumentParser()
    add_network_options(parser)
    words = ["--model", model, "--data", "fashion-mini", "--device", "cpu", *more]
    words += [] if mean is None else ["--mean", mean, "--std", std]
    return named_network(parser.parse_args(words))[0]


@pytest.mark.parametrize("model", ["cnn", "shop:plain"])
@pytest.mark.parametrize(
    ("mean", "std", "meant"),
    [
        ("127.5", "127.5", "--mean 0.5 --std 0.5"),
        ("72.94", "90.02", "--mean 0.286039 --std 0.35302"),
        ("0", "255", "--mean 0 --std 1"),
        ("127.5", "0.5", "--mean 0.5 --std 0.5"),
        ("0.5", "127.5", "--mean 0.5 --std 0.5"),
        ("123.68", "1", "--mean 0.48502 --std 0.00392157"),
    ],
)
def test_numbers_of_pixels_are_refused_with_those_of_the_unit_box(shop, model, mean, std, meant):
    with pytest.raises(RunError, match=f"--mean {mean} --std {std} cannot be meant for inputs from 0 to 1") as caught:
        named(model, mean, std)
    assert f"write {meant};" in str(caught.value)
    named(model, *meant.split()[1::2])  # what it says is taken


@pytest.mark.parametrize(
    ("mean", "std"), [("0", "1/255"), ("0.5", "1/255"), ("0.5", "2"), ("-1", "2"), ("1.5", "0.5"), ("0", "1")]
)
def test_what_may_be_meant_is_taken(shop, capsys, mean, std):
    for model in ("cnn", "shop:plain", "shop:pixels"):
        named(model, mean, std)
    assert "from 0 to 1" not in capsys.readouterr().err


def test_the_advice_does_to_images_what_was_done_to_pixels():
    pixels = torch.arange(256.0)
    for mean, std in ((127.5, 127.5), (0.0, 255.0), (103.5, 57.4), (123.68, 1.0)):
        (unit_mean,), (unit_std,) = in_unit_scale([mean], [std])
        assert torch.allclose((pixels / 255 - unit_mean) / unit_std, (pixels - mean) / std, atol=1e-4)


def test_a_factory_that_takes_them_itself_gets_them_as_they_are(shop, capsys):
    model = named("shop:pixels", "127.5", "127.5")
    assert (model.mean, model.std) == (127.5, 127.5)
    err = capsys.readouterr().err
    assert "shop:pixels takes mean and std itself, and gets inputs from 0 to 1; if it expects" in err
    assert "write --mean 0.5 --std 0.5" in err


def test_a_factory_that_could_normalise_and_is_given_nothing_is_told(shop, capsys):
    named("shop:optional")
    words = "--model shop:optional takes mean and std, and gets none: if its weights are of normalised images, give it"
    assert words in capsys.readouterr().err
    for words in (["shop:optional", "0.5", "0.5"], ["shop:plain"], ["shop:own"],
                  ["shop:optional", None, None, "--model-args", "classes=10,mean=[0.5],std=[0.5]"]):  # fmt: skip
        named(*words)
        assert "takes mean and std" not in capsys.readouterr().err


def test_a_factory_that_needs_them_says_how_they_are_given(shop):
    with pytest.raises(RunError, match="mean and std come from --mean and --std"):
        named("shop:pixels")
    with pytest.raises(RunError, match=r"or model\.mean and model\.std of a training"):
        train(resolve("fashion-mini-cnn-natural", ["--model.name", "shop:pixels", "--train.device", "cpu"]))


def test_a_training_is_refused_before_anything_is_written(shop, capsys, tmp_path):
    words = ["--model.mean", "[127.5]", "--model.std", "[127.5]", "--train.device", "cpu", "--train.epochs", "1"]
    words += ["--out", str(tmp_path / "run"), "--data.limit", "64", "--train.batch_size", "32", "--eval.attack", "none"]
    with pytest.raises(RunError, match=r"write --model.mean \[0.5\] --model.std \[0.5\]"):
        train(resolve("fashion-mini-cnn-natural", words))
    assert not (tmp_path / "run").exists()
    train(resolve("fashion-mini-cnn-natural", [*words, "--model.name", "shop:pixels"]))
    assert "unless shop:pixels takes them itself" in capsys.readouterr().err
