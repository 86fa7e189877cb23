"""What every method does when it is called in anybody's training loop: the box it stays in, what it checks and says."""

import pytest
import torch
from side_effects import CLASSES, batch, in_mode, network
from torch import nn

from dyart.data.loader import Batch
from dyart.methods import AT, MMA, Method, find, registered

METHODS = registered()
CRAFTING = [name for name in [*METHODS, "mart-awp", "mma-awp", "fat-awp"] if not name.startswith("natural")]
# Of other units than [0, 1].
BOX = (-3.0, 5.0)
BALLS = {"mma": ("hinge", {"hinge": 0.5, "least": 0.1}), "dyart": ("r0", {"r0": 0.5})}


def ball(name):
    """Return which setting is the method's radius, and settings with which it is one half."""
    return BALLS.get(name.removesuffix("-awp"), ("radius", {"radius": 0.5, "step_size": 0.2}))


def wide(x):
    """Return inputs all over the box, many close to its sides."""
    return (20.0 * x - 9.0).clamp(BOX[0] + 0.05, BOX[1] - 0.05)


def points_of(crafted):
    points = getattr(crafted, "points", crafted)
    return points if isinstance(points, torch.Tensor) else points[0]


def in_box(name, **settings):
    """Return inputs and the points that a method crafts from them, of a linear network that is right and sure."""
    generator = torch.Generator().manual_seed(4)
    weights, x = torch.randn(12, 4, generator=generator), wide(torch.rand(16, 3, 2, 2, generator=generator))

    def model(inputs):
        return inputs.flatten(1) @ weights

    method = find(name)(**{**ball(name)[1], **settings})
    named = Batch(x, model(x).argmax(dim=1), torch.arange(len(x)), torch.tensor(3))
    return x, points_of(method.crafted(model, named))


def reach(name):
    return 1.05 * 0.5 if name.startswith("mma") else 0.5 if "dyart" not in name else 10.0


# The box


@pytest.mark.parametrize("name", CRAFTING)
def test_points_stay_in_the_ball_and_in_a_box_of_ones_own(name):
    x, points = in_box(name, bounds=list(BOX))
    assert ((points - x).abs() <= reach(name) + 1e-5).all()
    assert (points >= BOX[0]).all()
    assert (points <= BOX[1]).all()
    assert (points > 1).any()
    assert (points != x).any()


@pytest.mark.parametrize("name", CRAFTING)
def test_a_box_of_tensors_and_none_at_all(name):
    low, high = torch.full((3, 1, 1), BOX[0]), torch.full((3, 2, 2), BOX[1])
    _, points = in_box(name, bounds=BOX)
    torch.testing.assert_close(in_box(name, bounds=(low, high))[1], points, rtol=0, atol=0)
    x, free = in_box(name, bounds=None)
    assert ((free - x).abs() <= reach(name) + 1e-5).all()
    assert ((free < BOX[0]) | (free > BOX[1])).any(), "inputs at the sides go beyond"


@pytest.mark.parametrize("clip", [True, False])
def test_the_bisection_of_mma_looks_for_the_boundary_in_the_same_box(clip):
    """One feature, the boundary at 2: in [0, 1] no point would come across it."""
    x, y = torch.tensor([[1.8], [1.7], [3.9]]), torch.tensor([0, 0, 1])
    names = Batch(x, y, torch.arange(3), torch.tensor(0))

    def model(points):
        return torch.cat([40 * (2 - points), torch.zeros_like(points)], dim=1)

    found = MMA(hinge=0.5, bisections=12, bounds=(0.0, 4.0), clip=clip).craft(model, names)
    torch.testing.assert_close(found.radius[:2], torch.tensor([0.2, 0.3]), rtol=0, atol=1e-3)
    torch.testing.assert_close(found.points[:2], torch.full((2, 1), 2.0), rtol=0, atol=1e-3)


def test_mma_clips_what_it_trains_on_to_its_box():
    (_, inside), (_, beyond) = (in_box("mma", bounds=BOX, clip=clip) for clip in (True, False))
    assert inside.max() == BOX[1]
    assert beyond.max() > BOX[1]
    torch.testing.assert_close(beyond.clamp(*BOX), inside, rtol=0, atol=0)


@pytest.mark.parametrize("name", CRAFTING)
def test_bounds_are_a_pair_or_none(name):
    with pytest.raises(ValueError, match=r"bounds must be a pair \(low, high\) or None, got 3"):
        find(name)(bounds=3)


# What a first call checks


@pytest.mark.parametrize("name", CRAFTING)
def test_inputs_outside_the_box_are_named(name):
    model, (x, y) = in_mode(network(), "train"), batch()
    method = find(name)()
    for _ in range(2):  # what failed is checked again
        with pytest.raises(
            ValueError, match=r"inputs lie outside the bounds by .* put the normalisation inside the model"
        ):
            method(model, (x - 0.5) / 0.25, y)
    method(model, x, y)
    method(model, 1.5 * x, y)  # later calls look at no values, which would wait for the device
    find(name)(**ball(name)[1], bounds=BOX)(model, wide(x), y)


@pytest.mark.parametrize("name", [*METHODS, "natural-awp"])
def test_bad_batches_are_named(name):
    model, (x, y) = in_mode(network(), "train"), batch()
    for labels, kind, words in (
        (torch.full_like(y, 9), ValueError, "label 9 at index 0 is out of range"),
        (y.float(), TypeError, "integer class indices"),
        (y[:3], ValueError, r"labels must have shape \(5,\)"),
    ):
        with pytest.raises(kind, match=words):
            find(name)()(model, x, labels)
    with pytest.raises(ValueError, match="NaN"):
        find(name)()(model, x * torch.nan, y)


