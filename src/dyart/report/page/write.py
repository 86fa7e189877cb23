"""Puts the page together: read the runs, draw, fit the pictures into the space that is left, write one file."""

import base64
import hashlib
import os
from collections.abc import Sequence
from datetime import datetime
from importlib import metadata
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from dyart.engine.files import write_whole
from dyart.engine.stored import RunError
from dyart.report.page import curves, figures, motion, sections
from dyart.report.page.markup import Markup, element, joined, script_json
from dyart.report.page.parts import asset, navigation
from dyart.report.page.pictures import Wanted, sheets
from dyart.report.page.run import Run, read_runs
from dyart.report.page.words import listed

NAME, BRAND = "report.html", "dyart report"
# Bytes of a file that are looked at for a page's title, which may name many runs.
HEAD = 1_000_000
# The whole file, plotly's script (4.8 MB) included.
LARGEST = 8_000_000
# Between what is counted and the limit: the template, a title.
RESERVE = 20_000
SCRIPTS = ("theme.js", "plots.js", "pictures.js", "scatter.js", "gallery.js", "page.js")


def write_page(places: Sequence[Path], out: Path | None = None, title: str | None = None) -> Path:
    """Write one page about some runs and return the file.

    Args:
        places: folders of runs, checkpoints in them, or folders with an ``evaluation.json`` or a ``margins.csv``.
        out: the file; None: ``report.html`` in the run's folder, for several runs in the closest folder above all.
        title: of the page; None: the names of the runs.

    Raises:
        RunError: one of the places is none of these, or the file is there and no such page.
        ImportError: plotly is not installed.
    """
    runs = read_runs(places)
    path = out or Path(os.path.commonpath([run.folder for run in runs])) / NAME
    if path.is_file() and not _is_page(path):
        raise RunError(f"{path} is no page of dyart's, and would be replaced: choose another file with --out")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, page(runs, title))
    return path


def _is_page(path: Path) -> bool:
    """Say whether a file is such a page, by its head."""
    with path.open("rb") as file:
        head = file.read(HEAD)
    return head.startswith(b"<!DOCTYPE html>") and f" · {BRAND}</title>".encode() in head


def page(runs: Sequence[Run], title: str | None = None) -> str:
    """Return the HTML of a page about some runs."""
    data = _data(runs)
    plotly, script = _plotly(), "\n".join(asset(name) for name in SCRIPTS)
    style, shown = asset("page.css"), _sections(runs, data)
    main = joined(*shown.values())
    spent = sum(len(part.encode()) for part in (plotly, script, style, main, script_json(data)))
    _add_pictures(runs, data, LARGEST - RESERVE - spent)
    name = title or listed([run.name for run in runs])
    return Template(asset("page.html")).substitute(
        title=joined(f"{name} · {BRAND}"),
        policy=joined(_policy(plotly, script)),
        style=style,
        heading=joined(name),
        lede=joined(_lede(runs)),
        navigation=navigation(list(shown)),
        switch=sections.switch(runs),
        main=main,
        footer=joined(_footer()),
        data=script_json(data),
        plotly=plotly,
        script=script,
    )


def _data(runs: Sequence[Run]) -> dict[str, Any]:
    """Return all that the page's script draws, but for the pictures."""
    return {
        "figures": {
            "accuracy": figures.accuracy(runs),
            "validation": curves.validation(runs),
            "loss": curves.loss(runs),
            "rate": curves.rate(runs),
            "histogram": figures.histogram(runs),
        },
        "others": curves.others(runs),
        "ofRun": {
            "fan": [motion.fan(run) for run in runs],
            "negative": [motion.negative(run) for run in runs],
            "bars": [motion.bars(run) for run in runs],
        },
        "runs": [
            {"name": run.name, "method": run.config.get("method.name"), "points": motion.points(run)} for run in runs
        ],
    }


def _sections(runs: Sequence[Run], data: dict[str, Any]) -> dict[str, Markup]:
    """Return the sections by name; where nothing was trained, without that of trainings, nor that of no speeds."""
    shown, of_run = data["figures"], data["ofRun"]
    found = {
        sections.name_of_cards(runs): sections.cards(runs),
        "accuracy": sections.accuracy(runs, shown["accuracy"]),
        "training": sections.training(runs, shown, list(data["others"])),
        "margins": sections.margins(runs, shown["histogram"], of_run["fan"], of_run["negative"]),
        "dynamics": sections.dynamics(runs, of_run["bars"]),
        "vulnerable": sections.vulnerable(runs),
        "settings": sections.settings(runs),
    }
    if not any(run.trained for run in runs):
        del found["training"]
        if all(run.dynamics is None for run in runs):
            del found["dynamics"]
    return found


def _add_pictures(runs: Sequence[Run], data: dict[str, Any], budget: int) -> None:
    """Put the pictures into the space that is left."""
    pairs = [(run.pictures, entry["points"]) for run, entry in zip(runs, data["runs"], strict=True)]
    having = [(pictures, points) for pictures, points in pairs if pictures is not None and points is not None]
    wanted = [Wanted(pictures, np.array(points["index"]), np.array(points["margin"])) for pictures, points in having]
    data["examples"], entries = sheets(wanted, budget)
    for (_, points), entry in zip(having, entries, strict=False):  # none where nothing fits
        points |= entry


def _lede(runs: Sequence[Run]) -> str:
    sets = sorted({str(run.config.get("data.name", "data of your own")) for run in runs})
    networks = sorted({str(run.config.get("model.name", "of your own")) for run in runs})
    what = "run" if all(run.trained for run in runs) else "network"
    count = f"One {what}" if len(runs) == 1 else f"{len(runs)} {what}s"
    return f"{count} on {listed(sets)}: {listed(networks)}."


def _footer() -> Markup:
    date = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M")
    words = f"Written by dyart {metadata.version('dyart')} on {date}. Everything is inside this file: it opens offline."
    return joined(element("p", words), element("p", "Plots: plotly.js, MIT licence, © Plotly, Inc."))


def _policy(*scripts: str) -> str:
    """Return a policy that lets nothing be fetched and no script run but these: a second lock behind the escaping."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    rules = ["default-src 'none'", "img-src data:", "style-src 'unsafe-inline'", f"script-src {allowed}"]
    return "; ".join([*rules, "base-uri 'none'", "form-action 'none'"])


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ImportError("the page needs plotly: pip install plotly (or dyart's extra 'report')") from error
    # A browser reads CRLF as LF, and the digest is taken over what it reads.
    return str(get_plotlyjs()).replace("\r\n", "\n").replace("\r", "\n")
