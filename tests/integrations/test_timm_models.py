"""Models of timm; it needs torchvision."""

import warnings

import pytest
import torch

import dyart

REASON = "timm imports torchvision, which has no build for the CPU of the pinned torch"
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    timm = pytest.importorskip("timm", reason=REASON, exc_type=ImportError)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224"])
def test_margins_speed_and_dyart(name):
    torch.manual_seed(0)
    options = {"img_size": 32} if name.startswith("vit") else {}
    model = timm.create_model(name, pretrained=False, num_classes=5, **options).eval()
    inputs = torch.rand(4, 3, 32, 32)
    found = dyart.closest_boundary_points(model, inputs, steps=20)
    assert found.found.any()
    assert (model(found.points).argmax(dim=1) != found.labels)[found.found].all()
    update = dyart.update_direction(model, loss=lambda: torch.nn.functional.cross_entropy(model(inputs), found.labels))
    assert dyart.boundary_speed(model, found, update)[found.found].isfinite().all()
    loss, _ = dyart.DyART(steps=3)(model.train(), inputs, found.labels)
    loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
