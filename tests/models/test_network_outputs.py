"""What the networks compute: shapes, padding, blocks, input normalisation, gradients, derivatives."""

import copy

import pytest
import torch
import torch.nn.functional as F
from network_cases import BATCH_NORM, IMAGES, SMALLER, lively, of_type, uniform
from torch import nn

import dyart
from dyart.models import NAMES, InputNormalization, build
from dyart.models.layers import SameConv2d, same_padding
from dyart.models.residual import BasicBlock, PreActBlock

DOUBLE = "double backward"
SHAPES = ((3, 32, 32), (3, 64, 64), (1, 28, 28))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("normalization", ["batch", "group"])
@pytest.mark.parametrize("name", NAMES)
def test_the_shape_of_the_logits(name, normalization, shape):
    with torch.device("meta"):
        model = build(name, 7, shape, normalization=normalization)
        assert model(torch.rand(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize("shape", [(2,), (5, 3), (1, 28, 28)], ids=str)
def test_the_perceptron_takes_any_shape(shape):
    assert build("mlp", 4, shape)(uniform(6, *shape)).shape == (6, 4)


# The strided convolutions of the paper's network


@pytest.mark.parametrize(
    ("size", "stride", "wanted"), [(32, 2, (0, 1)), (16, 2, (0, 1)), (7, 2, (1, 1)), (32, 1, (1, 1)), (9, 4, (1, 1))]
)
def test_same_padding_of_a_kernel_of_three(size, stride, wanted):
    assert same_padding(size, 3, stride) == wanted


def test_a_strided_convolution_starts_at_the_first_pixel_and_pads_right_and_below():
    conv = SameConv2d(2, 3, 3, 2)
    x, weight = uniform(1, 2, 6, 6), conv.weight.detach()
    wanted = torch.zeros(1, 3, 3, 3)
    for i in range(3):
        for j in range(3):
            # The window's top left pixel is (2 i, 2 j); what lies beyond the image counts as zero.
            window = x[0, :, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3]
            kernel = weight[:, :, : window.shape[1], : window.shape[2]]
            wanted[0, :, i, j] = (kernel * window).sum(dim=(1, 2, 3))
    assert torch.allclose(conv(x), wanted, atol=1e-6)


def padding_seen(name: str) -> set[tuple[str, tuple[int, int, int, int]]]:
    """Return, for the strided 3x3 convolutions of a network, what lies beyond the image, by the reach of one pixel."""
    with torch.device("meta"):
        convs = of_type(build(name, 10, (3, 32, 32)), nn.Conv2d)
    seen = set()
    for key, conv in convs.items():
        if conv.kernel_size != (3, 3) or conv.stride != (2, 2):
            continue
        one = copy.copy(conv)
        one._parameters = {"weight": nn.Parameter(torch.ones(1, 1, 3, 3)), "bias": None}
        sums = one(torch.ones(1, 1, 8, 8))[0, 0]  # the number of pixels of the image in every window
        middle = sums[1, 1].item()
        assert middle == 9
        assert sums.shape == (4, 4)
        missing = [3 - sums[at].item() / 3 for at in ((0, 1), (-1, 1), (1, 0), (1, -1))]
        seen.add((key, tuple(map(int, missing))))
    return seen


def test_the_papers_network_pads_strided_convolutions_on_the_right_and_below_alone():
    assert padding_seen("wrn28-10") == {(f"layer{stage}.0.conv1", (0, 1, 0, 1)) for stage in (2, 3)}


@pytest.mark.parametrize(
    ("name", "stages"), [("wrn34-10", (2, 3)), ("preactresnet18", (2, 3, 4)), ("resnet18", (2, 3, 4))]
)
def test_the_others_pad_on_the_left_and_above(name, stages):
    assert padding_seen(name) == {(f"layer{stage}.0.conv1", (1, 0, 1, 0)) for stage in stages}


# The blocks, written out


def norm(x, module):
    scale = module.weight / (module.running_var + 1e-5).sqrt()
    return x * scale[:, None, None] + (module.bias - module.running_mean * scale)[:, None, None]


@pytest.mark.parametrize(("into", "out", "stride"), [(8, 8, 1), (8, 16, 2), (8, 16, 1)])
def test_the_preactivation_block(into, out, stride):
    block = lively(PreActBlock(into, out, stride, nn.SiLU)).eval()
    x = uniform(2, into, 8, 8) - 0.5
    active = F.silu(norm(x, block.bn1))
    y = F.conv2d(active, block.conv1.weight, stride=stride, padding=1)
    y = F.conv2d(F.silu(norm(y, block.bn2)), block.conv2.weight, padding=1)
    carried = x if (into, stride) == (out, 1) else F.conv2d(active, block.shortcut[0].weight, stride=stride)
    assert torch.allclose(block(x), carried + y, atol=1e-5)


@pytest.mark.parametrize(("into", "out", "stride"), [(8, 8, 1), (8, 16, 2)])
def test_the_basic_block(into, out, stride):
    block = lively(BasicBlock(into, out, stride, nn.ReLU)).eval()
    x = uniform(2, into, 8, 8)
    y = F.relu(norm(F.conv2d(x, block.conv1.weight, stride=stride, padding=1), block.bn1))
    y = norm(F.conv2d(y, block.conv2.weight, padding=1), block.bn2)
    carried = x
    if stride == 2:
        carried = norm(F.conv2d(x, block.shortcut[0].weight, stride=stride), block.shortcut[1])
    assert torch.allclose(block(x), F.relu(carried + y), atol=1e-5)


@pytest.mark.parametrize(("name", "blocks"), [("wrn28-10", 4), ("wrn34-10", 5), ("preactresnet18", 2), ("resnet18", 2)])
def test_resolution_and_width_of_every_stage(name, blocks):
    with torch.device("meta"):
        model = build(name, 10, (3, 32, 32))
        x, sizes = torch.rand(1, 3, 32, 32), []
        x = model.conv1(x)
        sizes.append(tuple(x.shape[1:]))
        for stage in [child for key, child in model.named_children() if key.startswith("layer")]:
            assert len(stage) == blocks
            x = stage(x)
            sizes.append(tuple(x.shape[1:]))
    wide = [(16, 32, 32), (160, 32, 32), (320, 16, 16), (640, 8, 8)]
    plain = [(64, 32, 32), (64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4)]
    assert sizes == (wide if name.startswith("wrn") else plain)


def test_the_head_averages_what_was_normalised_and_activated():
    model = lively(build("preactresnet18", 10, (3, 32, 32), seed=0)).eval()
    seen = {}
    model.layer4.register_forward_hook(lambda module, args, out: seen.update(features=out))
    logits = model(uniform(2, 3, 32, 32))
    pooled = F.relu(norm(seen["features"], model.bn)).mean(dim=(2, 3))
    assert torch.allclose(logits, pooled @ model.linear.weight.T + model.linear.bias, atol=1e-5)


# Normalisation of inputs


def test_the_papers_network_normalises_its_input():
    model = build("wrn28-10", 10, (3, 32, 32), seed=0)
    first = next(model.children())
    assert isinstance(first, InputNormalization)
    seen = {}
    model.conv1.register_forward_pre_hook(lambda module, args: seen.update(x=args[0]))
    x = uniform(1, 3, 8, 8)
    model.eval()(x)
    mean, std = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2471, 0.2435, 0.2616])
    assert torch.allclose(seen["x"], (x - mean[:, None, None]) / std[:, None, None], atol=1e-6)
    assert {"normalize.mean", "normalize.std"} <= model.state_dict().keys()
    assert not [key for key, _ in model.named_parameters() if "normalize" in key]


