"""Calls of methods in a loop of one's own on two processes: what one of them does, and what it hands back."""

import sys
import warnings
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dyart.methods import find
from dyart.methods.meeting import obstacle

EXAMPLES = 16
BALL = {"radius": 0.1, "steps": 2, "step_size": 0.06}
# Settings with which processes that are by themselves have another gradient.
COUPLED = {
    "at-awp": {"gamma": 0.3, **BALL},
    "gairat": {"kappa": "first-error", "radius": 0.4, "steps": 4, "step_size": 0.15},
    "mail-at": {"normalize": True, **BALL},
    "mail-trades": {"normalize": True, **BALL},
    "dyart": {"relative": True, "r0": 0.5, "lam": 5.0, "keep": "found"},
    "dyart-awp": {"gamma": 0.3, "r0": 0.5, "lam": 5.0, "keep": "found"},
}
UNEVEN = ("at-awp", "gairat")
STATIC = ("at-awp", "gairat", "dyart", "dyart-awp")
PLAIN = {**BALL, "start": "input"}
# Ways in which processes need not call alike.
APART = {
    "no_sync": lambda wrapper: wrapper.no_sync(),
    "alone": lambda _: nullcontext(),
    "no_grad": lambda _: torch.no_grad(),
}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 4)).double()


def examples() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(EXAMPLES, 10, generator=generator, dtype=torch.float64)
    labels = network()(x).argmax(dim=1)
    labels[::5] = 3
    return x, labels


def called(name: str, settings: dict, model: nn.Module, rows: slice, calls: int = 2, log: bool = False) -> dict:
    """Return loss, gradient and metrics of a method's last call, with some of the examples."""
    method, (x, y) = find(name)(**settings), examples()
    for number in range(calls):
        if log and number == calls - 1:
            logged(method, model, x[:3], y[:3])
        model.zero_grad()
        loss, metrics = method(model, x[rows], y[rows])
        loss.backward()
    return {"loss": loss.detach(), "gradient": flat(model), "metrics": metrics}


def logged(method, model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Ask for the loss of some examples, in ways in which one process may do so by itself."""
    with torch.no_grad():
        method(model, x, y)[0].item()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        method(model.eval(), x, y)[0].item()
    model.train()


def flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def apart(way: str, rank: int) -> list[str]:
    """Call a method twice where the other process does not call it, and return the warnings."""
    (x, y), net = examples(), network()
    wrapper = DistributedDataParallel(net)
    method, model = find("gairat")(**BALL), net if way == "alone" else wrapper
    with warnings.catch_warnings(record=True) as said, APART[way](wrapper):
        warnings.simplefilter("always")
        for _ in range(2 * (rank == 0)):
            method(model, x, y)
    return [f"{Path(one.filename).name}: {one.message}" for one in said if "whole batch" in str(one.message)]


def obstacles() -> dict[str, str | None]:
    groups = [torch.distributed.new_group([rank]) for rank in range(2)]
    own = DistributedDataParallel(network(), process_group=groups[torch.distributed.get_rank()])
    wrapper = DistributedDataParallel(network())
    found = {"group": obstacle(own), "compiled": obstacle(torch.compile(wrapper)), "none": obstacle(len)}
    found["eval"] = obstacle(wrapper.eval())
    wrapper.train()
    with wrapper.join():
        return found | {"join": obstacle(wrapper)}


def results(rank: int) -> dict:
    """Return what one of two processes finds."""
    half = slice(8 * rank, 8 * rank + 8)
    part = slice(0, 5) if rank == 0 else slice(5, EXAMPLES)
    wrap = DistributedDataParallel
    return {
        "even": {name: called(name, settings, wrap(network()), half) for name, settings in COUPLED.items()},
        "plain": called("at", PLAIN, wrap(network()), half),
        "uneven": {name: called(name, COUPLED[name], wrap(network()), part) for name in UNEVEN},
        "inside": called("gairat", COUPLED["gairat"], nn.Sequential(nn.Identity(), wrap(network())), half),
        "static": {name: called(name, COUPLED[name], wrap(network(), static_graph=True), half) for name in STATIC},
        "logged": called("gairat", COUPLED["gairat"], wrap(network()), half, calls=3, log=rank == 0),
        "apart": {way: apart(way, rank) for way in APART},
        "obstacles": obstacles(),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch.distributed.init_process_group("gloo")
    me = torch.distributed.get_rank()
    torch.save(results(me), Path(sys.argv[1]) / f"{me}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
