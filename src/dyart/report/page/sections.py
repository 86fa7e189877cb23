"""The page's sections, as HTML: headings, words and tables; the plots are drawn into them by the page's script."""

import shlex
from collections.abc import Sequence

import numpy as np

from dyart.engine.stored import CONFIG
from dyart.evaluation.records import FILE as EVALUATION
from dyart.report.page import curves, motion
from dyart.report.page.colours import slots
from dyart.report.page.figures import Figure, correct_share, distances, median_margin
from dyart.report.page.files import Accuracy
from dyart.report.page.markup import Markup, element, joined
from dyart.report.page.parts import asset, missing, of_run, plot, plot_of_run, section
from dyart.report.page.recipe import of_recipe
from dyart.report.page.run import MONITOR, Run
from dyart.report.page.subject import same_data
from dyart.report.page.tables import accuracy_table, class_table, name_tag, settings_table
from dyart.report.page.weights import earlier_accuracy, earlier_dynamics, earlier_margins, of_earlier
from dyart.report.page.words import NORMS, how, interval, listed, method_of, percent
from dyart.report.smoothing import MOST
from dyart.report.style import method_name


def cards(runs: Sequence[Run]) -> Markup:
    """Return one card per run: what it is, how it was trained, its main numbers."""
    return section(name_of_cards(runs), element("div", *(_card(run) for run in runs), class_="cards"))


def name_of_cards(runs: Sequence[Run]) -> str:
    """Return the name of the first section: by whether all of them were trained."""
    return "runs" if all(run.trained for run in runs) else "networks"


def _card(run: Run) -> Markup:
    numbers: list[tuple[str, str, str, str]] = []
    if run.accuracy:
        checkpoint = run.accuracy.checkpoint
        numbers.append(("clean accuracy", percent(run.accuracy.clean.value), interval(run.accuracy.clean), checkpoint))
        robust = run.accuracy.robust.get(run.radius)
        if robust:
            numbers.append((f"robust at {run.radius}", percent(robust.value), interval(robust), checkpoint))
    elif right := correct_share(run):
        more = f"{interval(right)}, {right.count:,} examples"
        numbers.append(("clean accuracy", percent(right.value), more, run.searched))
    middle = median_margin(run)
    if middle is not None:
        more = f"{NORMS.get(run.norm, run.norm)}, {_right(run)}"
        numbers.append(("median margin", f"{middle:.3g}", more, run.searched))
    own = run.shares.methods.get(str(run.config.get("method.name"))) if run.shares else None
    if run.shares and own and own.below.count:
        below = f"of those below {run.shares.radius}"
        numbers.append(("losing margin", percent(own.below.value), below, run.shares.checkpoint))
    values = [
        element("div", element("dt", term), element("dd", value, element("small", more), _whose(run, checkpoint)))
        for term, value, more, checkpoint in numbers
    ]
    words = of_recipe(run)
    note = element("p", words, class_="note") if words else ""
    problems = [element("p", problem, class_="missing") for problem in run.damaged]
    return element(
        "article",
        element("h3", name_tag(run), element("span", method_of(run), class_="method") if run.trained else ""),
        element("dl", *values, class_="numbers") if values else "",
        *(element("p", sentence) for sentence in how(run)),
        note,
        *problems,
        style=f"--own:var(--{run.colour})",
    )


def _right(run: Run) -> str:
    """Return which examples a median margin is of: those that are classified correctly have one."""
    known = distances(run)
    right, count = (0, 0) if known is None else (int((known > 0).sum()), len(known))
    return f"{count:,} examples" if right == count else f"the {right:,} classified correctly, of {count:,}"


def _counts(runs: Sequence[Run]) -> list[str]:
    """Return how many examples have been searched from, every number once."""
    return [f"{count:,}" for count in sorted({len(run.margins["margin"]) for run in runs if run.margins is not None})]


def _whose(run: Run, checkpoint: str) -> Markup:
    words = of_earlier(run, checkpoint)
    return element("small", words) if words else Markup()


