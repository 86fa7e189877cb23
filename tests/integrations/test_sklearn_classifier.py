"""The classifier of tables as scikit-learn's users have it."""

import pickle
import warnings

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from sklearn.base import clone
    from sklearn.datasets import load_iris, make_moons
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MinMaxScaler
    from sklearn.utils.estimator_checks import check_estimator

from torch import nn

from dyart.integrations import DyARTClassifier

QUICK = {"hidden": (16,), "epochs": 15, "steps": 2, "batch_size": 512, "random_state": 0}


@pytest.fixture(scope="module")
def moons():
    X, y = make_moons(300, noise=0.15, random_state=0)
    return X, np.array(["inner", "outer"])[y]


@pytest.fixture(scope="module")
def fitted(moons):
    settings = {"hidden": (32, 32), "epochs": 60, "r0": 0.8, "lam": 20.0, "random_state": 0}
    return {name: DyARTClassifier(name, **settings).fit(*moons) for name in ("natural", "dyart")}


@pytest.mark.filterwarnings("ignore")
def test_it_passes_all_of_scikit_learns_checks():
    results = check_estimator(DyARTClassifier(**QUICK), on_skip=None, on_fail=None)
    assert len(results) > 40
    assert {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"} == {}


def test_margins_grow_by_training_on_them(moons, fitted):
    X, y = moons
    for model in fitted.values():
        assert model.score(X, y) > 0.93
        assert np.array_equal(model.predict(X), model.classes_[model.predict_proba(X).argmax(axis=1)])
    margins = {name: model.margins(X, y) for name, model in fitted.items()}
    for radius in (0.3, 0.4, 0.5, 0.6):
        assert np.mean(margins["dyart"] > radius) > np.mean(margins["natural"] > radius)
    assert np.median(margins["dyart"]) > np.median(margins["natural"])


def test_a_wrong_row_has_no_margin_and_its_own_prediction_has(moons, fitted):
    X, y = moons
    model = fitted["natural"]
    other = np.where(y == "inner", "outer", "inner")
    right = model.predict(X) == y
    assert (model.margins(X, other)[right] == 0).all()
    assert (model.margins(X)[~right] > 0).all()
    np.testing.assert_allclose(model.margins(X, y)[right], model.margins(X)[right], rtol=1e-5)


def test_closest_points_are_across_the_boundary_in_the_tables_units(moons, fitted):
    X, _ = moons
    model = fitted["dyart"]
    points, margins = model.closest_points(X), model.margins(X)
    assert np.isfinite(margins).all()
    assert (model.predict(points) != model.predict(X)).all()
    assert np.linalg.norm((points - X) / model.scale_, axis=1) == pytest.approx(margins, rel=1e-6)
    assert np.abs(model.decision_function(points)).max() < 0.2
    assert model.boundary_points(X).optimal.float().mean() > 0.95


def test_margins_of_a_linear_model_are_the_textbooks(moons):
    X, y = moons
    model = DyARTClassifier("natural", network=nn.Linear, epochs=80, lr=0.05, random_state=0).fit(X, y)
    weight = model.network_.weight.detach()
    slope = torch.linalg.vector_norm(weight[1] - weight[0]).item()
    assert model.margins(X) == pytest.approx(np.abs(model.decision_function(X)) / slope, rel=1e-3, abs=1e-6)
    assert model.score(X, y) == pytest.approx(LogisticRegression().fit(X, y).score(X, y), abs=0.03)


def test_margins_have_restarts(moons, fitted):
    """In two dimensions one search alone often ends at a farther piece of the boundary."""
    X, _ = moons
    model = fitted["natural"]
    margins, four, one = model.margins(X), model.boundary_points(X, restarts=4), model.boundary_points(X, restarts=1)
    assert np.array_equal(margins, four.margin.numpy())
    assert four.cost.backward > 3 * one.cost.backward


def test_in_a_pipeline_and_a_grid_search():
    X, y = load_iris(return_X_y=True)
    pipeline = make_pipeline(MinMaxScaler(), DyARTClassifier(**QUICK, lr=0.05))
    search = GridSearchCV(pipeline, {"dyartclassifier__r0": [0.3, 0.5]}, cv=2).fit(X, y)
    assert search.best_score_ > 0.8
    assert search.predict_proba(X).shape == (150, 3)


def test_equal_seeds_give_equal_models_and_global_generators_are_left_alone(moons):
    state = torch.random.get_rng_state()
    first, second = (DyARTClassifier(**QUICK).fit(*moons) for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert np.array_equal(first.decision_function(moons[0]), second.decision_function(moons[0]))
    other = clone(first).set_params(random_state=1).fit(*moons)
    assert not np.array_equal(first.decision_function(moons[0]), other.decision_function(moons[0]))
    again = pickle.loads(pickle.dumps(first))
    assert np.array_equal(first.decision_function(moons[0]), again.decision_function(moons[0]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "at"}, "method must be"),
        ({"epochs": 0}, "epochs"),
        ({"burn_in": 3}, "burn_in is a share"),
        ({"r0": -1.0}, "r0 must be positive"),
        ({"norm": "l3"}, "norm"),
        ({"lr": -1.0}, "lr must be positive"),
        ({"hidden": 64}, "hidden has the widths of the hidden layers, e.g. \\(64, 64\\); got 64"),
        ({"hidden": (64, 0)}, "hidden has the widths"),
    ],
)
def test_wrong_settings_are_named_at_fit(moons, settings, message):
    with pytest.raises(ValueError, match=message):
        DyARTClassifier(**{**QUICK, **settings}).fit(*moons)


def test_labels_that_were_not_trained_on(moons, fitted):
    with pytest.raises(ValueError, match="not trained on: \\['middle'\\]"):
        fitted["dyart"].margins(moons[0][:1], ["middle"])
    with pytest.raises(ValueError, match="shape \\(2,\\)"):
        fitted["dyart"].margins(moons[0][:2], ["inner"])
