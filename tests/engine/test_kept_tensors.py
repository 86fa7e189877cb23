"""A network that replaces its tensors, or is not copied with them, is refused: nothing would follow it."""

import re

import pytest
import torch
from engine_cases import make_config
from torch import nn

from dyart.engine.run import prepare
from dyart.engine.tensors import NetworkError, TensorPlaces
from dyart.engine.views import Views


class Constrained(nn.Linear):
    """Keeps its weights small by putting others in their place."""

    def forward(self, x):
        self.weight.data = torch.renorm(self.weight.data, p=2, dim=0, maxnorm=1.0)
        return super().forward(x)


class Centred(nn.Module):
    """Keeps a mean of its inputs, a new one at every call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean()
        return x - self.mean


def constrained(classes, shape):
    return nn.Sequential(nn.Flatten(), Constrained(2, classes))


def centred(classes, shape):
    return nn.Sequential(nn.Flatten(), Centred(), nn.Linear(2, classes))


@pytest.mark.parametrize(("name", "tensor"), [("constrained", "1.weight"), ("centred", "1.mean")])
def test_a_tensor_that_is_replaced_is_named_after_the_first_step(name, tensor):
    training = prepare(make_config(method="at", model_name=f"{__name__}:{name}"))
    with pytest.raises(NetworkError, match=f"place of {re.escape(tensor)} while it runs"):
        training.run()
    assert training.taken == 1


def test_writing_into_tensors_is_no_matter():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.LazyLinear(2))
    kept = TensorPlaces(model)
    optimizer = torch.optim.SGD(model[:2].parameters(), lr=0.1, momentum=0.9)
    model(torch.rand(4, 3)).sum().backward()
    optimizer.step()
    model.load_state_dict({name: tensor + 1 for name, tensor in model.state_dict().items()})
    kept.check()


class OwnCopy(nn.Linear):
    def __deepcopy__(self, memo):
        other = OwnCopy(self.in_features, self.out_features)
        other.load_state_dict(self.state_dict())
        return other


def test_a_copy_that_shares_nothing_is_refused():
    with pytest.raises(NetworkError, match=r"does not keep 0\.weight shared"):
        Views(nn.Sequential(OwnCopy(3, 2)), compile=False)
