"""What people get wrong, and two things that must not be got wrong for them: one sentence that says what to do."""

import numpy as np
import pytest
import torch
from evaluate_cases import examples, linear, short
from torch import nn

import dyart

RADII = [0.01, 0.05]


def evaluated(model=None, inputs=None, labels=None, **options):
    model = linear(4) if model is None else model
    given = examples(linear(4))
    settings = {"radii": RADII, "attack": "pgd"} | options
    return dyart.evaluate(
        model, given[0] if inputs is None else inputs, given[1] if labels is None else labels, **settings
    )


def test_norms_other_than_linf_have_no_usual_radii():
    given = examples(linear(4))
    with pytest.raises(ValueError, match="norm='l2' needs radii: the usual ones are of linf"):
        dyart.evaluate(linear(4), *given, attack="pgd", norm="l2")
    clean = dyart.evaluate(linear(4), *given, attack="clean", norm="l2")
    assert clean.clean_accuracy == pytest.approx(28 / 30), "which needs none"
    assert (clean.robust_accuracy, clean.settings.radii) == ({}, ())


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"radii": "8/255"}, TypeError, r"radii=\['8/255'\]"),
        ({"radii": 0.1}, TypeError, r"radii=\[0.1\]"),
        ({"radii": "2/255, 8/255"}, TypeError, r"radii=\['2/255', '8/255'\]"),
        ({"radii": [None]}, ValueError, "None is no number"),
        ({"radii": ["8"]}, ValueError, "8/255"),
        ({"radii": [0]}, ValueError, "positive"),
        ({"compile": "maybe"}, ValueError, "compile must be one of"),
        ({"expected_accuracy": 71.2}, ValueError, "71.2: divide"),
        ({"bounds": (1.0, 0.0)}, ValueError, "low below high"),
        ({"index": np.ones(30, dtype=bool)}, TypeError, "flatnonzero"),
        ({"index": [0.5, 1.7]}, TypeError, "whole numbers"),
        ({"index": [[0, 1], [2, 3]]}, TypeError, r"\(2, 2\)"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_words(options, error, words):
    with pytest.raises(error, match=words):
        evaluated(**options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there():
    with pytest.raises(ValueError, match="use device='cpu'"):
        evaluated(device="cuda")


def test_bytes_have_the_box_of_what_they_are_divided_to():
    inputs, labels = examples(linear(4))
    bytes_ = (inputs * 255).round().to(torch.uint8)
    with pytest.raises(ValueError, match="leave bounds out"):
        evaluated(inputs=bytes_, labels=labels, bounds=(0.0, 255.0))
    assert evaluated(inputs=bytes_, labels=labels).clean_accuracy > 0.8


def test_bounds_per_feature_are_not_printed_in_full():
    low, high = torch.zeros(8), torch.ones(8)
    with pytest.raises(ValueError, match=r"a tensor \(8,\)"):
        evaluated(attack="apgd", bounds=(low, high))


@pytest.mark.parametrize("attack", ["pgd", "margins"])
@pytest.mark.parametrize("bounds", [(0.0, torch.ones(8)), (np.zeros(8), np.ones(8)), (np.float32(0), torch.tensor(1))])
def test_bounds_of_any_kind(tmp_path, attack, bounds):
    plain = evaluated(attack=attack)
    other = evaluated(attack=attack, bounds=bounds, folder=tmp_path)
    assert other.robust_accuracy == plain.robust_accuracy
    assert evaluated(attack=attack, bounds=bounds, folder=tmp_path).robust_accuracy == plain.robust_accuracy


@pytest.mark.parametrize("attack", ["clean", "pgd", "margins", "apgd"])
def test_examples_may_be_single_numbers(attack):
    model = nn.Sequential(nn.Unflatten(0, (-1, 1)), nn.Linear(1, 2, bias=False))
    model[1].weight.data = torch.tensor([[1.0], [-1.0]])
    inputs = torch.linspace(-1, 1, 20)
    result = dyart.evaluate(model, inputs, (inputs < 0).long(), [0.2], attack, bounds=(-1.0, 1.0), preflight=False)
    assert result.robust_accuracy.get(0.2, 0.8) == 0.8


def test_numbers_of_numpy_and_torch_are_numbers(tmp_path):
    plain = evaluated(seed=3, batch_size=7, radii=[0.25, 0.5], folder=tmp_path / "a")
    settings = {"seed": np.int64(3), "batch_size": np.int32(7), "radii": torch.tensor([0.5, 0.25])}
    other = evaluated(**settings, folder=tmp_path / "b")
    assert list(map(str, other.robust_accuracy)) == ["0.25", "0.5"]
    assert other.robust_accuracy == plain.robust_accuracy


@pytest.mark.parametrize("preflight", [True, False])
def test_a_broken_example_is_named_by_its_place(preflight):
    model = linear(4)
    inputs, labels = examples(model, count=700)
    inputs[650, 3] = torch.nan
    with pytest.raises(ValueError, match="NaN") as caught:
        evaluated(model, inputs, labels, preflight=preflight, index=np.arange(640, 700), batch_size=60)
    assert ("650" if preflight else "from 640 on") in str(caught.value)


def test_a_wrong_label_is_named_by_its_place():
    model = linear(4)
    inputs, labels = examples(model, count=60)
    labels[57] = 9
    with pytest.raises(ValueError, match="9 at 57"):
        evaluated(model, inputs, labels, index=np.arange(40, 60))


def test_one_example_is_not_told_from_guessing():
    inputs, labels = examples(linear(4))
    assert evaluated(inputs=inputs[5:6], labels=labels[5:6]).findings == []


class Grey(nn.Module):
    """On images, so that Square takes part; in double precision."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(36, 4)).double()

    def forward(self, x):
        return self.layers(x)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_double_precision_goes_through_all_attacks(monkeypatch, norm):
    short(monkeypatch, steps=5, queries=10)
    model = Grey()
    inputs = torch.rand(6, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = model(inputs).argmax(dim=1)
    result = evaluated(model, inputs, labels, attack="autoattack", norm=norm, radii=[0.01, 0.02], strict=True)
    assert set(result.verdicts.attacks) >= {"apgd-ce", "apgd-t", "fab-t", "square"}
    assert result.clean_accuracy == 1.0


def test_attacks_that_were_to_be_compiled_and_could_not_be_say_so(monkeypatch):
    from dyart.evaluation import evaluate as module

    monkeypatch.setattr(module, "wants_compile", lambda switch, device: (False, "uncompiled: no triton"))
    assert "attacked uncompiled: no triton" in evaluated(compile="on").notes
    assert not evaluated(compile="auto").notes, "too few examples to compile for"


def test_a_compiled_model_is_evaluated_as_the_module_inside():
    """Its own backward pass refuses to run twice over one forward pass."""
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 3)).eval()
    inputs = torch.rand(24, 20, generator=torch.Generator().manual_seed(0))
    labels = model(inputs).argmax(dim=1)
    compiled = torch.compile(model, backend="aot_eager")
    results = [evaluated(one, inputs, labels, attack="margins") for one in (compiled, model)]
    assert results[0].robust_accuracy == results[1].robust_accuracy
