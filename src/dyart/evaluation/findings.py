"""What a check before an evaluation can find."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing that is not as an evaluation needs it: what was seen, and what to do about it."""

    kind: str
    """A word for programs, e.g. ``"input range"``."""
    message: str
    """One sentence for a person, with the value seen and what to do."""
    fatal: bool
    """Numbers measured in spite of it would mean nothing."""

    def __str__(self) -> str:
        """Return a line for a person."""
        return f"{'error' if self.fatal else 'note'} ({self.kind}): {self.message}"
