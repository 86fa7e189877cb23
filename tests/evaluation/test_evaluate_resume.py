"""Killed at any time, an evaluation goes on where it was: with a real process, really killed."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from evaluate_cases import Mlp, examples, short

import dyart
from dyart.evaluation.journal import FILE, FINISHED, GOES_ON, Journal, JournalError

evaluate_module = importlib.import_module("dyart.evaluation.evaluate")  # not the function of the same name
RADII = [0.02, 0.05, 0.1]
SEARCH = {"steps": 5, "restarts": 1}

SCRIPT = """
import sys
import torch
torch.set_num_threads(1)
sys.path.insert(0, {tests!r})
from evaluate_cases import Mlp, examples
import dyart
from dyart.evaluation import standard
standard.STEPS = 5
model = Mlp()
inputs, labels = examples(model, count=60)
print("begun", flush=True)
dyart.evaluate(model, inputs, labels, {radii!r}, "apgd", batch_size=20, preflight=False, folder={folder!r}, **{search})
print("ended", flush=True)
"""


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    short(monkeypatch, steps=5)


def evaluated(folder=None, model=None, **options):
    model = Mlp() if model is None else model
    inputs, labels = examples(Mlp(), count=60)
    settings = {"radii": RADII, "attack": "apgd", "batch_size": 20, "preflight": False} | SEARCH | options
    return dyart.evaluate(model, inputs, labels, folder=folder, **settings)


def same(one, other):
    for name, distances in one.verdicts.distance.items():
        assert np.array_equal(distances, other.verdicts.distance[name])
        assert np.array_equal(one.verdicts.status[name], other.verdicts.status[name])
    for column, values in one.per_example.items():
        assert np.array_equal(values, other.per_example[column], equal_nan=values.dtype.kind == "f")
    for name, cost in one.costs.items():
        assert cost["forward"] == other.costs[name]["forward"]
        assert cost["backward"] == other.costs[name]["backward"]
    assert one.robust_accuracy == other.robust_accuracy


def lines(folder):
    return [json.loads(line) for line in (folder / FILE).read_text().splitlines() if line.endswith("}")]


def test_a_killed_process_is_gone_on_with_and_ends_the_same(tmp_path):
    whole = evaluated(tmp_path / "whole")
    steps = len(lines(tmp_path / "whole"))
    folder = tmp_path / "killed"
    script = SCRIPT.format(tests=str(Path(__file__).parent), radii=RADII, folder=str(folder), search=SEARCH)
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        path, until = folder / FILE, time.monotonic() + 60
        while time.monotonic() < until and process.poll() is None:
            if path.is_file() and path.read_bytes().count(b"\n") > steps // 2:
                break
            time.sleep(0.002)
        os.kill(process.pid, signal.SIGKILL)
    finally:
        out, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, "it was killed, it did not end"
    assert "begun" in out
    assert "ended" not in out
    done = (folder / FILE).read_bytes().count(b"\n")
    assert steps // 2 < done < steps, "in the middle of the run"
    assert not (folder / "evaluation.json").exists()

    model = Mlp()
    resumed = evaluated(folder, model)
    same(whole, resumed)
    assert 0 < model.forwards < sum(cost["forward"] for cost in whole.costs.values()), "it did not begin anew"
    assert lines(folder)[-1] == FINISHED
    assert {"evaluation.json", "evaluation.npz", "per_example.csv"} <= {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("cut", [1, 5, 2000])
def test_a_torn_line_is_done_again(tmp_path, cut):
    whole = evaluated(tmp_path)
    path = tmp_path / FILE
    content = path.read_bytes().removesuffix(json.dumps(FINISHED).encode() + b"\n")
    path.write_bytes(content[:-cut])
    same(whole, evaluated(tmp_path))
    assert lines(tmp_path)[-1] == FINISHED


def test_stopped_by_an_error_it_goes_on_too(tmp_path):
    class Failing(Mlp):
        left = 4000

        def forward(self, x):
            self.left -= len(x)
            if self.left < 0:
                raise RuntimeError("out of memory")
            return super().forward(x)

    with pytest.raises(RuntimeError, match="out of memory"):
        evaluated(tmp_path, Failing())
    begun = len(lines(tmp_path))
    assert begun > 3
    same(evaluated(), evaluated(tmp_path))


@pytest.mark.parametrize("attack", ["apgd", "pgd"])
def test_batches_that_were_divided_are_noted(tmp_path, attack):
    """PGD draws by example: it does not matter there which others are attacked beside it."""

    class Small(Mlp):
        def forward(self, x):
            if len(x) > 20 and x.requires_grad:
                raise MemoryError
            return super().forward(x)

    result = evaluated(tmp_path, Small(), attack=attack, batch_size=40)
    notes = [note for note in result.notes if "memory ran out" in note]
    assert len(notes) == (attack == "apgd")
    assert all("batch_size=20 can be repeated" in note for note in notes)
    assert [note for note in evaluated(tmp_path, attack=attack, batch_size=40).notes if "memory" in note] == notes
    assert not [note for note in evaluated(attack=attack, batch_size=20).notes if "memory" in note]


def test_a_finished_evaluation_is_not_repeated(tmp_path):
    first = evaluated(tmp_path)
    model = Mlp()
    same(first, evaluated(tmp_path, model))
    assert model.forwards <= 2 * 8, "a look at what the model does, and no attack"


def test_fresh_begins_anew(tmp_path):
    evaluated(tmp_path, attack="pgd")
    model = Mlp()
    evaluated(tmp_path, model, attack="pgd", fresh=True)
    assert model.forwards > 0


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"radii": [0.02, 0.05]}, "radii"),
        ({"seed": 1}, "seed"),
        ({"steps": 7}, "steps"),
        ({"batch_size": 16}, "batch_size"),
        ({"model": Mlp(seed=1)}, "model"),
    ],
)
def test_another_evaluation_does_not_go_on_with_an_unfinished_one(tmp_path, options, named):
    evaluated(tmp_path, attack="pgd")
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(JournalError, match=rf"{named} .*--fresh"):
        evaluated(tmp_path, attack="pgd", **options)
    assert len(lines(tmp_path)) > 3, "what is there stays"
    evaluated(tmp_path, attack="pgd", **options, fresh=True)


def test_a_finished_one_of_something_else_is_replaced(tmp_path):
    evaluated(tmp_path, attack="pgd")
    other = evaluated(tmp_path, attack="pgd", seed=1)
    assert lines(tmp_path)[0]["seed"] == 1
    same(other, evaluated(None, attack="pgd", seed=1))


def test_autoattack_goes_on_where_a_finished_apgd_ends(tmp_path):
    whole = evaluated(attack="autoattack")
    first = evaluated(tmp_path)
    spent = sum(cost["forward"] for cost in first.costs.values())
    model = Mlp()
    same(whole, evaluated(tmp_path, model, attack="autoattack"))
    every = sum(cost["forward"] for cost in whole.costs.values())
    assert 0 < model.forwards <= every - spent + 2 * 8, "FAB-T, and a look at what the model does"
    written = lines(tmp_path)
    assert [line["attack"] for line in written if "radii" in line] == ["apgd"]
    assert [line[GOES_ON]["attack"] for line in written if GOES_ON in line] == ["autoattack"]

    # Killed right after it began to go on, or later: nothing is done twice.
    path, place = tmp_path / FILE, next(place for place, line in enumerate(written) if GOES_ON in line)
    kept = path.read_bytes().splitlines(keepends=True)
    for length in (place + 1, place + 2):
        path.write_bytes(b"".join(kept[:length]))
        same(whole, evaluated(tmp_path, attack="autoattack"))
    # A finished one of AutoAttack is no beginning of anything: apgd begins anew.
    same(first, evaluated(tmp_path))
    assert lines(tmp_path)[0]["attack"] == "apgd"
    assert not any(GOES_ON in line for line in lines(tmp_path))


@pytest.mark.parametrize("options", [{"seed": 1}, {"strict": True}, {"radii": [0.02, 0.05]}])
def test_autoattack_with_other_settings_begins_anew(tmp_path, options):
    evaluated(tmp_path)
    same(evaluated(attack="autoattack", **options), evaluated(tmp_path, attack="autoattack", **options))
    assert lines(tmp_path)[0]["attack"] == "autoattack"


def test_an_unfinished_apgd_is_no_beginning(tmp_path):
    evaluated(tmp_path)
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(JournalError, match=r"attack 'apgd' \(now 'autoattack'\)"):
        evaluated(tmp_path, attack="autoattack")


def test_a_finished_one_keeps_the_versions_that_it_was_made_with(tmp_path, monkeypatch):
    first = evaluated(tmp_path, attack="pgd")
    monkeypatch.setattr(evaluate_module, "versions", lambda: {"torch": "99"})
    again = evaluated(tmp_path, attack="pgd")
    same(first, again)
    assert json.loads((tmp_path / "evaluation.json").read_text())["versions"] == first.versions
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(JournalError, match=r"other versions of packages .*99.*--fresh"):
        evaluated(tmp_path, attack="pgd")
    # One that was begun before versions were noted is gone on with, and says that nothing is known of them.
    first_line, *others = path.read_text().splitlines(keepends=True)
    path.write_text(
        json.dumps({k: v for k, v in json.loads(first_line).items() if k != "versions"}) + "\n" + "".join(others)
    )
    same(first, evaluated(tmp_path, attack="pgd"))
    assert json.loads((tmp_path / "evaluation.json").read_text())["versions"] == {}


def test_a_journal_that_does_not_fit_says_so(tmp_path):
    journal = Journal(tmp_path, {"seed": 0})
    journal.step({"attack": "pgd", "rows": [0]}, lambda: {})
    journal.close()
    again = Journal(tmp_path, {"seed": 0})
    with pytest.raises(JournalError, match="'pgd' where 'square'"):
        again.step({"attack": "square", "rows": [0]}, lambda: {})
    again.close()


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    evaluated(attack="margins")
    assert list(tmp_path.iterdir()) == []


def test_random_state_of_the_process_does_not_matter_for_what_is_resumed(tmp_path):
    whole = evaluated(tmp_path)
    path = tmp_path / FILE
    kept = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(kept[: len(kept) // 3]))
    torch.manual_seed(123)
    same(whole, evaluated(tmp_path))


def test_a_callable_is_told_from_another(tmp_path):
    """It has no weights to look at: the results of one must not be given out for the other."""
    nets = [Mlp(), Mlp(seed=1)]
    first, second = (evaluated(tmp_path, lambda x, net=net: net(x), attack="pgd") for net in nets)
    same(second, evaluated(None, nets[1], attack="pgd"))
    assert not np.array_equal(first.verdicts.predictions, second.verdicts.predictions)


def test_networks_with_the_same_weights_are_told_apart(tmp_path):
    class Shifted(Mlp):
        def forward(self, x):
            return super().forward(x + 0.2)

    evaluated(tmp_path, Mlp(), attack="pgd")
    same(evaluated(None, Shifted(), attack="pgd"), evaluated(tmp_path, Shifted(), attack="pgd"))


class Stepped(Mlp):
    """On a grid of 1/15, where its inputs lie; with another way back, or something else beside the grid."""

    def __init__(self, mirrored=False, beside=0.0):
        super().__init__()
        self.mirrored, self.beside = mirrored, beside

    def forward(self, x):
        grid = (15 * x).round() / 15
        off = ((x - grid).abs() > 1e-3).to(x) * self.beside
        way = x - x.detach()
        return super().forward((grid + off).detach() + (-way if self.mirrored else way))


@pytest.mark.parametrize("other", [{"mirrored": True}, {"beside": 0.1}])
def test_code_that_was_changed_is_another_model(tmp_path, other):
    """The same weights, the same logits at the examples."""
    inputs, labels = examples(Mlp(), count=60)
    grid = (15 * inputs).round() / 15

    def found(model, folder):
        return dyart.evaluate(model, grid, labels, [0.05], "pgd", preflight=False, folder=folder)

    first, second = found(Stepped(), tmp_path), found(Stepped(**other), tmp_path)
    assert np.array_equal(first.verdicts.predictions, second.verdicts.predictions)
    assert (first.taken, first.replaced, second.taken, second.replaced) == (False, False, False, True)
    same(second, found(Stepped(**other), None))


def test_what_was_finished_before_says_so(tmp_path):
    first, again = (evaluated(tmp_path, attack="pgd") for _ in range(2))
    assert (first.taken, again.taken, again.replaced) == (False, True, False)
    assert not evaluated(tmp_path, attack="pgd", fresh=True).taken


def test_models_without_gradients_are_known_by_what_they_return(tmp_path):
    net = Mlp()

    def blind(x):
        with torch.no_grad():
            return net(x)

    first, again = (evaluated(tmp_path, blind, attack="clean", preflight=False) for _ in range(2))
    assert (first.taken, again.taken) == (False, True)


def test_rounding_of_outputs_is_no_other_model(tmp_path):
    first = evaluated(tmp_path, attack="pgd")
    path = tmp_path / FILE
    head, *rest = path.read_text().splitlines(keepends=True)
    about = json.loads(head)
    about["outputs"] = {name: (np.asarray(rows) * (1 + 1e-6)).tolist() for name, rows in about["outputs"].items()}
    path.write_text(json.dumps(about) + "\n" + "".join(rest[:2]))
    model = Mlp()
    same(first, evaluated(tmp_path, model, attack="pgd"))
    assert model.forwards < first.passes["forward"] * 60


def test_a_second_process_in_the_same_folder_is_sent_away(tmp_path):
    """Through another open file, as another process has it."""
    journal = Journal(tmp_path, {"seed": 0})
    before = (tmp_path / FILE).read_bytes()
    for fresh in (False, True):
        with pytest.raises(JournalError, match=r"another process .* choose another folder"):
            evaluated(tmp_path, attack="pgd", fresh=fresh)
    assert (tmp_path / FILE).read_bytes() == before
    journal.close()
    evaluated(tmp_path, attack="pgd", fresh=True)
    evaluated(tmp_path, attack="pgd")


def test_the_lock_is_held_until_the_records_are_written(tmp_path, monkeypatch):
    from dyart.evaluation import records

    def written(result, folder, write=records.write_records):
        with pytest.raises(JournalError, match="another process"):
            Journal(folder, {})
        write(result, folder)

    monkeypatch.setattr(records, "write_records", written)
    evaluated(tmp_path, attack="pgd")
    assert (tmp_path / "evaluation.json").is_file()
