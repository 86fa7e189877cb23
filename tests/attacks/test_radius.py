"""Radii are the nearest float to what was written, and remember how it was written."""

import copy
import json
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest

from dyart.attacks.radius import ByRadius, Radius


@pytest.mark.parametrize("numerator", range(0, 256, 5))
def test_a_fraction_is_the_nearest_float(numerator):
    radius = Radius(f"{numerator}/255")
    assert radius == float(Fraction(numerator, 255)) == numerator / 255
    assert str(radius) == f"{numerator}/255"


# A case where dividing two rounded numbers misses the nearest float.
LONG = "10000000000000000000000000000001/30000000000000000000000000000000000007"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8/255", 8 / 255),
        (" 8 / 255 ", 8 / 255),
        ("-8/255", -8 / 255),
        ("+1/2", 0.5),
        ("0.5/255", 1 / 510),
        ("1/2.5", 0.4),
        (LONG, float(Fraction(LONG))),
        ("0.031", 0.031),
        (".5", 0.5),
        ("1e-3", 0.001),
        ("3E2", 300.0),
        ("5e-324", 5e-324),
        ("1e-400", 0.0),
        ("1", 1.0),
        ("0", 0.0),
        ("-2", -2.0),
        ("0.1000000000000000055511151231257827", 0.1),
    ],
)
def test_what_people_write(text, value):
    radius = Radius(text)
    assert float(radius) == value
    assert str(radius) == text.replace(" ", "")
    assert Radius(str(radius)) == radius


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.1, "0.1"),
        (1, "1"),
        (2.0, "2"),
        (-3, "-3"),
        (8 / 255, repr(8 / 255)),
        (1e-30, "1e-30"),
        (np.float32(0.1), repr(float(np.float32(0.1)))),
        (np.float64(0.1), "0.1"),
        (np.int64(4), "4"),
        (Fraction(1, 4), "0.25"),
    ],
)
def test_numbers_are_taken_as_they_are(number, text):
    assert Radius(number) == float(number)
    assert str(Radius(number)) == text
    assert Radius(str(Radius(number))) == float(number), "the text is the number"


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "eight",
        "8/",
        "/255",
        "/",
        "8/255/2",
        "8//255",
        "8 255",
        "8 / 25 5",
        "8/2e2",
        "1e999999999/255",
        "inf/255",
        "1e",
        "0x8",
        "--1",
    ],
)
def test_what_is_no_number_is_refused(text):
    with pytest.raises(ValueError, match=r"is no number: write 0\.03, 1e-4 or 8/255$") as caught:
        Radius(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("value", ["1/0", "0/0", None, [1], "9" * 400 + "/7", 10**400])
def test_what_has_no_value_is_refused(value):
    with pytest.raises(ValueError, match="is no number"):
        Radius(value)


@pytest.mark.parametrize(
    "value", ["inf", "-inf", "nan", "Infinity", math.inf, -math.inf, math.nan, "1e400", "1e999999999"]
)
def test_what_is_not_finite_is_refused(value):
    with pytest.raises(ValueError, match="is not finite: write a number"):
        Radius(value)


COPIES = {
    "itself": Radius,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{f"pickle {p}": lambda r, p=p: pickle.loads(pickle.dumps(r, p)) for p in range(pickle.HIGHEST_PROTOCOL + 1)},
}


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("value", ["8/255", "0.50", 0.1, np.float32(0.1), 3])
def test_copies_keep_number_and_text(name, value):
    radius = Radius(value)
    other = COPIES[name](radius)
    assert type(other) is Radius
    assert other == radius
    assert str(other) == str(radius)


def test_it_prints_as_it_was_written():
    radius = Radius("8/255")
    assert str(radius) == f"{radius}" == "8/255"
    assert f"{radius:.4f}" == "0.0314"
    assert repr(radius) == "Radius('8/255')"
    assert eval(repr(radius)) == radius
    assert json.loads(json.dumps({"radius": radius})) == {"radius": 8 / 255}


def test_it_is_a_float_among_floats():
    radius = Radius("8/255")
    assert hash(radius) == hash(8 / 255)
    assert {radius: 1}[8 / 255] == 1
    assert radius in [8 / 255]
    assert sorted([Radius("16/255"), 0.01, radius]) == [0.01, 8 / 255, 16 / 255]
    for result in (
        radius * 2,
        2 * radius,
        radius + radius,
        -radius,
        radius / 4,
        abs(radius),
        +radius,
        round(radius, 3),
    ):
        assert type(result) is float
    assert float(radius) == 8 / 255
    assert type(float(radius)) is float


def test_values_by_radius_have_two_names():
    by_number = ByRadius({Radius("8/255"): 1, Radius("0.5"): 2})
    assert (by_number["8/255"], by_number[8 / 255], by_number["0.5"], by_number[0.5]) == (1, 1, 2, 2)
    by_text = ByRadius({"clean": 0, "8/255": 1})
    assert (by_text["clean"], by_text["8/255"], by_text[8 / 255]) == (0, 1, 1)
    for key in ("4/255", 0.1, "dirty", None):
        with pytest.raises(KeyError):
            by_text[key]
    assert list(by_text) == ["clean", "8/255"], "asking adds nothing"
