"""boundary_speed: what may be passed, wrapped models included, and that the model is left as it was."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from networks import plain_kernels, random_like, small_resnet, small_transformer, smooth_network, uniform
from speed_checks import (
    CENTRAL,
    DOUBLE,
    FORWARD,
    MATH,
    Fussy,
    assert_close_to_scale,
    assert_same_state,
    search,
    speed_by_differences,
    state_of,
)
from torch import Tensor, nn

import dyart

# What may be passed


def test_an_unknown_name_raises_and_names_the_nearest():
    model = small_resnet("batch")
    found = search(model, uniform(6, 3, 8, 8))
    update = {"block1.conv1.wieght": torch.zeros_like(model.block1.conv1.weight)}
    with pytest.raises(KeyError, match=r"block1\.conv1\.wieght.*block1\.conv1\.weight"):
        dyart.boundary_speed(model, found, update)


def test_a_wrong_shape_raises():
    model = small_resnet("batch")
    found = search(model, uniform(6, 3, 8, 8))
    # One that would broadcast: without a check the answer would be wrong, not an error.
    with pytest.raises(ValueError, match=r"head\.bias.*\(1,\).*\(4,\)"):
        dyart.boundary_speed(model, found, {"head.bias": torch.zeros(1)})


def test_an_array_raises():
    model = small_resnet("batch")
    found = search(model, uniform(6, 3, 8, 8))
    with pytest.raises(TypeError, match=r"head\.bias.*must be a tensor, got ndarray"):
        dyart.boundary_speed(model, found, {"head.bias": torch.zeros(4).numpy()})


def test_an_integer_buffer_raises():
    model = small_resnet("batch")
    found = search(model, uniform(6, 3, 8, 8))
    with pytest.raises(TypeError, match=r"norm\.num_batches_tracked.*int64"):
        dyart.boundary_speed(model, found, {"norm.num_batches_tracked": torch.tensor(1)})


def test_what_is_no_module_raises():
    model = smooth_network()
    found = search(model, uniform(6, 12, dtype=torch.float64))
    with pytest.raises(TypeError, match=r"nn\.Module.*function"):
        dyart.boundary_speed(lambda x: 2 * model(x), found, random_like(model))


@pytest.mark.parametrize("derivative", [FORWARD, DOUBLE, CENTRAL])
def test_points_of_another_model_are_noticed(derivative):
    model = smooth_network()
    found = search(model, uniform(20, 12, dtype=torch.float64))
    update = random_like(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        dyart.boundary_speed(model, found, update, derivative=derivative)
    other = smooth_network()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.copy_(parameter.roll(1, dims=0))
    with pytest.warns(UserWarning, match="no boundary points of this model.*search again"):
        dyart.boundary_speed(other, found, update, batch_size=7, derivative=derivative)


def test_an_unknown_method_raises():
    model = smooth_network()
    found = search(model, uniform(6, 12, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"derivative must be one of.*'reverse'"):
        dyart.boundary_speed(model, found, random_like(model), derivative="reverse")


# The model is left as it was


@pytest.mark.parametrize("method", [FORWARD, MATH, DOUBLE, CENTRAL])
def test_the_model_is_left_bitwise_as_it_was(method):
    model = small_resnet("batch")
    found = search(model, uniform(6, 3, 8, 8))
    model.train()
    model.block2.eval()  # a mixture of modes must survive
    model.head.weight.requires_grad_(False)
    model.stem.weight.grad = torch.ones_like(model.stem.weight)
    before, modes = state_of(model), [module.training for module in model.modules()]
    flags = [parameter.requires_grad for parameter in model.parameters()]
    storage = [tensor.data_ptr() for tensor in model.state_dict().values()]
    update = random_like(model)
    random_state = torch.get_rng_state()
    dyart.boundary_speed(model, found, update, derivative=method)
    assert_same_state(model, before)
    assert [module.training for module in model.modules()] == modes
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert not any(buffer.requires_grad for buffer in model.buffers())
    assert [tensor.data_ptr() for tensor in model.state_dict().values()] == storage
    assert torch.equal(torch.get_rng_state(), random_state)
    assert (model.stem.weight.grad == 1).all()
    assert model.head.bias.grad is None


def test_a_central_difference_puts_the_parameters_back_after_an_error():
    model = Fussy()
    found = search(model, uniform(6, 12, dtype=torch.float64))
    model.error = RuntimeError("mine")
    before, storage = state_of(model), [parameter.data_ptr() for parameter in model.parameters()]
    with pytest.raises(RuntimeError, match="mine"):
        dyart.boundary_speed(model, found, random_like(model), derivative=CENTRAL)
    assert_same_state(model, before)
    assert [parameter.data_ptr() for parameter in model.parameters()] == storage


@pytest.mark.parametrize("build", [lambda: small_resnet("batch"), small_transformer], ids=["batch norm", "dropout"])
def test_the_mode_of_the_model_does_not_matter(build):
    model = build()
    found = search(model, uniform(*((8, 5, 8) if hasattr(model, "encoder") else (8, 3, 8, 8))))
    update = random_like(model)
    in_eval = dyart.boundary_speed(model, found, update)
    model.train()
    torch.testing.assert_close(dyart.boundary_speed(model, found, update), in_eval, rtol=0, atol=0)


def test_the_callers_modes_do_not_matter():
    model, x = small_resnet("group"), uniform(6, 3, 8, 8)
    found, update = search(model, x), random_like(model)
    wanted = dyart.boundary_speed(model, found, update)
    with torch.no_grad():
        torch.testing.assert_close(dyart.boundary_speed(model, found, update), wanted, rtol=0, atol=0)
        double = dyart.boundary_speed(model, found, update, derivative=DOUBLE)
    assert_close_to_scale(double, wanted, 1e-4)
    with plain_kernels(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert_close_to_scale(dyart.boundary_speed(model, found, update), wanted, 1e-4)
    assert not wanted.requires_grad


# Wrappers


class Wrapper(nn.Module):
    """Holds a network under the name ``module``, as parallel wrappers do."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x)


