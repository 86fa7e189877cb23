"""What the sections of the page are made of: headings, places for plots, and sentences about what is missing."""

from collections.abc import Callable, Sequence
from importlib import resources

from dyart.report.page.figures import Figure
from dyart.report.page.markup import Markup, element, joined
from dyart.report.page.run import Run
from dyart.report.page.words import listed

TITLES = {
    "runs": "What was trained",
    "networks": "What was measured",
    "accuracy": "Robust accuracy",
    "training": "Training",
    "margins": "Margins",
    "dynamics": "Dynamics",
    "vulnerable": "Most vulnerable",
    "settings": "Settings",
}


def asset(name: str) -> str:
    """Return a file that belongs to the page: template, style, script."""
    return (resources.files("dyart.report.page") / "assets" / name).read_text(encoding="utf-8")


def section(name: str, *children: str) -> Markup:
    """Return a section with its heading."""
    heading = element("h2", TITLES[name], id=f"{name}-title")
    return element("section", heading, *children, id=name, aria_labelledby=f"{name}-title")


def plot(name: str, title: str, caption: str | Markup, shown: Figure | None, wide: bool = False) -> Markup:
    """Return the place of a plot of all runs; nothing where there is nothing to draw."""
    if shown is None:
        return Markup()
    place = element("div", class_="plot", data_figure=name, role="img", aria_label=shown["alt"])
    words = element("figcaption", caption)
    return element("figure", element("h3", title), place, words, class_="wide" if wide else None)


def plot_of_run(name: str, title: str, caption: str | Markup, shown: Sequence[Figure | None]) -> Markup:
    """Return the place of a plot that shows the chosen run alone."""
    if not any(shown):
        return Markup()
    place = element("div", class_="plot", data_figure_of_run=name, role="img", aria_label=title)
    return element("figure", element("h3", title), place, element("figcaption", caption))


def of_run(number: int, *children: str, name: str = "div", class_: str | None = None) -> Markup:
    """Return what is shown while a run is chosen; the first one is, to begin with."""
    return element(name, *children, data_run=number, hidden=number > 0, class_=class_)


def missing(runs: Sequence[Run], lacking: Callable[[Run], bool], what: str, command: Callable[[Run], str]) -> Markup:
    """Return a sentence that says which command would add a part, for the runs that lack it; nothing if none does."""
    without = [run for run in runs if lacking(run)]
    if not without:
        return Markup()
    whose = "" if len(without) == len(runs) else f" of {listed([run.name for run in without])}"
    commands = [element("code", command(run)) for run in without]
    parts = [commands[0], *(joined("; ", command) for command in commands[1:])]
    return element("p", f"Not measured yet: {what}{whose}. To add it: ", *parts, class_="missing")


def navigation(names: Sequence[str]) -> Markup:
    """Return links to the sections."""
    return element("ul", *(element("li", element("a", TITLES[name], href=f"#{name}")) for name in names))
