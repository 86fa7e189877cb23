"""The Euclidean projection into a p-ball."""

import pytest
import torch
from problems import uniform

from dyart.boundary.projections import into_ball

NORMS = ["linf", "l2", "l1"]
ORDER = {"linf": torch.inf, "l2": 2, "l1": 1}


def length(x, norm):
    return torch.linalg.vector_norm(x, ord=ORDER[norm], dim=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("norm", NORMS)
def test_nothing_inside_the_ball_is_closer(norm, dtype):
    """For a convex set: the way to any other of its points makes an obtuse angle with the way out."""
    x = uniform((20, 30), 1, -1, 1, dtype)
    radius = uniform((20,), 2, 0.1, 0.9, dtype) * length(x, norm)
    inside = into_ball(x, radius, norm)
    torch.testing.assert_close(length(inside, norm), radius)
    assert bool((inside.abs() <= x.abs()).all())
    assert bool((inside * x >= 0).all())
    others = uniform((200, 20, 30), 3, -1, 1, dtype)
    others = others * (radius / torch.linalg.vector_norm(others, ord=ORDER[norm], dim=2))[:, :, None]
    angle = ((x - inside) * (others - inside)).sum(dim=2)
    assert float(angle.max()) <= 1e-5
    corners = torch.eye(30, dtype=dtype)[:, None] * radius[:, None]
    if norm == "l1":
        assert float(((x - inside) * (corners - inside)).sum(dim=2).max()) <= 1e-5


@pytest.mark.parametrize("norm", NORMS)
def test_what_is_inside_stays_to_the_last_bit(norm):
    x = torch.cat([uniform((5, 8), 1, -1, 1), torch.zeros(1, 8)])
    assert torch.equal(into_ball(x, length(x, norm) * 1.001, norm), x)
    assert torch.equal(into_ball(x, torch.full((6,), torch.inf), norm), x)
    assert float(into_ball(x, torch.zeros(6), norm).abs().max()) == 0


def test_rows_do_not_touch_each_other():
    x = uniform((6, 8), 1, -1, 1)
    radius = torch.tensor([0.1, 5.0, 0.0, 1.0, 2.0, 0.5])
    for norm in NORMS:
        alone = torch.cat([into_ball(x[i : i + 1], radius[i : i + 1], norm) for i in range(6)])
        assert torch.equal(into_ball(x, radius, norm), alone)


def test_an_unknown_norm_is_named():
    with pytest.raises(ValueError, match="'l0'"):
        into_ball(torch.ones(1, 2), torch.ones(1), "l0")
