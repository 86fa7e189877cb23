"""The monitor in Hugging Face's Trainer."""

import sys
import types
import warnings

import pytest
import torch
import torch.nn.functional as F
from monitor_cases import batches, examples, labels_of, network
from torch import nn

import dyart

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

pytestmark = pytest.mark.filterwarnings("ignore")  # of the package's own

SIZE = 8


class Model(nn.Module):
    """Called with labels it returns a loss, without them an object with logits."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network(dropout=0.2)

    def forward(self, inputs, labels=None):
        logits = self.net(inputs)
        if labels is None:
            return types.SimpleNamespace(logits=logits)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def data(count=80):
    inputs, labels = next(batches(1, size=count))
    return [{"inputs": x, "labels": y} for x, y in zip(inputs, labels, strict=True)]


def make_monitor(every=4, **options):
    inputs = examples()
    return dyart.BoundaryMonitor(inputs, labels_of(inputs), every=every, radius=0.2, steps=6, **options)


def fit(model, folder, callbacks=(), epochs=2, resume=None, **options):
    arguments = transformers.TrainingArguments(
        str(folder),
        num_train_epochs=epochs,
        per_device_train_batch_size=SIZE,
        learning_rate=0.01,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        logging_strategy="no",
        lr_scheduler_type="constant",
        seed=1,
        **{"save_strategy": "no", **options},
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=data(), callbacks=list(callbacks))
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def test_steps_epochs_and_logs(tmp_path):
    monitor = make_monitor()
    trainer = fit(Model(), tmp_path, [monitor.huggingface_callback()])
    assert [seen.step for seen in monitor.observations] == [4, 8, 12, 16, 20]
    assert [seen.epoch for seen in monitor.observations] == pytest.approx([0.3, 0.7, 1.1, 1.5, 1.9])
    logged = [line for line in trainer.state.log_history if "boundary_found" in line]
    assert [(line["step"], line["boundary_found"]) for line in logged] == [
        (seen.step, seen.found) for seen in monitor.observations
    ]


def test_the_training_is_the_same(tmp_path):
    plain, watched = Model(), Model()
    fit(plain, tmp_path)
    monitor = make_monitor(every=1)
    fit(watched, tmp_path, [monitor.huggingface_callback(lambda model: model.net)])
    assert len(monitor.observations) == 20
    for name, value in plain.state_dict().items():
        assert torch.equal(value, watched.state_dict()[name]), name


def test_accumulated_gradients_are_one_step(tmp_path):
    monitor = make_monitor(every=1)
    trainer = fit(Model(), tmp_path, [monitor.huggingface_callback()], epochs=1, gradient_accumulation_steps=4)
    assert trainer.state.global_step == len(monitor.observations) == 3  # of ten batches
    assert all(any(seen.speeds) for seen in monitor.observations if seen.found)


def test_resumed_from_a_checkpoint(tmp_path):
    path = tmp_path / "monitor.jsonl"
    saving = {"save_strategy": "steps", "save_steps": 10}
    whole = make_monitor(path=path)
    fit(Model(), tmp_path / "run", [whole.huggingface_callback()], **saving)
    text = path.read_text()
    resumed = make_monitor(path=path)
    place = tmp_path / "run" / "checkpoint-10"
    fit(Model(), tmp_path / "again", [resumed.huggingface_callback()], resume=str(place), **saving)
    assert path.read_text() == text
    assert resumed.observations == whole.observations


def test_without_the_package(monkeypatch):
    monkeypatch.delitem(sys.modules, "dyart.dynamics.huggingface", raising=False)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match="pip install transformers"):
        make_monitor().huggingface_callback()
    monkeypatch.delitem(sys.modules, "dyart.dynamics.huggingface", raising=False)
