"""The result object: rows, parts and the whole, devices, tables and words."""

import csv
import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dyart
from dyart.boundary.points import Passes

SHAPE, EXAMPLES = (2, 3), 7
PER_EXAMPLE = ("inputs", "labels", "points", "margin", "value", "gradient", "correct", "inside", "found", "alignment")
PER_EXAMPLE += ("rival", "input_value")
VERDICTS = ["locally optimal", "not closest", "off the boundary", "flat", "not found", "not inside", "locally optimal"]


def model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        return nn.Sequential(nn.Flatten(), nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))


def search(examples: int = EXAMPLES, **options) -> dyart.BoundaryPoints:
    """A real result, with one example outside its class in the fourth row."""
    inputs = 0.2 + 0.6 * torch.rand(examples, *SHAPE, generator=torch.Generator().manual_seed(6))
    net = model()
    with torch.no_grad():
        labels = net(inputs).argmax(dim=1)
    labels[3:4] = (labels[3:4] + 1) % 3
    return dyart.closest_boundary_points(net, inputs, labels, **{"steps": 8, **options})


@pytest.fixture(scope="module")
def searched() -> dyart.BoundaryPoints:
    return search()


def handmade(**changes) -> dyart.BoundaryPoints:
    """One row per verdict, in the order of VERDICTS. Two features, class 0 against class 1 or 2, l2, no bounds."""
    nan = math.nan
    rows = {
        "inputs": torch.full((7, 2), 0.5),
        "labels": torch.zeros(7, dtype=torch.long),
        "points": 0.5 + torch.tensor([[-0.25, 0], [-0.3, 0], [-0.5, 0], [-0.2, 0], [0, 0], [0, 0], [-0.125, 0]]),
        "margin": torch.tensor([0.25, 0.3, 0.5, 0.2, nan, nan, 0.125]),
        "value": torch.tensor([-1e-3, -1e-3, -0.5, -1e-3, 2.0, -1.5, 0.0]),
        "gradient": torch.tensor([[4.0, 0], [3, 3], [2, 0], [1e-6, 0], [0, 0], [0, 0], [8, 0]]),
        "correct": torch.tensor([True] * 5 + [False, True]),
        "inside": torch.tensor([True] * 5 + [False, True]),
        "found": torch.tensor([True] * 4 + [False, False, True]),
        "alignment": torch.tensor([1.0, 0.7, 1.0, 1.0, nan, nan, 0.95]),
        "rival": torch.tensor([1, 2, 1, 1, -1, -1, 2]),
        "input_value": torch.tensor([1.0, 1.0, 1.0, 1.0, 2.0, -1.5, 1.0]),
    }
    problem = {"norm": "l2", "boundary": "exact", "beta": 5.0, "bounds": None, "cost": Passes(9, 8)}
    return dyart.BoundaryPoints(**{**rows, **problem, **changes})


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


# Words


def test_the_summary_counts_and_names_the_problem(searched):
    text = repr(handmade())
    assert "7 examples, l2, exact boundary: 6 inside, 5 found, 3 locally optimal" in text
    assert "median margin 0.25" in text
    assert "\n" not in text
    median = searched.margin[searched.found].median()
    assert f"7 examples, linf, exact boundary: 6 inside, 6 found, {int(searched.optimal.sum())} " in repr(searched)
    assert f"median margin {float(median):.4g}" in repr(searched)


def test_the_summary_of_nothing_has_no_median(searched):
    assert repr(searched[:0]).startswith("BoundaryPoints(0 examples")
    assert "median" not in repr(searched[:0])
    assert "median" not in repr(handmade()[4:6])


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (0, ["class 0: locally optimal", "l2 margin 0.25", "towards class 1", "phi at the point -0.001", "slope 4"]),
        (1, ["not closest", "alignment 0.700", "above 0.9"]),
        (2, ["off the boundary", "phi at the point -0.5", "at most 0.1"]),
        (3, ["flat", "slope 1e-06"]),
        (4, ["not found", "more steps or restarts"]),
        (5, ["not inside", "phi is -1.5 at the input", "no margin"]),
        (6, ["example 6, class 0: locally optimal", "margin 0.125", "towards class 2"]),
    ],
)
def test_every_verdict_is_explained_with_its_numbers(row, words):
    sentence = handmade().explain(row)
    assert sentence.startswith(f"example {row}, ")
    for word in words:
        assert word in sentence
    assert "nan" not in sentence


