"""Lightning Fabric, from whichever of its two packages is installed."""

import atexit
import logging
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from dyart.data.ranks import Team
from dyart.engine.process_end import LAUNCHED, WATCHED, leave
from dyart.recipes.config import Precision, Strategy

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.ddp import DDPStrategy
else:
    try:
        from lightning.fabric import Fabric
        from lightning.fabric.strategies import DDPStrategy
    except ImportError:
        try:
            from lightning_fabric import Fabric
            from lightning_fabric.strategies import DDPStrategy
        except ImportError as error:
            raise ImportError(
                "this needs the package lightning-fabric: pip install lightning-fabric (or dyart's extra 'train')"
            ) from error

__all__ = ["Fabric", "make_fabric", "possible_precision", "team_of"]


# What other processes write is waited for this long, e.g. a checkpoint by the first while the others are at a barrier.
PATIENCE = timedelta(hours=1)
# They advise on the precision of products, which a recipe states. Fabric writes to PyTorch Lightning's log once that is
# imported.
TALKING = ("lightning.fabric", "lightning_fabric", "lightning.pytorch", "pytorch_lightning")
# For each core of a CPU.
CPU_PROCESSES = 4
FSDP = (
    "train.strategy fsdp is refused: methods search with a second, frozen view of the network on the same storage, the "
    "averaged weights are a whole copy, and AWP moves whole weights; all of them need every parameter in one piece. "
    "Use ddp: the networks here fit on one GPU many times over"
)


def make_fabric(
    device: str = "auto",
    precision: Precision = "fp32",
    devices: int = 1,
    num_nodes: int = 1,
    strategy: Strategy = "ddp",
    backend: str | None = None,
) -> Fabric:
    """Return a Fabric for one device, or for several processes with one device each, which it starts.

    Processes that torchrun or SLURM's srun have started are recognised. Otherwise the first process runs this command
    again for each of the others on its machine; on several machines it is started on each, with ``MASTER_ADDR``,
    ``MASTER_PORT`` and ``NODE_RANK`` set.

    Args:
        device: ``"auto"`` (a GPU if there is one), ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.
        precision: ``"fp32"``, or ``"bf16"`` for the network's inside, with float32 weights; on a CPU, and on a GPU
            without bf16, it is fp32 after all, and a line says so.
        devices: processes on this machine; under torchrun, as many as it started.
        num_nodes: machines.
        strategy: of several processes; ``"fsdp"`` is refused.
        backend: of their communication; None: NCCL for GPUs, gloo for CPUs.

    Raises:
        ValueError: there is no such device, or there are not as many.
    """
    if strategy == "fsdp":
        raise ValueError(FSDP)
    kind, _, number = device.partition(":")
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind not in ("cpu", "cuda") or (number and not number.isdigit()):
        raise ValueError(f"unknown device {device!r}: use auto, cpu, cuda or cuda:1")
    if kind == "cpu" and number:
        raise ValueError(f"device {device!r}, but processors have no numbers: use cpu")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {device!r}, but this machine has no GPU that torch can use: use cpu")
    if kind == "cuda" and int(number or 0) >= (count := torch.cuda.device_count()):
        raise ValueError(f"device {device!r}, but torch can use {count} here, and counts from 0: use cuda:{count - 1}")
    for name in TALKING:
        logging.getLogger(name).setLevel(logging.WARNING)
    precision, reason = possible_precision(precision, kind)
    inside: Any = "bf16-mixed" if precision == "bf16" else "32-true"
    devices, num_nodes = _started(devices, num_nodes)
    if devices * num_nodes == 1:
        chosen: int | list[int] = [int(number)] if number else 1
        fabric = Fabric(accelerator=kind, devices=chosen, precision=inside)
        fabric.launch()
        if reason:
            fabric.print(reason)
        return fabric
    if number:
        raise ValueError(f"device {device!r} is one, {devices} are asked for: use {kind}, and CUDA_VISIBLE_DEVICES")
    if kind == "cuda" and devices > torch.cuda.device_count() and backend is None:
        raise ValueError(f"{devices} devices are asked for, this machine has {torch.cuda.device_count()} GPUs")
    most = CPU_PROCESSES * (os.cpu_count() or 1)
    if kind == "cpu" and devices > most:
        raise ValueError(f"{devices} processes are asked for, and {most} are enough for {os.cpu_count()} CPU cores")
    several = DDPStrategy(process_group_backend=backend, timeout=PATIENCE)
    fabric = Fabric(accelerator=kind, devices=devices, num_nodes=num_nodes, strategy=several, precision=inside)
    fabric.launch()
    atexit.register(leave)
    started = getattr(several.launcher, "procs", [])
    LAUNCHED.extend(started)
    WATCHED.append(started)
    if reason:
        fabric.print(reason)
    return fabric


def possible_precision(precision: Precision, kind: str) -> tuple[Precision, str]:
    """Return the precision that a device computes in, and one line to say so where it is not the wanted one."""
    if precision != "bf16":
        return precision, ""
    if kind == "cpu":  # few gain by it, and with some torch's convolutions end in an illegal instruction
        return "fp32", "training in fp32: bf16 is for GPUs"
    # What is emulated is slower than fp32, and no more accurate.
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        return "fp32", "training in fp32: this GPU has no bf16"
    return precision, ""


def team_of(fabric: Fabric) -> Team:
    """Return the processes of a Fabric as those who divide work."""
    return Team(fabric.global_rank, fabric.world_size)


def _started(devices: int, num_nodes: int) -> tuple[int, int]:
    """Return processes per machine and machines: as asked for, or as torchrun started them."""
    if not (torch.distributed.is_available() and torch.distributed.is_torchelastic_launched()):
        return devices, num_nodes
    world, here = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if devices * num_nodes not in (1, world):
        raise ValueError(f"torchrun started {world} processes, {devices} x {num_nodes} are asked for: leave that out")
    return here, world // here
