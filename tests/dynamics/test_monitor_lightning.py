"""The monitor in Lightning's Trainer."""

import sys
import warnings

import pytest
import torch
import torch.nn.functional as F
from monitor_cases import batches, examples, labels_of, network, sgd, train_step
from torch.utils.data import DataLoader, TensorDataset

import dyart

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pl = pytest.importorskip("pytorch_lightning")

pytestmark = pytest.mark.filterwarnings("ignore")  # of Lightning's own

SIZE = 32


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = network(dropout=0.2)

    def forward(self, inputs):
        return self.net(inputs)

    def training_step(self, batch, number):
        inputs, labels = batch
        return F.cross_entropy(self(inputs), labels)

    def configure_optimizers(self):
        return sgd(self)


class Log(pl.loggers.logger.Logger):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = []

    name, version = "log", "0"

    def log_metrics(self, metrics, step=None):
        self.lines.append((step, metrics))

    def log_hyperparams(self, *args, **kwargs):
        pass


def loader(count=10):
    parts = list(batches(count, size=SIZE))
    inputs, labels = (torch.cat(column) for column in zip(*parts, strict=True))
    return DataLoader(TensorDataset(inputs, labels), batch_size=SIZE)


def make_monitor(every=4, **options):
    inputs = examples()
    return dyart.BoundaryMonitor(inputs, labels_of(inputs), every=every, radius=0.2, steps=6, **options)


def fit(model, folder, callbacks=(), epochs=2, logger=False, ckpt=None, **options):
    torch.manual_seed(5)
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=logger,
        callbacks=list(callbacks),
        default_root_dir=str(folder),
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    trainer.fit(model, loader(), ckpt_path=ckpt)
    return trainer


def test_steps_epochs_and_logs(tmp_path):
    monitor, log = make_monitor(), Log()
    fit(Classifier(), tmp_path, [monitor.lightning_callback()], logger=log, enable_checkpointing=False)
    assert [(seen.step, seen.epoch) for seen in monitor.observations] == [(4, 1), (8, 1), (12, 2), (16, 2), (20, 2)]
    logged = [(step, values) for step, values in log.lines if "boundary/found" in values]
    assert [step for step, _ in logged] == [4, 8, 12, 16, 20]
    assert [values["boundary/found"] for _, values in logged] == [seen.found for seen in monitor.observations]


def test_the_steps_are_those_of_a_plain_loop(tmp_path):
    """Lightning shuffles nothing here: its observations are those of the same loop, written out."""
    monitor, plain = make_monitor(), make_monitor()
    model = Classifier()
    model.net[3].p = 0.0
    fit(model, tmp_path, [monitor.lightning_callback(lambda module: module.net)], epochs=1, enable_checkpointing=False)
    other = network()
    optimizer = sgd(other)
    for batch in loader():
        with plain.watching(other):
            other.train()
            optimizer.zero_grad()
            F.cross_entropy(other(batch[0]), batch[1]).backward()
            optimizer.step()
    assert [seen.margins for seen in monitor.observations] == [seen.margins for seen in plain.observations]
    assert [seen.speeds for seen in monitor.observations] == [seen.speeds for seen in plain.observations]


def test_the_training_is_the_same(tmp_path):
    plain, watched = Classifier(), Classifier()
    fit(plain, tmp_path, enable_checkpointing=False)
    fit(watched, tmp_path, [make_monitor(every=1).lightning_callback()], enable_checkpointing=False)
    for name, value in plain.state_dict().items():
        assert torch.equal(value, watched.state_dict()[name]), name


def test_accumulated_gradients_are_one_step(tmp_path):
    monitor, weights = make_monitor(every=1), []

    class Note(pl.Callback):
        def on_before_optimizer_step(self, trainer, module, optimizer):
            weights.append(module.net[0].weight.detach().clone())

    fit(
        Classifier(),
        tmp_path,
        [monitor.lightning_callback(), Note()],
        epochs=1,
        accumulate_grad_batches=4,
        enable_checkpointing=False,
    )
    assert len(weights) == 3  # of ten batches: 4, 4 and 2
    assert [seen.step for seen in monitor.observations] == [1, 2, 3]


def test_resumed_from_a_checkpoint(tmp_path):
    paths = [tmp_path / "whole.jsonl", tmp_path / "stopped.jsonl"]
    whole = fit(Classifier(), tmp_path / "whole", [make_monitor(path=paths[0]).lightning_callback()], epochs=3)
    assert whole.global_step == 30
    first = make_monitor(path=paths[1])
    trainer = fit(Classifier(), tmp_path / "stopped", [first.lightning_callback()], epochs=1)
    kept = trainer.checkpoint_callback.best_model_path
    first.before(trainer.model)  # what a process that is killed later leaves behind
    first.step = 11
    torch.manual_seed(0)
    for inputs, labels in batches(4):
        with first.watching(trainer.model):
            train_step(trainer.model, sgd(trainer.model), inputs, labels)
    resumed = make_monitor(path=paths[1])
    fit(Classifier(), tmp_path / "stopped", [resumed.lightning_callback()], epochs=3, ckpt=kept)
    steps = [seen.step for seen in resumed.observations]
    assert steps == [4, 8, 12, 16, 20, 24, 28]
    assert len(paths[1].read_text().splitlines()) == len(steps)
    # Up to the checkpoint they are the same; dropout draws otherwise from then on.
    assert paths[0].read_text().splitlines()[:2] == paths[1].read_text().splitlines()[:2]


def test_without_the_package(monkeypatch):
    monkeypatch.delitem(sys.modules, "dyart.dynamics.lightning", raising=False)
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="pip install lightning"):
        make_monitor().lightning_callback()
    monkeypatch.delitem(sys.modules, "dyart.dynamics.lightning", raising=False)
