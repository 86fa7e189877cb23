"""Words of errors, for messages of one line."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's words, or the name of its type where it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
