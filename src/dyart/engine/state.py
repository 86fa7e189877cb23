"""What of a training goes into a checkpoint, and back."""

from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer

from dyart.engine import checkpoint as store
from dyart.engine.files import write_json
from dyart.engine.metrics import Record
from dyart.engine.phases import Position
from dyart.engine.recovery import newest_good

if TYPE_CHECKING:
    from dyart.engine.fit import Training


def save(training: "Training", name: str, best: bool, record: Record | None = None) -> None:
    """Take a copy of a training as it is; a thread writes it into its folder as a checkpoint, and points to it.

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
        "seconds": training.epoch_seconds if training.position.step else 0.0,
        "skipped": int(training.guard.skipped),
        "lines": 0 if training.metrics is None else training.metrics.lines,
    }
    weights = {"model": training.model.state_dict(), "averaged": training.average.model.state_dict()}
    facts = {"epoch": training.position.epoch, "step": training.steps_done, "record": record}
    folder, text = training.folder / "checkpoints", training.config_text
    weights, state = _copied(weights), _copied(state)

    def write() -> None:
        store.save(folder, name, weights, state, facts, text)
        index = {**training.index, "last": name} | ({"best": name} if best else {})
        store.write_index(folder, index, training.config.train.keep)
        training.index = index

    training.saver.submit(write)


def _copied(value: Any) -> Any:  # noqa: ANN401
    """Return a tree of values with copies of its tensors on the host: the training's own change with its next step."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _copied(part) for key, part in value.items()}
    return [_copied(part) for part in value] if isinstance(value, list) else value


def _restore_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Take over what an optimizer keeps per weight; its settings stay those of the configuration, which may be new."""
    settings = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, own in zip(optimizer.param_groups, settings, strict=True):
        group.update(own)


def restore(training: "Training") -> bool:
    """Bring a training that was just made to its folder's newest whole checkpoint; False: there is none yet.

    Raises:
        CheckpointError: all are damaged, or it belongs to another training.
    """
    assert training.folder is not None
    good = newest_good(training.folder / "checkpoints")
    if good is None:
        return False
    last, state = good.place, good.state
    if good.damaged and training.fabric.is_global_zero:
        write_json(last.parent / store.INDEX, good.index)  # for whoever reads the run next; nothing is removed
    weights = {name: store.read_weights(last, name) for name in ("model", "averaged")}
    try:
        training.index, training.lines = good.index, state["lines"]
        training.position = Position(state["epoch"], state["step"])
        if (phase := training.phase(training.position.epoch)) is not training.phases[0]:
            training.begin(phase)
        training.model.load_state_dict(weights["model"])
        training.average.model.load_state_dict(weights["averaged"])
        _restore_optimizer(training.optimizer, state["optimizer"])
        training.method.load_state_dict(state["method"])
        training.average.updates = state["updates"]
        training.means.load_state_dict(state["means"], training.fabric.device)
        training.window.load_state_dict(state["window"], training.fabric.device)
        training.guard.skipped.fill_(state.get("skipped", 0))
        training.seconds_before = float(state.get("seconds", 0.0))
        training.best, training.best_epoch = (state["best"][0], state["best"][1]), state["best_epoch"]
        if "best" not in good.index:  # a later epoch need not be better than what is lost
            training.best, training.best_epoch = (-1.0, -1.0), -1
    except (RuntimeError, ValueError) as error:
        raise store.CheckpointError(f"{last} is of another network or method than is configured: {error}") from error
    except (LookupError, TypeError, AttributeError) as error:
        raise store.CheckpointError(
            f"{last} does not hold what a training needs ({type(error).__name__}: {error}); was it made by something "
            "else than dyart?"
        ) from error
    return True
