"""Timing of training steps: the arithmetic of a step is what the cost model says, and steps are real ones."""

import pytest
import torch

from dyart.engine.timing import BURST, in_turn, noise, operations, ready, step_of

CPU = torch.device("cpu")
BATCH = 8
WORDS = ["--train.device", "cpu", "--train.batch_size", str(BATCH)]


def small(method, *more):
    return ready(f"fashion-mini-cnn-{method}", [*WORDS, *more], noise(8 * BATCH, (1, 28, 28)))


@pytest.mark.parametrize(
    ("method", "passes"),
    # Forward 1, to the inputs and back 2, to the weights and back 3.
    [("natural", 3), ("at", 10 * 2 + 3), ("dyart --method.retire false", 8 * 2 + 2 * 3)],
)
def test_the_arithmetic_of_a_step_is_that_of_its_passes(method, passes):
    step, forward = operations(small(*method.split()))
    # The first layer's gradient to its input is not needed for the weights.
    assert passes - 0.3 < step / forward <= passes + 1e-6


def test_steps_train_and_are_timed_in_turn():
    training = small("natural")
    before = [parameter.detach().clone() for parameter in training.model.parameters()]
    taken = []
    step = step_of(training)

    def one():
        taken.append("one")
        step()

    times = in_turn({"one": one, "two": lambda: taken.append("two")}, CPU, rounds=2)
    assert {name: len(values) for name, values in times.items()} == {"one": 2 * BURST, "two": 2 * BURST}
    assert taken[-2 * BURST :] == ["one"] * BURST + ["two"] * BURST
    assert min(times["one"]) > max(min(times["two"]), 0)
    after = list(training.model.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_noise_is_a_data_set():
    data = noise(40, (3, 8, 8), classes=4)
    assert data.train.images.shape == (40, 3, 8, 8)
    assert set(data.train.labels.tolist()) == {0, 1, 2, 3}
    assert len(data.classes) == 4
