"""A first batch in which no margin can be raised is warned of, with what to do about it."""

import warnings

import pytest
import torch
from torch import Tensor, nn

import dyart

INPUTS = torch.tensor([[0.3, 0.5], [0.4, 0.5], [0.7, 0.5], [0.8, 0.5]]).repeat(8, 1)
LABELS = torch.tensor([0, 0, 1, 1]).repeat(8)


class Steps(nn.Module):
    """Two classes with the boundary at 0.5 of the first coordinate, and logits so steep there."""

    def __init__(self, slope: float, jump: bool = False) -> None:
        super().__init__()
        self.slope, self.jump = nn.Parameter(torch.tensor(slope)), jump

    def forward(self, x: Tensor) -> Tensor:
        away = self.slope * (x[:, 0] - 0.5)
        if self.jump:  # by 1, without a slope of its own
            away = away + 1.0 * (away > 0) - 0.5
        return torch.stack([-away, away], dim=1)


def first_call(model: nn.Module, **settings: object) -> dict[str, Tensor]:
    return dyart.DyART(lam=2.0, steps=8, **settings)(model, INPUTS, LABELS)[1]


def test_a_batch_with_margins_is_not_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert first_call(Steps(4.0), r0=0.5)["used"] == 1


@pytest.mark.parametrize(
    ("model", "settings", "words"),
    [
        (Steps(-4.0), {"r0": 0.5}, "no example lies inside its class's boundary. Begin with a network"),
        (Steps(4.0), {"r0": 0.05}, "of 32 examples inside their class none has a boundary point below r0=0.05"),
        (Steps(4.0, jump=True), {"r0": 0.5}, "32 boundary points lie below r0, 0 of them good enough"),
    ],
)
def test_why_there_is_nothing_to_raise_is_said(model, settings, words):
    with pytest.warns(UserWarning, match=words):
        metrics = first_call(model, **settings)
    assert metrics["used"] == 0


def test_it_is_said_at_the_first_call_alone_and_only_where_margins_have_a_weight():
    objective = dyart.DyART(lam=2.0, r0=0.05)
    with pytest.warns(UserWarning, match="in the first batch 0 of 32 examples"):
        objective(Steps(4.0), INPUTS, LABELS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        objective(Steps(4.0), INPUTS, LABELS)
        dyart.DyART(lam=0.0, r0=0.05)(Steps(4.0), INPUTS, LABELS)


def test_of_a_few_examples_nothing_is_said():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dyart.DyART(lam=2.0, r0=0.05)(Steps(4.0), INPUTS[:31], LABELS[:31])
