"""Robust accuracy of linear models, where it is known exactly: every tier, norm and number of classes."""

import numpy as np
import pytest
import torch
from evaluate_cases import examples, linear, radii_between, short, true_margins

import dyart
from dyart.evaluation.verdicts import Status

NORMS = ("linf", "l2", "l1")


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    short(monkeypatch)


def known(classes, norm, **options):
    """Evaluate a linear model and return the result with what its robust accuracy is."""
    model = linear(classes)
    inputs, labels = examples(model)
    margins = true_margins(model, inputs, labels, norm)
    radii = radii_between(margins)
    expected = {radius: float((margins > radius).mean()) for radius in radii}
    return dyart.evaluate(model, inputs, labels, radii, norm=norm, **options), expected, margins


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("attack", ["pgd", "margins", "apgd", "autoattack"])
def test_accuracy_of_a_linear_model_is_exact_at_every_radius(attack, norm):
    if (attack, norm) == ("pgd", "l1"):
        pytest.skip("there is none; see the errors")
    # PGD follows the largest rival, which leads it to the nearest of two classes only where there are two.
    result, expected, margins = known(2 if attack == "pgd" else 5, norm, attack=attack)
    assert len(expected) >= 3
    assert result.robust_accuracy == expected
    assert result.clean_accuracy == (margins > 0).mean() == 28 / 30


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("classes", [2, 3, 4])
def test_few_classes_work_and_the_replacement_is_stated(classes, strict):
    result, expected, _ = known(classes, "linf", attack="autoattack", strict=strict)
    assert result.robust_accuracy == expected
    notes = " ".join(result.notes)
    assert ("logit margin against the target" in notes) == (classes < 4)
    assert f"{classes - 1} target class" in notes
    assert "Square is left out" in notes
    assert "square" not in result.verdicts.attacks
    assert "Square" not in result.words


def test_ten_classes_need_no_replacement():
    result, expected, _ = known(11, "linf", attack="apgd")
    assert result.robust_accuracy == expected
    assert list(result.notes) == []


@pytest.mark.parametrize("strict", [False, True])
def test_inferred_verdicts_are_marked_and_counted_and_strict_has_none(strict):
    result, expected, margins = known(4, "linf", attack="apgd", strict=strict)
    radii = np.asarray(list(expected))
    resists = margins[:, None] > radii
    assert np.array_equal(result.verdicts.resists, resists)
    # Every example is attacked at the largest radius below its margin, and at no smaller one.
    largest = np.cumsum(resists[:, ::-1], axis=1)[:, ::-1] == 1
    inferred = np.zeros_like(resists) if strict else resists & ~largest
    assert np.array_equal(result.verdicts.inferred, inferred)
    assert list(result.inferred.values()) == inferred.sum(axis=0).tolist()
    for attack in ("apgd-ce", "apgd-t"):
        status = result.verdicts.status[attack]
        assert np.array_equal(status == Status.INFERRED, inferred)
        assert np.array_equal(status == Status.RESISTED, resists & ~inferred)
        assert not (status == Status.BROKEN).any(), "the search has found all there is"
    assert sum(result.inferred.values()) > 0 or strict


def test_pgd_beside_other_attacks_is_tried_everywhere():
    result, expected, margins = known(2, "linf", attack="apgd")
    status = result.verdicts.status["pgd"]
    assert (status[margins == 0] == Status.NOT_ATTACKED).all()
    assert np.array_equal(status[margins > 0] == Status.RESISTED, margins[margins > 0, None] > np.asarray([*expected]))
    assert np.isin(status[margins > 0], (Status.RESISTED, Status.BROKEN)).all()


def test_margins_are_those_of_the_search_and_good():
    result, _, margins = known(4, "l2", attack="margins")
    right = margins > 0
    table = result.per_example
    assert np.allclose(table["margin"][right], margins[right], rtol=1e-3)
    assert np.isnan(table["margin"][~right]).all()
    assert table["optimal"][right].all()
    assert table["condition_a"][right].all()


def test_other_bounds_are_mapped_onto_the_box_of_autoattack():
    model = linear(4)
    inputs, labels = examples(model)
    margins = true_margins(model, inputs, labels, "linf")
    radii = radii_between(margins)
    # The same problem in other units: from [0, 1] to [-1, 3].
    wider = torch.nn.Linear(8, 4)
    with torch.no_grad():
        wider.weight.copy_(model.weight / 4)
        wider.bias.copy_(model.bias + model.weight.sum(dim=1) / 4)
    result = dyart.evaluate(
        wider, inputs * 4 - 1, labels, [4 * r for r in radii], "autoattack", bounds=(-1.0, 3.0), preflight=False
    )
    assert list(result.robust_accuracy.values()) == [float((margins > r).mean()) for r in radii]


def test_float64_models_are_evaluated_in_float64():
    model = linear(4).double()
    inputs, labels = examples(linear(4))
    margins = true_margins(linear(4), inputs, labels, "linf")
    radii = radii_between(margins)
    result = dyart.evaluate(model, inputs.double(), labels, radii, "apgd")
    assert list(result.robust_accuracy.values()) == [float((margins > r).mean()) for r in radii]


def test_images_are_attacked_by_square_too():
    features = 3 * 6 * 6
    model = torch.nn.Sequential(torch.nn.Flatten(), linear(4, features))
    inputs, labels = examples(model[1], 12, features)
    margins = true_margins(model[1], inputs, labels, "linf")
    radii = radii_between(margins, 2)
    result = dyart.evaluate(model, inputs.reshape(12, 3, 6, 6), labels, radii, "autoattack")
    assert result.verdicts.attacks == ("margins", "pgd", "apgd-ce", "apgd-t", "fab-t", "square")
    assert list(result.robust_accuracy.values()) == [float((margins > r).mean()) for r in radii]
    assert result.costs["square"]["backward"] == 0 < result.costs["square"]["forward"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"attack": "pgdd"}, "pgd"),
        ({"attack": "pgd", "norm": "l1"}, "'apgd'"),
        ({"norm": "linfinity"}, "norm"),
        ({"radii": []}, "radii"),
        ({"radii": [8.0]}, "8/255"),
        ({"radii": [-0.1]}, "positive"),
        ({"attack": "apgd", "bounds": None}, "bounds"),
        ({"attack": "apgd", "bounds": (torch.zeros(8), torch.ones(8))}, "two numbers"),
        ({"precision": "fp8"}, "precision"),
        ({"batch_size": 0}, "batch_size"),
        ({"index": [0, 99]}, "index"),
        ({"index": []}, "no examples"),
    ],
)
def test_errors_say_what_to_do(options, expected):
    model = linear(4)
    inputs, labels = examples(model)
    with pytest.raises(ValueError, match=expected):
        dyart.evaluate(model, inputs, labels, **{"radii": [0.1], "attack": "margins"} | options)


def test_wrong_types_are_named():
    model = linear(4)
    inputs, labels = examples(model)
    with pytest.raises(TypeError, match=r"float16"):
        dyart.evaluate(model, inputs.half(), labels, [0.1], "clean")
    with pytest.raises(TypeError, match=r"labels.*list"):
        dyart.evaluate(model, inputs, labels.tolist(), [0.1], "clean")
    with pytest.raises(ValueError, match="shape"):
        dyart.evaluate(model, inputs, labels[:-1], [0.1], "clean")