def accuracy(runs: Sequence[Run], shown: Figure | None) -> Markup:
    """Return the section on robust accuracy."""
    attacks = sorted({run.accuracy.attack for run in runs if run.accuracy})
    images = sorted({run.accuracy.images for run in runs if run.accuracy})
    caption = "Share of test examples that are classified correctly at every point found within the radius. "
    if attacks:
        caption += f"Points: {listed(attacks)} on {listed([f'{n:,}' for n in images])} images, with 95 % intervals "
        caption += "(Wilson). "
    if any(run.margins is not None for run in runs):
        caption += f"Dotted: by the margins alone, of {listed(_counts(runs))} images. "
    caption += "What an attack does not find it does not count: these are upper bounds."
    return section(
        "accuracy",
        element(
            "div",
            plot("accuracy", "Accuracy against radius", caption, shown, wide=True),
            accuracy_table(runs),
            class_="sided",
        ),
        by_class(runs),
        *(_evaluated(run) for run in runs),
        earlier_accuracy(runs),
        earlier_margins(runs) if shown else "",  # the dotted lines
        *(_alarm(run, alarm) for run in runs if run.accuracy for alarm in run.accuracy.alarms),
        missing(runs, lambda run: run.accuracy is None, "robust accuracy", lambda run: run.command("evaluate")),
    )


def by_class(runs: Sequence[Run]) -> Markup:
    """Return the accuracies by class, where an evaluation has them: a mean may hide a class that is lost."""
    table = class_table(runs)
    return element("div", element("h3", "By class"), table, class_="by-class") if table else Markup()


def _alarm(run: Run, words: str) -> Markup:
    return element("p", element("strong", f"{run.name}: "), words, class_="missing alarm")


def _evaluated(run: Run) -> Markup:
    """Return what the drawn evaluation is of, where it is not of the whole test set; and a line on each other."""
    name = element("strong", f"{run.name}: ")
    lines = []
    shown = run.accuracy
    if shown and (shown.partial or _file(run, shown) != EVALUATION):
        only = " only" if shown.partial else ""
        where = f" ({_file(run, shown)})" if _file(run, shown) != EVALUATION else ""
        lines.append(element("p", name, f"evaluated on {_images(shown)}{only}{where}.", class_="missing"))
    return joined(*lines, *(element("p", name, _other(run, other)) for other in run.others))


def _other(run: Run, other: Accuracy) -> str:
    """Return an evaluation beside the one that is drawn, in words."""
    shares = {"clean": other.clean} | {str(radius): share for radius, share in other.robust.items()}
    numbers = [f"{name} {percent(share.value)} ({interval(share)})" for name, share in shares.items()]
    digests = (other.data_digest, run.data_digest)
    data = f" of {other.data}" if not same_data(other.data, str(run.config.get("data.name", "")), digests) else ""
    words = f"{'also ' if run.accuracy else ''}evaluated in {NORMS.get(other.norm, other.norm)} on {_images(other)}"
    words += f"{data} ({_file(run, other)}; {other.attack}): {', '.join(numbers)}."
    whose = of_earlier(run, other.checkpoint)
    return " ".join([words, *([f"That is {whose}."] if whose else []), *other.alarms])


def _file(run: Run, accuracy: Accuracy) -> str:
    """Return where an evaluation is: the run's own file, or a folder beside it."""
    return EVALUATION if accuracy.folder == run.folder.name else accuracy.folder


def _images(accuracy: Accuracy) -> str:
    return f"{accuracy.images:,}" + (f" of {accuracy.drawn_from:,}" if accuracy.partial else "") + " test images"


