"""Radii as people write them: ``8/255``, ``0.5/255`` or a decimal, kept as written."""

import math
from fractions import Fraction
from typing import Any, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Radius(float):
    """A number with the text it was written as: ``Radius("8/255")`` is the float 8/255, and prints as 8/255."""

    text: str

    def __new__(cls, value: "str | float") -> "Radius":
        """Read a fraction or a decimal.

        Raises:
            ValueError: the text is neither, or the number is not finite. (Whether it may be negative is the user's
                to say: every number of a recipe is read by this class.)
        """
        if isinstance(value, Radius):
            return value
        text = "/".join(part.strip() for part in value.split("/")) if isinstance(value, str) else ""
        try:
            number = _quotient(text) if "/" in text else float(value)
        except (TypeError, ValueError, ZeroDivisionError, OverflowError):
            several = (
                ", and several with commas between them, 2/255,8/255" if text.count("/") > 1 and " " in text else ""
            )
            raise ValueError(f"{value!r} is no number: write 0.03, 1e-4 or 8/255{several}") from None
        if not math.isfinite(number):
            raise ValueError(f"{value!r} is not finite: write a number such as 0.03, 1e-4 or 8/255")
        radius = super().__new__(cls, number)
        radius.text = text or repr(number).removesuffix(".0")
        return radius

    def __str__(self) -> str:
        """Return the text."""
        return self.text

    def __repr__(self) -> str:
        """Return the text, as it would be typed."""
        return f"Radius({self.text!r})"

    def __reduce__(self) -> "tuple[type[Radius], tuple[str]]":
        """Keep the text when pickled or copied."""
        return (Radius, (self.text,))


class ByRadius(dict[Key, Value]):
    """Values by radius, which can be asked for as a number and as a text: ``8 / 255`` or ``"8/255"``."""

    def __missing__(self, key: object) -> Value:
        """Return the value of the radius of the same size."""
        wanted = _size(key)
        for name, value in self.items():
            if wanted is not None and _size(name) == wanted:
                return value
        raise KeyError(key)


def _size(radius: Any) -> float | None:  # noqa: ANN401
    try:
        return float(Radius(radius))
    except ValueError:
        return None


def _quotient(text: str) -> float:
    """Return the float nearest to a quotient of two numbers without an exponent, whose fraction could be huge."""
    above, below = text.split("/")
    if "e" in text.lower():
        raise ValueError(text)
    return float(Fraction(above) / Fraction(below))
