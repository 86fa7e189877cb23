"""update_direction: buffers, nothing else may change on the way, and bad calls."""

import pytest
import torch
import torch.nn.functional as F
from networks import small_resnet, smooth_network, uniform
from torch import Tensor, nn
from update_cases import OPTIMIZERS, X, Y, assert_close, assert_same, cross_entropy, snapshot, step_of_a_copy, warm_up

import dyart

# Buffers


IMAGES = uniform(12, 3, 8, 8)
TARGETS = torch.arange(12) % 4


def image_loss(model: nn.Module) -> Tensor:
    return F.cross_entropy(model(IMAGES), TARGETS)


def test_buffers_are_the_change_of_the_running_statistics():
    model = small_resnet("batch").train()
    optimizer = OPTIMIZERS["sgd, momentum"](model.parameters())
    warm_up(model, optimizer, image_loss, steps=2)
    before = snapshot(model, optimizer)
    update = dyart.update_direction(model, loss=lambda: image_loss(model), optimizer=optimizer, buffers=True)
    assert_same(snapshot(model, optimizer), before)
    wanted = step_of_a_copy(model, optimizer, image_loss)
    counters = [name for name in wanted if name.endswith("num_batches_tracked")]
    assert all(wanted.pop(name) == 1 for name in counters)  # integers do not flow
    assert (wanted["norm.running_mean"] != 0).any()
    assert_close(update, wanted, 1e-4)


def test_buffers_are_left_out_unless_asked_for():
    model = small_resnet("batch").train()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    before = snapshot(model, optimizer)
    update = dyart.update_direction(model, loss=lambda: image_loss(model), optimizer=optimizer)
    assert_same(snapshot(model, optimizer), before)
    assert set(update) == {name for name, _ in model.named_parameters()}


def test_buffers_do_not_move_in_eval_mode():
    model = small_resnet("batch")
    update = dyart.update_direction(
        model, loss=lambda: image_loss(model), optimizer=OPTIMIZERS["sgd"](model.parameters()), buffers=True
    )
    assert (update["norm.running_mean"] == 0).all()
    assert (update["head.weight"] != 0).any()


class Centred(nn.Module):
    """Keeps a running mean by assignment, as self-distillation heads do, not in place."""

    def __init__(self) -> None:
        super().__init__()
        self.body = smooth_network()
        self.register_buffer("centre", torch.zeros(4, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        z = self.body(x)
        if self.training:
            self.centre = 0.9 * self.centre + 0.1 * z.detach().mean(dim=0)
        return z - self.centre


def test_a_buffer_that_is_assigned_anew_is_put_back():
    model = Centred()
    before = snapshot(model)
    dyart.update_direction(model, loss=lambda: cross_entropy(model))
    assert_same(snapshot(model), before)


def test_a_buffer_that_is_assigned_anew_counts_as_moved():
    model = Centred()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    wanted = step_of_a_copy(model, optimizer, cross_entropy)
    assert (wanted["centre"] != 0).any()
    update = dyart.update_direction(model, loss=lambda: cross_entropy(model), optimizer=optimizer, buffers=True)
    assert_close(update, wanted)


# Nothing changes


def test_everything_is_bitwise_the_same_afterwards():
    model = small_resnet("batch").train()
    model.block2.eval()
    model.stem.weight.requires_grad_(False)
    model.head.bias.grad = torch.ones(4)
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    warm_up(model, optimizer, image_loss, steps=2)
    before = snapshot(model, optimizer)
    storage = [tensor.data_ptr() for tensor in model.state_dict().values()]
    for options in ({}, {"optimizer": optimizer}, {"optimizer": optimizer, "clip_norm": 0.1, "buffers": True}):
        dyart.update_direction(model, loss=lambda: image_loss(model), **options)
        assert_same(snapshot(model, optimizer), before)
    assert [tensor.data_ptr() for tensor in model.state_dict().values()] == storage


def test_everything_is_put_back_after_an_error():
    model = small_resnet("batch").train()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    before = snapshot(model, optimizer)

    def broken() -> Tensor:
        image_loss(model)
        torch.rand(3)
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        dyart.update_direction(model, loss=broken, optimizer=optimizer)
    assert_same(snapshot(model, optimizer), before)


def test_random_numbers_are_those_of_the_step_that_follows():
    # Dropout: the direction must be the one of the next real step, and drawing it must not spend the draws.
    model = nn.Sequential(nn.Dropout(0.5), smooth_network())
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    with torch.random.fork_rng():
        torch.manual_seed(5)
        before = snapshot(model, optimizer)
        update = dyart.update_direction(model, loss=lambda: cross_entropy(model), optimizer=optimizer)
        assert_same(snapshot(model, optimizer), before)
        warm_up(model, optimizer, cross_entropy, steps=1)
    at = before["state"]
    assert_close(update, {name: (tensor - at[name]).detach() for name, tensor in model.state_dict().items()})


def test_without_gradients_in_the_callers_mode():
    model = smooth_network()
    wanted = dyart.update_direction(model, loss=lambda: cross_entropy(model))
    with torch.no_grad():
        assert_close(dyart.update_direction(model, loss=lambda: cross_entropy(model)), wanted)


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda model: torch.compile(model, backend="eager")])
def test_wrapped_models_give_the_names_of_the_network_inside(wrap):
    model = smooth_network()
    optimizer = OPTIMIZERS["sgd, momentum"](model.parameters())
    warm_up(model, optimizer, cross_entropy)
    wanted = dyart.update_direction(model, loss=lambda: cross_entropy(model), optimizer=optimizer)
    wrapped = wrap(model)
    got = dyart.update_direction(wrapped, loss=lambda: cross_entropy(model), optimizer=optimizer)
    assert_close(got, wanted)


