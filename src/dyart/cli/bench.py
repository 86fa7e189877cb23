"""``dyart bench``: what a training step of each method costs on this machine."""

import argparse
import json
import platform
import statistics
import sys
from pathlib import Path
from typing import Any

from dyart.cli.parsers import Commands, file_path, names

METHODS = ["natural", "at", "trades", "dyart"]
CIFAR_IMAGES = 50_000 - 1_024
# Those of the published trainings; with them DyART has fewer passes than AT with ten attack steps: 22 against 23.
SEARCH_STEPS = 8
HELP = """\
examples:
  dyart bench                                      the demo's network on the CPU, a minute or two
  dyart bench --gpu                                ResNet-18 with BatchNorm and GroupNorm, batches of 128 and 512
  dyart bench --gpu --networks wrn28-10 --batches 256 --methods at,dyart --merge

Steps are whole ones (crafting, loss, backward, clipping, optimizer, averaging) on random images, the methods in turn in
one process. "passes" is the arithmetic of a step in forward passes of its batch: a forward pass is 1, one to the inputs
and back 2, one to the weights and back 3. With --gpu, "of product" is the arithmetic per second of the whole step over
that of a large bf16 matrix product on the same GPU. DyART's examples do not retire here: how many do depends on how far
a training is (benchmarks/ablation.py times trained networks).
"""


def add_bench(commands: Commands) -> None:
    """Add ``dyart bench``."""
    bench = commands.add_parser(
        "bench",
        help="time a training step of each method on this machine",
        description="Time training steps of several methods side by side.",
        epilog=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = bench.add_argument
    add("--gpu", action="store_true", help="on the GPU, compiled, in bf16 (default: on the CPU, in fp32)")
    add("--networks", type=names, help="cnn (default on the CPU), resnet18, resnet18-gn (default with --gpu), wrn28-10")
    add("--batches", type=_numbers, help="batch sizes (default: 128; with --gpu 128,512)")
    add("--methods", type=names, default=METHODS, help=f"(default: {','.join(METHODS)})")
    add(
        "--search-steps",
        type=int,
        help=f"of DyART's boundary search (default: the recipe's; with --gpu {SEARCH_STEPS} for every network)",
    )
    add("--rounds", type=int, default=6, help="bursts of five steps of each method (default: 6)")
    add("--out", type=file_path, default=Path("steps.json"), help="file (default: steps.json)")
    add("--merge", action="store_true", help="keep what the file has of other networks, batches and methods")
    bench.set_defaults(run=_bench)


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(word) for word in names(text)]
        if min(numbers, default=0) < 1:
            raise ValueError
        return numbers
    except ValueError as error:
        words = f"batch sizes are positive whole numbers, e.g. 128,512; got {text!r}"
        raise argparse.ArgumentTypeError(words) from error


def _bench(options: argparse.Namespace) -> None:
    import torch

    from dyart.cli.places import make_folder
    from dyart.engine.files import write_json
    from dyart.engine.timing import matrix_rate

    if options.rounds < 1:
        raise ValueError(f"--rounds must be at least 1, got {options.rounds}")
    if options.search_steps is not None and options.search_steps < 2:
        raise ValueError(f"--search-steps must be at least 2, got {options.search_steps}")
    if options.gpu and not torch.cuda.is_available():
        raise ValueError("--gpu, but this machine has no GPU that torch can use")
    make_folder(options.out.parent)
    device = torch.device("cuda" if options.gpu else "cpu")
    networks = options.networks or (["resnet18", "resnet18-gn"] if options.gpu else ["cnn"])
    rate = matrix_rate(device) if options.gpu else None
    if rate is not None:
        print(f"bf16 matrix product: {rate / 1e12:.0f} TFLOP/s")
    content: dict[str, Any] = {
        "machine": {
            "gpu": torch.cuda.get_device_name(device) if options.gpu else None,
            "processor": platform.machine(),
            "threads": torch.get_num_threads(),
            "bf16_product": rate,
        },
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "settings": {"precision": "bf16" if options.gpu else "fp32", "compile": options.gpu, "rounds": options.rounds},
    }
    records: list[dict[str, Any]] = []
    for network in networks:
        for batch in options.batches or ([128, 512] if options.gpu else [128]):
            records += _measured(network, batch, options, device, rate)
            # After every one, so that nothing is lost where a later one fails.
            kept = _others(options.out, records) if options.merge else []
            write_json(options.out, content | {"records": [*kept, *records]})
    print(f"written: {options.out}")


