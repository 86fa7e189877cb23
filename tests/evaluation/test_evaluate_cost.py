"""What an evaluation costs: passes as the model itself counts them, many radii against one, and memory."""

import numpy as np
import pytest
import torch
from evaluate_cases import Mlp, examples, short

import dyart
from dyart.evaluation.examples import Examples

FIVE = [f"{k}/255" for k in (2, 4, 8, 12, 16)]


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    short(monkeypatch)


@pytest.mark.parametrize("attack", ["clean", "pgd", "margins", "apgd", "autoattack"])
def test_passes_are_those_that_the_model_sees(attack):
    model = Mlp()
    inputs, labels = examples(model)
    model.forwards = model.backwards = 0
    result = dyart.evaluate(model, inputs, labels, FIVE, attack, preflight=False)
    assert result.passes == {"forward": model.forwards / 30, "backward": model.backwards / 30}
    assert sum(cost["forward"] for cost in result.costs.values()) == model.forwards
    assert set(result.costs) == {"clean", *(name for name in result.verdicts.attacks if result.costs.get(name))}


@pytest.mark.parametrize("attack", ["apgd", "autoattack"])
def test_five_radii_cost_at_most_two_runs_at_one(monkeypatch, attack):
    # Search and attacks in about their usual proportion; images, so that Square takes part.
    short(monkeypatch, steps=30, queries=150)
    mlp = Mlp(3 * 5 * 5)
    with torch.no_grad():
        mlp.layers[0].weight *= 0.3  # half of the examples resist at 8/255, as those of robust networks do
    model = torch.nn.Sequential(torch.nn.Flatten(), mlp)
    inputs, labels = examples(mlp, 40, 75, wrong=4)

    def run(radii, **options):
        mlp.forwards = mlp.backwards = 0
        images = inputs.reshape(40, 3, 5, 5)
        result = dyart.evaluate(model, images, labels, radii, attack, preflight=False, restarts=1, **options)
        return result, mlp.forwards + mlp.backwards

    (one, single), (five, many), (strict, most) = run(["8/255"]), run(FIVE), run(FIVE, strict=True)
    shares = list(five.robust_accuracy.values())
    assert 0.3 < one.robust_accuracy[8 / 255] < 0.7
    assert shares[0] > shares[1] > shares[2] > shares[3], "radii that decide something"
    assert many <= 2 * single
    assert most > 3 * single
    assert np.abs(np.subtract(shares, list(strict.robust_accuracy.values()))).max() <= 1 / 40
    assert sum(five.inferred.values()) > 0 == sum(strict.inferred.values())


def test_a_large_set_is_read_batch_by_batch_from_the_disk(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (100, 1, 3, 3), dtype=np.uint8)
    np.save(tmp_path / "images.npy", images)
    stored = np.load(tmp_path / "images.npy", mmap_mode="r")
    largest = []

    class Watched(np.memmap):
        def __getitem__(self, rows):
            part = super().__getitem__(rows)
            largest.append(len(part) if isinstance(rows, np.ndarray) else 1)
            return np.asarray(part)

    model = torch.nn.Sequential(torch.nn.Flatten(), Mlp(9))
    with torch.no_grad():
        labels = model(torch.from_numpy(images).float() / 255).argmax(dim=1)
    whole = dyart.evaluate(model, torch.from_numpy(images).float() / 255, labels, FIVE, "pgd")
    part = dyart.evaluate(
        model, stored.view(Watched), labels.numpy(), FIVE, "pgd", batch_size=16, preflight=False, folder=tmp_path
    )
    assert part.clean_accuracy == 1.0, "divided by 255"
    assert np.abs(np.subtract(list(whole.robust_accuracy.values()), list(part.robust_accuracy.values()))).max() <= 0.01
    assert largest
    assert max(largest) == 16


def test_chosen_examples_are_evaluated_under_their_own_names():
    model = Mlp()
    inputs, labels = examples(model)
    rows = [3, 28, 11, 0]
    whole = dyart.evaluate(model, inputs, labels, FIVE, "margins", restarts=1)
    part = dyart.evaluate(model, inputs, labels, FIVE, "margins", restarts=1, index=rows)
    assert part.per_example["index"].tolist() == rows
    assert part.per_example["label"].tolist() == labels[rows].tolist()
    assert np.allclose(part.per_example["margin"], whole.per_example["margin"][rows], rtol=1e-4, equal_nan=True)


def test_fingerprints_tell_sets_apart():
    model = Mlp()
    inputs, labels = examples(model)
    other = inputs.clone()
    other[17, 2] += 0.001
    relabelled = labels.clone()
    relabelled[5] = (labels[5] + 1) % 4
    sets = [(inputs, labels, None), (other, labels, None), (inputs, relabelled, None), (inputs, labels, [0, 1])]
    digests = [Examples(x, y, None, model, index).digest() for x, y, index in sets]
    assert len(set(digests)) == 4
    assert Examples(inputs.numpy(), labels.numpy(), None, model).digest() != "", "arrays, too"
