"""Bad input gets a clear error before any work; doubtful input gets a warning; an empty batch an empty result."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dyart

SHAPE, CLASSES, EXAMPLES = (3, 2, 2), 10, 6


class Counting(nn.Module):
    """Ten classes; counts its forward passes and the gradients that were taken through it."""

    def __init__(self, change=lambda logits: logits) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.net = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(SHAPE), 16), nn.Tanh(), nn.Linear(16, CLASSES))
        self.change, self.forwards, self.gradients = change, 0, 0

    def forward(self, x: Tensor) -> object:
        self.forwards += 1
        logits = self.net(x)
        if logits.requires_grad:
            logits.register_hook(self._count)
        return self.change(logits)

    def _count(self, gradient: Tensor) -> None:
        self.gradients += 1


def examples() -> Tensor:
    return 0.2 + 0.6 * torch.rand(EXAMPLES, *SHAPE, generator=torch.Generator().manual_seed(1))


def classes() -> Tensor:
    with torch.no_grad():
        return Counting().net(examples()).argmax(dim=1)


def search(model, inputs, labels=None, **options):
    return dyart.closest_boundary_points(model, inputs, labels, **{"steps": 4, **options})


def train(model, inputs, labels, **options):
    return dyart.DyART(steps=4, **options)(model, inputs, labels)


both = pytest.mark.parametrize("call", [search, train], ids=["closest_boundary_points", "DyART"])


def test_the_counting_model_counts_the_gradients_of_a_good_call():
    model = Counting()
    cost = search(model, examples(), classes()).cost
    assert (model.forwards, model.gradients) == cost
    assert model.gradients >= 4
    model = Counting()
    train(model, examples(), classes())
    assert (model.forwards, model.gradients) == (6, 4), "one check, four steps, one joint forward pass"


# Inputs


@both
@pytest.mark.parametrize("beyond", [2e-6, 0.01, 254.0])
@pytest.mark.parametrize("side", ["below", "above"])
def test_inputs_outside_the_bounds_are_told_that_normalisation_belongs_inside_the_model(call, side, beyond):
    model, inputs = Counting(), examples()
    inputs[2, 1, 0, 1] = -beyond if side == "below" else 1 + beyond
    with pytest.raises(ValueError, match="outside the bounds") as error:
        call(model, inputs, classes())
    message = str(error.value)
    assert "normalisation inside the model" in message
    assert "bounds=None" in message
    assert f"{float(inputs.max() if side == 'above' else inputs.min()):g}" in message, "the value says what happened"
    assert model.forwards == 0


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("beyond", [3e-8, 5e-7])
def test_inputs_off_by_rounding_are_accepted(call, beyond, dtype):
    model, inputs = Counting().to(dtype), examples().to(dtype)
    inputs[0, 0] = -beyond
    inputs[1, 0] = 1 + beyond
    result = call(model, inputs, model.net(inputs).argmax(dim=1))
    if call is search:
        assert result.found[:2].all()
        assert 0 <= result.points[:2].min() <= result.points[:2].max() <= 1, "found points are inside all the same"


@pytest.mark.parametrize("bounds", [(-3.0, 3.0), None, (-torch.ones(SHAPE), torch.full((3, 1, 1), 1.5))])
@both
def test_other_bounds_admit_other_ranges(call, bounds):
    inputs = examples() * 2 - 0.9
    assert inputs.min() < 0
    assert inputs.max() > 0.6
    call(Counting(), inputs, classes(), bounds=bounds)


@both
def test_bounds_hold_feature_by_feature(call):
    upper = torch.ones(SHAPE)
    upper[1, 1, 1] = 0.1
    with pytest.raises(ValueError, match="outside the bounds"):
        call(Counting(), examples(), classes(), bounds=(0.0, upper))


@both
@pytest.mark.parametrize("bounds", [(0.0, 1.0), None])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_inputs_that_are_not_finite_are_named_by_their_index(call, value, bounds):
    model, inputs = Counting(), examples()
    inputs[3, 0, 1, 1] = value
    inputs[5] = value
    with pytest.raises(ValueError, match=r"NaN or infinity in 2 examples, the first at index 3"):
        call(model, inputs, classes(), bounds=bounds)
    assert model.forwards == 0


@both
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64, torch.bool, torch.complex64])
def test_inputs_that_are_not_floating_point_are_told_how_to_convert(call, dtype):
    model = Counting()
    with pytest.raises(TypeError, match=r"floating point, got torch\.\w+.*float\(\) / 255") as error:
        call(model, (examples() * 255).to(dtype), classes())
    assert str(dtype) in str(error.value)
    assert model.forwards == 0


@both
@pytest.mark.parametrize("kind", [np.asarray, Tensor.tolist, list], ids=["numpy", "nested list", "list of tensors"])
def test_inputs_that_are_no_tensor_are_told_how_to_become_one(call, kind):
    model = Counting()
    with pytest.raises(TypeError, match=r"inputs must be a torch\.Tensor.*torch\.as_tensor"):
        call(model, kind(examples()), classes())
    assert model.forwards == 0


@both
def test_a_single_number_is_no_batch(call):
    with pytest.raises(ValueError, match=r"batch \[N, \.\.\.\]"):
        call(Counting(), torch.tensor(0.5), torch.tensor([0]))


# Labels


@both
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.float64, torch.complex64])
def test_labels_that_are_not_integers_are_told_to_use_long(call, dtype):
    model = Counting()
    with pytest.raises(TypeError, match=r"integer class indices.*labels\.long\(\)") as error:
        call(model, examples(), classes().to(dtype))
    assert str(dtype) in str(error.value)
    assert model.forwards == 0


@both
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_labels_of_any_integer_type_give_the_same_result(call, dtype):
    given, usual = (call(Counting(), examples(), classes().to(kind)) for kind in (dtype, torch.int64))
    if call is search:
        assert given.labels.dtype == torch.int64
        torch.testing.assert_close(given.margin, usual.margin, rtol=0, atol=0)
    else:
        torch.testing.assert_close(given[0], usual[0], rtol=0, atol=0)


@both
@pytest.mark.parametrize("kind", [np.asarray, Tensor.tolist], ids=["numpy", "list"])
def test_labels_that_are_no_tensor_are_told_how_to_become_one(call, kind):
    model = Counting()
    with pytest.raises(TypeError, match=r"labels must be a torch\.Tensor.*torch\.as_tensor"):
        call(model, examples(), kind(classes()))
    assert model.forwards == 0


@both
@pytest.mark.parametrize(
    "change",
    [lambda y: y[:-1], lambda y: torch.cat([y, y]), lambda y: y[0], lambda y: y.repeat(1, 1, 2)],
    ids=["too few", "too many", "one number", "three dimensions"],
)
def test_labels_of_a_wrong_shape_are_told_the_right_one(call, change):
    model, labels = Counting(), change(classes())
    with pytest.raises(ValueError, match=r"labels must have shape \(6,\), got") as error:
        call(model, examples(), labels)
    assert str(tuple(labels.shape)) in str(error.value)
    assert "argmax" not in str(error.value), "the hint for one-hot labels would mislead here"
    assert model.forwards == 0


@both
def test_one_hot_labels_are_told_to_use_argmax_and_that_helps(call):
    model, one_hot = Counting(), F.one_hot(classes(), CLASSES)
    with pytest.raises(ValueError, match=r"one-hot.*labels\.argmax\(1\)"):
        call(model, examples(), one_hot)
    assert model.forwards == 0
    call(model, examples(), one_hot.argmax(1))


@both
def test_one_hot_labels_in_floating_point_are_told_to_use_argmax_too(call):
    # labels.long() would turn soft labels into zeros, whose argmax is class 0 for every example.
    with pytest.raises((TypeError, ValueError), match=r"labels\.argmax\(1\)"):
        call(Counting(), examples(), F.one_hot(classes(), CLASSES).float())


@both
def test_a_column_of_labels_is_not_taken_for_one_hot(call):
    # argmax(1) of a column is 0 for every example: the advice would give wrong margins without an error.
    with pytest.raises(ValueError, match="shape") as error:
        call(Counting(), examples(), classes()[:, None])
    assert "argmax" not in str(error.value)
    assert "labels.squeeze(1)" in str(error.value) or "labels.flatten()" in str(error.value)


@both
@pytest.mark.parametrize("label", [-1, -100, CLASSES, 255])
def test_labels_out_of_range_are_told_the_range(call, label):
    model, labels = Counting(), classes()
    labels[4] = label
    with pytest.raises(ValueError, match=rf"label {label} at index 4 is out of range.*10 classes, 0 to 9"):
        call(model, examples(), labels)
    assert model.forwards <= 1
    assert model.gradients == 0


@both
def test_labels_on_another_device_are_named_with_both_devices(call):
    with pytest.raises(ValueError, match="labels are on meta, inputs on cpu"):
        call(Counting(), examples(), classes().to("meta"))


# What the model returns


@both
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda z: torch.where(torch.arange(len(z))[:, None] == 2, torch.nan, z), "NaN logits, first for example 2"),
        (lambda z: z[:, :1], r"shape \(6, 1\): one logit .*wrap it .*torch\.stack"),
        (lambda z: z[:, 0], r"shape \(6,\): one logit .*wrap it .*torch\.stack"),
        (lambda z: z[:, :, None], r"logits \[N, K\], got shape \(6, 10, 1\)"),
        (lambda z: z[:4], "4 rows of logits for 6 examples"),
        (lambda z: torch.cat([z, z]), "12 rows of logits for 6 examples"),
    ],
    ids=["NaN", "one class", "one logit", "three dimensions", "too few rows", "too many rows"],
)
def test_bad_logits_are_refused_before_any_gradient(call, change, words):
    model = Counting(change)
    with pytest.raises(ValueError, match=words):
        call(model, examples(), classes())
    assert model.forwards == 1
    assert model.gradients == 0


@both
@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda z: (z, z), "tuple"),
        (lambda z: [z], "list"),
        (lambda z: {"logits": z}, "dict"),
        (lambda z: z.detach().numpy(), "ndarray"),
        (lambda z: SimpleNamespace(logits=None), "SimpleNamespace"),
        (lambda z: None, "NoneType"),
    ],
)
def test_models_that_return_something_else_are_told_to_be_wrapped(call, change, name):
    model = Counting(change)
    with pytest.raises(TypeError, match=rf"returned {name}.*wrap it, e\.g\. lambda x: model\(x\)\[0\]"):
        call(model, examples(), classes())
    assert model.forwards == 1
    assert model.gradients == 0


@both
def test_integer_logits_are_refused(call):
    with pytest.raises(TypeError, match=r"logits must be floating point, got torch\.int64"):
        call(Counting(lambda z: (100 * z).long()), examples(), classes())


@both
@pytest.mark.parametrize(
    "change",
    [Tensor.detach, lambda z: (100 * z).detach().round(), lambda z: F.one_hot(z.argmax(dim=1), CLASSES).float() * 2],
    ids=["detach", "rounding", "argmax"],
)
def test_models_without_a_gradient_are_told_so(call, change):
    with pytest.raises(ValueError, match="differentiable operations") as error:
        call(Counting(change), examples(), classes())
    assert ".detach()" in str(error.value), "the usual suspects are named"


@both
def test_models_that_detach_their_input_are_told_so_too(call):
    # The logits do have a gradient, in the parameters: another way through autograd than without any gradient.
    model = Counting()
    with pytest.raises(ValueError, match="differentiable operations"):
        call(lambda x: model(x.detach()), examples(), classes())


@pytest.mark.parametrize("wrap", [lambda z: SimpleNamespace(logits=z), lambda z: z], ids=[".logits", "tensor"])
def test_hugging_face_like_outputs_work(wrap):
    direct = search(Counting(), examples(), classes(), tol=1e-4)
    wrapped = search(Counting(wrap), examples(), classes(), tol=1e-4)
    assert direct.found.all()
    torch.testing.assert_close(wrapped.margin, direct.margin, rtol=0, atol=0)
    loss, _ = train(Counting(wrap), examples(), classes())
    torch.testing.assert_close(loss, train(Counting(), examples(), classes())[0], rtol=0, atol=0)


def test_the_advice_for_one_logit_gives_the_margin_of_the_binary_model():
    weight, inputs = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([[0.5, 0.4, 0.5], [0.4, 0.6, 0.3]])

    def score(x: Tensor) -> Tensor:
        return (x @ weight)[:, None]

    def wrapped(x: Tensor) -> Tensor:
        z = score(x)
        return torch.stack([-z.flatten(), z.flatten()], 1) / 2

    with pytest.raises(ValueError, match=r"torch\.stack\(\[-z\.flatten\(\), z\.flatten\(\)\], 1\) / 2"):
        search(score, inputs)
    found = search(wrapped, inputs, tol=1e-6)
    torch.testing.assert_close(found.labels, (score(inputs)[:, 0] > 0).long())
    # Nothing is pinned, so the linf margin is |z| / ||w||_1; and the value is the binary model's own logit.
    torch.testing.assert_close(found.margin, score(inputs)[:, 0].abs() / 3.5, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found.input_value, score(inputs)[:, 0].abs())


@both
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_inputs_of_another_dtype_than_the_model_get_a_note_that_says_what_to_pass(call, dtype):
    model = Counting()
    with pytest.raises(RuntimeError, match="dtype") as error:
        call(model, examples().to(dtype), classes())
    notes = "\n".join(getattr(error.value, "__notes__", []))
    assert f"the inputs are {dtype}" in notes
    assert "pass inputs.to(torch.float32)" in notes
    assert model.gradients == 0


@both
def test_inputs_on_another_device_than_the_model_get_a_note_that_names_both(call):
    with pytest.raises(RuntimeError) as error:
        call(Counting().to("meta"), examples(), classes())
    notes = "\n".join(getattr(error.value, "__notes__", []))
    assert "the model is on meta, the inputs are on cpu" in notes


def test_the_note_is_left_out_where_it_would_mislead():
    with pytest.raises(RuntimeError, match="shapes") as error:
        search(Counting(), examples()[:, :2], classes())
    assert not getattr(error.value, "__notes__", [])


# Warnings


@both
def test_probabilities_get_a_warning_at_the_callers_line(call):
    with pytest.warns(UserWarning, match=r"probabilities.*drop the softmax") as record:
        call(Counting(lambda z: z.softmax(dim=1)), examples(), classes())
    assert [warning.filename for warning in record] == [__file__], "a warning inside dyart says nothing to its user"


@both
@pytest.mark.parametrize(
    "change",
    [
        lambda z: z.log_softmax(dim=1),
        lambda z: z - z.min(),
        lambda z: 2 * z.softmax(dim=1),
        lambda z: z - z.mean(1, True) + 0.1,
    ],
    ids=["log-probabilities", "non-negative", "sum of 2", "sum of 1"],
)
def test_logits_that_are_no_probabilities_get_no_warning(call, change):
    call(Counting(change), examples(), classes())  # a warning is an error here


def with_batch_norm(*, training: bool) -> nn.Module:
    model = nn.Sequential(nn.Sequential(nn.BatchNorm2d(3)), Counting())
    return model.train(training)


def test_batch_norm_in_training_mode_gets_a_warning_at_the_callers_line():
    with pytest.warns(UserWarning, match=r"BatchNorm.*training mode.*running statistics.*model\.eval\(\)") as record:
        dyart.closest_boundary_points(with_batch_norm(training=True), examples(), steps=2)
    assert [warning.filename for warning in record] == [__file__]


def test_one_batch_norm_in_training_mode_is_enough_for_the_warning():
    model = with_batch_norm(training=False)
    model[0][0].train()
    with pytest.warns(UserWarning, match="BatchNorm"):
        search(model, examples())


def test_batch_norm_gets_no_warning_where_all_is_well():
    search(with_batch_norm(training=False), examples())
    search(nn.Sequential(nn.Dropout(0.5), nn.GroupNorm(1, 3), Counting()).train(), examples())
    # The objective is meant to run in training mode.
    train(with_batch_norm(training=True), examples(), classes())


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
