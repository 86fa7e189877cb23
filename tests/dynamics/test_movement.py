"""The boundary moves as its speed predicts, and measuring it changes nothing."""

import pytest
import torch
from monitor_cases import CLASSES, examples, labels_of, network, predictions, sgd, train_step, trained
from side_effects import Failing, FailureError, Noise, assert_same, settings, snapshot
from torch import nn

from dyart.dynamics.movement import Search, movement, weights_of

THOROUGH = {"steps": 60, "follow_steps": 20}


def moved_by(model, direction, size):
    """Move the model's tensors and return what they were."""
    before = weights_of(model)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with torch.no_grad():
        for name, rate in direction.items():
            tensors[name] += size * rate
    return before


def some_direction(tensors, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(t.shape, generator=generator, dtype=t.dtype) for name, t in tensors}


def linear_margin(model, inputs, labels, norm):
    """The distance to the nearest of the boundary's planes: of the difference of two logits, over its dual norm."""
    weight, bias = model.weight.detach(), model.bias.detach()
    distances = torch.full((len(inputs), len(weight)), torch.inf, dtype=inputs.dtype)
    for rival in range(len(weight)):
        normal, offset = weight[labels] - weight[rival], bias[labels] - bias[rival]
        size = torch.linalg.vector_norm(normal, ord={"linf": 1, "l2": 2, "l1": torch.inf}[norm], dim=1)
        value = ((normal * inputs).sum(dim=1) + offset) / size
        distances[:, rival] = torch.where(labels == rival, torch.inf, value)
    return distances.amin(dim=1)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_a_linear_classifier_moves_as_the_closed_form_says(norm):
    torch.manual_seed(0)
    model, inputs = nn.Linear(6, CLASSES).double(), examples(dtype=torch.float64)
    labels, direction = predictions(model, inputs), some_direction(model.named_parameters())
    errors = []
    for size in (1e-3, 1e-4):
        margin = linear_margin(model, inputs, labels, norm)
        before = moved_by(model, direction, size)
        moved = movement(model, before, inputs, labels, Search(norm=norm, bounds=None))
        assert bool(moved.compared.all())
        actual = linear_margin(model, inputs, labels, norm) - margin
        # Three steps turn a point towards the new normal but for an error of second order. For l1 they settle less.
        atol = 1e-4 if norm == "l1" else 5 * size**2
        torch.testing.assert_close(moved.change, actual, rtol=1e-5, atol=atol)
        errors.append(float((moved.speed - actual).abs().max()))
        model.load_state_dict(before)
    # The speed is the first-order term: a tenth of the step leaves a hundredth of the error.
    assert errors[0] < 1e-4
    assert errors[1] < errors[0] / 50


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("bounds", [None, (0.0, 1.0)])
def test_a_smooth_network_moves_as_predicted_to_second_order(norm, bounds):
    model, inputs = trained(dtype=torch.float64), examples(dtype=torch.float64)
    labels, direction = predictions(model, inputs), some_direction(model.named_parameters())
    model.eval()
    errors = []
    for size in (4e-3, 1e-3):
        before = moved_by(model, direction, size)
        moved = movement(model, before, inputs, labels, Search(norm=norm, bounds=bounds, **THOROUGH))
        assert int(moved.compared.sum()) >= 18
        error, speed = (moved.change - moved.speed)[moved.compared], moved.speed[moved.compared]
        errors.append(float(error.abs().median()))
        assert errors[-1] < 0.1 * float(speed.abs().median())
        model.load_state_dict(before, strict=False)
    assert errors[1] < errors[0] / 8  # a sixteenth, but for the search


def test_statistics_of_batch_norm_are_part_of_a_step():
    """What only moves a buffer moves the boundary, and is predicted."""
    model, inputs = trained(dtype=torch.float64).eval(), examples(dtype=torch.float64)
    labels = predictions(model, inputs)
    direction = some_direction([(name, b) for name, b in model.named_buffers() if name.endswith("running_mean")])
    before = moved_by(model, direction, 1e-3)
    moved = movement(model, before, inputs, labels, Search(**THOROUGH))
    speed, change = moved.speed[moved.compared], moved.change[moved.compared]
    assert float(speed.abs().median()) > 1e-5
    torch.testing.assert_close(change, speed, rtol=0.1, atol=float(speed.abs().median()) / 10)


def test_nothing_moves_nothing():
    model, inputs = trained(), examples()
    moved = movement(model, weights_of(model), inputs, predictions(model, inputs), Search())
    assert int(moved.compared.sum()) >= 18
    assert not moved.speed[moved.compared].any()
    assert not moved.change[moved.compared].any()


def test_margins_are_those_before_the_step():
    model, inputs = trained(), examples()
    labels, before = predictions(model, inputs), weights_of(model)
    still = movement(model, before, inputs, labels, Search())
    train_step(model, sgd(model, lr=1.0), inputs, labels)
    moved = movement(model, before, inputs, labels, Search())
    assert torch.equal(moved.found.margin, still.found.margin)
    assert torch.equal(moved.found.points, still.found.points)
    assert not torch.equal(moved.followed.margin, still.followed.margin)


@pytest.mark.parametrize("fail_at", [None, 3, 30, 39, 42])
def test_the_model_is_left_as_it_was(fail_at):
    """Also where it fails midway: in a search at the weights before the step, in the speed, at the weights after."""
    layers = [*trained(dropout=0.3), Noise(), Failing()]
    model, inputs = nn.Sequential(*layers), examples()
    labels, before = labels_of(inputs), weights_of(model)
    train_step(model, sgd(model), inputs, labels)
    model[1].eval()  # as in fine-tuning with frozen statistics
    model[-1].fail_at = None if fail_at is None else model[-1].calls + fail_at
    around, inside = settings(), snapshot(model)
    if fail_at is None:
        movement(model, before, inputs, labels, Search())
    else:
        with pytest.raises(FailureError):
            movement(model, before, inputs, labels, Search())
    assert_same(inside, snapshot(model))
    assert_same(around, settings())


@pytest.mark.parametrize(("classes", "steps", "follow_steps"), [(12, 20, 3), (3, 10, 2), (2, 21, 4)])
def test_the_passes_are_those_of_the_formula(classes, steps, follow_steps):
    model = network(classes=classes)
    inputs = examples()
    labels, before = predictions(model, inputs), weights_of(model)
    train_step(model, sgd(model), inputs, labels)
    calls = {"forward": 0, "backward": 0}

    def count(module, given, output):
        calls["forward"] += 1
        if output.requires_grad:
            output.register_hook(lambda gradient: calls.update(backward=calls["backward"] + 1))

    model.register_forward_hook(count)
    movement(model, before, inputs, labels, Search(steps=steps, follow_steps=follow_steps, bounds=None))
    less = 2 if classes == 2 else 0
    searching = steps + steps // 2 + 2 * follow_steps
    assert calls["forward"] == searching + 6 - less + 1  # one with tangents
    assert calls["backward"] == searching + min(classes - 1, 9) + 1 - less
