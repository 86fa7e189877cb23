"""How much is tried: a few hundred cases in `make test`, the same ones every time; 10,000 new ones in `make fuzz`."""

import os
from contextlib import contextmanager

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

TESTS = 7
QUICK = 280
CASES = -(-int(os.environ.get("DYART_FUZZ", QUICK)) // TESTS)  # no fewer than were asked for

fuzz = settings(
    max_examples=CASES,
    derandomize="DYART_FUZZ" not in os.environ,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)


@contextmanager
def refused(*errors, about=""):
    """Let these errors pass, if they say something, and name the file that they are about; no other."""
    try:
        yield
    except errors as error:
        words = str(error)
        assert words.strip()
        assert str(about) in words


@st.composite
def alterations(draw):
    """A function from bytes to other bytes: flipped bits, a cut, an insertion, zeros, or something else altogether."""
    kind = draw(st.sampled_from(["flip", "flip", "flip", "cut", "insert", "zeros", "replace"]))
    places = draw(st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=8))
    bits = draw(st.lists(st.integers(0, 7), min_size=8, max_size=8))
    more = draw(st.binary(max_size=64))

    def altered(content: bytes) -> bytes:
        at = [int(place * len(content)) for place in places]
        if kind == "cut":
            return content[: at[0]]
        if kind == "insert":
            return content[: at[0]] + more + content[at[0] :]
        if kind == "replace":
            return more
        changed = bytearray(content)
        for place, bit in zip(at, bits, strict=False):
            if changed:
                changed[place] = 0 if kind == "zeros" else changed[place] ^ (1 << bit)
        return bytes(changed)

    return altered