@pytest.mark.parametrize("name", NAMES)
def test_no_network_but_the_papers_normalises_on_its_own_and_that_only_in_colour(name):
    with torch.device("meta"):
        grey, colour = build(name, 10, (1, 28, 28)), build(name, 10, (3, 32, 32))
    assert not of_type(grey, InputNormalization)
    assert bool(of_type(colour, InputNormalization)) == (name == "wrn28-10")


@pytest.mark.parametrize("name", SMALLER)
def test_a_given_mean_and_std_act_before_everything_else(name):
    mean, std = (0.1, 0.5, 0.3), (0.2, 1.5, 0.7)
    with_layer = build(name, 10, (3, 32, 32), mean=mean, std=std, seed=4).eval()
    without = build(name, 10, (3, 32, 32), seed=4).eval()
    assert isinstance(next(with_layer.children()), InputNormalization)
    x = uniform(2, 3, 32, 32)
    columns = [torch.tensor(values).reshape(3, 1, 1) for values in (mean, std)]
    assert torch.allclose(with_layer(x), without((x - columns[0]) / columns[1]), atol=1e-6)


def test_vectors_are_normalised_feature_by_feature():
    model = build("mlp", 3, (2,), mean=(1.0, -1.0), std=(2.0, 4.0))
    layer = next(model.children())
    assert layer(torch.tensor([[3.0, 3.0], [1.0, -5.0]])).tolist() == [[1.0, 1.0], [0.0, -1.0]]


