"""Bad options are named, checks can be switched off, and an empty batch gives an empty result."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from validation_cases import EXAMPLES, SHAPE, Counting, classes, examples, with_batch_norm

import dyart


def search(model, inputs, labels=None, **options):
    return dyart.closest_boundary_points(model, inputs, labels, **{"steps": 4, **options})


def train(model, inputs, labels, **options):
    return dyart.DyART(steps=4, **options)(model, inputs, labels)


both = pytest.mark.parametrize("call", [search, train], ids=["closest_boundary_points", "DyART"])


# Options


BAD_OPTIONS = [
    ("norm", "L2", "'linf', 'l2'"),
    ("norm", 2, "got 2"),
    ("norm", None, "got None"),
    ("boundary", "hard", "'exact', 'soft'"),
    ("boundary", True, "got True"),
    ("beta", 0.0, "positive, got 0"),
    ("beta", -1, "positive, got -1"),
    ("beta", math.nan, "positive, got nan"),
    ("beta", math.inf, "inf"),
    ("beta", "5", "'5'"),
    ("steps", 1, "integer of at least 2, got 1"),
    ("steps", 0, "integer of at least 2, got 0"),
    ("steps", 10.0, r"integer of at least 2, got 10\.0"),
    ("steps", True, "integer of at least 2, got True"),
    ("steps", None, "integer of at least 2, got None"),
]
BAD_SEARCH_OPTIONS = [
    ("solver", "slow", "'fast'"),
    ("solver", None, "'fast'"),
    ("restarts", 0, "integer of at least 1, got 0"),
    ("restarts", 1.5, r"integer of at least 1, got 1\.5"),
    ("restarts", True, "integer of at least 1, got True"),
    ("tol", 0.0, "positive, got 0"),
    ("tol", -1e-3, r"positive, got -0\.001"),
    ("tol", math.nan, "positive, got nan"),
    ("tol", "1e-3", "'1e-3'"),
    ("batch_size", 0, "integer of at least 1, got 0"),
    ("batch_size", -4, "integer of at least 1, got -4"),
    ("batch_size", 2.0, r"integer of at least 1, got 2\.0"),
]
BAD_OBJECTIVE_OPTIONS = [
    ("keep", "all", "'conditions', 'optimal', 'found'"),
    ("lam", -1.0, r"got -1\.0"),
    ("lam", math.nan, "got nan"),
    ("alpha", -1.0, r"got -1\.0"),
    ("alpha", math.nan, "got nan"),
    ("alpha", math.inf, "got inf"),
    ("r0", 0.0, r"got 0\.0"),
    ("r0", math.nan, "got nan"),
]


@pytest.mark.parametrize("validate", [True, False])
@pytest.mark.parametrize(("option", "value", "words"), BAD_OPTIONS + BAD_SEARCH_OPTIONS)
def test_a_bad_option_is_named_with_its_value_and_what_it_may_be(option, value, words, validate):
    model = Counting()
    with pytest.raises((TypeError, ValueError), match=rf"{option} must be .*{words}"):
        dyart.closest_boundary_points(model, examples(), classes(), validate=validate, **{option: value})
    assert model.forwards == 0


@pytest.mark.parametrize(("option", "value", "words"), BAD_OPTIONS + BAD_OBJECTIVE_OPTIONS)
def test_a_bad_option_of_the_objective_is_named_when_it_is_made(option, value, words):
    with pytest.raises((TypeError, ValueError), match=rf"{option} must be .*{words}"):
        dyart.DyART(**{option: value})


@pytest.mark.parametrize("option", ["steps", "restarts", "batch_size"])
def test_numpy_integers_count_as_integers(option):
    found, usual = (search(Counting(), examples(), **{option: kind(3)}) for kind in (np.int64, int))
    torch.testing.assert_close(found.margin, usual.margin, rtol=0, atol=0)


@both
@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ((0.0, torch.ones(5)), r"upper bound has shape \(5,\).*broadcast to one example, \(3, 2, 2\)"),
        ((torch.zeros(EXAMPLES, *SHAPE), 1.0), r"lower bound has shape \(6, 3, 2, 2\).*one example, \(3, 2, 2\)"),
        ((torch.zeros(1, *SHAPE), 1.0), r"lower bound has shape \(1, 3, 2, 2\).*one example, \(3, 2, 2\)"),
        ((1.0, 0.0), "lower bound is above the upper"),
        ((torch.tensor([[[0.0]], [[0.0]], [[2.0]]]), 1.0), "lower bound is above the upper"),
        ((math.nan, 1.0), "lower bound contains NaN"),
        ((0.0, torch.tensor([1.0, math.nan])), "upper bound contains NaN"),
        (1.0, r"pair \(low, high\) or None, got 1\.0"),
        ((0.0,), r"pair \(low, high\) or None, got \(0\.0,\)"),
        ((0.0, 0.5, 1.0), r"pair \(low, high\) or None, got \(0\.0, 0\.5, 1\.0\)"),
        ((0.0, None), "bound"),
        (("0", "1"), "bound"),
    ],
    ids=[
        "upper shape",
        "one per example",
        "batch dimension",
        "low above high",
        "low above high in one channel",
        "NaN",
        "NaN in a tensor",
        "number",
        "one",
        "three",
        "one-sided",
        "strings",
    ],
)
def test_bad_bounds_are_told_what_they_may_be(call, bounds, words):
    model = Counting()
    with pytest.raises((TypeError, ValueError), match=words):
        call(model, examples(), classes(), bounds=bounds)
    assert model.forwards == 0


@pytest.mark.parametrize(
    "bounds", [(0, 1), [0.0, 1.0], torch.tensor([0.0, 1.0]), (np.float64(0), np.ones(SHAPE)), (0.0, torch.ones(2))]
)
def test_a_pair_of_any_kind_gives_the_same_box(bounds):
    usual, given = search(Counting(), examples(), steps=8), search(Counting(), examples(), steps=8, bounds=bounds)
    torch.testing.assert_close(given.margin, usual.margin, rtol=0, atol=0)


def test_infinite_bounds_are_no_bounds_on_that_side():
    found, free = (search(Counting(), examples(), bounds=b) for b in ((-math.inf, math.inf), None))
    torch.testing.assert_close(found.margin, free.margin)


# When nothing is checked, and when there is nothing to check


def test_without_validation_a_row_of_nan_has_no_margin_and_the_others_are_as_usual():
    inputs = examples()
    usual = search(Counting(), inputs, classes())
    inputs[2] = math.nan
    found = search(Counting(), inputs, classes(), validate=False)
    assert not found.inside[2]
    assert found.margin[2].isnan()
    others = torch.arange(EXAMPLES) != 2
    assert usual.found.all()
    torch.testing.assert_close(found.margin[others], usual.margin[others], rtol=0, atol=0)


def test_without_validation_nothing_is_refused_and_nobody_warned():
    inputs = examples()
    inputs[0, 0] = 1.5
    search(Counting(), inputs, classes(), validate=False)
    search(Counting(), examples(), classes().float(), validate=False)
    search(Counting(lambda z: z.softmax(dim=1)), examples(), classes(), validate=False)
    search(with_batch_norm(training=True), examples(), classes(), validate=False)
    nothing = search(Counting(lambda z: z * math.nan), examples(), classes(), validate=False)
    assert not nothing.found.any()


def test_without_validation_the_result_is_the_same():
    checked, unchecked = (search(Counting(), examples(), classes(), validate=validate) for validate in (True, False))
    torch.testing.assert_close(checked.margin, unchecked.margin, rtol=0, atol=0)


def test_the_objective_checks_its_first_good_call_and_none_after_it():
    model, objective, far = Counting(), dyart.DyART(steps=2), examples() + 3
    for _ in range(2):  # a call that failed does not count as the first
        with pytest.raises(ValueError, match="normalisation"):
            objective(model, far, classes())
    assert model.forwards == 0
    objective(model, examples(), classes())
    assert model.forwards == 4
    objective(model, far, classes())
    assert model.forwards == 7, "no pass for the check any more"


@both
def test_one_example_is_enough(call):
    call(Counting(), examples()[:1], classes()[:1])


@pytest.mark.parametrize("options", [{}, {"boundary": "soft"}, {"norm": "l2", "restarts": 12}, {"tol": 1e-3}])
@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("signed", [True, False])
def test_an_empty_batch_gives_an_empty_result(options, labelled, signed, tmp_path):
    def model(x: Tensor) -> Tensor:
        raise AssertionError("many models cannot take an empty batch: it must not reach them")

    labels = torch.zeros(0, dtype=torch.long) if labelled else None
    found = search(model, torch.zeros(0, *SHAPE), labels, signed=signed, batch_size=4, **options)
    assert len(found) == 0
    assert found.cost == (0, 0)
    for field in ("inputs", "points", "gradient"):
        assert getattr(found, field).shape == (0, *SHAPE)
    for field in ("labels", "margin", "value", "correct", "inside", "found", "alignment", "rival", "input_value"):
        assert getattr(found, field).shape == (0,)
    for field in ("correct", "inside", "found"):
        assert getattr(found, field).dtype == torch.bool
    assert found.labels.dtype == found.rival.dtype == torch.int64
    assert found.margin.dtype == torch.float32
    assert found.verdict == []
    assert found.optimal.shape == (0,)
    found.to_csv(tmp_path / "empty.csv")
    assert len((tmp_path / "empty.csv").read_text().splitlines()) == 1, "the header alone"


def test_an_empty_batch_is_checked_all_the_same():
    with pytest.raises(TypeError, match="floating point"):
        search(Counting(), torch.zeros(0, *SHAPE, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"labels must have shape \(0,\)"):
        search(Counting(), torch.zeros(0, *SHAPE), classes())
    with pytest.raises(ValueError, match="lower bound is above"):
        search(Counting(), torch.zeros(0, *SHAPE), bounds=(1.0, 0.0))
    with pytest.raises(ValueError, match="steps must be"):
        search(Counting(), torch.zeros(0, *SHAPE), steps=1)


def test_an_empty_batch_in_float64_gives_a_result_in_float64():
    found = search(Counting().double(), torch.zeros(0, *SHAPE, dtype=torch.float64))
    assert found.points.dtype == found.gradient.dtype == found.margin.dtype == torch.float64


def test_an_empty_training_batch_is_refused_in_words():
    with pytest.raises(ValueError, match="at least one example"):
        train(Counting(), torch.zeros(0, *SHAPE), torch.zeros(0, dtype=torch.long))


@pytest.mark.parametrize("index", [torch.arange(EXAMPLES - 1), torch.zeros(EXAMPLES)], ids=["too few", "no integers"])
def test_an_index_names_every_example(index):
    with pytest.raises(ValueError, match=f"one integer for each of {EXAMPLES} examples"):
        search(torch.nn.Flatten(), torch.rand(EXAMPLES, *SHAPE), index=index)


def test_random_starts_go_by_the_index():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 40), torch.nn.ReLU(), torch.nn.Linear(40, 2))
    x, names = torch.rand(20, 6), torch.arange(100, 120)
    whole = search(net, x, restarts=4, index=names)
    part = search(net, x[5:], restarts=4, index=names[5:])
    torch.testing.assert_close(part.margin, whole.margin[5:], equal_nan=True)
    assert not torch.allclose(search(net, x[5:], restarts=4).margin, part.margin, rtol=1e-4, equal_nan=True)
