"""TF32 and its relatives: off while the model runs, and as the user set them afterwards."""

from functools import partial

import pytest
import torch
from side_effects import FailureError, failing, network, over, search, speed
from torch import Tensor, nn

pytestmark = pytest.mark.filterwarnings("ignore:the model has BatchNorm layers in training mode")

# Torch has two interfaces to one setting, and an error for those who mix them.
PRECISIONS = {
    "all": lambda: torch.backends,
    "cuda matmul": lambda: torch.backends.cuda.matmul,
    "cudnn": lambda: torch.backends.cudnn,
    "cudnn conv": lambda: getattr(torch.backends.cudnn, "conv", None),
    "cudnn rnn": lambda: getattr(torch.backends.cudnn, "rnn", None),
    "mkldnn": lambda: torch.backends.mkldnn,
    "mkldnn matmul": lambda: getattr(torch.backends.mkldnn, "matmul", None),
    "mkldnn conv": lambda: getattr(torch.backends.mkldnn, "conv", None),
}
NEW_INTERFACE = hasattr(torch.backends.cuda.matmul, "fp32_precision")


def read(name: str, get) -> object:
    try:
        return get()
    except RuntimeError:
        return f"{name} cannot be read: the interfaces are mixed"


def precisions() -> dict[str, object]:
    state = {
        "cuda matmul allow_tf32": read("matmul", lambda: torch.backends.cuda.matmul.allow_tf32),
        "cudnn allow_tf32": read("cudnn", lambda: torch.backends.cudnn.allow_tf32),
        "matmul precision": read("precision", torch.get_float32_matmul_precision),
    }
    return state | {name: getattr(owner(), "fp32_precision", None) for name, owner in PRECISIONS.items()}


@pytest.fixture
def fresh_precision():
    """Torch's defaults, at the start and at the end, however mixed it was left."""

    def reset() -> None:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = True
        if NEW_INTERFACE:
            for name, owner in PRECISIONS.items():
                if owner() is not None:
                    owner().fp32_precision = "tf32" if name in ("cudnn conv", "cudnn rnn") else "none"

    reset()
    yield
    reset()


def _set(**values: str) -> None:
    for name, value in values.items():
        PRECISIONS[name.replace("_", " ")]().fp32_precision = value


def _legacy(matmul: bool, cudnn: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn


OLD_PRECISION = {
    "defaults": lambda: None,
    "allow_tf32 on": lambda: _legacy(True, True),
    "allow_tf32 off": lambda: _legacy(False, False),
    "matmul precision high": lambda: torch.set_float32_matmul_precision("high"),
    "matmul precision medium": lambda: torch.set_float32_matmul_precision("medium"),
}
NEW_PRECISION = {
    "cuda matmul tf32": lambda: _set(cuda_matmul="tf32"),
    "cuda matmul ieee": lambda: _set(cuda_matmul="ieee"),
    "cudnn conv ieee": lambda: _set(cudnn_conv="ieee"),
    "all tf32": lambda: _set(all="tf32"),
    "all ieee": lambda: _set(all="ieee"),
}


@pytest.mark.usefixtures("fresh_precision")
@pytest.mark.parametrize("fails", [False, True], ids=["", "and the model fails"])
@over(OLD_PRECISION | (NEW_PRECISION if NEW_INTERFACE else {}))
def test_tf32_settings_are_the_same_after_the_call(call, fails):
    call()
    before = precisions()
    if fails:
        with pytest.raises(FailureError):
            search(failing("eval", 4))
    else:
        search(network().eval())
    assert precisions() == before
    speed(network().eval(), derivative=None)
    assert precisions() == before


@pytest.mark.usefixtures("fresh_precision")
@pytest.mark.parametrize("call", [search, partial(speed, derivative=None)], ids=["search", "speed"])
def test_tf32_is_off_while_the_model_runs(call):
    _legacy(True, True)
    seen: list[tuple[str, ...]] = []

    class Look(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if NEW_INTERFACE:
                names = ("cuda matmul", "cudnn conv", "cudnn rnn")
                seen.append(tuple(PRECISIONS[name]().fp32_precision for name in names))
            else:
                seen.append((torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32))
            return x

    call(network(Look()).eval())
    assert seen
    assert {value for values in seen for value in values} <= {"ieee", "none", False}