def test_the_soft_boundary_is_called_phi_with_a_capital():
    assert "Phi at the point" in handmade(boundary="soft").explain(0)
    assert "Phi is -1.5" in handmade(boundary="soft").explain(5)


def test_a_search_that_finds_nothing_says_so():
    def constant(x: Tensor) -> Tensor:
        return torch.stack([x.sum(dim=1) * 0 + 2, x.sum(dim=1) * 0], dim=1)

    found = dyart.closest_boundary_points(constant, torch.full((2, 3), 0.5), steps=2)
    assert found.verdict == ["not found", "not found"]
    assert "not found" in found.explain(1)
    assert found.margin.isnan().all()
    assert (found.rival == -1).all()
    assert torch.equal(found.points, found.inputs)


def test_an_example_that_is_not_there_cannot_be_explained(searched):
    with pytest.raises(IndexError):
        searched.explain(EXAMPLES)


def test_examples_outside_their_class_are_explained_when_signed():
    found = search(signed=True)
    assert found.margin[3] < 0
    sentence = found.explain(3)
    assert "not inside" not in sentence
    assert f"margin {float(found.margin[3]):.4g}" in sentence


# Tables


def read(path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("make", [handmade, search, lambda: search(signed=True, boundary="soft")])
def test_a_table_read_back_holds_the_same_numbers(make, tmp_path):
    found = make()
    found.to_csv(tmp_path / "margins.csv")
    rows = read(tmp_path / "margins.csv")
    assert len(rows) == len(found)
    for number, row in enumerate(rows):
        assert int(row["index"]) == number
        assert int(row["label"]) == int(found.labels[number])
        assert int(row["rival"]) == int(found.rival[number])
        assert row["verdict"] == found.verdict[number]
        for name in ("correct", "inside", "found", "optimal"):
            assert row[name] == str(int(getattr(found, name)[number])), name
        for name in ("margin", "value", "alignment", "input_value"):
            written, held = float(row[name]), float(getattr(found, name)[number])
            assert written == held or (math.isnan(written) and math.isnan(held)), name


def test_a_margin_that_does_not_exist_is_nan_in_the_table(tmp_path):
    handmade().to_csv(tmp_path / "margins.csv")
    rows = read(tmp_path / "margins.csv")
    assert [row["margin"] for row in rows].count("nan") == 2
    assert [row["verdict"] for row in rows] == VERDICTS


def test_the_columns_are_a_contract(tmp_path):
    handmade().to_csv(tmp_path / "margins.csv")
    header = (tmp_path / "margins.csv").read_text(encoding="utf-8").splitlines()[0]
    expected = "index,label,rival,correct,inside,found,margin,value,alignment,optimal,input_value,verdict"
    assert set(expected.split(",")) <= set(header.split(","))
    assert header.startswith("index,label,")


@pytest.mark.parametrize(
    "index",
    [
        [70, 60, 50, 40, 30, 20, 10],
        range(100, 107),
        np.arange(7) * 11,
        torch.arange(7) * 11,
    ],
    ids=["list", "range", "numpy", "tensor"],
)
def test_a_table_names_the_examples_as_asked(index, tmp_path):
    # Whoever sorts the examples by margin has their numbers in a tensor.
    handmade().to_csv(tmp_path / "margins.csv", index=index)
    assert [row["index"] for row in read(tmp_path / "margins.csv")] == [str(int(name)) for name in index]


@pytest.mark.parametrize("length", [0, 6, 8])
def test_a_wrong_number_of_names_is_an_error_that_leaves_no_file(length, tmp_path):
    with pytest.raises(ValueError):
        handmade().to_csv(tmp_path / "margins.csv", index=range(length))
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_number_of_names_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "margins.csv"
    handmade().to_csv(path)
    before = path.read_bytes()
    with pytest.raises(ValueError):
        handmade().to_csv(path, index=[1, 2, 3])
    assert path.read_bytes() == before


def test_the_error_for_names_says_how_many_are_needed(tmp_path):
    with pytest.raises(ValueError, match=r"index.*3.*7|index.*7.*3"):
        handmade().to_csv(tmp_path / "margins.csv", index=[1, 2, 3])


def test_a_table_replaces_an_older_one_and_a_path_may_be_a_string(tmp_path):
    path = tmp_path / "margins.csv"
    handmade().to_csv(path)
    handmade()[:2].to_csv(str(path))
    assert [row["verdict"] for row in read(path)] == VERDICTS[:2]
