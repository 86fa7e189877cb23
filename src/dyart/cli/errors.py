"""From what goes wrong to one line on stderr and an exit status; the traceback is behind ``--debug``."""

import errno
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

DONE, FAILED, WRONG, PIPE, INTERRUPTED, TERMINATED = 0, 1, 2, 141, 130, 143

EXIT_STATUS = f"""\
exit status:
  {DONE}    done
  {FAILED}    it failed at work: memory ran out, a bug; or `dyart doctor` found something broken
  {WRONG}    it cannot be done: the command or something it names is wrong, and the message says what to do
  {INTERRUPTED}  interrupted (Ctrl-C)
  {PIPE}  whoever read the output went away
  {TERMINATED}  ended by SIGTERM
"""

# Characters of a message that nobody foresaw: a compiler's may be as long as a book.
LONGEST = 500
ALL = "--debug shows all of the way there"
# Which extra brings a package.
EXTRAS = {
    **dict.fromkeys(("jsonargparse", "lightning_fabric", "lightning", "matplotlib", "PIL", "yaml"), "train"),
    **dict.fromkeys(("rich", "safetensors", "scipy", "tensorboard"), "train"),
    "pyautoattack": "eval",
    "plotly": "report",
}
# What to do after Ctrl-C, where the error itself does not say.
AFTER = {
    "compare": "the same command again goes on with what is not finished",
    "evaluate": "the same command, without --fresh, goes on where it was",
}
# Functions of the standard library that make a folder.
MAKERS = ("mkdir", "mkdtemp")
# Packages that are installed by another name than they are imported by.
CALLED = {"lightning_fabric": "lightning-fabric", "PIL": "pillow", "yaml": "pyyaml"}


def guarded(
    work: Callable[[], int], users: Callable[[], tuple[type[Exception], ...]], command: str, debug: bool = False
) -> int:
    """Do a command's work and return its exit status.

    Args:
        work: the command.
        users: returns the errors whose message is all that a user needs; any other is a bug.
        command: its name, for messages.
        debug: show tracebacks.
    """
    try:
        status = work()
        sys.stdout.flush()  # now, where a reader who has gone is no surprise
        return status
    except KeyboardInterrupt as stopped:
        after = str(stopped) or AFTER.get(command, "")
        return _said(command, f"interrupted; {after}" if after else "interrupted", INTERRUPTED, debug)
    except BrokenPipeError:
        return reader_gone()
    except Exception as error:
        try:
            known = users()
        except ImportError:  # with the core alone
            known = (ValueError, OSError, ImportError)
        return _said(command, *_explained(error, known), debug)


def reader_gone() -> int:
    """Let what is left on standard output go into nothing, and return the exit status that says so."""
    # Python writes it out at its end: to a reader who has gone, it would print another error.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return PIPE


def _said(command: str, words: str, status: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"dyart {command}: {words}", file=sys.stderr)
    return status


def _explained(error: Exception, users: tuple[type[Exception], ...]) -> tuple[str, int]:
    """Return an error in one line, and the exit status that it means."""
    words = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
    for name, status in (("SIGINT", INTERRUPTED), ("SIGTERM", TERMINATED)):
        if words.startswith(f"stopped by {name}"):  # a training that was asked to, and has saved
            return words, status
    if _is_memory(error):
        return "memory ran out: smaller batches need less (--batch-size; for trainings --train.batch_size)", FAILED
    if isinstance(error, ImportError) and error.name and error.name.split(".")[0] in EXTRAS:
        package = error.name.split(".")[0]
        name = CALLED.get(package, package)
        return f"this needs the package {name}: pip install {name} (or dyart's extra {EXTRAS[package]!r})", WRONG
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return _of_file(error), WRONG
    if isinstance(error, users):
        words = words or type(error).__name__
        return f"{words} ({own}; {ALL})" if (own := _place_of_cause(error)) else words, WRONG
    words = words if len(words) <= LONGEST else f"{words[:LONGEST]} ..."
    if own := _own_place(error):
        return f"{own}: {type(error).__name__}: {words} ({ALL})", FAILED
    return f"{type(error).__name__}: {words} (nobody foresaw this; the same with --debug shows where it is)", FAILED


def _own_place(error: BaseException) -> str:
    """Return where in the user's own code an error comes from; "" if it has passed through none."""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).is_file():
        return f"{error.filename}, line {error.lineno}"
    ours = Path(__file__).parents[1]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        installed = {"site-packages", "dist-packages"} & set(file.parts) or file.is_relative_to(sys.base_prefix)
        generated = any(part.startswith("torchinductor") for part in file.parts)
        if file.is_file() and not installed and not generated and not file.is_relative_to(ours):
            return f"{frame.filename}, line {frame.lineno}, in {frame.name}"
    return ""


def _place_of_cause(error: BaseException) -> str:
    """Return where in the user's own code what caused an error comes from, such as a bug in a network's forward."""
    cause = error.__cause__
    return (_own_place(cause) or _place_of_cause(cause)) if cause else ""


def _is_memory(error: Exception) -> bool:
    import torch

    return isinstance(error, MemoryError | torch.OutOfMemoryError)


def _of_file(error: OSError) -> str:
    name = os.fsdecode(error.filename) if isinstance(error.filename, bytes) else str(error.filename)
    if error.errno == errno.EROFS:
        return f"{name}: cannot be written, the file system is read-only: choose another folder with --out"
    hints = {
        FileNotFoundError: "no such file or folder: look for a misspelt name",
        PermissionError: "may not be read or written by you: change its permissions, or choose another place (--out)",
        IsADirectoryError: "is a folder, and a file is needed",
        NotADirectoryError: "is a file (or is inside one), and a folder is needed",
        FileExistsError: "exists already: choose another name",
    }
    if _is_of_making(error):
        hints |= {
            FileNotFoundError: "this folder cannot be made there: choose another place (--out, of data --root)",
            FileExistsError: "is a file, and a folder is needed",
        }
    words = next((words for kind, words in hints.items() if isinstance(error, kind)), str(error.strerror).lower())
    return f"{name}: {words}"


def _is_of_making(error: OSError) -> bool:
    """Say whether a folder could not be made: the error of the system is that of a file that is not there."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].name in MAKERS
