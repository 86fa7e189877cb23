"""AT against DyART on the embedded set, several seeds: the demo's numbers with their spread.

    python benchmarks/fashion_mini.py --seeds 0 1 2

Both start from the same burn-in of their seed and train for about equal times (the JSON has the seconds; run it on a
quiet machine). Robust accuracy at a radius is the smaller of what the margin search and PGD-20 leave, on 1,000 test
images.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import torch

from dyart.cli.demo import demo
from harness import RESULTS, write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    records = []
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            demo(Path(folder) / "demo", seed)
            records += json.loads((Path(folder) / "demo" / "demo.json").read_text())
        settings = {"seeds": options.seeds, "images": 1000, "attack": "margin search (20 steps) and PGD-20"}
        write("fashion_mini", torch.device("cpu"), settings, records, options.out)
    for method in ("natural", "AT", "DyART"):
        rows = [record for record in records if record["method"] == method]
        curves = [
            {r: min(row["robust_by_margin_search"][r], row["robust_by_pgd20"][r]) for r in row["robust_by_pgd20"]}
            for row in rows
        ]
        values = {"clean": [row["clean"] for row in rows]} | {r: [c[r] for c in curves] for r in curves[0]}
        words = ", ".join(f"{name} {100 * statistics.mean(v):.1f} ({100 * min(v):.1f} to {100 * max(v):.1f})"
                          for name, v in values.items())  # fmt: skip
        print(f"{method}: {words}; {statistics.mean(row['train_seconds'] for row in rows):.0f} s of training")


if __name__ == "__main__":
    main()
