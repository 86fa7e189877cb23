"""Where a training may go on, and what is said of other places."""

import pytest
from engine_cases import make_config

from dyart.engine.run import train
from dyart.engine.stored import RunError, run_folder


@pytest.mark.parametrize("resume", [True, False])
def test_a_checkpoint_is_no_place_to_train_in(tmp_path, resume):
    """It has a configuration of its own, and would be taken for a run without checkpoints."""
    run = tmp_path / "run"
    train(make_config(run))
    place = run / "checkpoints" / "epoch-0003"
    before = {path: path.read_bytes() for path in place.rglob("*")}
    with pytest.raises(RunError, match=f"is a checkpoint; a training goes on in the folder of its run, {run}$"):
        train(make_config(place), resume=resume)
    assert {path: path.read_bytes() for path in place.rglob("*")} == before


def test_a_lost_configuration_is_in_the_checkpoints(tmp_path):
    run = tmp_path / "run"
    train(make_config(run))
    (run / "config.yaml").unlink()
    copy = run / "checkpoints" / "epoch-0003" / "config.yaml"
    with pytest.raises(RunError, match=f"has no config.yaml; its checkpoints have a copy: cp {copy} {run}/config.yaml"):
        train(make_config(run), resume=True)
    with pytest.raises(RunError, match=f"cp {copy} {run}/config.yaml"):
        run_folder(run)