def training(runs: Sequence[Run], shown: dict[str, Figure | None], others: Sequence[str]) -> Markup:
    """Return the section with the training curves."""
    faint = any(curves.TRAINED[0] in record for run in runs for record in run.epochs)
    key = joined(_stroke("solid", "robust"), " ", _stroke("dashed", "clean"), " ★ best epoch. ")
    key = joined(key, "On images that are never trained on", "; faint: on training images." if faint else ".")
    menu = Markup()
    if others:
        options = [element("option", name, value=name) for name in others]
        choice = element("label", "Also logged: ", element("select", *options, id="other-choice"))
        place = element("div", class_="plot", id="other-plot", role="img", aria_label="")
        menu = element("figure", element("h3", choice), place, element("figcaption", "Means over steps, as logged."))
    plots = joined(
        plot("validation", "Accuracy through the training", key, shown["validation"]),
        plot("loss", "Training loss", "Methods minimise different losses: compare its course, not its height.",
             shown["loss"]),
        plot("rate", "Learning rate", "At the logged steps.", shown["rate"]),
        menu,
    )  # fmt: skip
    begun = missing(
        runs,
        lambda run: run.trained and not run.epochs,
        "a whole epoch",
        lambda run: f"{run.command('train')} --resume",
    )
    if not plots and not begun:
        begun = element("p", "No curves: no number was logged twice (train.log_every).", class_="missing")
    return section("training", element("div", plots, class_="grid"), begun)


def margins(
    runs: Sequence[Run], histogram: Figure | None, fans: Sequence[Figure | None], negatives: Sequence[Figure | None]
) -> Markup:
    """Return the section on the distribution of margins, at the end and through the training."""
    wide = f"Distance of {listed(_counts(runs)) or 'the'} test examples from the decision boundary; the last bar has "
    wide += "all larger ones. Wrong ones have none."
    bands = "Margins of those watched examples that have one, being classified as labelled at that time: the median, "
    bands += "half of them (dark band), nine in ten (light band)."
    closer = "Of the watched examples below the radius, the share that a step of the training, as the optimizer takes "
    closer += "it, brings the boundary closer to; "
    closer += f"thick: running mean of up to {MOST} observations, at most a fifth of them."
    watched = joined(*(_watched(number, run) for number, run in enumerate(runs)))
    return section(
        "margins",
        element(
            "div",
            plot(
                "histogram",
                "Margins after training" if all(run.trained for run in runs) else "Margins as measured",
                wide,
                histogram,
            ),
            plot_of_run("fan", "Margins through the training", bands, fans),
            plot_of_run("negative", "Losing margin through the training", closer, negatives),
            class_="grid three",
        ),
        watched,
        earlier_margins(runs),
        missing(
            runs,
            lambda run: run.margins is None,
            "the margin of every test example",
            lambda run: run.command("margins"),
        ),
        missing(runs, _unwatched, "margins through the training", _watch),
    )


def _unwatched(run: Run) -> bool:
    """Return whether nothing was watched; of what cannot be read, the card says so."""
    return run.trained and run.monitor is None and not (run.folder / MONITOR).is_file()


