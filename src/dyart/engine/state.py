"""What of a training goes into a checkpoint, and back."""

from typing import TYPE_CHECKING

from dyart.engine import checkpoint as store
from dyart.engine.metrics import Record
from dyart.engine.phases import Position

if TYPE_CHECKING:
    from dyart.engine.fit import Training


def save(training: "Training", name: str, best: bool, record: Record | None = None) -> None:
    """Write a checkpoint of a training into its folder, and point to it.

    Args:
        training: with a folder.
        name: of the checkpoint.
        best: it is the best so far.
        record: the epoch's, to show beside it.
    """
    assert training.folder is not None
    state = {
        "epoch": training.position.epoch,
        "step": training.position.step,
        "best": list(training.best),
        "best_epoch": training.best_epoch,
        "updates": training.average.updates,
        "optimizer": training.optimizer.state_dict(),
        "method": training.method.state_dict(),
        "means": training.means.state_dict(),
        "window": training.window.state_dict(),
        "lines": 0 if training.metrics is None else training.metrics.lines,
    }
    weights = {"model": training.model.state_dict(), "averaged": training.average.model.state_dict()}
    facts = {"epoch": training.position.epoch, "step": training.steps_done, "record": record}
    folder = training.folder / "checkpoints"
    store.save(folder, name, weights, state, facts)
    index = {**training.index, "last": name} | ({"best": name} if best else {})
    store.write_index(folder, index, training.config.train.keep)
    training.index = index


def restore(training: "Training") -> bool:
    """Bring a training that was just made to its folder's last checkpoint; False: there is none yet.

    Raises:
        CheckpointError: it is damaged.
    """
    assert training.folder is not None
    folder = training.folder / "checkpoints"
    index = store.read_index(folder)
    if not index:
        return False
    last = folder / index["last"]
    store.read_facts(last)
    state = store.read_state(last)
    training.index, training.lines = index, state["lines"]
    training.position = Position(state["epoch"], state["step"])
    if (phase := training.phase(training.position.epoch)) is not training.phases[0]:
        training.begin(phase)
    weights = {name: store.read_weights(last, name) for name in ("model", "averaged")}
    try:
        training.model.load_state_dict(weights["model"])
        training.average.model.load_state_dict(weights["averaged"])
        training.optimizer.load_state_dict(state["optimizer"])
        training.method.load_state_dict(state["method"])
    except (RuntimeError, ValueError) as error:
        raise store.CheckpointError(f"{last} is of another network or method than is configured: {error}") from error
    training.average.updates = state["updates"]
    training.means.load_state_dict(state["means"], training.fabric.device)
    training.window.load_state_dict(state["window"], training.fabric.device)
    training.best, training.best_epoch = (state["best"][0], state["best"][1]), state["best_epoch"]
    return True
