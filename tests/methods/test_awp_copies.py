"""A method with AWP around it is copied, sent to other processes, and called with a network that is wrapped."""

import copy
import pickle
import subprocess
import sys

import pytest
from side_effects import batch, in_mode, network
from torch import nn
from torch.testing import assert_close

from dyart.methods.at import AT
from dyart.methods.awp import with_awp
from dyart.methods.base import find

SETTINGS = {"radius": 0.2, "steps": 2, "step_size": 0.1, "gamma": 0.3}


class Kept(AT):
    """A method of one's own, which keeps something."""

    kept = 0


def loss_of(method, model):
    return method(model, *batch())[0].item()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_is_the_same_method_with_the_same_settings(protocol):
    method = find("at-awp")(**SETTINGS)
    other = pickle.loads(pickle.dumps(method, protocol))
    assert type(other) is type(method)
    assert vars(other) == vars(method)
    model = in_mode(network(), "eval")
    assert loss_of(other, model) == loss_of(method, model)


def test_what_it_keeps_goes_with_it():
    method = with_awp(Kept)(**SETTINGS)
    method.kept = 3
    for other in (pickle.loads(pickle.dumps(method)), copy.deepcopy(method), copy.copy(method)):
        assert isinstance(other, Kept)
        assert (other.kept, other.gamma) == (3, 0.3)


def test_a_class_of_ones_own_is_pickled_by_its_name():
    assert type(pickle.loads(pickle.dumps(Own(**SETTINGS)))) is Own


class Own(with_awp(AT)):
    """AWP around AT, with a name in a module."""


def test_another_process_knows_it_too(tmp_path):
    (tmp_path / "mine.py").write_text("from dyart.methods.at import AT\nclass Mine(AT):\n    pass\n")
    sent, here = tmp_path / "method.pickle", "import pickle, pathlib; from dyart.methods.base import find"
    for work in (
        f"{here}; pathlib.Path({str(sent)!r}).write_bytes(pickle.dumps(find('mine:Mine-awp')(gamma=0.3)))",
        f"{here}; method = pickle.loads(pathlib.Path({str(sent)!r}).read_bytes()); "
        "assert (method.name, method.gamma) == ('mine:Mine-awp', 0.3), vars(method); "
        "assert type(method) is find('mine:Mine-awp')",
    ):
        subprocess.run([sys.executable, "-c", work], cwd=tmp_path, check=True, timeout=60)


def test_in_data_parallel_the_network_inside_is_moved():
    found = []
    for wrap in (lambda model: model, nn.DataParallel):
        model = in_mode(network(), "eval")
        loss, _ = find("at-awp")(**SETTINGS)(wrap(model), *batch())
        loss.backward()
        found.append((loss.item(), [p.grad for p in model.parameters() if p.grad is not None]))
    assert found[0][0] == found[1][0]
    assert_close(found[0][1], found[1][1], rtol=0, atol=0)
