"""The tables of the page: accuracies with their intervals, and every setting with what differs marked."""

from collections.abc import Sequence
from typing import Any

from dyart.recipes.load import flat
from dyart.report.page.files import Accuracy, Estimate
from dyart.report.page.markup import Markup, element
from dyart.report.page.run import Run
from dyart.report.page.words import DASH, changes, class_name, interval, percent

# Said elsewhere, or about the place of files alone: a difference there means nothing.
NOT_SETTINGS = {"out", "recipe", "note"}
# More classes than the first are too many to show; then so many are.
MANY, FEW = 20, 10
SECTIONS = {"method": "Method", "data": "Data", "model": "Network", "optim": "Optimizer", "train": "Training"}
SECTIONS |= {"eval": "Evaluation", "monitor": "Monitor", "": "General", "versions": "Versions and machine"}


def name_tag(run: Run) -> Markup:
    """Return a run's name behind a spot of its colour."""
    spot = element("span", class_="spot", style=f"background:var(--{run.colour})", aria_hidden="true")
    return element("span", spot, run.name, class_="run-name")


def accuracy_table(runs: Sequence[Run]) -> Markup:
    """Return accuracies, a row per radius and a column per run, with 95 % intervals below them."""
    measured = [(run, run.accuracy) for run in runs if run.accuracy is not None]
    if not measured:
        return Markup()
    radii = sorted({radius for _, accuracy in measured for radius in accuracy.robust})
    written = {radius: str(radius) for _, accuracy in measured for radius in accuracy.robust}
    lines: dict[str, list[Estimate | None]] = {"clean": [accuracy.clean for _, accuracy in measured]}
    lines |= {written[radius]: [accuracy.robust.get(radius) for _, accuracy in measured] for radius in radii}
    rows = []
    for words, shares in lines.items():
        cells = [
            element("td", percent(share.value), element("small", interval(share))) if share else element("td", DASH)
            for share in shares
        ]
        rows.append(element("tr", element("th", words, scope="row"), *cells))
    names = [element("th", name_tag(run), scope="col") for run, _ in measured]
    top = element("thead", element("tr", element("th", "radius", scope="col"), *names))
    table = element("table", top, element("tbody", *rows), class_="numbers")
    return scrolling(table, "Accuracies with 95 % intervals")


def class_table(runs: Sequence[Run]) -> Markup:
    """Return accuracies by class, a row per run: at the radius that it is judged by, the clean one below it.

    Of many classes those with the lowest accuracy of the first run.
    """
    measured = [(run, run.accuracy) for run in runs if run.accuracy is not None and run.accuracy.by_class]
    if not measured:
        return Markup()
    judged = [_judged_by(run, accuracy) for run, accuracy in measured]
    named, first = measured[0][0], measured[0][1].by_class
    labels = sorted(first)
    if len(labels) > MANY:
        labels = sorted(labels, key=lambda label: first[label].get(judged[0], 1.0))[:FEW]
    rows = []
    for (run, accuracy), radius in zip(measured, judged, strict=True):
        cells = []
        for shares in (accuracy.by_class.get(label, {}) for label in labels):
            clean = element("small", percent(shares["clean"])) if "clean" in shares and radius != "clean" else ""
            cells.append(element("td", percent(shares[radius]), clean) if radius in shares else element("td", DASH))
        words = radius if radius == "clean" else f"robust at {radius}; small: clean"
        rows.append(element("tr", element("th", name_tag(run), element("small", words), scope="row"), *cells))
    names = [element("th", class_name(named, label), scope="col") for label in labels]
    top = element(
        "thead", element("tr", element("th", f"lowest {FEW}" if len(first) > MANY else "", scope="col"), *names)
    )
    table = element("table", top, element("tbody", *rows), class_="numbers")
    return scrolling(table, "Accuracies by class")


def _judged_by(run: Run, accuracy: Accuracy) -> str:
    """Return the radius, as text, that is nearest to the run's own; "clean" where nothing was attacked."""
    nearest = min(accuracy.robust, key=lambda radius: abs(radius - run.radius), default=None)
    return "clean" if nearest is None else str(nearest)


def settings_table(runs: Sequence[Run]) -> Markup:
    """Return every setting and version, a column per run, those that differ marked."""
    values = [_settings(run) for run in runs]
    keys = list(dict.fromkeys(key for one in values for key in one))
    head = element(
        "tr", element("th", "setting", scope="col"), *(element("th", name_tag(r), scope="col") for r in runs)
    )
    bodies = []
    for section, title in SECTIONS.items():
        own = [key for key in keys if (key.partition(".")[0] if "." in key else "") == section]
        rows = [_row(key, [one.get(key) for one in values]) for key in own]
        if rows:
            across = element("th", title, colspan=len(runs) + 1, scope="rowgroup")
            bodies.append(element("tbody", element("tr", across, class_="group"), *rows))
    table = element("table", element("thead", head), *bodies, class_="settings", id="settings-table")
    return scrolling(table, "Settings and versions of all runs")


def scrolling(table: Markup, words: str) -> Markup:
    """Return a table that scrolls by itself where the page is too narrow, also by keys."""
    return element("div", table, class_="scrolling", role="region", tabindex=0, aria_label=words)


def _settings(run: Run) -> dict[str, Any]:
    settings = {key: value for key, value in run.config.items() if key not in NOT_SETTINGS}
    about = flat({key: value for key, value in run.environment.items() if key not in ("seed", "changes")})
    versions = {"versions." + key.removeprefix("versions."): value for key, value in about.items()}
    versions |= {f"versions.change {number}": words for number, words in enumerate(changes(run), 1)}
    return settings | versions


def _row(key: str, values: Sequence[Any]) -> Markup:
    written = [_written(value) for value in values]
    differs = len(set(written)) > 1
    mark = element("span", "differs", class_="mark") if differs else ""
    name = element("th", element("code", key.removeprefix("versions.")), mark, scope="row")
    return element("tr", name, *(element("td", word) for word in written), class_="differs" if differs else None)


def _written(value: Any) -> str:  # noqa: ANN401
    if value is None:
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_written(part)}" for key, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_written(part) for part in value) or DASH
    return f"{value:g}" if isinstance(value, float) else str(value)