# Gradients and derivatives


@pytest.mark.parametrize("normalization", ["batch", "group"])
@pytest.mark.parametrize("name", SMALLER)
def test_a_gradient_reaches_every_parameter(name, normalization):
    model = build(name, 10, (3, 32, 32), normalization=normalization, seed=0)
    F.cross_entropy(model(uniform(4, 3, 32, 32)), torch.tensor([0, 3, 5, 9])).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().max() > 0, key


@pytest.mark.parametrize("name", ["wrn28-10", "wrn34-10"])
def test_a_gradient_reaches_every_parameter_of_the_wide_networks(name):
    model = build(name, 10, (3, 16, 16), seed=0)
    model(uniform(2, 3, 16, 16)).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


@pytest.mark.parametrize("normalization", ["batch", "group"])
@pytest.mark.parametrize("name", SMALLER)
def test_evaluation_is_deterministic_and_each_example_is_alone(name, normalization):
    model = lively(build(name, 10, (1, 28, 28), normalization=normalization, seed=0)).eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    x = uniform(5, 1, 28, 28)
    with torch.no_grad():
        assert torch.equal(model(x), model(x))
        assert torch.allclose(model(x)[:2], model(x[:2]), atol=1e-4)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("normalization", ["batch", "group"])
@pytest.mark.parametrize("name", SMALLER)
def test_the_speed_of_the_boundary_takes_one_forward_pass(name, normalization):
    model = lively(build(name, 3, (1, 16, 16), normalization=normalization, seed=0)).eval()
    x = uniform(3, 1, 16, 16)
    with torch.no_grad():
        model.linear.bias -= model(x).mean(dim=0)  # a fresh network has one class everywhere, and no boundary nearby
    found = dyart.closest_boundary_points(model, x, norm="l2", steps=8, bounds=None)
    assert found.found.any()
    generator = torch.Generator().manual_seed(1)
    update = {key: torch.randn(p.shape, generator=generator) for key, p in model.named_parameters()}
    speed = dyart.boundary_speed(model, found, update)
    assert speed.derivative == "forward mode"
    speed, other = (s[found.found] for s in (speed, dyart.boundary_speed(model, found, update, derivative=DOUBLE)))
    assert torch.allclose(speed, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()))
    assert other.abs().max() > 0


@pytest.mark.parametrize(("name", "normalization"), [("wrn28-10", "batch"), ("wrn34-10", "group")])
def test_the_forward_mode_derivative_of_the_wide_networks_is_that_of_the_backward_pass(name, normalization):
    model = lively(build(name, 3, (3, 8, 8), normalization=normalization, seed=0)).eval()
    x = uniform(1, 3, 8, 8)
    generator = torch.Generator().manual_seed(1)
    rates = {key: torch.randn(p.shape, generator=generator) for key, p in model.named_parameters()}
    parameters = {key: p.detach() for key, p in model.named_parameters()}
    logits, tangent = torch.func.jvp(lambda p: torch.func.functional_call(model, p, (x,)), (parameters,), (rates,))
    model(x)[0, 0].backward()
    wanted = sum((p.grad * rates[key]).sum() for key, p in model.named_parameters())
    assert torch.allclose(tangent[0, 0], wanted, rtol=1e-3, atol=1e-3 * float(tangent.abs().max()))
    assert logits.isfinite().all()


# Memory format, compilation


@pytest.mark.parametrize("name", IMAGES)
def test_channels_last_goes_through_to_the_last_norm(name):
    small = (3, 8, 8) if name.startswith("wrn") else (3, 32, 32)
    model = build(name, 10, small, seed=0).eval()
    x = uniform(2, *small)
    with torch.no_grad():
        wanted = model(x)
        seen = {}
        last = list(of_type(model, BATCH_NORM).values())[-1]
        last.register_forward_hook(lambda module, args, out: seen.update(out=out))
        model = model.to(memory_format=torch.channels_last)
        logits = model(x.to(memory_format=torch.channels_last))
    assert torch.allclose(logits, wanted, atol=1e-4)
    assert seen["out"].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("normalization", ["batch", "group"])
@pytest.mark.parametrize("name", NAMES)
def test_a_network_is_one_graph_for_the_compiler(name, normalization):
    with torch.device("meta"):
        model = build(name, 10, (3, 32, 32), normalization=normalization)
        x = torch.rand(2, 3, 32, 32)
    torch._dynamo.reset()
    report = torch._dynamo.explain(model)(x)
    assert (report.graph_count, report.graph_break_count) == (1, 0)
