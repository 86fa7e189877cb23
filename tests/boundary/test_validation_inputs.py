"""Bad inputs and labels get a clear error before any work."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from validation_cases import CLASSES, SHAPE, Counting, classes, examples

import dyart


def search(model, inputs, labels=None, **options):
    return dyart.closest_boundary_points(model, inputs, labels, **{"steps": 4, **options})


def train(model, inputs, labels, **options):
    return dyart.DyART(steps=4, **options)(model, inputs, labels)


both = pytest.mark.parametrize("call", [search, train], ids=["closest_boundary_points", "DyART"])


def test_the_counting_model_counts_the_gradients_of_a_good_call():
    model = Counting()
    cost = search(model, examples(), classes()).cost
    assert (model.forwards - 1, model.gradients) == cost, "and a few examples are asked about twice"
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
    pixels = side == "above" and beyond > 1
    assert ("divide pixels from 0 to 255 by 255" if pixels else "normalisation inside the model") in message
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


def test_inputs_outside_a_tiny_box_are_no_rounding():
    tiny = 1e-8
    model, inputs = Counting(), examples() * tiny
    inputs[1, 0] = tiny * (1 + 5e-7)
    search(model, inputs, classes(), bounds=(0.0, tiny))
    with pytest.raises(ValueError, match="outside the bounds"):
        search(model, 3 * inputs, classes(), bounds=(0.0, tiny))


def test_rounding_is_in_proportion_to_the_bounds_of_each_feature():
    wide = torch.ones(SHAPE)
    wide[0], wide[1] = 1e6, 1e-6
    box = (torch.zeros(SHAPE), wide.clone())
    box[1][2] = math.inf
    inputs = examples() * wide
    inputs[1, 0] = 1e6 + 0.25  # as far as float32 is off after a change of scale and back
    search(Counting(), inputs, classes(), bounds=box)
    inputs[1, 1] = 2e-6
    with pytest.raises(ValueError, match="outside the bounds by 1e-06 "):
        search(Counting(), inputs, classes(), bounds=box)


@pytest.mark.parametrize(("dtype", "rounding", "outside"), [(torch.float32, 3e-4, 2e-3), (torch.float64, 5e-7, 9e-4)])
def test_rounding_in_a_narrow_box_far_from_zero_is_in_proportion_to_its_width(dtype, rounding, outside):
    model, inputs, box = Counting().to(dtype), 1000 + examples().to(dtype), (1000.0, 1001.0)
    inputs[1, 0] = 1001 + rounding
    search(model, inputs, classes(), bounds=box)
    inputs[1, 0] = 1001 + outside
    with pytest.raises(ValueError, match="outside the bounds"):
        search(model, inputs, classes(), bounds=box)


def test_rounding_at_a_feature_that_cannot_change_is_in_proportion_to_the_others():
    upper = torch.ones(SHAPE)
    upper[0] = 0.0
    inputs = examples() * upper
    inputs[1, 0] = 5e-7
    search(Counting(), inputs, classes(), bounds=(torch.zeros(SHAPE), upper))
    inputs[1, 0] = 5e-6
    with pytest.raises(ValueError, match="outside the bounds by 5e-06 "):
        search(Counting(), inputs, classes(), bounds=(torch.zeros(SHAPE), upper))


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
def test_the_line_that_converts_an_array_of_bytes_is_given(call):
    inputs = (examples() * 255).byte().numpy()
    with pytest.raises(TypeError, match=r"for images in 0\.\.255 torch\.as_tensor\(inputs\)\.float\(\) / 255$"):
        call(Counting(), inputs, classes())
    call(Counting(), torch.as_tensor(inputs).float() / 255, classes())  # as it says


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
def test_one_example_without_a_batch_is_told_to_be_one_and_that_helps(call):
    model, one, label = Counting(), examples()[0], classes()[0]
    with pytest.raises(ValueError, match=r"if these are one example, pass inputs\[None\] and labels\[None\]"):
        call(model, one, label)
    assert model.forwards == 0
    call(model, one[None], label[None])


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
