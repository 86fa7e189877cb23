"""Auxiliary images and smoothed labels through a whole training."""

import os

import numpy as np
import pytest
import torch

from dyart.data import load
from dyart.engine.run import make_model, prepare, train
from dyart.engine.stored import averaged_weights, read_config
from dyart.recipes import resolve

SHORT = ["--data.limit", "256", "--train.epochs", "1", "--train.batch_size", "64", "--eval.steps", "1",
         "--train.device", "cpu"]  # fmt: skip


def pool(folder, count=96):
    images = np.random.default_rng(0).integers(0, 256, (count, 28, 28, 1), dtype=np.uint8)
    np.save(folder / "pool.npy", images)
    return folder / "pool.npy", images


def test_a_run_labels_the_auxiliary_images_of_another(tmp_path):
    teacher = resolve("fashion-mini-cnn-natural", [*SHORT, "--out", str(tmp_path / "teacher")])
    train(teacher)
    path, images = pool(tmp_path)
    words = ["--data.auxiliary", str(path), "--data.auxiliary_labels", str(tmp_path / "teacher")]
    student = resolve("fashion-mini-cnn-natural", [*SHORT, *words, "--out", str(tmp_path / "student"), "--seed", "3"])
    training = train(student)
    (written,) = tmp_path.glob("pool-labels-*.npy")
    labels = np.load(written)
    model = make_model(read_config(tmp_path / "teacher"), load("fashion-mini")).eval()
    model.load_state_dict(averaged_weights(tmp_path / "teacher"))
    expected = model(torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255).argmax(dim=1)
    assert np.array_equal(labels, expected.numpy())
    batch = next(training.loader.epoch(0))
    extra = batch.index >= 6000
    assert extra.sum() == int(64 * 0.7)
    assert torch.equal(batch.labels[extra], torch.from_numpy(labels)[batch.index[extra] - 6000])
    assert training.loader.examples == 6000 + 96


def test_the_set_itself_is_refused():
    words = ["--data.auxiliary", "fashion-mini", "--train.device", "cpu"]
    with pytest.raises(ValueError, match="fashion-mini is the set itself: its hold-out"):
        prepare(resolve("fashion-mini-cnn-natural", words))


def test_auxiliary_images_without_labels_are_refused(tmp_path):
    path, _ = pool(tmp_path)
    with pytest.raises(ValueError, match="go together"):
        resolve("fashion-mini-cnn-natural", ["--data.auxiliary", str(path)])


def test_the_training_images_of_another_set_are_mixed_in_with_their_labels(tmp_path):
    own, random = load("fashion-mini"), np.random.default_rng(0)
    for name, classes in (("generated", own.classes), ("turned", own.classes[::-1])):
        images, labels = random.integers(0, 256, (40, 1, 28, 28), dtype=np.uint8), np.arange(40) % 10
        arrays = {
            "train_images": images,
            "train_labels": labels,
            "test_images": images[:10],
            "test_labels": labels[:10],
        }
        np.savez(tmp_path / f"{name}.npz", **arrays, classes=np.array(classes))
    words = [*SHORT, "--data.crop", "0", "--data.flip", "false"]
    training = prepare(
        resolve("fashion-mini-cnn-natural", [*words, "--data.auxiliary", str(tmp_path / "generated.npz")])
    )
    pool, batch = load(str(tmp_path / "generated.npz")), next(training.loader.epoch(0))
    extra = batch.index >= 6000
    places = (batch.index[extra] - 6000).numpy()
    assert len(places) == int(64 * 0.7)
    assert training.loader.examples == 6000 + 40, "the hold-out of the other set is none here"
    assert np.array_equal(batch.labels[extra].numpy(), pool.train.labels[places])
    assert torch.equal(batch.inputs[extra], torch.from_numpy(pool.train.images[places]).float() / 255)
    with pytest.raises(ValueError, match=r"turned.npz has 10 classes \(Ankle boot, .*classes in the same order"):
        prepare(resolve("fashion-mini-cnn-natural", [*words, "--data.auxiliary", str(tmp_path / "turned.npz")]))


def test_a_set_has_labels_of_its_own():
    words = ["--data.auxiliary", "fashion-mnist", "--data.auxiliary_labels", "labels.npy"]
    with pytest.raises(ValueError, match="A data set has its own"):
        resolve("fashion-mini-cnn-natural", words)


def test_smoothed_labels_reach_the_loss():
    words = [*SHORT, "--data.label_smoothing", "0.1", "--data.crop", "0"]
    training = prepare(resolve("fashion-mini-cnn-natural", words))
    batch = next(training.loader.epoch(0))
    assert batch.targets is not None
    assert torch.allclose(batch.targets.sum(dim=1), torch.ones(64))
    own = batch.targets.gather(1, batch.labels[:, None])
    assert torch.allclose(own, torch.full_like(own, 0.91))
    logits = training.model.train()(batch.inputs)
    loss, _ = training.method.loss(training.model, batch, None)
    by_torch = torch.nn.functional.cross_entropy(logits, batch.labels, label_smoothing=0.1)
    assert loss.item() == pytest.approx(by_torch.item(), rel=1e-5)


def test_smoothing_outside_its_range_is_refused():
    with pytest.raises(ValueError, match="label_smoothing"):
        resolve("fashion-mini-cnn-natural", ["--data.label_smoothing", "1.0"])


def test_another_teacher_gives_labels_of_its_own(tmp_path):
    path, _ = pool(tmp_path)
    for seed in (0, 1):
        out = tmp_path / f"part{seed}" / "teacher"
        train(resolve("fashion-mini-cnn-natural", [*SHORT, "--out", str(out), "--seed", str(seed)]))
        words = ["--data.auxiliary", str(path), "--data.auxiliary_labels", str(out)]
        prepare(resolve("fashion-mini-cnn-natural", [*SHORT, *words]))
    assert len(list(tmp_path.glob("pool-labels-*.npy"))) == 2


def test_images_that_are_newer_than_their_labels_are_labelled_anew(tmp_path):
    train(resolve("fashion-mini-cnn-natural", [*SHORT, "--out", str(tmp_path / "teacher")]))
    path, images = pool(tmp_path)
    words = [*SHORT, "--data.auxiliary", str(path), "--data.auxiliary_labels", str(tmp_path / "teacher")]
    config = resolve("fashion-mini-cnn-natural", words)
    prepare(config)
    (written,) = tmp_path.glob("pool-labels-*.npy")
    labels = np.load(written)
    np.save(path, images[::-1])
    os.utime(path, (written.stat().st_mtime + 5,) * 2)
    prepare(config)
    assert len(set(labels)) > 1
    assert np.array_equal(np.load(written), labels[::-1])
    np.save(written, labels)
    os.utime(written, (path.stat().st_mtime + 5,) * 2)
    prepare(config)
    assert np.array_equal(np.load(written), labels), "those that are newer than the images stay"
