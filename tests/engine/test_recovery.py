"""What is done about a damaged run: the newest whole checkpoint counts, and nothing that was saved is lost."""

import json
import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from engine_cases import CrashAt, CrashError, assert_same_run, last_checkpoint, make_config, numbers

from dyart.cli import main
from dyart.engine import checkpoint as store
from dyart.engine import recovery, state
from dyart.engine.checkpoint import CheckpointError, FormatError
from dyart.engine.recovery import newest_good
from dyart.engine.run import prepare, train
from dyart.engine.stored import RunError, averaged_weights, checkpoint_of, read_config
from dyart.recipes import RecipeError

LONG = {"method": "at", "train_epochs": 5, "optim_schedule": "constant"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(make_config(folder, **LONG))
    return folder


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """The same run, ended in its fourth epoch."""
    folder = tmp_path_factory.mktemp("three") / "run"
    with pytest.raises(CrashError):
        train(make_config(folder, **LONG), callbacks=[CrashAt(11)])
    return folder


@pytest.fixture
def run(three, tmp_path):
    return Path(shutil.copytree(three, tmp_path / "run"))


def resumed(run):
    train(make_config(run, **LONG), resume=True)


def flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def shortened(path):
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("damage", [flipped, shortened, os.remove])
@pytest.mark.parametrize("name", ["model.safetensors", "state.pt", store.MANIFEST])
def test_the_checkpoint_before_a_damaged_one_counts(run, whole, caplog, name, damage):
    last = last_checkpoint(run)
    assert last.name == "epoch-0003"
    damage(last / name)
    resumed(run)
    (line,) = caplog.messages
    assert str(last / name) in line
    assert f"Going on from {last.with_name('epoch-0002')} instead, step 6" in line
    assert_same_run(run, whole)


def test_a_best_that_is_lost_is_not_to_be_beaten(run, caplog, monkeypatch):
    """The weights with its figure are gone: the best of what comes is the best there is."""
    config, good = make_config(run, **LONG), newest_good(run / "checkpoints")
    best = good.state["best_epoch"]
    assert best > 0
    training = prepare(config, run)
    training.resume()
    assert training.best_epoch == best
    flipped(run / "checkpoints" / f"epoch-{best:04d}" / "averaged.safetensors")
    assert recovery._best(run / "checkpoints", good.state) == {}
    assert "It was the best; of those that are left, or still to come, another one is" in caplog.text
    lost = replace(good, index={"last": good.index["last"]}, damaged=True)
    monkeypatch.setattr(state, "newest_good", lambda folder: lost)
    monkeypatch.setattr(store, "read_weights", lambda place, name: training.model.state_dict())
    training = prepare(config, run)
    training.resume()
    assert (training.best, training.best_epoch) == ((-1.0, -1.0), -1)


@pytest.fixture
def best_before_last(run):
    """The run, whose best epoch is not its last one; its best checkpoint is damaged."""
    path = run / "checkpoints" / store.INDEX
    index = json.loads(path.read_text())
    assert index["last"] == "epoch-0003"
    path.write_text(json.dumps(index | {"best": "epoch-0002"}))
    flipped(run / "checkpoints" / "epoch-0002" / "averaged.safetensors")
    return run


def test_a_damaged_best_is_noticed_where_the_last_is_whole(best_before_last, caplog):
    """Later epochs need not beat a figure whose weights are gone, and the run ends with a best one that is there."""
    training = prepare(make_config(best_before_last, **LONG), best_before_last)
    assert training.resume()
    (line,) = caplog.messages
    assert "epoch-0002/averaged.safetensors is damaged" in line
    assert "It was the best" in line
    assert (training.best, training.best_epoch) == ((-1.0, -1.0), -1)
    assert json.loads((best_before_last / "checkpoints" / store.INDEX).read_text()) == {"last": "epoch-0003"}
    training.run()
    index = store.read_index(best_before_last / "checkpoints")
    assert index["best"] in {"epoch-0004", "epoch-0005"}
    assert averaged_weights(best_before_last)


def test_a_finished_run_does_without_a_damaged_best(best_before_last):
    config = make_config(best_before_last, **LONG | {"train_epochs": 3})
    train(config, resume=True)
    assert checkpoint_of(best_before_last).name == "epoch-0003"
    assert averaged_weights(best_before_last)


@pytest.mark.parametrize("content", [None, b"", b"[]", b'{"last": "epoch-0009"}', b'{"last": 3}'])
def test_an_index_is_made_anew(run, whole, caplog, content):
    path = run / "checkpoints" / store.INDEX
    before = json.loads(path.read_text())
    path.write_bytes(content) if content is not None else path.unlink()
    good = newest_good(run / "checkpoints")
    assert (good.index, good.damaged) == (before, True)
    assert len(caplog.messages) == 1
    resumed(run)
    assert_same_run(run, whole)


def test_a_checkpoint_that_is_gone(run, whole, caplog):
    shutil.rmtree(last_checkpoint(run))
    resumed(run)
    assert len(caplog.messages) == 1
    assert_same_run(run, whole)


def test_where_all_are_damaged_nothing_begins_anew(run):
    for path in run.glob("checkpoints/*/state.pt"):
        flipped(path)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match=r"epoch-0003/state\.pt is damaged.*no other whole checkpoint"):
        resumed(run)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_without_a_fault_nothing_is_said(run, whole, caplog):
    resumed(run)
    assert caplog.messages == []
    assert_same_run(run, whole)


