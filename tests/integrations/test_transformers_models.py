"""Image classifiers of Hugging Face as they are: objects with ``.logits``, fused attention, BatchNorm, LayerNorm."""

import warnings

import pytest
import torch

import dyart

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers")

CLASSES = 4


def vit(**options):
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            image_size=16,
            patch_size=4,
            num_labels=CLASSES,
            initializer_range=0.3,
            **options,
        )
    )


def resnet():
    """With a smooth activation: at the kinks of so small a network first-order conditions mean little."""
    model = transformers.ResNetForImageClassification(
        transformers.ResNetConfig(
            embedding_size=8,
            hidden_sizes=[8, 16],
            depths=[1, 1],
            layer_type="basic",
            hidden_act="silu",
            num_labels=CLASSES,
        )
    )
    with torch.no_grad():
        for _ in range(50):
            model(images())  # BatchNorm's statistics
    return model


MODELS = {
    "vit-sdpa": lambda: vit(attn_implementation="sdpa"),
    "vit-eager": lambda: vit(attn_implementation="eager"),
    "resnet": resnet,
}


@pytest.fixture(params=MODELS)
def model(request):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return MODELS[request.param]().eval()


def images(count=12):
    return torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def logits(model, inputs):
    with torch.no_grad():
        return model(inputs).logits


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_margins(model, norm):
    found = dyart.closest_boundary_points(model, images(), norm=norm)
    assert found.found.all()
    assert (logits(model, found.points).argmax(dim=1) != found.labels).all()
    assert found.optimal.float().mean() > 0.5


def test_speed_agrees_with_margins_after_the_step(model):
    """The margin after a small step of the weights is the margin before, plus the speed times the step."""
    inputs = images()
    labels = logits(model, inputs).argmax(dim=1)
    found = dyart.closest_boundary_points(model, inputs, labels, norm="l2", steps=100, tol=1e-4)
    update = dyart.update_direction(model, loss=lambda: torch.nn.functional.cross_entropy(model(inputs).logits, labels))
    speed = dyart.boundary_speed(model, found, update)
    size = 1e-3 / max(value.abs().max().item() for value in update.values())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter += size * update[name]
    after = dyart.closest_boundary_points(model, inputs, labels, norm="l2", steps=100, tol=1e-4, start=found.points)
    model.load_state_dict(before)
    rows = found.optimal & after.optimal
    assert rows.sum() >= 4
    moved, predicted = (after.margin - found.margin)[rows], size * speed[rows]
    assert torch.corrcoef(torch.stack([moved, predicted]))[0, 1] > 0.95


def test_evaluation(model):
    inputs = images()
    labels = logits(model, inputs).argmax(dim=1)
    result = dyart.evaluate(model, inputs, labels, radii=["1/255", "32/255"], attack="pgd", preflight=False)
    assert result.clean_accuracy == 1
    margins = dyart.closest_boundary_points(model, inputs, labels).margin
    for radius, share in result.robust_accuracy.items():
        assert share == pytest.approx((margins > radius).float().mean().item(), abs=0.1)


def test_training_by_dyart(model):
    """On examples that are classified as labelled, some steps move the boundary away from them."""
    inputs = images()
    labels = logits(model, inputs).argmax(dim=1)
    before = dyart.closest_boundary_points(model, inputs, labels)
    objective = dyart.DyART(r0=2 * before.margin.max().item(), alpha=0.0, lam=100.0, steps=5)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(10):
        loss, _ = objective(model, inputs, labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    after = dyart.closest_boundary_points(model, inputs, labels)
    assert after.margin.nan_to_num().mean() > before.margin.mean()


def test_in_the_monitor(model):
    inputs = images()
    monitor = dyart.BoundaryMonitor(inputs, logits(model, inputs).argmax(dim=1), every=1, steps=10)
    with monitor.watching(model), torch.no_grad():
        for parameter in model.parameters():
            parameter *= 1.001
    assert monitor.observations[0].found == len(inputs)


def test_the_monitors_callback_is_here_too():
    from dyart.dynamics.huggingface import MonitorCallback
    from dyart.integrations import huggingface

    assert huggingface.MonitorCallback is MonitorCallback


def test_a_config_for_one_label_is_explained():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        single = transformers.ResNetForImageClassification(
            transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1], layer_type="basic", num_labels=1)
        ).eval()
    with pytest.raises(ValueError, match="one logit"):
        dyart.closest_boundary_points(single, images())