def _others(path: Path, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what a file has that was not measured anew."""
    if not path.is_file():
        return []

    def named(record: dict[str, Any]) -> list[Any]:
        return [record[key] for key in ("network", "normalization", "batch", "method", "search_steps")]

    measured = [named(record) for record in records]
    return [old for old in json.loads(path.read_text(encoding="utf-8"))["records"] if named(old) not in measured]


def _measured(
    network: str,
    batch: int,
    options: argparse.Namespace,
    device: Any,  # noqa: ANN401
    rate: float | None,
) -> list[dict[str, Any]]:
    """Time the methods on one network and batch size, print a line each, and return their records."""
    import gc
    import time

    import torch

    from dyart.engine.timing import in_turn, noise, operations, ready, step_of

    gc.collect()  # what is left of the network before would be counted as there, and then go
    family, shape = ("fashion-mini", (1, 28, 28)) if network == "cnn" else ("cifar10", (3, 32, 32))
    data = noise(8 * batch, shape)
    precision = "bf16" if options.gpu else "fp32"
    words = ["--train.device", device.type, "--train.batch_size", str(batch), "--train.precision", precision]
    searched = options.search_steps or (SEARCH_STEPS if options.gpu else None)
    settings, steps, peaks, first, search_steps = {}, {}, {}, {}, {}
    for method in options.methods:
        recipe = f"{family}-{network}-{method}"
        print(f"{recipe}, batch {batch}: getting ready", file=sys.stderr)
        own = list(words)
        if method.startswith("dyart"):
            own += ["--method.retire", "false", *(["--method.steps", str(searched)] if searched else [])]
        before = 0
        if options.gpu:
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)  # of the methods that are ready
        settings[method] = recipe, own
        training = ready(recipe, [*own, "--train.compile", "on" if options.gpu else "off"], data)
        search_steps[method] = training.config.method.get("steps") if method.startswith("dyart") else None
        steps[method] = step_of(training)
        start = time.perf_counter()
        steps[method]()
        first[method] = time.perf_counter() - start
        steps[method]()  # records it
        peaks[method] = (torch.cuda.max_memory_allocated(device) - before) / 2**20 if options.gpu else None
    times = in_turn(steps, device, options.rounds)
    records = []
    for method, (recipe, own) in settings.items():
        # Last: of shapes that have run uncompiled, cuDNN would try out nothing more.
        work, forward = operations(ready(recipe, [*own, "--train.compile", "off"], data))
        ms = statistics.median(times[method])
        low, high = (statistics.quantiles(times[method], n=10)[place] for place in (0, -1))
        record = {
            "network": network.removesuffix("-gn"),
            "normalization": "group" if network.endswith("-gn") else "batch",
            "batch": batch,
            "method": method,
            "search_steps": search_steps[method],
            "ms": ms,
            "ms_q10": low,
            "ms_q90": high,
            "passes": work / forward,
            "operations": work,
            "of_product": None if rate is None else work / (ms / 1000) / rate,
            "peak_mib": peaks[method],
            "first_step_seconds": first[method],
            "cifar10_epoch_seconds": None if network == "cnn" else ms / 1000 * (CIFAR_IMAGES // batch),
        }
        records.append(record)
        print(_line(record))
    return records


def _line(record: dict[str, Any]) -> str:
    words = "{network:10} {normalization} norm, batch {batch:<5d} {method:12}".format(**record)
    words += "{ms:8.2f} ms  passes {passes:5.1f}".format(**record)
    if record["of_product"] is not None:
        words += f"  {record['of_product']:5.1%} of product  peak {record['peak_mib']:.0f} MiB"
    if record["cifar10_epoch_seconds"] is not None:
        words += f"  CIFAR-10 epoch {record['cifar10_epoch_seconds']:.1f} s"
    return words
