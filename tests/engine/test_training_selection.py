"""Which epoch is the best, when training stops, and what is validated."""

from pathlib import Path

import pytest
import torch
from engine_cases import last_checkpoint, make_config

from dyart.engine import checkpoint as store
from dyart.engine.run import prepare
from dyart.engine.stored import averaged_weights


def scripted(config, measured):
    """Return a training whose validation says what it is told to: pairs of clean and robust accuracy."""
    training = prepare(config, None if config.out is None else Path(config.out))
    waiting = iter(measured)
    training.validation = lambda: dict(zip(("clean", "robust"), next(waiting), strict=True))
    return training


def best_epochs(training):
    return [record["epoch"] for record in training.history if record["best"]]


@pytest.mark.parametrize(
    ("method", "measured", "best"),
    [
        # By robust accuracy; equal is not better, but then clean accuracy counts.
        ("at", [(0.5, 0.3), (0.9, 0.2), (0.1, 0.4), (0.1, 0.4), (0.2, 0.4)], [1, 3, 5]),
        ("dyart", [(0.5, 0.3), (0.5, 0.3), (0.6, 0.1), (0.7, 0.2), (0.8, 0.2)], [1]),
        ("natural", [(0.5, 0.3), (0.9, 0.2), (0.1, 0.4), (0.9, 0.4), (0.9, 0.1)], [1, 2, 4]),
    ],
)
def test_best(method, measured, best):
    training = scripted(make_config(method=method, train_epochs=5), measured).run()
    assert best_epochs(training) == best
    assert training.best_epoch == best[-1]


@pytest.mark.parametrize("method", ["at", "natural"])
def test_best_by_the_mean_of_both(method):
    measured = [(0.5, 0.3), (0.9, 0.2), (0.1, 0.4), (0.8, 0.3), (0.7, 0.39)]
    training = scripted(make_config(method=method, train_epochs=5, eval_select="mean"), measured).run()
    # Means 0.4, 0.55, 0.25, 0.55, 0.545; of equal ones the more robust.
    assert best_epochs(training) == [1, 2, 4]


def test_the_burn_in_is_never_best():
    config = make_config(method="at", train_burn_in=2, train_epochs=2)
    training = scripted(config, [(0.9, 0.9), (0.9, 0.9), (0.2, 0.1), (0.1, 0.05)]).run()
    assert best_epochs(training) == [3]


def test_the_best_is_kept_and_read(tmp_path):
    config = make_config(tmp_path, method="at", train_epochs=4)
    training = scripted(config, [(0.5, 0.3), (0.5, 0.4), (0.5, 0.1), (0.5, 0.2)])
    seen = {}
    finish = training._finish_epoch

    def watched(*arguments):
        finish(*arguments)
        seen[training.position.epoch] = {k: v.clone() for k, v in training.average.model.state_dict().items()}

    training._finish_epoch = watched
    training.run()
    assert store.read_index(tmp_path / "checkpoints") == {"last": "epoch-0004", "best": "epoch-0002"}
    for which, epoch in (("best", 2), ("last", 4)):
        weights = averaged_weights(tmp_path, which)
        assert all(torch.equal(weights[name], value) for name, value in seen[epoch].items())
        assert not all(torch.equal(weights[name], value) for name, value in seen[1].items())
        facts = store.read_facts(last_checkpoint(tmp_path, which))
        assert facts["epoch"] == facts["record"]["epoch"] == epoch


def test_early_stop(tmp_path):
    config = make_config(tmp_path, method="at", train_epochs=20, train_early_stop=3, train_checkpoint_every=10)
    measured = [(0.5, 0.3), (0.5, 0.4), (0.5, 0.1), (0.5, 0.1), (0.5, 0.2)]
    training = scripted(config, measured).run()
    assert training.position.epoch == 5
    # The last epoch is kept, though no checkpoint was due.
    assert store.read_index(tmp_path / "checkpoints") == {"last": "epoch-0005", "best": "epoch-0002"}
    again = scripted(config, [])
    assert again.resume()
    assert again.run().position.epoch == 5


def test_early_stop_asks_once_more_where_validation_is_rare():
    config = make_config(method="at", train_epochs=20, train_early_stop=2, eval_every=4)
    training = scripted(config, [(0.5, 0.3), (0.5, 0.4), (0.5, 0.2), (0.5, 0.2)]).run()
    # Better at 4, better again at 6 where patience would have ended, no better at 8.
    assert [(r["epoch"], r["best"]) for r in training.history if "val_robust" in r] == [
        (4, True),
        (6, True),
        (8, False),
    ]


def test_early_stop_waits_for_the_method():
    config = make_config(method="at", train_burn_in=4, train_epochs=2, train_early_stop=1)
    training = scripted(config, [(0.5, 0.3)] * 6).run()
    assert len(training.history) == 6


def test_validation_every_so_many_epochs():
    config = make_config(method="at", train_burn_in=1, train_epochs=6, eval_every=3)
    training = prepare(config).run()
    # Every third epoch, and the last of the burn-in and of the training.
    assert [record["epoch"] for record in training.history if "val_clean" in record] == [1, 3, 6, 7]


def test_validation_sees_the_average_and_the_hold_out_alone():
    training = prepare(make_config(method="at", data_limit=480, train_epochs=2))
    assert len(training.validation.labels) == len(training.data.holdout)
    assert not set(training.data.holdout) & set(training.loader.indices.tolist())
    training.run()
    measured = training.validation()
    assert measured["robust"] < measured["clean"]
    with torch.no_grad():
        for parameter in training.model.parameters():
            parameter.zero_()
    assert training.validation() == measured
    with torch.no_grad():
        for parameter in training.average.model.parameters():
            parameter.zero_()
    assert training.validation() != measured


def test_the_method_begins_with_the_averaged_weights_of_the_burn_in():
    training = prepare(make_config(method="at", train_burn_in=2, train_epochs=1, data_limit=480))
    begin, seen = training.begin, {}

    def watched(phase):
        seen["average"] = {name: value.clone() for name, value in training.average.model.state_dict().items()}
        seen["raw"] = {name: value.clone() for name, value in training.model.state_dict().items()}
        begin(phase)
        seen["now"] = {name: value.clone() for name, value in training.model.state_dict().items()}
        seen["state"] = training.optimizer.state_dict()["state"]

    training.begin = watched
    training.run()
    assert all(torch.equal(seen["now"][name], value) for name, value in seen["average"].items())
    assert not all(torch.equal(seen["raw"][name], value) for name, value in seen["average"].items())
    assert seen["state"] == {}
