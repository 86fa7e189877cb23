"""Where two searches disagree."""

import dataclasses

import pytest
import torch

import dyart
from dyart.evaluation.agreement import compare


def search(solver="fast", steps=20):
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(6, 3, generator=generator)
    inputs = torch.rand(50, 6, generator=generator)
    return dyart.closest_boundary_points(lambda x: (x - 0.5) @ weight, inputs, steps=steps, solver=solver)


def scaled(found, rows, factor):
    margin = found.margin.clone()
    margin[rows] *= factor
    return dataclasses.replace(found, margin=margin)


def test_two_good_searches_of_a_linear_model_agree():
    report = compare(search(), search("apgd", 60), "fast", "apgd")
    assert report.agree == report.both > 30
    assert report.worst == ()
    assert "fast / apgd" in str(report)


def test_who_is_closer_is_counted_and_the_worst_are_named():
    found = search()
    rows = found.found.nonzero()[:3, 0]
    report = compare(scaled(found, rows, 2.0), found, "a", "b")
    assert (report.second_closer, report.first_closer) == (3, 0)
    assert sorted(row for row, _, _ in report.worst) == sorted(rows.tolist())
    assert all(first == pytest.approx(2 * second) for _, first, second in report.worst)
    turned = compare(found, scaled(found, rows, 2.0), "a", "b")
    assert (turned.second_closer, turned.first_closer) == (0, 3)
    assert turned.worst == ()


def test_points_that_only_one_found_are_counted():
    found = search()
    lost = found.found.clone()
    lost[lost.nonzero()[:2, 0]] = False
    less = dataclasses.replace(found, found=lost)
    report = compare(found, less, "a", "b")
    assert (report.only_first, report.only_second) == (2, 0)


def test_searches_of_other_examples_or_norms_are_refused():
    found = search()
    with pytest.raises(ValueError, match="different problems"):
        compare(found, dataclasses.replace(found, norm="l2"), "a", "b")
    with pytest.raises(ValueError, match="different problems"):
        compare(found, found[:10], "a", "b")
