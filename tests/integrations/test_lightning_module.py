"""Training by this package's methods in Lightning's Trainer."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from integration_cases import CLASSES, FEATURES, examples, linear, predictions
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dyart

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pl = pytest.importorskip("pytorch_lightning")
    from dyart.integrations import DyARTModule, MarginMetric

from dyart.dynamics.lightning import MonitorCallback
from dyart.integrations import lightning
from dyart.methods import AT
from dyart.methods.base import registered

pytestmark = pytest.mark.filterwarnings("ignore")  # of Lightning's own

SIZE = 32


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(FEATURES, 24), nn.BatchNorm1d(24), nn.SiLU(), nn.Linear(24, CLASSES))


def loader(count=96, seed=1):
    inputs = examples(count, seed).clamp(0, 1)
    return DataLoader(TensorDataset(inputs, predictions(linear(), inputs)), batch_size=SIZE)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def fit(module, folder, epochs=2, ckpt=None, validate=False, **options):
    settings = {"logger": False, "enable_checkpointing": False, **options}
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        default_root_dir=str(folder),
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )
    trainer.fit(module, loader(), loader(64, 9) if validate else None, ckpt_path=ckpt)
    return trainer


@pytest.mark.parametrize("name", registered())
def test_every_method_trains(tmp_path, name):
    settings = {} if name.startswith(("natural", "mma", "dyart")) else {"steps": 2}
    module = DyARTModule(network(), name, optimizer=sgd, radius=0.02, **settings)
    before = {key: value.clone() for key, value in module.network.state_dict().items()}
    trainer = fit(module, tmp_path, epochs=1)
    assert trainer.global_step == 3
    assert trainer.callback_metrics["train/loss"].isfinite()
    assert any(not torch.equal(value, before[key]) for key, value in module.network.state_dict().items())


def test_dyart_raises_margins_and_validation_sees_it(tmp_path):
    """With the same network, data and steps, the share beyond the radius is larger than by natural training."""
    robust, medians = {}, {}
    inputs = examples(64, 9).clamp(0, 1)
    for name, settings in {"natural": {}, "dyart": {"r0": 0.05, "lam": 2.0, "alpha": 0.0, "burn_in": 4}}.items():
        module = DyARTModule(network(), name, optimizer=sgd, radius=0.03, **settings)
        trainer = fit(module, tmp_path, epochs=20, validate=True)
        assert trainer.callback_metrics["val/clean"] > 0.7
        robust[name] = trainer.callback_metrics["val/robust"].item()
        found = dyart.closest_boundary_points(module.eval(), inputs, predictions(linear(), inputs))
        assert trainer.callback_metrics["val/clean"] == pytest.approx(found.correct.float().mean().item())
        medians[name] = found.margin.nanmedian().item()
    assert robust["dyart"] > robust["natural"]
    assert medians["dyart"] > medians["natural"]


def test_validation_attacks_inside_of_the_methods_own_bounds(tmp_path):
    """Within a tiny radius nearly all examples resist, unless PGD moves them into a box that is not theirs."""
    inputs = 4 * examples(64, 9) - 2
    module = DyARTModule(network(), dyart.DyART(r0=0.1, lam=1.0, bounds=None), radius=1e-4)
    batches = DataLoader(TensorDataset(inputs, predictions(network().eval(), inputs)), batch_size=SIZE)
    trainer = pl.Trainer(accelerator="cpu", default_root_dir=str(tmp_path), logger=False, enable_progress_bar=False)
    (values,) = trainer.validate(module, batches, verbose=False)
    assert values["val/clean"] == 1
    assert values["val/robust"] > 0.95


def test_natural_training_is_a_plain_loop(tmp_path):
    module, other = DyARTModule(network(), "natural", optimizer=sgd), network()
    fit(module, tmp_path)
    optimizer = sgd(other.parameters())
    for _ in range(2):
        for inputs, labels in loader():
            optimizer.zero_grad()
            F.cross_entropy(other(inputs), labels).backward()
            optimizer.step()
    for key, value in other.state_dict().items():
        assert torch.equal(value, module.network.state_dict()[key]), key


def test_resumed_it_goes_on_as_if_it_had_not_stopped(tmp_path):
    """AT starts at random points: they must be those of the step, not of the process."""
    at = {"method": "at", "steps": 3, "optimizer": sgd}
    whole = DyARTModule(network(), **at)
    fit(whole, tmp_path / "whole", epochs=3)
    stopped = DyARTModule(network(), **at)
    trainer = fit(stopped, tmp_path / "stopped", epochs=2, enable_checkpointing=True)
    resumed = DyARTModule(network(5), **at)
    fit(resumed, tmp_path / "again", epochs=3, ckpt=trainer.checkpoint_callback.best_model_path)
    for key, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[key]), key


def test_burn_in_and_advance(tmp_path):
    seen = []

    class Noted(dyart.DyART):
        def craft(self, model, batch):
            seen.append("craft")
            return super().craft(model, batch)

        def advance(self, fraction):
            seen.append(fraction)

    fit(DyARTModule(network(), Noted(steps=2), burn_in=1, optimizer=sgd), tmp_path, epochs=3)
    assert seen == [0.0, 0.0, *["craft"] * 3, 0.5, *["craft"] * 3], "the burn-in is no part of the method's training"


def test_with_the_monitor_and_a_metric(tmp_path):
    class Measured(DyARTModule):
        def __init__(self):
            super().__init__(network(), "at", steps=2, optimizer=sgd)
            self.margins = MarginMetric(["2/255"])

        def validation_step(self, batch, batch_idx):
            self.margins.update(dyart.closest_boundary_points(self.network, *batch, steps=5))

        def on_validation_epoch_end(self):
            self.log_dict(self.margins.compute())
            self.margins.reset()

    probe = examples(8).clamp(0, 1)
    monitor = dyart.BoundaryMonitor(probe, predictions(linear(), probe), every=2, radius=0.05, steps=5)
    trainer = fit(Measured(), tmp_path, validate=True, callbacks=[monitor.lightning_callback()])
    assert [seen.step for seen in monitor.observations] == [2, 4, 6]
    logged = trainer.callback_metrics
    assert logged["examples"] == 64
    assert 0 <= logged["robust_2/255"] <= logged["accuracy"] <= 1


def test_inputs_that_were_normalised_are_named(tmp_path):
    class Shifted(DyARTModule):
        def examples(self, batch):
            return 5 * batch[0] - 2, batch[1]

    with pytest.raises(ValueError, match="bounds"):
        fit(Shifted(network(), "at"), tmp_path)


def test_a_baseline_trains_in_bounds_of_its_own(tmp_path):
    class Shifted(DyARTModule):
        def examples(self, batch):
            return 5 * batch[0] - 2, batch[1]

    fit(Shifted(network(), "at", steps=1, bounds=(-2.0, 3.0)), tmp_path)
    with pytest.raises(ValueError, match="radius 8 is larger than the box"):
        fit(DyARTModule(network(), AT(radius=8.0)), tmp_path)


def test_settings_that_need_the_engine_are_warned_of(tmp_path):
    with pytest.warns(UserWarning, match="warm_start: without effect in this loop"):
        fit(DyARTModule(network(), "dyart", r0=0.1, lam=1.0, steps=2, warm_start=True), tmp_path)


def test_wrong_settings_are_named():
    with pytest.raises(ValueError, match="did you mean 'dyart'"):
        DyARTModule(network(), "dyrt")
    with pytest.raises(TypeError, match="colour"):
        DyARTModule(network(), "at", colour=3)
    with pytest.raises(ValueError, match="constructor"):
        DyARTModule(network(), dyart.DyART(), r0=0.1)


def test_the_monitors_callback_is_here_too():
    assert lightning.MonitorCallback is MonitorCallback