# Bad calls


def test_nothing_given_raises():
    with pytest.raises(ValueError, match=r"needs a loss, an optimizer"):
        dyart.update_direction(smooth_network())


def test_no_gradients_raises():
    model = smooth_network()
    with pytest.raises(ValueError, match=r"backward\(\)"):
        dyart.update_direction(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


def test_an_optimizer_with_a_closure_raises():
    model = smooth_network()
    with pytest.raises(TypeError, match=r"LBFGS.*closure"):
        dyart.update_direction(
            model, loss=lambda: cross_entropy(model), optimizer=torch.optim.LBFGS(model.parameters())
        )


def test_an_optimizer_of_another_model_raises():
    model, other = smooth_network(), smooth_network()
    with pytest.raises(ValueError, match="another model"):
        dyart.update_direction(
            model, loss=lambda: cross_entropy(model), optimizer=torch.optim.SGD(other.parameters(), lr=0.1)
        )


def test_a_loss_per_example_raises():
    model = smooth_network()
    with pytest.raises(ValueError, match=r"scalar.*\(16,\)"):
        dyart.update_direction(model, loss=lambda: F.cross_entropy(model(X), Y, reduction="none"))


def test_a_loss_without_graph_raises():
    model = smooth_network()
    with pytest.raises(ValueError, match="does not depend"):
        dyart.update_direction(model, loss=lambda: cross_entropy(model).detach())


def test_a_loss_of_another_model_raises():
    # It has a graph, yet no parameter of this model in it: an empty direction would look like a model at rest.
    model, other = smooth_network(), smooth_network()
    with pytest.raises(ValueError, match="does not depend"):
        dyart.update_direction(model, loss=lambda: cross_entropy(other))


@pytest.mark.parametrize("optimizer", [False, True])
def test_buffers_without_loss_or_optimizer_raise(optimizer):
    model = small_resnet("batch")
    options = {"optimizer": OPTIMIZERS["sgd"](model.parameters())} if optimizer else {"loss": lambda: image_loss(model)}
    with pytest.raises(ValueError, match="buffers=True needs both"):
        dyart.update_direction(model, buffers=True, **options)


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, float("nan")])
def test_a_clip_norm_that_is_not_positive_raises(clip_norm):
    model = smooth_network()
    with pytest.raises(ValueError, match="clip_norm must be positive"):
        dyart.update_direction(model, loss=lambda: cross_entropy(model), clip_norm=clip_norm)


def test_a_model_without_trainable_parameters_raises():
    model = smooth_network().requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        dyart.update_direction(model, loss=lambda: cross_entropy(model))