def test_a_process_that_ended_while_it_replaced_a_checkpoint(run, whole, caplog):
    last = last_checkpoint(run)
    last.rename(last.with_name(last.name + store.OLD))
    good = newest_good(run / "checkpoints")
    assert (good.place, good.damaged, caplog.messages) == (last, False, []), "nothing was lost"
    shutil.copytree(last, last.with_name(last.name + store.OLD))  # or it ended a little later
    resumed(run)
    assert_same_run(run, whole)
    assert not list(run.glob(f"checkpoints/*{store.OLD}"))


def as_format_1(place):
    """Write a checkpoint's manifest as the first version did."""
    (place / store.CONFIG).unlink()
    manifest = json.loads((place / store.MANIFEST).read_text())
    del manifest["sha256"], manifest["files"][store.CONFIG]
    (place / store.MANIFEST).write_text(json.dumps(manifest | {"format": 1}, indent=2))


def test_a_run_of_the_first_format_is_gone_on_with(run, whole, caplog):
    for place in store.present(run / "checkpoints"):
        as_format_1(place)
    resumed(run)
    assert caplog.messages == []
    assert_same_run(run, whole)
    assert {store.read_facts(place)["format"] for place in store.present(run / "checkpoints")} >= {store.FORMAT}


@pytest.mark.parametrize(("version", "words"), [(99, "newer dyart: update dyart"), (0, "begin another run with --out")])
def test_a_run_of_another_format_is_left_alone(run, version, words):
    """No falling back to an older checkpoint: the newest is whole, and this version is too old for it."""
    path = last_checkpoint(run) / store.MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": version}))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(FormatError, match=f"has format {version}; this version reads 1 to 2: .*{words}"):
        resumed(run)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_folder_that_was_moved_is_resumed(run, whole, tmp_path):
    moved = tmp_path / "elsewhere" / "under another name"
    moved.parent.mkdir()
    run.rename(moved)
    assert main(["train", "--resume", str(moved), "--quiet"]) == 0
    assert_same_run(moved, whole)
    assert not run.exists()
    assert read_config(moved).out == str(moved)


def test_the_configuration_is_in_every_checkpoint(run):
    kept = read_config(last_checkpoint(run))
    assert replace(kept, out=None) == make_config(**LONG)


def test_a_damaged_configuration_is_taken_from_the_checkpoint(run, whole, caplog, capsys):
    (run / "config.yaml").write_text("method: [")
    assert main(["train", str(run), "--resume", "--quiet"]) == 0
    assert "config.yaml" in caplog.text
    assert_same_run(run, whole)


def test_a_run_with_a_setting_that_is_no_more_is_said_to_be_of_another_version(run):
    for path in [run / "config.yaml", *run.glob("checkpoints/*/config.yaml")]:
        path.write_text(path.read_text().replace("method:", "method:\n  of_old: 1", 1))
    with pytest.raises(RecipeError, match=r"no key method.of_old.*of another version of dyart \(environment.json"):
        read_config(run)


def test_a_configuration_cut_short_does_not_change_the_run(run):
    path = run / "config.yaml"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: lines.index("data:\n")]))
    with pytest.raises(RunError, match=r"was begun with data\.limit 96"):
        train(replace(read_config(run), out=str(run)), resume=True)


def test_metrics_that_were_damaged_are_missed(run, caplog):
    path = run / "metrics.jsonl"
    content = path.read_bytes()
    path.write_bytes(content[:40] + b"\xff" + content[41:])
    with caplog.at_level(logging.WARNING, "dyart"):
        resumed(run)
    assert "metrics.jsonl" in caplog.text
    assert [record["epoch"] for record in numbers(run) if record["kind"] == "epoch"] == [2, 3, 4, 5]