@pytest.mark.parametrize("name", METHODS)
def test_an_empty_batch_is_named_at_any_call(name):
    model, (x, y) = in_mode(network(), "train"), batch()
    method = METHODS[name]()
    with pytest.raises(ValueError, match=f"^{type(method).__name__} needs at least one example$"):
        method(model, x[:0], y[:0])
    method(model, x, y)
    with pytest.raises(ValueError, match="needs at least one example"):
        method(model, x[:0], y[:0])


@pytest.mark.parametrize("name", CRAFTING)
def test_a_radius_larger_than_the_box_is_named(name):
    model, (x, y) = in_mode(network(), "train"), batch()
    setting, _ = ball(name)
    with pytest.raises(ValueError, match=rf"^{setting} 8 is larger than the box .*did you mean 8/255\?"):
        find(name)(**{setting: 8.0})(model, x, y)
    find(name)(**{setting: 8.0}, bounds=(0.0, 255.0))(model, 255 * x, y)


class Pair(nn.Module):
    """A network with a second output."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x), x.mean()


@pytest.mark.parametrize("name", METHODS)
def test_a_tuple_is_to_be_unwrapped_by_a_module_while_training(name):
    model, (x, y) = Pair(in_mode(network(), "train")), batch()
    with pytest.raises(
        TypeError, match=r"returned tuple; .*lambda x: model\(x\)\[0\]; to train it, in a module"
    ) as error:
        METHODS[name]()(model, x, y)
    scope = {"nn": nn}
    exec(str(error.value).split("can be set: ")[1], scope)  # as one would paste it
    torch.manual_seed(0)
    loss, _ = METHODS[name]()(scope["Logits"](model), x, y)
    torch.manual_seed(0)
    torch.testing.assert_close(loss, METHODS[name]()(in_mode(network(), "train"), x, y)[0], rtol=0, atol=0)


def test_natural_training_takes_inputs_of_any_kind():
    model, (x, y) = in_mode(network(), "train"), batch()
    METHODS["natural"]()(model, 8 * x - 3, y)
    words = nn.Sequential(nn.Embedding(30, CLASSES), nn.AdaptiveAvgPool2d((1, CLASSES)), nn.Flatten())
    loss, _ = METHODS["natural"]()(words, torch.arange(20).reshape(5, 4), y)
    assert loss.isfinite()


def test_a_method_of_ones_own_is_checked_as_well():
    class Shrinking(Method):
        def craft(self, model, batch):
            return batch.inputs / 2

        def loss(self, model, batch, crafted):
            return model(crafted).square().mean(), {}

    class Anywhere(Shrinking):
        bounds = None

    model, (x, y) = in_mode(network(), "train"), batch()
    Shrinking()(model, x, y)
    with pytest.raises(ValueError, match="outside the bounds"):
        Shrinking()(model, 8 * x, y)
    Anywhere()(model, 8 * x, y)


# A function around a network


@pytest.mark.parametrize("name", [name for name in METHODS if not name.endswith("-awp")])
def test_a_function_around_a_network_in_training_mode_is_warned_of_once(name):
    model, (x, y) = in_mode(network(), "train"), batch()
    method = METHODS[name]()
    if name == "natural":
        method(lambda inputs: model(inputs)[:, :], x, y)  # no points; and warnings are errors here
        return
    with pytest.warns(
        UserWarning, match=r"function, and model in it is in training mode.*Wrap it in an nn\.Module"
    ) as said:
        method(lambda inputs: model(inputs)[:, :], x, y)
    assert [one.filename for one in said] == [__file__]
    method(lambda inputs: model(inputs)[:, :], x, y)
    METHODS[name]()(model, x, y)
    model.eval()
    METHODS[name]()(lambda inputs: model(inputs)[:, :], x, y)


def test_the_function_that_searches_counts():
    model, (x, y) = in_mode(network(), "train"), batch()
    other = in_mode(network(), "eval")
    METHODS["dyart"](search_model=other)(lambda inputs: model(inputs)[:, :], x, y)
    other.train()
    with pytest.warns(UserWarning, match="function, and other in it is in training mode"):
        METHODS["dyart"](search_model=lambda inputs: other(inputs)[:, :])(model, x, y)


# DyART's settings that need the engine


@pytest.mark.parametrize("name", ["dyart", "dyart-awp"])
def test_settings_that_need_the_engine_are_warned_of_once(name):
    model, (x, y) = in_mode(network(), "train"), batch()
    method = METHODS[name](warm_start=True, adaptive_steps=True)
    with pytest.warns(UserWarning, match="^warm_start and adaptive_steps: without effect in this loop") as said:
        method(model, x, y)
    assert [one.filename for one in said] == [__file__]
    method(model, x, y)


def test_the_draws_of_a_call_are_what_they_were():
    """A failed check counts as no call: what follows draws as if it had not been."""
    model, (x, y) = in_mode(network(), "eval"), batch()
    one, other = AT(radius=0.2, steps=1, step_size=0.001), AT(radius=0.2, steps=1, step_size=0.001)
    with pytest.raises(ValueError, match="outside the bounds"):
        one(model, 3 * x, y)
    assert torch.equal(one(model, x, y)[0], other(model, x, y)[0])