WRAPPERS = {
    "wrapper": Wrapper,
    "data parallel": nn.DataParallel,
    "compiled": lambda model: torch.compile(model, backend="eager"),
    "compiled data parallel": lambda model: torch.compile(nn.DataParallel(model), backend="eager"),
    "data parallel of compiled": lambda model: nn.DataParallel(torch.compile(model, backend="eager")),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_names_with_a_wrappers_prefix_are_accepted(name):
    model = smooth_network()
    found, plain = search(model, uniform(8, 12, dtype=torch.float64)), random_like(model)
    wanted = dyart.boundary_speed(model, found, plain)
    wrapped = WRAPPERS[name](model)
    prefixed = random_like(wrapped)
    assert list(prefixed) != list(plain)
    torch.testing.assert_close(dyart.boundary_speed(wrapped, found, prefixed), wanted)


@pytest.mark.parametrize("name", ["data parallel", "compiled", "compiled data parallel", "data parallel of compiled"])
def test_names_of_the_wrapper_and_of_the_network_inside_can_be_mixed(name):
    model = smooth_network()
    found, plain = search(model, uniform(8, 12, dtype=torch.float64)), random_like(model)
    wanted = dyart.boundary_speed(model, found, plain)
    wrapped = WRAPPERS[name](model)
    torch.testing.assert_close(dyart.boundary_speed(wrapped, found, plain), wanted)
    torch.testing.assert_close(dyart.boundary_speed(model, found, random_like(wrapped)), wanted)


def test_a_network_with_a_compiled_part():
    # Compiling block by block is common; the names then carry "_orig_mod." in the middle.
    model = nn.Sequential(smooth_network(), nn.Tanh())
    found, update = search(model, uniform(8, 12, dtype=torch.float64)), random_like(model)
    wanted = dyart.boundary_speed(model, found, update)
    model[0] = torch.compile(model[0], backend="eager")
    # The names as the model gives them, which are those of update_direction.
    speed = dyart.boundary_speed(model, found, random_like(model))
    assert_close_to_scale(speed, wanted, 1e-6)


def test_tied_weights_move_once_and_count_wherever_they_are_used():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 6, dtype=torch.float64)
            self.second = nn.Linear(6, 6, dtype=torch.float64)
            self.second.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.second(F.gelu(self.first(x)))

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Tied()
    found, update = search(model, uniform(8, 6, dtype=torch.float64)), random_like(model)
    assert "second.weight" not in update

    wanted = speed_by_differences(model, found, update)
    for method in (FORWARD, DOUBLE, CENTRAL):
        assert_close_to_scale(dyart.boundary_speed(model, found, update, derivative=method), wanted, 1e-5)


