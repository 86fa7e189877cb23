"""Words for signed results, and torch's precision switches after a search."""

import pytest
import torch
from problems import linear_model, smooth_network, uniform

import dyart


def test_an_outside_example_that_was_searched_is_not_found_rather_than_without_a_margin():
    """Class 1 wins everywhere: there is no way into class 0."""
    model = linear_model(2, 3)
    with torch.no_grad():
        model.weight.zero_()
        model.weight[0, 0] = 1e-3
        model.bias.copy_(torch.tensor([0.0, 5.0]))
    labels = torch.zeros(4, dtype=torch.long)
    plain = dyart.closest_boundary_points(model, uniform((4, 3), 1), labels)
    signed = dyart.closest_boundary_points(model, uniform((4, 3), 1), labels, signed=True)
    assert plain.verdict == ["not inside"] * 4
    assert signed.verdict == ["not found"] * 4
    assert "more steps or restarts" in signed.explain(0)


def test_an_outside_example_comes_from_its_rival():
    model, inputs = smooth_network(12, 4, seed=2), uniform((10, 12), 4)
    second = model(inputs).topk(2).indices[:, 1]
    found = dyart.closest_boundary_points(model, inputs, second, signed=True)
    row = int(found.found.nonzero()[0])
    assert f"from class {int(found.rival[row])}" in found.explain(row)


@pytest.mark.parametrize("index", [2.7, torch.tensor([0.5, 1.0]), torch.zeros(2, 2, dtype=torch.long)])
def test_an_index_that_is_no_index_is_refused(index):
    found = dyart.closest_boundary_points(smooth_network(12, 4), uniform((3, 12), 4), steps=2)
    with pytest.raises(TypeError, match="index must be a mask, integers or a slice"):
        found[index]


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch before 2.9")
def test_precision_goes_on_following_the_global_switch_after_a_search():
    before = torch.backends.fp32_precision
    cudnn = {part: part.fp32_precision for part in (torch.backends.cudnn.conv, torch.backends.cudnn.rnn)}
    try:
        torch.backends.fp32_precision = "tf32"
        dyart.closest_boundary_points(smooth_network(12, 4), uniform((3, 12), 4), steps=2)
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
        torch.backends.fp32_precision = "ieee"
        assert torch.backends.cuda.matmul.fp32_precision == "ieee"
    finally:
        torch.backends.fp32_precision = before
        for part, precision in cudnn.items():
            part.fp32_precision = precision
