"""The result object: rows, parts and the whole, devices."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from result_cases import EXAMPLES, SHAPE, VERDICTS, handmade, search
from torch import Tensor

import dyart
from dyart.boundary.points import Passes

PER_EXAMPLE = ("inputs", "labels", "points", "margin", "value", "gradient", "correct", "inside", "found", "alignment")
PER_EXAMPLE += ("rival", "input_value", "lost")


@pytest.fixture(scope="module")
def searched() -> dyart.BoundaryPoints:
    return search()


def assert_equal(one: dyart.BoundaryPoints, other: dyart.BoundaryPoints) -> None:
    for name in PER_EXAMPLE:
        a, b = getattr(one, name), getattr(other, name)
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True, msg=lambda text, name=name: f"{name}: {text}")
    for name in ("norm", "boundary", "beta", "solver", "cost"):
        assert getattr(one, name) == getattr(other, name), name
    for a, b in zip(one.bounds or (), other.bounds or (), strict=True):
        torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), rtol=0, atol=0)


def test_the_examples_cover_every_field(searched):
    assert set(PER_EXAMPLE) == {name for name, value in vars(searched).items() if isinstance(value, Tensor)}
    assert searched.found.tolist() == searched.inside.tolist() == [True] * 3 + [False] + [True] * 3
    assert handmade().verdict == VERDICTS


# Rows


def test_the_length_is_the_number_of_examples(searched):
    assert len(searched) == EXAMPLES
    assert len(searched[:0]) == 0


@pytest.mark.parametrize(
    ("index", "rows"),
    [
        (2, [2]),
        (0, [0]),
        (-1, [6]),
        (slice(1, 4), [1, 2, 3]),
        (slice(None, None, 3), [0, 3, 6]),
        (slice(5, 5), []),
        (torch.tensor([False, True, False, True, False, False, True]), [1, 3, 6]),
        (torch.zeros(7, dtype=torch.bool), []),
        (torch.tensor([4, 0, 4]), [4, 0, 4]),
        (torch.tensor([-1, 1]), [6, 1]),
        (torch.tensor([], dtype=torch.long), []),
        ([5, 3], [5, 3]),
        ([2], [2]),
        ([True, False, False, False, False, False, True], [0, 6]),
        (range(2, 4), [2, 3]),
        (np.array([1, 6]), [1, 6]),
        (np.arange(7) > 4, [5, 6]),
        (np.int64(3), [3]),
        (torch.tensor(3), [3]),
        ((1, 4), [1, 4]),
        ((4,), [4]),
    ],
    ids=[
        "int",
        "zero",
        "negative int",
        "slice",
        "slice with a step",
        "empty slice",
        "mask",
        "mask of nothing",
        "indices",
        "negative indices",
        "no indices",
        "list",
        "list of one",
        "list of booleans",
        "range",
        "numpy indices",
        "numpy mask",
        "numpy int",
        "tensor of one number",
        "tuple",
        "tuple of one",
    ],
)
def test_every_field_is_indexed_alike(searched, index, rows):
    part = searched[index]
    assert len(part) == len(rows)
    for name in PER_EXAMPLE:
        whole, some = getattr(searched, name), getattr(part, name)
        assert some.shape == (len(rows), *whole.shape[1:]), name
        for position, row in enumerate(rows):
            torch.testing.assert_close(some[position], whole[row], rtol=0, atol=0, equal_nan=True)
    for name in ("norm", "boundary", "beta", "bounds", "solver", "cost"):
        assert getattr(part, name) == getattr(searched, name)


@pytest.mark.parametrize("index", [7, -8, [0, 7], torch.tensor([9]), torch.ones(3, dtype=torch.bool)])
def test_an_index_out_of_range_is_an_error(searched, index):
    with pytest.raises(IndexError):
        searched[index]


@pytest.mark.parametrize("rows", [slice(2, 6), torch.tensor([3, 0, 6])])
def test_what_is_computed_from_rows_is_that_of_the_whole(searched, rows):
    for found in (searched, handmade()):
        part = found[rows]
        numbers = torch.arange(len(found))[rows].tolist()
        assert part.verdict == [found.verdict[number] for number in numbers]
        for name in ("optimal", "shock", "displacement", "free", "orientation"):
            assert torch.equal(getattr(part, name), getattr(found, name)[rows]), name
        assert torch.equal(part.multiplier(), found.multiplier()[rows])
        assert all(torch.equal(a, b[rows]) for a, b in zip(part.conditions, found.conditions, strict=True))


def test_bounds_per_feature_travel_whole_with_every_row():
    low, high = torch.zeros(SHAPE), torch.ones(3)
    found = search(bounds=(low, high))
    part = found[torch.tensor([2, 5])]
    assert part.bounds[0] is low
    assert part.bounds[1] is high
    assert torch.equal(part.free, found.free[[2, 5]])
    assert_equal(dyart.concat([found[:2], found[2:]]), found)


@pytest.mark.parametrize("bounds", [torch.tensor([0.0, 1.0]), torch.stack([torch.zeros(SHAPE), torch.ones(SHAPE)])])
def test_bounds_in_one_tensor_are_not_taken_for_rows(bounds):
    # A tensor of two entries is a pair, too; it must not be cut with the examples.
    found, usual = search(bounds=bounds), search()
    part = found[:1]
    assert len(part.bounds) == 2
    torch.testing.assert_close(part.multiplier(), usual[:1].multiplier())
    joined = dyart.concat([found[:3], found[3:]])
    assert len(joined.bounds) == 2
    torch.testing.assert_close(joined.margin, usual.margin, equal_nan=True)


# The whole


@pytest.mark.parametrize("cut", [0, 3, 7])
def test_the_parts_joined_are_the_whole(searched, cut):
    assert_equal(dyart.concat([searched[:cut], searched[cut:]]), searched)
    assert_equal(dyart.concat((searched[:cut], searched[cut:])), searched)


def test_one_part_is_the_whole(searched):
    assert_equal(dyart.concat([searched]), searched)


def test_order_and_repetition_are_kept(searched):
    joined = dyart.concat([searched[4], searched, searched[4]])
    rows = torch.tensor([4, *range(EXAMPLES), 4])
    torch.testing.assert_close(joined.margin, searched.margin[rows], rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(joined.points, searched.points[rows], rtol=0, atol=0)


def test_empty_parts_add_nothing(searched):
    empty = search(examples=0)
    assert len(empty) == 0
    assert_equal(dyart.concat([empty, searched, searched[:0], empty]), searched)
    assert len(dyart.concat([empty, empty])) == 0
    joined = dyart.concat([empty, empty])
    assert joined.points.shape == (0, *SHAPE)


def test_nothing_at_all_cannot_be_joined():
    with pytest.raises(ValueError, match="at least one"):
        dyart.concat([])


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("norm", ("linf", "l2")),
        ("boundary", ("exact", "soft")),
        ("beta", (5.0, 10.0)),
        ("bounds", (None, (0.0, 1.0))),
        ("bounds", ((0.0, 1.0), (0.0, 2.0))),
        ("bounds", ((0.0, 1.0), (-1.0, 1.0))),
        ("bounds", ((torch.zeros(2), torch.ones(2)), (torch.zeros(2), torch.tensor([1.0, 2.0])))),
        ("bounds", ((0.0, 1.0), (torch.zeros(2), torch.full((2,), 2.0)))),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_parts_of_different_problems_cannot_be_joined(name, values, late):
    one, other = (handmade(**{name: value}) for value in values)
    parts = [one, one, other] if late else [other, one]
    with pytest.raises(ValueError, match=f"differ in {name}"):
        dyart.concat(parts)


def test_the_error_names_both_values():
    with pytest.raises(ValueError, match=r"beta: \['10\.0', '5\.0'\]"):
        dyart.concat([handmade(), handmade(beta=10.0)])


@pytest.mark.parametrize(
    "bounds",
    [
        ((0.0, 1.0), (0, 1)),
        ((0.0, 1.0), (torch.tensor(0.0), torch.tensor(1.0))),
        ((torch.zeros(2), torch.ones(2)), (torch.zeros(2), torch.ones(2))),
        ((torch.zeros(2), torch.ones(2)), (torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))),
        ((-math.inf, math.inf), (-math.inf, math.inf)),
        (None, None),
    ],
    ids=["int", "tensors of one number", "equal tensors", "another dtype", "infinite", "none"],
)
def test_the_same_bounds_in_other_words_can_be_joined(bounds):
    assert len(dyart.concat([handmade(bounds=one) for one in bounds])) == 14


def test_the_cost_of_the_whole_is_that_of_the_dearest_part():
    # Passes are counted per example: two halves of a batch cost what the batch does.
    parts = [handmade(cost=Passes(*cost)) for cost in ((3, 2), (9, 1), (4, 8))]
    assert dyart.concat(parts).cost == Passes(forward=9, backward=8)
    halves, whole = search(batch_size=4), search()
    assert halves.cost == whole.cost
    assert whole.cost.backward >= 8


# Devices, and what cannot be changed


def test_on_the_same_device_all_stays_equal(searched):
    assert_equal(searched.to("cpu"), searched)
    assert_equal(searched.to(torch.device("cpu")), searched)


@pytest.mark.parametrize("bounds", [None, (0.0, 1.0), (torch.zeros(SHAPE), 1.0), (torch.zeros(3), torch.ones(SHAPE))])
def test_every_tensor_moves_to_another_device_bounds_included(bounds):
    found = search(bounds=bounds)
    moved = found.to("meta")  # a device that is always there
    for name in PER_EXAMPLE:
        assert getattr(moved, name).device.type == "meta", name
        assert getattr(moved, name).shape == getattr(found, name).shape
        assert getattr(moved, name).dtype == getattr(found, name).dtype
        assert getattr(found, name).device.type == "cpu", "the original stays"
    assert (moved.bounds is None) == (bounds is None)
    for given, bound in zip(bounds or (), moved.bounds or (), strict=True):
        assert bound.device.type == "meta" if isinstance(given, Tensor) else bound == given
    for name in ("norm", "boundary", "beta", "solver", "cost"):
        assert getattr(moved, name) == getattr(found, name)


@pytest.mark.parametrize("name", ["margin", "points", "norm", "cost", "something_new"])
def test_a_result_cannot_be_changed(searched, name):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(searched, name, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        delattr(searched, name)


def test_a_result_can_be_kept_in_sets_and_compared_by_identity(searched):
    # Field by field, == on tensors would be an error or, worse, a tensor.
    assert searched != searched[:]
    assert len({searched, searched, searched[:]}) == 2


# Files


@pytest.mark.parametrize("bounds", [None, (0.0, 1.0), (torch.zeros(SHAPE), torch.ones(SHAPE))])
def test_what_is_saved_comes_back(tmp_path, bounds):
    found = search(bounds=bounds, signed=True)
    found.save(tmp_path / "found.pt")
    loaded = dyart.BoundaryPoints.load(tmp_path / "found.pt")
    assert_equal(loaded, found)
    assert loaded.signed
    assert loaded.verdict == found.verdict


def test_bounds_of_any_kind_are_saved_as_numbers(tmp_path):
    search(bounds=(np.float32(0), np.float64(1))).save(tmp_path / "found.pt")
    assert dyart.BoundaryPoints.load(tmp_path / "found.pt").bounds == (0.0, 1.0)


def test_other_files_are_no_boundary_points(tmp_path):
    torch.save({"weight": torch.ones(2)}, tmp_path / "weights.pt")
    torch.save(search(), tmp_path / "object.pt")
    (tmp_path / "text.pt").write_text("margin")
    (tmp_path / "junk.pt").write_text("junk\n")  # torch has a KeyError for it
    whole = (tmp_path / "weights.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "nothing.pt").touch()
    for name, words in (
        ("weights", "holds no boundary points"),
        ("object", r"without executing code: it holds a Python object \(dyart.boundary.points.BoundaryPoints\)"),
        ("text", "is no file that torch.save wrote, or a damaged one"),
        ("junk", "is no file that torch.save wrote, or a damaged one"),
        ("cut", "is no file that torch.save wrote, or a damaged one"),
        ("nothing", "is no file that torch.save wrote, or a damaged one"),
    ):
        with pytest.raises(ValueError, match=f"{name}.*{words}.*: write it with BoundaryPoints.save$") as caught:
            dyart.BoundaryPoints.load(tmp_path / f"{name}.pt")
        assert "weights_only" not in str(caught.value), "torch advises to execute what is in the file"


def test_a_missing_file_of_points_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        dyart.BoundaryPoints.load(tmp_path / "none.pt")
