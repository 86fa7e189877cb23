"""Methods in a loop of one's own on two processes: under DistributedDataParallel the gradient is that of one."""

import sys
from pathlib import Path

import pytest
import torch
from loop_ranks_cases import COUPLED, EXAMPLES, PLAIN, STATIC, UNEVEN, called, network
from ranks_cases import finish, started

from dyart.methods import DyART, find
from dyart.methods.natural import Natural

CASES = Path(__file__).parent / "loop_ranks_cases.py"
ALL = slice(0, EXAMPLES)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What each of two processes found."""
    folder = tmp_path_factory.mktemp("ranks")
    finish(started([sys.executable, str(CASES), str(folder)], 2), seconds=120)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def assert_of_one(found, name, settings, calls=2):
    one = called(name, settings, network(), ALL, calls)
    for process in found:
        torch.testing.assert_close(process["gradient"], one["gradient"], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(sum(process["loss"] for process in found) / 2, one["loss"], rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", COUPLED)
def test_the_gradient_is_that_of_one_process_with_random_starts_too(two, name):
    assert_of_one([process["even"][name] for process in two], name, COUPLED[name])
    alone = [called(name, COUPLED[name], network(), rows)["gradient"] for rows in (slice(0, 8), slice(8, 16))]
    one = called(name, COUPLED[name], network(), ALL)["gradient"]
    assert (sum(alone) / 2 - one).norm() > 1e-3 * one.norm(), "the halves by themselves would do"


def test_a_mean_over_examples_needs_nothing(two):
    assert_of_one([process["plain"] for process in two], "at", PLAIN)


def test_the_wrapper_may_be_inside_the_model(two):
    assert_of_one([process["inside"] for process in two], "gairat", COUPLED["gairat"])


@pytest.mark.parametrize("name", STATIC)
def test_a_static_graph_is_that_of_the_loss_alone(two, name):
    assert_of_one([process["static"][name] for process in two], name, COUPLED[name])


def test_one_process_may_log_a_loss_by_itself(two):
    assert_of_one([process["logged"] for process in two], "gairat", COUPLED["gairat"], calls=3)


@pytest.mark.parametrize("name", UNEVEN)
def test_batches_may_differ_in_size(two, name):
    one = called(name, COUPLED[name], network(), ALL)
    losses = [process["uneven"][name]["loss"] for process in two]
    torch.testing.assert_close((5 * losses[0] + 11 * losses[1]) / EXAMPLES, one["loss"], rtol=1e-9, atol=0)


def test_where_processes_need_not_call_alike_each_is_by_itself_and_is_told_once(two):
    said, other = two[0]["apart"], two[1]["apart"]
    assert said["no_grad"] == []
    for way, reason in (("no_sync", r"inside no_sync()"), ("alone", "no DistributedDataParallel is in the model")):
        (words,) = said[way]
        assert words.startswith("loop_ranks_cases.py: the method 'gairat' works on a whole batch, and 2 processes run")
        assert reason in words
    assert not any(other.values())


def test_what_stands_in_the_way(two):
    for process in two:
        found = process["obstacles"]
        assert "join()" in found["join"]
        assert "eval mode" in found["eval"]
        assert "process group" in found["group"]
        assert found["compiled"] is None
        assert "no DistributedDataParallel" in found["none"]


def test_methods_say_whether_they_couple_a_batch():
    assert not Natural().couples
    assert not DyART().couples
    assert DyART(relative=True).couples
    for name in ("mail-at", "mail-trades", "gairat"):
        method = find(name)(**({} if name == "gairat" else {"normalize": True}))
        assert method.couples
        method.advance(0.0)
        assert not method.couples
    assert not find("mail-at")().couples
    assert not find("at-awp")(gamma=0).couples
    method = find("at-awp")(awp_warmup=0.5)
    assert method.couples
    method.advance(0.25)
    assert not method.couples