def test_arguments_in_another_order_are_explained():
    model, x = nn.Linear(3, 2), torch.rand(4, 3)
    found = dyart.closest_boundary_points(model, x, steps=5)
    update = dyart.update_direction(model, loss=lambda: model(x).square().sum())
    with pytest.raises(TypeError, match=r"boundary_speed\(model, found, update\).*got dict and BoundaryPoints"):
        dyart.boundary_speed(model, update, found)


class Handles(nn.Module):
    """A layer under two names, used twice, whose weight another layer shares."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(6, 6, dtype=torch.float64), nn.Tanh())
        self.stem = self.features[0]
        self.tied = nn.Linear(6, 6, dtype=torch.float64)
        self.tied.weight = self.stem.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.tied(torch.tanh(self.stem(self.features(x))))


@pytest.mark.parametrize("method", [None, FORWARD, DOUBLE, CENTRAL])
def test_a_layer_under_two_names_is_left_as_it_was(method):
    """Torch's own functional call would leave dead tensors in it, and its optimizer without the weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Handles()
    found, update = search(model, uniform(8, 6, dtype=torch.float64)), random_like(model)
    before = dict(model.named_parameters(remove_duplicate=False))
    assert len(before) > len(update)
    wanted = speed_by_differences(model, found, update)
    assert_close_to_scale(dyart.boundary_speed(model, found, update, derivative=method), wanted, 1e-5)
    after = dict(model.named_parameters(remove_duplicate=False))
    assert all(after[name] is parameter for name, parameter in before.items())


def _functional(name: str, *arguments: object) -> type[nn.Module]:
    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.full((3,), 0.4, dtype=torch.float64))
            self.register_buffer("variance", torch.full((3,), 0.1, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return getattr(torch, name)(x, None, None, self.mean, self.variance, False, 0.1, 1e-5, False)

    return Norm


NORMS = {
    "BatchNorm": lambda: nn.BatchNorm2d(3, dtype=torch.float64),
    "InstanceNorm": lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True, dtype=torch.float64),
    "InstanceNorm, not affine": lambda: nn.InstanceNorm2d(3, track_running_stats=True, dtype=torch.float64),
    "torch.batch_norm": _functional("batch_norm"),
    "torch.instance_norm": _functional("instance_norm"),
}


@pytest.mark.parametrize("norm", NORMS)
def test_statistics_that_move_count_in_every_norm(norm):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(NORMS[norm](), nn.Flatten(), nn.Linear(12, 4, dtype=torch.float64)).eval()
    found = search(model, uniform(8, 3, 2, 2, dtype=torch.float64))
    update = {name: torch.full_like(b, 0.1) for name, b in model.named_buffers() if b.is_floating_point()}
    wanted = speed_by_differences(model, found, update)
    for method in (None, FORWARD, DOUBLE):
        assert_close_to_scale(dyart.boundary_speed(model, found, update, derivative=method), wanted, 1e-5)


def test_points_of_a_copy_in_another_precision_are_explained():
    model, x = nn.Linear(3, 2), torch.rand(4, 3)
    update = dyart.update_direction(model, loss=lambda: model(x).square().sum())
    found = dyart.closest_boundary_points(nn.Linear(3, 2, dtype=torch.float64), x.double(), steps=5)
    with pytest.raises(ValueError, match=r"the points are float64, the model is float32.*inputs\.to\(torch\.float32\)"):
        dyart.boundary_speed(model, found, update)
