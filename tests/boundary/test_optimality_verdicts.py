"""How good a point is, in words: shocks, verdicts and explanations."""

import dataclasses

import pytest
from optimality_cases import DOUBLE, NORMS, by_hand
from plane_problems import Patches
from problems import Constant, Shaped, ball, flattened, uniform

import dyart

# Shocks.


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("slope", "shock"), [(1e-3, True), (0.1, False), (1.0, False)])
def test_a_margin_function_that_flattens_at_the_boundary_is_a_shock(norm, slope, shock):
    """phi = (1 - s) h^3 + s h: at the boundary its slope is s, on the way there (1 - s) h^2 + s on average."""
    model = Shaped(edge=0.8, shape=flattened(slope))
    inputs = uniform((20, 4), 11, 0.0, 0.4, DOUBLE)
    found = dyart.closest_boundary_points(model, inputs, norm=norm, bounds=None, tol=1e-7, steps=100)
    assert found.found.all()
    assert (found.shock == shock).all()
    height = 0.8 - inputs.mean(dim=1)
    ratio = slope / ((1 - slope) * height**2 + slope)
    for row, limit in enumerate(ratio.tolist()):
        assert bool(found[row].is_shock(1.05 * limit))
        assert not bool(found[row].is_shock(0.95 * limit))


def test_ordinary_points_are_no_shocks():
    for norm in NORMS:
        found = dyart.closest_boundary_points(Patches(), uniform((40, 2), 12), norm=norm)
        assert found.found.all()
        assert not found.shock.any()


def test_what_was_not_found_is_no_shock():
    assert not dyart.closest_boundary_points(Constant(), uniform((5, 2), 12)).shock.any()


# Words.


WORDS = ["locally optimal", "not closest", "off the boundary", "flat", "not found", "not inside"]


def one_of_each():
    """Return six examples in the plane, one for every verdict, with phi = 1 at the input where it is inside."""
    up, right = [-1.0, 1.0], [-1.0, -0.5]
    return by_hand(
        inputs=[[0.0, 0.0]] * 6,
        points=[[1.0, -1.0]] * 4 + [[0.0, 0.0]] * 2,
        gradient=[up, right, up, [-1e-3, 1e-3], [0.0, 0.0], [0.0, 0.0]],
        value=[-0.01, -0.01, -0.5, -0.01, 1.0, -2.0],
        input_value=[1.0] * 5 + [-2.0],
        found=[True] * 4 + [False] * 2,
    )


def test_verdict_names_every_kind_of_row():
    assert one_of_each().verdict == WORDS
    assert one_of_each().optimal.tolist() == [True, False, False, True, False, False]


def test_the_worst_reason_is_the_one_that_is_named():
    """Off the boundary and not closest: off the boundary. Flat, too: flat."""
    both = by_hand([[0.0, 0.0]] * 2, [[1.0, -1.0]] * 2, [[-1.0, -1.0], [-1e-3, -1e-3]], value=[-0.5, -0.5])
    assert both.verdict == ["off the boundary", "flat"]


def test_verdict_of_a_signed_margin_is_the_one_of_its_point():
    found = by_hand([[0.0, 0.0]], [[1.0, -1.0]], [[1.0, -1.0]], value=0.01, input_value=-1.0)
    assert found.verdict == ["locally optimal"]
    assert "margin -1 " in found.explain(0)


def test_explain_says_what_is_known():
    found = one_of_each()
    for row, word in enumerate(WORDS):
        assert found.explain(row).startswith(f"example {row}, class 0: {word}; ")
    best = found.explain(0)
    assert "linf margin 1 towards class 1" in best
    assert "phi at the point -0.01" in best
    assert "alignment 1.000" in best
    assert "slope 2" in best
    assert "alignment 0.333" in found.explain(1)
    assert "phi at the point -0.5" in found.explain(2)
    assert "slope 0.002" in found.explain(3)
    assert "more steps or restarts" in found.explain(4)
    assert "margin" not in found.explain(4)
    assert "phi is -2 at the input" in found.explain(5)
    assert "no margin" in found.explain(5)
    soft = dataclasses.replace(found, boundary="soft")
    assert "Phi at the point" in soft.explain(0)
    assert "Phi is -2" in soft.explain(5)


def test_verdicts_of_real_searches():
    model, inputs = Patches(), uniform((12, 2), 12)
    labels = model(inputs).argmax(dim=1)
    labels[3] = (labels[3] + 1) % 3
    found = dyart.closest_boundary_points(model, inputs, labels, tol=1e-4)
    assert found.verdict.count("locally optimal") >= 10
    assert found.verdict[3] == "not inside"
    assert found.explain(3).startswith(f"example 3, class {int(labels[3])}: not inside; phi is -")
    nothing = dyart.closest_boundary_points(Constant(), inputs)
    assert set(nothing.verdict) == {"not found"}
    flat = dyart.closest_boundary_points(Shaped(0.8, flattened(1e-3)), inputs / 2, tol=1e-7, steps=100)
    assert set(flat.verdict) == {"flat"}
    hasty = dyart.closest_boundary_points(ball([0.5, 0.5], 0.4), inputs, steps=2, restarts=3)
    assert "off the boundary" in hasty.verdict or "not closest" in hasty.verdict
