"""boundary_speed: closed forms, per-sample gradients, the ways to a derivative, and what the caller may pass."""

import copy

import pytest
import torch
import torch.nn.functional as F
from networks import (
    plain_kernels,
    random_like,
    small_lstm,
    small_resnet,
    small_transformer,
    smooth_network,
    uniform,
)
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

import dyart

NORMS = ("linf", "l2")
FORWARD, MATH, DOUBLE, CENTRAL = (
    "forward mode",
    "forward mode, math attention",
    "double backward",
    "central difference",
)


def search(model: nn.Module, x: Tensor, labels: Tensor | None = None, **options: object) -> dyart.BoundaryPoints:
    found = dyart.closest_boundary_points(model, x, labels, **{"steps": 20, "bounds": None, **options})
    assert found.found.sum() >= 4
    return found


def assert_close_to_scale(got: Tensor, wanted: Tensor, tolerance: float) -> None:
    """Equal up to a share of the largest entry; a row's own speed may happen to be near zero."""
    assert wanted.abs().max() > 0
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance * float(wanted.abs().max()))


def slope_of(found: dyart.BoundaryPoints) -> Tensor:
    """The dual norm of the gradient, written out; right where no coordinate is pinned."""
    gradient = found.gradient.flatten(1)
    return gradient.abs().sum(dim=1) if found.norm == "linf" else gradient.square().sum(dim=1).sqrt()


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_same_state(model: nn.Module, before: dict[str, Tensor]) -> None:
    after = model.state_dict()
    assert list(after) == list(before)
    for name, tensor in after.items():
        assert torch.equal(tensor, before[name]), name