def _watch(run: Run) -> str:
    """Return the command for another training, which alone can tell."""
    config, out = (shlex.quote(str(path)) for path in (run.folder / CONFIG, f"{run.folder}-watched"))
    steps = max((record["step"] for record in run.metrics), default=0)
    every = 50 if steps >= 1000 or not steps else max(steps // 20, 1)  # some twenty observations of a short training
    return f"dyart train {config} --monitor.every {every} --out {out}"


def _watched(number: int, run: Run) -> Markup:
    seen = run.monitor
    if seen is None or np.isnan(seen["correlation"]).all():
        return Markup()
    words = f"Predicted and actual movement of the boundary, while {run.name} trained: correlation "
    known = seen["correlation"][~np.isnan(seen["correlation"])]
    words += f"{np.median(known):.3f} (median over {len(known)} observed steps)."
    return of_run(number, words, name="p")


def dynamics(runs: Sequence[Run], bars: Sequence[Figure | None]) -> Markup:
    """Return the section with the scatter, its card, and the shares of negative speed."""
    # Nobody has said whether methods are of interest for a network that was trained elsewhere: nothing is lacking.
    lacking = missing(
        runs,
        lambda run: run.trained and run.dynamics is None,
        "the speed of the boundary",
        lambda run: run.command("dynamics"),
    )
    if not any(motion.moving(run) for run in runs):
        return section("dynamics", _uncounted(runs), earlier_dynamics(runs), lacking)
    intro = element("p", "How one training step would move the boundary, seen from every example: away from it (the "
                    "margin grows) or towards it.", class_="lede")  # fmt: skip
    methods = joined(*(_methods(number, run) for number, run in enumerate(runs)))
    verdicts = [
        of_run(number, *(element("p", sentence) for sentence in _said(run)), class_="verdicts")
        for number, run in enumerate(runs)
    ]
    caption = joined(methods, "Share of examples that a step brings the boundary closer to, with 95 % intervals.")
    return section(
        "dynamics",
        intro,
        Markup(asset("scatter.html")),
        element("div", plot_of_run("bars", "Who loses margin", caption, bars), *verdicts, class_="sided below"),
        _uncounted(runs),
        earlier_dynamics(runs),
        lacking,
    )


def _said(run: Run) -> list[str]:
    return [sentence for sentence in (*motion.verdicts(run), motion.step_words(run)) if sentence]


def _uncounted(runs: Sequence[Run]) -> Markup:
    names = [run.name for run in runs if run.dynamics is not None and motion.points(run) is None]
    words = f"Nothing to show of {listed(names)}: no example is classified correctly and has a locally closest point."
    return element("p", words, class_="missing") if names else Markup()


def vulnerable(runs: Sequence[Run]) -> Markup:
    """Return the section with the gallery."""
    lacking = missing(
        runs,
        lambda run: run.dynamics is None and run.margins is None,
        "closest boundary points",
        lambda run: run.command("margins"),
    )
    words = (
        "The examples closest to the decision boundary: the image, the closest point where the class changes, and the "
    )
    words += "difference between the two, enlarged (of grey pictures: orange is brighter, blue darker)."
    button = element("button", "Show more", type="button", id="more", hidden=True)
    gallery = element("ul", id="gallery", class_="gallery")
    blind = [run.name for run in runs if run.pictures is None and (run.dynamics is not None or run.margins is not None)]
    unseen = (
        f"No pictures of {listed(blind)}: the examples are no images, or nothing in the folder keeps them. dyart "
        "margins and dyart dynamics do."
    )
    pictures = element("p", unseen, class_="missing") if blind else ""
    if not any(motion.points(run) for run in runs):
        return section("vulnerable", _uncounted(runs), pictures, lacking)
    older = joined(
        earlier_dynamics([run for run in runs if run.dynamics is not None]),
        earlier_margins([run for run in runs if run.dynamics is None]),
    )
    return section("vulnerable", element("p", words, class_="lede"), gallery, button, older, pictures, lacking)


def settings(runs: Sequence[Run]) -> Markup:
    """Return the section with all settings and versions."""
    only = Markup()
    if len(runs) > 1:
        box = element("input", type="checkbox", id="only-differences")
        only = element("p", element("label", box, " only what differs"), class_="only")
    return section("settings", only, settings_table(runs))


def switch(runs: Sequence[Run]) -> Markup:
    """Return the choice between runs: radio buttons, which keyboards and screen readers know."""
    if len(runs) < 2:
        return Markup()
    choices = [
        joined(
            element("input", type="radio", name="run", value=number, id=f"run-{number}", checked=number == 0),
            element("label", name_tag(run), for_=f"run-{number}"),
        )
        for number, run in enumerate(runs)
    ]
    return element("fieldset", element("legend", "Run shown"), *choices, class_="switch", id="switch")


def _methods(number: int, run: Run) -> Markup:
    names = list(run.shares.methods) if run.shares else []
    swatches = [
        element("span", element("span", class_="spot", style=f"background:var(--{colour})"), method_name(name), " ")
        for colour, name in zip(slots(names), names, strict=True)
    ]
    return of_run(number, *swatches, name="span", class_="key")


def _stroke(kind: str, words: str) -> Markup:
    return element("span", element("span", class_=f"stroke {kind}", aria_hidden="true"), words, class_="key")
