"""From a run's folder to a network, batches, methods and an optimizer."""

from pathlib import Path

import numpy as np
import pytest
import torch

from dyart.attacks.radius import Radius
from dyart.dynamics.settings import choose, parse_overrides, plain
from dyart.dynamics.source import batches_of, methods_of, open_source, optimizer_of
from dyart.engine import checkpoint as store
from dyart.engine.run import train
from dyart.engine.stored import RunError, checkpoint_of
from dyart.methods import step_count
from dyart.recipes import RecipeError, resolve
from dyart.recipes.load import check

CPU = torch.device("cpu")
SETTINGS = {
    "data": {"name": "three-blobs", "limit": 100},
    "model": {"name": "mlp"},
    "method": {"name": "dyart", "steps": 3, "r0": 0.1, "lam": 2.0},
    "optim": {"clip": 0.7, "lr": 0.05},
    "train": {"epochs": 2, "burn_in": 1, "batch_size": 32, "device": "cpu", "loggers": [], "keep": 9},
    "eval": {"radius": 0.05, "steps": 2, "attack": "none"},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "blobs"
    train(check({**SETTINGS, "out": str(folder)}))
    return folder


def test_the_weights_are_the_raw_ones(run):
    source, averaged = open_source(run, CPU), open_source(run, CPU, averaged=True)
    raw = store.read_weights(checkpoint_of(run), "model")
    assert all(torch.equal(value, raw[name]) for name, value in source.model.state_dict().items())
    assert any(not torch.equal(value, raw[name]) for name, value in averaged.model.state_dict().items())
    assert not source.model.training


def test_batches_are_whole_and_of_the_images_trained_on(run):
    source = open_source(run, CPU)
    batches = batches_of(source, 33)
    assert [len(batch) for batch in batches] == [32, 32]  # at least 33
    index = torch.cat([batch.index for batch in batches])
    assert len(index.unique()) == 64
    assert set(index.tolist()) <= set(source.data.fit[:100].tolist())
    np.testing.assert_array_equal(batches[0].inputs.numpy(), source.data.train.images[batches[0].index.numpy()])
    assert len(batches_of(source, 5000)) == 3  # 100 images hold no more


def test_batches_of_test_images_by_seed(run):
    source = open_source(run, CPU)
    one, same, other = (batches_of(source, 64, "test", seed) for seed in (1, 1, 2))
    assert torch.equal(one[1].index, same[1].index)
    assert not torch.equal(one[1].index, other[1].index)
    np.testing.assert_array_equal(one[0].labels.numpy(), source.data.test.labels[one[0].index.numpy()])


def test_a_batch_is_no_larger_than_the_split(tmp_path):
    folder = tmp_path / "run"
    train(check({**SETTINGS, "data": {"name": "moons", "limit": 40}, "out": str(folder)}))
    assert [len(batch) for batch in batches_of(open_source(folder, CPU), 2000)] == [32]


def test_the_runs_own_method_has_the_runs_settings(run):
    source = open_source(run, CPU)
    chosen = methods_of(source, ["dyart", "at"], {"at": {"radius": "8/255"}})
    own, other = chosen["dyart"], chosen["at"]
    assert (own.settings["lam"], own.method.lam, own.origin, own.clip) == (2.0, 2.0, "the run", 0.7)
    assert other.method.radius == 8 / 255
    assert (other.origin, other.clip) == ("the method's defaults, changed: radius", None)
    assert plain(other.settings)["radius"] == "8/255"


RUNS = {
    "natural": {"method": {"name": "natural"}, "eval": {"radius": "0.05"}},
    "trades": {"method": {"name": "trades", "radius": 0.1, "step_size": 0.02}, "eval": {"radius": 0.05}},
    "l2": {"method": {"name": "trades", "norm": "l2", "radius": 0.5}, "eval": {"radius": 0.5, "norm": "l2"}},
}


@pytest.mark.parametrize(
    ("run", "radius", "at", "r0", "norm"),
    [
        ("natural", None, (0.05, 0.0125), 0.1, "linf"),  # eval.radius
        ("trades", None, (0.1, 0.025), 0.2, "linf"),  # the one trained with
        ("trades", Radius("16/255"), (16 / 255, 4 / 255), 32 / 255, "linf"),  # --radius
        ("l2", None, (0.5, 0.125), 1.0, "l2"),
    ],
)
def test_without_a_recipe_lengths_and_norm_are_those_of_the_run(run, radius, at, r0, norm):
    config = check({"data": {"name": "three-blobs"}, "model": {"name": "mlp"}, **RUNS[run]})
    one, other = choose("at", config, {}, radius), choose("dyart", config, {}, radius)
    assert (one.method.radius, one.method.step_size) == pytest.approx(at, rel=1e-5)
    assert other.method.r0 == pytest.approx(r0)
    assert other.method.lam * r0 == pytest.approx(1000 * 16 / 255, rel=1e-5)
    assert other.settings["alpha"] * r0 == pytest.approx(3 * 16 / 255, rel=1e-5)
    assert choose("fat", config, {}, radius).method.omega == pytest.approx(0.001 * at[0] / (8 / 255), rel=1e-5)
    assert one.method.norm == other.method.norm == norm
    words = radius or at[0]
    assert one.origin == other.origin == f"the method's defaults for radius {words}"


def test_a_radius_that_the_user_gives_takes_its_step_size_along():
    config = check({"data": {"name": "three-blobs"}, "model": {"name": "mlp"}, **RUNS["natural"]})
    chosen = choose("at", config, {"radius": 0.2}, Radius(0.1))
    assert (chosen.method.radius, chosen.method.step_size) == pytest.approx((0.2, 0.05))
    assert choose("at", config, {"radius": 0.2, "step_size": 0.01}).method.step_size == 0.01


def test_others_have_those_of_the_recipe_for_the_same_data():
    chosen = choose("dyart", resolve("fashion-mini-cnn-at"))
    assert chosen.origin == "the recipe fashion-mini-cnn-dyart"
    assert (chosen.method.r0, chosen.method.lam, chosen.clip) == (0.2, 40, 5.0)
    grouped = choose("dyart", resolve("cifar10-resnet18-gn-at"))
    assert grouped.origin == "the recipe cifar10-resnet18-gn-dyart"
    assert choose("at", resolve("cifar10-wrn28-10-dyart")).method.radius == 8 / 255


def test_wrong_methods_and_settings_are_named(run):
    source = open_source(run, CPU)
    with pytest.raises(ValueError, match="no method 'dyrat'; did you mean 'dyart'"):
        methods_of(source, ["dyrat"], {})
    with pytest.raises(RecipeError, match=r"no key at\.radus.*did you mean at\.radius"):
        methods_of(source, ["at"], {"at": {"radus": 0.1}})
    with pytest.raises(ValueError, match="works in l2, the run in linf"):
        methods_of(source, ["at"], {"at": {"norm": "l2"}})


def test_overrides_are_read_from_words():
    words = ["--at.radius", "8/255", "--dyart.lam=40", "--at.steps", "3", "--my.module:Own.gain", "2.5"]
    found = parse_overrides(words, ["at", "dyart", "my.module:Own"])
    assert found == {"at": {"radius": "8/255", "steps": 3}, "dyart": {"lam": 40}, "my.module:Own": {"gain": 2.5}}


@pytest.mark.parametrize("words", [["--trades.beta", "6"], ["at.radius", "1"], ["--radius2", "3"], ["--at.radius"]])
def test_words_that_are_no_settings_are_refused(words):
    with pytest.raises(RecipeError, match=r"METHOD\.KEY|needs a value"):
        parse_overrides(words, ["at"])


def test_the_optimizer_is_the_runs_with_its_momentum(run):
    source = open_source(checkpoint_of(run, "last"), CPU)
    optimizer, words = optimizer_of(source)
    saved = store.read_state(source.checkpoint)["optimizer"]
    momenta = [optimizer.state[p]["momentum_buffer"] for group in optimizer.param_groups for p in group["params"]]
    assert all(torch.equal(mine, saved["state"][number]["momentum_buffer"]) for number, mine in enumerate(momenta))
    assert optimizer.param_groups[0]["lr"] == saved["param_groups"][0]["lr"]
    assert "as saved" in words


def test_the_phase_is_that_of_the_checkpoint(run):
    first, last = sorted((run / "checkpoints").glob("epoch-*"))[::2]
    assert open_source(first, CPU).phase[0].name == "burn-in"
    assert open_source(last, CPU).phase[1] == 1.0


def test_no_step_starts_from_averaged_weights(run):
    with pytest.raises(RunError, match="raw weights"):
        optimizer_of(open_source(run, CPU, averaged=True))


def test_no_examples_are_an_error(run):
    with pytest.raises(ValueError, match="count must be at least 1"):
        batches_of(open_source(run, CPU), 0)


def test_what_the_runs_method_keeps_comes_from_the_checkpoint(tmp_path):
    method = {"name": "mma", "steps": 2, "bisections": 2, "hinge": 0.1, "least": 0.01}
    train(check({**SETTINGS, "method": method, "out": str(tmp_path / "run")}))
    source = open_source(tmp_path / "run", CPU)
    saved = store.read_state(source.checkpoint)["method"]["radii"]
    assert len(saved.unique()) > 1
    assert torch.equal(methods_of(source, ["mma"], {})["mma"].method.radii, saved)
    fresh = methods_of(source, ["mma"], {}, "test")["mma"].method.radii
    assert len(fresh) == len(source.data.test)
    assert len(fresh.unique()) == 1


def test_a_number_of_steps_that_adapts_is_what_the_next_step_would_take(tmp_path, monkeypatch):
    monkeypatch.setattr(step_count, "ENOUGH", 1.1)  # never enough: more steps every epoch
    method = {"name": "dyart", "r0": 0.2, "lam": 5.0, "steps": 5, "adaptive_steps": True}
    training = train(check({**SETTINGS, "method": method, "out": str(tmp_path / "run")}))
    assert training.method.steps == 7, "in the second epoch"
    source = open_source(tmp_path / "run" / "checkpoints" / "epoch-0003", CPU)
    assert methods_of(source, ["dyart"], {})["dyart"].method.steps == 10, "in a third"