# Closed forms


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("norm", NORMS)
def test_linear_classifiers_have_the_speed_of_the_closed_form(norm, classes):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(6, classes, dtype=torch.float64)
    found = search(model, uniform(24, 6, dtype=torch.float64), norm=norm, tol=1e-12, restarts=4)
    # All weights and biases move at once: the normal turns and the plane shifts.
    update = random_like(model, seed=1)

    def margins(weight: Tensor, bias: Tensor) -> Tensor:
        z = found.inputs @ weight.T + bias
        rows = torch.arange(len(found))
        apart = weight[found.labels] - weight[found.rival]
        length = torch.linalg.vector_norm(apart, ord=1 if norm == "linf" else 2, dim=1)
        return (z[rows, found.labels] - z[rows, found.rival]).abs() / length

    at = (model.weight.detach(), model.bias.detach())
    torch.testing.assert_close(found.margin, margins(*at))
    wanted = torch.func.jvp(margins, at, (update["weight"], update["bias"]))[1]
    speed = dyart.boundary_speed(model, found, update)
    assert speed.shape == (24,)
    torch.testing.assert_close(speed, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("boundary", ["exact", "soft"])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("normalization", ["group", "batch"])
def test_speed_equals_per_sample_gradients_times_the_update(normalization, norm, boundary):
    model, x = small_resnet(normalization), uniform(12, 3, 8, 8)
    found = search(model, x, norm=norm, boundary=boundary)
    update = random_like(model, seed=2)
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def margin_of_one(state: dict[str, Tensor], point: Tensor, label: Tensor) -> Tensor:
        z = torch.func.functional_call(model, state, (point[None],))
        if boundary == "exact":
            return dyart.logit_margin(z, label[None])[0]
        return dyart.soft_logit_margin(z, label[None], beta=found.beta)[0]

    gradient = torch.func.vmap(torch.func.grad(margin_of_one), in_dims=(None, 0, 0))
    rows = found.found
    per_sample = gradient(parameters, found.points[rows], found.labels[rows])
    products = sum((per_sample[name] * rate).flatten(1).sum(dim=1) for name, rate in update.items())
    speed = dyart.boundary_speed(model, found, update)
    assert speed.derivative == FORWARD
    assert_close_to_scale(speed[rows], products / slope_of(found)[rows], 1e-4)


def statistics_of(model: nn.Module) -> dict[str, Tensor]:
    """A random direction for all float buffers: means and variances."""
    generator = torch.Generator().manual_seed(3)
    return {
        name: torch.randn(buffer.shape, generator=generator, dtype=buffer.dtype)
        for name, buffer in model.named_buffers()
        if buffer.is_floating_point()
    }


def speed_by_differences(model: nn.Module, found: dyart.BoundaryPoints, update: dict[str, Tensor]) -> Tensor:
    """The speed from the margin function at the points, with the model's tensors really moved (use float64)."""
    values = []
    for step in (1e-7, -1e-7):
        moved = copy.deepcopy(model)
        with torch.no_grad():
            for name, tensor in {**dict(moved.named_parameters()), **dict(moved.named_buffers())}.items():
                if name in update:
                    tensor.add_(step * update[name])
            values.append(dyart.logit_margin(moved(found.points), found.labels))
    return (values[0] - values[1]) / 2e-7 / slope_of(found)


@pytest.mark.filterwarnings("ignore:.*central difference")  # allowed here, not required
@pytest.mark.parametrize("derivative", [None, CENTRAL])
@pytest.mark.parametrize("moving", ["statistics", "statistics and parameters", "one mean and the head"])
def test_updates_of_batch_norm_statistics_count(moving, derivative):
    model = small_resnet("batch").double()
    found = search(model, uniform(12, 3, 8, 8, dtype=torch.float64))
    update = statistics_of(model)
    assert len(update) == 2 * 5  # a mean and a variance per layer, and no parameter
    if moving == "statistics and parameters":
        update |= random_like(model)
    if moving == "one mean and the head":
        update = {"norm.running_mean": update["norm.running_mean"], "head.bias": random_like(model)["head.bias"]}
    before = state_of(model)
    speed = dyart.boundary_speed(model, found, update, derivative=derivative)
    assert_close_to_scale(speed, speed_by_differences(model, found, update), 1e-2)
    assert_same_state(model, before)
    assert not any(buffer.requires_grad for buffer in model.buffers())


@pytest.mark.parametrize("derivative", [FORWARD, MATH, DOUBLE])
def test_no_way_ignores_an_update_of_batch_norm_statistics(derivative):
    # A way that cannot differentiate them must say so: a speed of zero would be believed.
    model = small_resnet("batch").double()
    found = search(model, uniform(12, 3, 8, 8, dtype=torch.float64))
    update = statistics_of(model)
    try:
        speed = dyart.boundary_speed(model, found, update, derivative=derivative)
    except (NotImplementedError, RuntimeError):
        pass
    else:
        assert_close_to_scale(speed, speed_by_differences(model, found, update), 1e-4)
    assert not any(buffer.requires_grad for buffer in model.buffers())


@pytest.mark.filterwarnings("ignore:.*central difference")
def test_speed_of_a_real_step_that_also_moves_the_statistics():
    # Float32 and ReLU, as users have it: one SGD step in training mode moves weights, means and variances.
    model, x = small_resnet("batch"), uniform(32, 3, 8, 8)
    found = search(model, x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model.train()
    update = dyart.update_direction(
        model, loss=lambda: F.cross_entropy(model(x), torch.arange(32) % 4), optimizer=optimizer, buffers=True
    )
    assert (update["norm.running_mean"] != 0).any()
    speed = dyart.boundary_speed(model.eval(), found, update)
    precise = search(copy.deepcopy(model).double(), x.double())
    same = (precise.points - found.points).flatten(1).abs().amax(dim=1) < 1e-5
    assert same.sum() >= 24
    wanted = speed_by_differences(copy.deepcopy(model).double(), precise, update)
    assert float(((speed - wanted).abs() / wanted.abs())[same].median()) < 0.02


def test_partial_updates_leave_the_rest_in_place():
    model, x = smooth_network(), uniform(12, 12, dtype=torch.float64)
    found = search(model, x)
    update = random_like(model)
    parts = [{name: rate} for name, rate in update.items()]
    speeds = [dyart.boundary_speed(model, found, part) for part in parts]
    assert all((speed != 0).any() for speed in speeds)
    torch.testing.assert_close(sum(speeds), dyart.boundary_speed(model, found, update))


def test_no_update_means_no_speed():
    model = smooth_network()
    found = search(model, uniform(6, 12, dtype=torch.float64))
    assert (dyart.boundary_speed(model, found, {}) == 0).all()


def test_the_speed_is_linear_in_the_update():
    model = smooth_network()
    found = search(model, uniform(6, 12, dtype=torch.float64))
    one, other = random_like(model, 1), random_like(model, 2)
    mixed = {name: 2 * one[name] - 3 * other[name] for name in one}
    wanted = 2 * dyart.boundary_speed(model, found, one) - 3 * dyart.boundary_speed(model, found, other)
    torch.testing.assert_close(dyart.boundary_speed(model, found, mixed), wanted)


# Rows


@pytest.mark.parametrize("batch_size", [1, 5, 12, 100])
def test_chunks_agree_with_one_pass(batch_size):
    model, x = small_resnet("group"), uniform(12, 3, 8, 8)
    labels = model(x).argmax(dim=1)
    labels[::4] = (labels[::4] + 1) % 4  # three rows have no point
    found = search(model, x, labels)
    assert found.found.sum() == 9
    update = random_like(model)
    whole = dyart.boundary_speed(model, found, update)
    sizes = []
    model.register_forward_hook(lambda module, args, output: sizes.append(len(args[0])))
    chunked = dyart.boundary_speed(model, found, update, batch_size=batch_size)
    torch.testing.assert_close(chunked, whole, rtol=1e-4, atol=1e-4, equal_nan=True)
    assert max(sizes) <= batch_size
    assert sum(sizes) == found.found.sum()


def test_nan_exactly_where_nothing_was_found():
    model, x = smooth_network(), uniform(20, 12, dtype=torch.float64)
    found = search(model, x, torch.arange(20) % 4)
    assert not found.found.all()
    speed = dyart.boundary_speed(model, found, random_like(model))
    assert torch.equal(speed.isnan(), ~found.found)
    torch.testing.assert_close(
        speed[found.found], dyart.boundary_speed(model, found[found.found], random_like(model)), rtol=1e-9, atol=0
    )


def test_nothing_found_at_all():
    model, x = smooth_network(), uniform(5, 12, dtype=torch.float64)
    found = dyart.closest_boundary_points(model, x, model(x).argmin(dim=1))
    speed = dyart.boundary_speed(model, found, random_like(model))
    assert speed.isnan().all()
    assert speed.shape == (5,)


def test_an_empty_batch():
    model, x = smooth_network(), uniform(5, 12, dtype=torch.float64)
    found = search(model, x)[torch.zeros(5, dtype=torch.bool)]
    assert dyart.boundary_speed(model, found, random_like(model)).shape == (0,)


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


def test_an_unknown_method_raises():
    model = smooth_network()
    found = search(model, uniform(6, 12, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"derivative must be one of.*'reverse'"):
        dyart.boundary_speed(model, found, random_like(model), derivative="reverse")


# The ways to a derivative

NETWORKS = {
    "resnet, group": (lambda: small_resnet("group"), (8, 3, 8, 8), FORWARD),
    "resnet, batch": (lambda: small_resnet("batch"), (8, 3, 8, 8), FORWARD),
    "transformer": (small_transformer, (8, 5, 8), MATH),
    "lstm": (small_lstm, (8, 5, 6), DOUBLE),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_first_supported_way_is_taken_and_named(name):
    build, shape, wanted = NETWORKS[name]
    model = build()
    found = search(model, uniform(*shape), norm="l2")
    speed = dyart.boundary_speed(model, found, random_like(model))
    assert speed.derivative == wanted
    assert speed.isfinite().all()
    # The ways before it do not exist for this network, or the choice would not be the best one.
    for method in (FORWARD, MATH, DOUBLE):
        if method == wanted:
            break
        with pytest.raises((NotImplementedError, RuntimeError)):
            dyart.boundary_speed(model, found, random_like(model), derivative=method)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_exact_ways_agree(name):
    build, shape, first = NETWORKS[name]
    model = build()
    found, update = search(model, uniform(*shape), norm="l2"), random_like(model)
    automatic = dyart.boundary_speed(model, found, update)
    methods = (FORWARD, MATH, DOUBLE)
    for method in methods[methods.index(first) :]:
        speed = dyart.boundary_speed(model, found, update, derivative=method)
        assert speed.derivative == method
        assert_close_to_scale(speed, automatic, 1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_central_difference_agrees_to_a_hundredth(name, dtype):
    # Also where ReLUs switch between the two ends: a step that is too wide shows here.
    build, shape, _ = NETWORKS[name]
    model = build().to(dtype)
    found, update = search(model, uniform(*shape, dtype=dtype), norm="l2"), random_like(model)
    exact = dyart.boundary_speed(model, found, update)
    # A method that was asked for needs no warning, and warnings are errors.
    central = dyart.boundary_speed(model, found, update, derivative=CENTRAL)
    assert central.derivative == CENTRAL
    assert_close_to_scale(central, exact, 1e-2)


class Opaque(torch.autograd.Function):
    """tanh without a forward-mode rule, and with a backward pass that cannot be differentiated."""

    @staticmethod
    def forward(ctx, x):
        y = torch.tanh(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * (1 - y * y)


class OpaqueNewStyle(torch.autograd.Function):
    """The same, written as torch.func asks for it."""

    @staticmethod
    def forward(x):
        return torch.tanh(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * (1 - y * y)


class TwiceDifferentiable(torch.autograd.Function):
    """tanh without a forward-mode rule, and with an ordinary backward pass."""

    @staticmethod
    def forward(x):
        return torch.tanh(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * (1 - y * y)


class CustomActivation(nn.Module):
    def __init__(self, function: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.function = function
        self.body = smooth_network()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.body:
            x = self.function.apply(x) if isinstance(layer, nn.Tanh) else layer(x)
        return x


@pytest.mark.parametrize("function", [Opaque, OpaqueNewStyle])
def test_a_layer_with_one_derivative_ends_at_the_central_difference_with_a_warning(function):
    model = CustomActivation(function)
    found = search(model, uniform(10, 12, dtype=torch.float64))
    update = random_like(model)
    before = state_of(model)
    with pytest.warns(UserWarning, match="central difference"):
        speed = dyart.boundary_speed(model, found, update)
    assert speed.derivative == CENTRAL
    assert_same_state(model, before)
    plain = {name.removeprefix("body."): rate for name, rate in update.items()}
    assert_close_to_scale(speed, dyart.boundary_speed(model.body, found, plain), 1e-5)


@pytest.mark.parametrize("function", [Opaque, OpaqueNewStyle])
@pytest.mark.parametrize("derivative", [FORWARD, DOUBLE])
def test_a_way_that_a_layer_does_not_have_raises_when_asked_for(function, derivative):
    # Autograd leaves such a layer out of the second derivative without a word: the result would be wrong.
    model = CustomActivation(function)
    found = search(model, uniform(10, 12, dtype=torch.float64))
    with pytest.raises((NotImplementedError, RuntimeError)):
        dyart.boundary_speed(model, found, random_like(model), derivative=derivative)


def test_a_layer_with_two_derivatives_ends_at_double_backward():
    model = CustomActivation(TwiceDifferentiable)
    found = search(model, uniform(10, 12, dtype=torch.float64))
    update = random_like(model)
    speed = dyart.boundary_speed(model, found, update)
    assert speed.derivative == DOUBLE
    plain = {name.removeprefix("body."): rate for name, rate in update.items()}
    torch.testing.assert_close(
        torch.as_tensor(speed), torch.as_tensor(dyart.boundary_speed(model.body, found, plain)), rtol=1e-9, atol=0
    )


class Fussy(nn.Module):
    """Fails on demand, with an error of a given type."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.error = smooth_network(), None

    def forward(self, x: Tensor) -> Tensor:
        if self.error is not None:
            raise self.error
        return self.body(x)


@pytest.mark.parametrize("error", [RuntimeError("mine"), ValueError("mine"), NotImplementedError("mine")])
def test_an_error_inside_the_model_is_raised(error):
    model = Fussy()
    found = search(model, uniform(6, 12, dtype=torch.float64))
    model.error = error
    before = state_of(model)
    with pytest.raises(type(error), match="mine"):
        dyart.boundary_speed(model, found, random_like(model))
    assert_same_state(model, before)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_points_that_do_not_fit_the_model_raise():
    found = search(smooth_network(), uniform(6, 12, dtype=torch.float64))
    other = smooth_network(features=9)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        dyart.boundary_speed(other, found, random_like(other))


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


def test_speed_predicts_the_step_of_an_optimizer():
    # The whole story in one: direction from update_direction, a step really taken, margins searched again.
    model, x = smooth_network(), uniform(24, 12, dtype=torch.float64)
    labels = model(x).argmax(dim=1)
    found = search(model, x, labels, steps=80, tol=1e-11)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, nesterov=True, weight_decay=1e-2)
    targets = torch.arange(24) % 4
    update = dyart.update_direction(model, loss=lambda: F.cross_entropy(model(x), targets), optimizer=optimizer)
    speed = dyart.boundary_speed(model, found, update)
    F.cross_entropy(model(x), targets).backward()
    optimizer.step()
    after = search(model, x, labels, steps=80, tol=1e-11)
    same = found.found & after.found & ((after.points - found.points).abs().amax(dim=1) < 0.01)
    assert same.sum() >= 18
    change = after.margin - found.margin
    assert float(((speed - change).abs() / change.abs())[same].median()) < 0.02
