"""Signs of masking: each seen where it was put, none where attacks agree, and all of them on a network that masks."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dyart.attacks.radius import Radius
from dyart.data import load
from dyart.data.loader import as_tensors
from dyart.evaluation import alarms, standard
from dyart.evaluation.alarms import EXCESS, SIGNS, alarm_counts, alarm_flags, masking_alarms
from dyart.evaluation.evaluate import evaluate
from dyart.evaluation.verdicts import Status, Verdicts

RADII = (0.1, 0.2, 0.3)
ATTACKS = ("margins", "pgd", "apgd-ce", "apgd-t", "square")
COUNT = 100


def agreeing(count=COUNT, wrong=10, **distances):
    """Verdicts of examples at distances from 0.05 to 0.35, on which all attacks agree but for what is given."""
    true = np.linspace(0.05, 0.35, count)
    correct = np.arange(count) >= wrong
    limits = np.array(RADII) + 1e-6
    distance, status = {}, {}
    for name in ATTACKS:
        own = np.broadcast_to(distances.get(name.replace("-", "_"), true), (count,))
        found = np.where((own[:, None] <= limits) & correct[:, None], own[:, None], np.inf)
        distance[name] = found
        status[name] = np.where(np.isfinite(found), Status.BROKEN, Status.RESISTED).astype(np.int8)
        status[name][~correct] = Status.NOT_ATTACKED
    margin = np.broadcast_to(distances.get("margins", true), (count,))
    margin = np.where(correct & np.isfinite(margin), margin, np.nan)
    distance["margins"] = np.repeat(np.nan_to_num(margin, nan=np.inf)[:, None], len(RADII), axis=1)
    return Verdicts(
        radii=tuple(map(Radius, RADII)),
        norm="linf",
        slack=np.full(len(RADII), 1e-6),
        index=1000 + np.arange(count),
        labels=np.zeros(count, dtype=np.int64),
        predictions=np.where(correct, 0, 1),
        attacks=ATTACKS,
        status=status,
        distance=distance,
        margin=margin,
        value=np.zeros(count),
        alignment=np.ones(count),
        optimal=correct,
        conditions=np.ones((count, 3), dtype=bool),
        rival=np.ones(count, dtype=np.int64),
    )


TRUE = np.linspace(0.05, 0.35, COUNT)
HALF = np.arange(COUNT) % 2 == 0


def kinds(verdicts):
    return {alarm.kind for alarm in masking_alarms(verdicts)}


def test_attacks_that_agree_raise_nothing():
    verdicts = agreeing()
    assert masking_alarms(verdicts) == []
    assert all(not flags.any() for flags in alarm_flags(verdicts).values())


def test_margins_a_little_too_large_raise_nothing():
    assert masking_alarms(agreeing(margins=TRUE * (EXCESS - 0.01))) == []


@pytest.mark.parametrize("margins", [np.where(HALF, 2 * TRUE, TRUE), np.where(HALF, np.inf, TRUE)], ids=["far", "none"])
def test_margins_that_attacks_undercut_are_named(margins):
    verdicts = agreeing(margins=margins)
    (alarm,) = masking_alarms(verdicts)
    assert alarm.kind == "margins too large"
    reachable = HALF & verdicts.correct & (TRUE <= 0.3)
    assert alarm.examples == tuple(1000 + np.flatnonzero(reachable))
    assert f"{reachable.sum()} of 90" in alarm.message


def test_square_alone_is_the_sign_of_masked_gradients():
    far = np.where(HALF, np.inf, TRUE)
    verdicts = agreeing(margins=far, pgd=far, apgd_ce=far, apgd_t=far)
    assert kinds(verdicts) == {"margins too large", "square stronger", "pgd weaker", "cross-entropy weaker"}
    assert alarm_flags(verdicts)["square stronger"].tolist() == (HALF & verdicts.correct & (TRUE <= 0.3)).tolist()


def test_square_behind_another_attack_is_no_sign():
    far = np.where(HALF, np.inf, TRUE)
    assert "square stronger" not in kinds(agreeing(pgd=far, apgd_ce=far))


def test_weak_pgd_is_named_with_its_worst_radius():
    verdicts = agreeing(pgd=np.where(TRUE > 0.1, np.inf, TRUE))
    (alarm,) = masking_alarms(verdicts)
    assert alarm.kind == "pgd weaker"
    assert "at 0.3" in alarm.message
    assert len(alarm.examples) == ((TRUE > 0.1) & (TRUE <= 0.3) & verdicts.correct).sum()


def test_a_weak_cross_entropy_attack_is_named():
    assert kinds(agreeing(apgd_ce=np.where(HALF, np.inf, TRUE))) == {"cross-entropy weaker"}


def test_counts_are_those_that_alarms_are_decided_by():
    far = np.where(HALF, np.inf, TRUE)
    verdicts = agreeing(pgd=far, margins=np.where(np.isin(np.arange(COUNT), [20, 30]), np.inf, TRUE))
    counts = alarm_counts(verdicts)
    assert counts["margins too large"] == 2  # too few for an alarm
    (alarm,) = masking_alarms(verdicts)
    assert counts["pgd weaker"] == len(alarm.examples) == (HALF & verdicts.correct & (TRUE <= 0.3)).sum()
    assert {kind for kind, count in counts.items() if count} == {"margins too large", "pgd weaker"}


def test_an_attack_that_fails_at_a_larger_radius_is_named():
    verdicts = agreeing()
    status = {name: codes.copy() for name, codes in verdicts.status.items()}
    lost = verdicts.correct & (TRUE < 0.2)
    status["pgd"][lost, 2] = Status.RESISTED
    changed = dataclasses.replace(verdicts, status=status)
    assert alarm_flags(changed)["larger radius harder"].tolist() == lost.tolist()
    assert "larger radius harder" in kinds(changed)


def test_what_was_not_tried_is_no_failure():
    """Default evaluations try an example at one radius: nothing is concluded from the others."""
    verdicts = agreeing()
    status = {name: codes.copy() for name, codes in verdicts.status.items()}
    for name in ("apgd-ce", "apgd-t", "square"):
        status[name][:, 0] = Status.INFERRED
        status[name][:, 2] = Status.NOT_ATTACKED
    assert masking_alarms(dataclasses.replace(verdicts, status=status)) == []


def test_a_few_odd_examples_raise_nothing_and_are_flagged():
    odd = np.where(np.isin(np.arange(COUNT), [20, 30, 40]), np.inf, TRUE)
    verdicts = agreeing(margins=odd)
    assert masking_alarms(verdicts) == []
    assert np.flatnonzero(alarm_flags(verdicts)["margins too large"]).tolist() == [20, 30, 40]


def test_few_examples_prove_little():
    small = np.linspace(0.05, 0.35, 6)
    assert masking_alarms(agreeing(6, 1, pgd=np.where(np.arange(6) == 3, np.inf, small))) == []


def test_wrong_examples_do_not_count():
    verdicts = agreeing(wrong=COUNT, margins=np.inf)
    assert masking_alarms(verdicts) == []


@pytest.mark.parametrize("attacks", [(), ("margins",), ("pgd",), ("margins", "pgd")])
def test_every_tier_has_alarms_of_its_own_or_none(attacks):
    verdicts = dataclasses.replace(agreeing(), attacks=attacks)
    assert masking_alarms(verdicts) == []
    assert set(alarm_flags(verdicts)) == set(SIGNS)


# What the limits lie between, as measured


@pytest.fixture(scope="module")
def benchmark():
    return json.loads((Path(__file__).parents[2] / "benchmarks" / "results" / "masking.json").read_text())


def test_the_limits_are_those_that_were_tried(benchmark):
    assert benchmark["settings"]["limits"] == {kind: sign.limit for kind, sign in SIGNS.items()}
    assert len({record["seed"] for record in benchmark["records"]}) >= 2


def test_every_network_that_masks_was_noticed_and_no_other(benchmark):
    assert {record["masks"] for record in benchmark["records"]} >= {True, False}
    for record in benchmark["records"]:
        raised = [kind for kind, sign in record["signs"].items() if sign["low"] > SIGNS[kind].limit]
        assert raised == record["alarms"]
        if record["masks"] is False:
            assert raised == record["preflight"] == []
        elif record["masks"]:
            assert raised or "saturated loss" in record["preflight"], record["network"]


def test_the_table_of_the_module_is_the_benchmarks(benchmark):
    for kind in SIGNS:
        row = re.search(rf"^    {kind} .*$", alarms.__doc__, re.MULTILINE)
        shares = {}
        for record in benchmark["records"]:  # network by network, seed by seed
            shares.setdefault(record["network"], []).append(f"{100 * record['signs'][kind]['share']:.0f}")
        assert re.findall(r"\d+", row.group()) == [share for parts in shares.values() for share in parts], kind


# A network that masks


class Levels(nn.Module):
    """ReLU whose output is rounded: the gradient is zero wherever it exists."""

    def __init__(self):
        super().__init__()
        self.rounds = False

    def forward(self, x):
        x = F.relu(x)
        return x.round() if self.rounds else x


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), Levels(), nn.Linear(64, 10))
    x, y = as_tensors(load("fashion-mini").train, slice(0, 2000), torch.device("cpu"))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for rows in torch.arange(4000).remainder(2000).split(100):
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    return model.eval()


@pytest.mark.parametrize("masks", [False, True], ids=["plain", "rounded"])
def test_rounded_activations_raise_alarms_and_plain_ones_none(network, masks, monkeypatch, tmp_path):
    monkeypatch.setattr(standard, "STEPS", 5)
    monkeypatch.setattr(standard, "QUERIES", 300)
    monkeypatch.setattr(network[2], "rounds", masks)
    x, y = as_tensors(load("fashion-mini").test, slice(0, 25), torch.device("cpu"))
    result = evaluate(network, x, y, [0.05, 0.1], preflight=False, folder=tmp_path)
    kinds = {alarm.kind for alarm in result.alarms}
    if not masks:
        assert kinds == set()
        return
    assert kinds >= {"margins too large", "square stronger", "pgd weaker"}
    recorded = json.loads((tmp_path / "evaluation.json").read_text())["alarms"]
    assert {alarm["kind"] for alarm in recorded} == kinds
    assert all(alarm["message"] and alarm["examples"] for alarm in recorded)
