"""A model that says something else when it is asked again, or among other examples, is warned of."""

import warnings
from functools import partial

import pytest
import torch
from problems import Watched, smooth_network, uniform
from torch import Tensor, nn
from torch.func import functional_call

import dyart
from dyart.boundary.repeats import FEW, change

X = uniform((20, 12), 4)


class Noisy(nn.Module):
    """Draws at every call, in eval mode too."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.net, self.size = smooth_network(12, 4, seed=2), size

    def forward(self, x: Tensor) -> Tensor:
        logits = self.net(x)
        return logits + self.size * torch.randn_like(logits)


class Beside(nn.Module):
    """An example's logits depend on the others."""

    def __init__(self) -> None:
        super().__init__()
        self.net = smooth_network(12, 4, seed=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x - x.mean(dim=0))


class Called:
    """An object around a network."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def __call__(self, x: Tensor) -> Tensor:
        return self.net(x)


class WholeOnly(nn.Module):
    """For batches of one size alone."""

    def __init__(self, error: type[Exception]) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        if len(x) != len(X):
            raise self.error("another size")
        return x[:, :4]


def search(model, x=X, **options):
    return dyart.closest_boundary_points(model, x, **{"steps": 6, **options})


def test_noise_is_warned_of_with_its_size():
    with pytest.warns(UserWarning, match="asked twice about the same 2 inputs.*differ by up to") as told:
        search(Noisy(0.5))
    assert told[0].filename == __file__
    with pytest.warns(UserWarning, match="the same 1 inputs"):
        search(Noisy(0.5), X[:1])


def test_company_is_warned_of():
    with pytest.warns(UserWarning, match="depend on what is beside it: in batches of 20 and of 2.*pass batch_size=1"):
        search(Beside())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        search(Beside(), batch_size=1)


@pytest.mark.parametrize("wrap", [Called, lambda net: partial(functional_call, net, {})])
def test_batch_norm_in_training_mode_behind_an_object_shows_in_what_it_says(wrap):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    x = uniform((40, 1, 8, 8), 4)
    with pytest.warns(UserWarning, match="depend on what is beside it.*BatchNorm in eval mode"):
        search(wrap(net.train()), x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        search(wrap(net.eval()), x)


@pytest.mark.parametrize("model", [smooth_network(12, 4, seed=2), Noisy(1e-6)], ids=["exact", "rounding"])
@pytest.mark.parametrize("batch_size", [None, 1, 7])
def test_others_are_not(model, batch_size):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        search(model, batch_size=batch_size)
        search(model, X[:0])


def test_nothing_is_asked_without_validation_or_where_something_was_said_already():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        search(Noisy(0.5), validate=False)
    with pytest.warns(UserWarning, match="without running statistics") as told:
        search(nn.Sequential(Noisy(0.5), nn.BatchNorm1d(4, track_running_stats=False)).eval())
    assert len(told) == 1


@pytest.mark.parametrize("error", [RuntimeError, AssertionError, IndexError])
def test_a_model_for_one_size_of_batch_is_searched_all_the_same(error):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(error, match="another size"):
            WholeOnly(error)(X[:3])
        assert search(WholeOnly(error)).found.all()


@pytest.mark.parametrize("batch_size", [None, 5])
def test_it_costs_one_forward_pass_of_a_few_examples(batch_size):
    sizes = []
    for validate in (True, False):
        model = Watched(smooth_network(12, 4, seed=2))
        found = search(model, batch_size=batch_size, validate=validate)
        sizes.append(model.forward_sizes)
        assert found.cost.backward == model.backward_passes / (1 if batch_size is None else 4)
    asked = len(sizes[0]) - len(sizes[1])
    assert asked == 1
    assert sizes[0][1 if batch_size is None else 4] == min(FEW, (batch_size or 20) - (batch_size or 20) // 2)


def test_a_compiled_model_is_compiled_for_no_other_size():
    sizes = []
    model = torch.compile(smooth_network(12, 4, seed=2), backend=lambda graph, _: graph.forward, dynamic=False)
    model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    search(model)
    assert set(sizes) == {len(X)}


# Comparison


def test_masked_classes_do_not_count():
    logits = torch.tensor([[1.0, 2.0, -torch.inf], [3.0, -torch.inf, 1.0]])
    assert not change(logits, logits.clone()).real
    assert change(logits, logits.clone()).spread == pytest.approx(1.0)
    other = logits.clone()
    other[0, 2] = 0.0
    assert change(logits, other).size == torch.inf


@pytest.mark.parametrize("mask", [-1e9, torch.finfo(torch.float32).min])
def test_masks_may_be_small_numbers(mask):
    logits = torch.tensor([[1.0, 2.0, mask], [3.0, mask, 1.0]])
    assert not change(logits, logits.clone()).real
    assert change(logits, logits.clone()).spread == pytest.approx(1.0)
    assert change(logits, logits + torch.tensor([0.5, 0, 0])).real


@pytest.mark.parametrize(("kind", "size"), [(torch.float32, 2e-3), (torch.bfloat16, 1.0)])
def test_rounding_is_that_of_the_numbers(kind, size):
    logits = torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]).to(kind)
    assert not change(logits, (logits.double() + 0.4 * size * 0.001).to(kind)).real
    assert change(logits, (logits.double() + size).to(kind)).real


# Points that are not there any more


def test_a_point_that_was_lost_says_why():
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="asked twice"):
        found = search(Noisy(2.0), steps=30)
    assert found.lost.any()
    assert not (found.lost & found.found).any()
    row = int(found.lost.nonzero()[0, 0])
    assert "the model answered differently when asked again" in found.explain(row)
    assert torch.equal(dyart.concat([found[:7], found[7:]]).lost, found.lost)


def test_an_exact_model_loses_none():
    found = search(smooth_network(12, 4, seed=2), steps=30)
    assert not found.lost.any()
    assert len(found[:3].lost) == 3


def test_where_it_is_not_known_of_a_part_it_is_not_known_of_the_whole():
    found = search(smooth_network(12, 4, seed=2))
    unknown = dyart.BoundaryPoints(**{**vars(found), "lost": None})
    assert dyart.concat([found, unknown]).lost is None
    assert dyart.concat([unknown, found]).lost is None
