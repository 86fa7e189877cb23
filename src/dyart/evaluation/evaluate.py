"""``dyart.evaluate``: how many examples resist attacks, at many radii in one pass."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from dyart.attacks.radii import check_radii, width_of
from dyart.attacks.radius import Radius
from dyart.boundary import validation
from dyart.boundary.model import Model, evaluation_mode, ieee_float32, unchanged
from dyart.boundary.norms import NORMS, Norm
from dyart.boundary.progress import Progress
from dyart.boundary.validation import Bounds
from dyart.data import ranks
from dyart.engine.views import wants_compile
from dyart.evaluation import standard
from dyart.evaluation.alarms import masking_alarms
from dyart.evaluation.behaviour import behaviour
from dyart.evaluation.examples import Arrays, Examples, model_digest
from dyart.evaluation.findings import Finding
from dyart.evaluation.guessing import guessing
from dyart.evaluation.journal import OUTPUTS, VERSIONS, open_journal
from dyart.evaluation.ledger import Ledger
from dyart.evaluation.records import versions, write_records
from dyart.evaluation.result import Evaluation
from dyart.evaluation.runner import Runner
from dyart.evaluation.settings import Settings, check_box, extent_of, named_radii
from dyart.evaluation.tiers import PGD, Attack, Tier, beginnings, tier_of
from dyart.evaluation.verdicts import MARGINS, MOST, rounding, slack
from dyart.evaluation.views import Count, Precision, View, attack_view, room_of
from dyart.recipes.config import Switch

RADII = tuple(Radius(f"{k}/255") for k in (2, 4, 8, 12, 16))
# Steps and restarts of the search: where it is all there is, and where attacks come after it. Alone, 40 x 7
# (290 gradients) was at most 0.33 points above AutoAttack at five radii on four small CNNs, 200 to 555 images each;
# 50 x 4, 50 x 5, 60 x 4, 45 x 6 and 100 x 2 were 0.67 to 1 above somewhere. It was chosen on these images: on 173
# others it was 0.58 above at two radii, which is one image each, as 50 x 5 was at three.
ALONE, FIRST = (40, 7), (50, 2)
PRECISIONS = ("auto", "ieee", "tf32", "bf16")
# Compiling takes a minute or so: for fewer examples it is not worth it.
COMPILE_FROM = 2000
BATCH, GPU_BATCH = 256, 1000
# bf16 has 8 bits of a pixel. A DyART ResNet-18 on CIFAR-10 lost as many examples to attacks in it as in TF32, and more
# to the boundary search, at every radius from 2/255 to 16/255 (benchmarks/results/evaluate-precision.json).
BF16_FROM, BF16_CAPABILITY = 2 / 255, (8, 0)
SAMPLE = 512
COMPILED = "_orig_mod"  # where torch.compile keeps the module it was given
FEW = 8  # examples on which models are told apart
SAID = "few classes"  # a finding that the notes on the attacks have, too, in more detail


def evaluate(
    model: Model,
    inputs: Arrays,
    labels: Arrays,
    radii: Sequence[float | str] = RADII,
    attack: Attack = "autoattack",
    norm: Norm = "linf",
    *,
    strict: bool = False,
    bounds: Bounds = (0.0, 1.0),
    batch_size: int | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    index: npt.ArrayLike | None = None,
    rows: npt.ArrayLike | None = None,
    files: Sequence[str] = (),
    folder: str | Path | None = None,
    fresh: bool = False,
    preflight: bool = True,
    expected_accuracy: float | None = None,
    steps: int | None = None,
    restarts: int | None = None,
    precision: Precision | Literal["auto"] = "auto",
    compile: Switch = "auto",
    progress: Progress = False,
    facts: Mapping[str, Any] | None = None,
    team: ranks.Team = ranks.ALONE,
) -> Evaluation:
    """Attack a classifier at many radii and return how many examples resist, with a record of every one of them.

    The accuracies are upper bounds of the true ones: an attack that fails proves nothing. Every point that counts as an
    adversarial example was verified on the model itself, in eval mode and in plain float32 (no TF32, no autocast), at
    its own distance: it counts at every radius from there on. (An input whose label ties with another class is on the
    boundary as it is, at distance 0.)

    By default each example is attacked in full at one radius, the largest below the closest boundary point that a
    search finds first; if it resists there, it is taken to resist at smaller radii. Such verdicts are marked and
    counted (``inferred``). ``strict`` attacks every example that is left at every radius and infers nothing.

    The model's modes, flags, gradients, buffers and the global random state are the same afterwards.

    Args:
        model: any callable from inputs to logits ``[N, K]`` (or to an object with ``.logits``), K >= 2. Of one
            that ``torch.compile`` made, the module inside is evaluated: a compiled graph has one backward pass only.
        inputs: ``[N, ...]``: tensor or array of float32 or float64 inside the bounds, or of uint8 (divided by 255).
            Batches of them are sent to the device one by one. Normalisation belongs inside the model.
        labels: ``[N]``, integers.
        radii: numbers, or texts such as ``"8/255"``; in L2 and L1 there are no usual ones.
        attack: ``"clean"``; ``"pgd"``, 20 steps on the margin loss; ``"margins"``, one boundary search for the whole
            curve; ``"apgd"``, APGD-CE and APGD-T; ``"autoattack"``, the standard one: those, FAB-T and Square. The
            last two run the search and PGD first; ``"autoattack"`` and L1 need the package pyautoattack.
        norm: ``"linf"``, ``"l2"`` or ``"l1"``.
        strict: infer nothing.
        bounds: the box; two finite numbers for ``"apgd"`` and ``"autoattack"``.
        batch_size: examples at a time; None: 1,000 on a GPU, which smaller batches leave idle, else 256. Where memory
            runs out, batches are halved.
        seed: of all draws.
        device: where batches go; None: where ``inputs`` lie, for arrays where the model is.
        index: places of the examples to evaluate; None: all. They name the examples in the records.
        rows: what the records call each of ``inputs`` instead, e.g. its row in the file that they were drawn from.
        files: the file of each of ``inputs``, for a column ``file`` of ``per_example.csv``.
        folder: keeps a journal there, so that an evaluation that was killed goes on where it was when it is called
            again, and writes ``evaluation.json``, ``evaluation.npz`` and ``per_example.csv`` at the end. A finished
            one with ``"apgd"`` that lies there, all else being the same, is the beginning of one with ``"autoattack"``,
            unless that is strict; one of something else is replaced.
        fresh: forget the folder's journal.
        preflight: first check that model and inputs are what attacks need.
        expected_accuracy: the clean accuracy measured before, for the preflight to compare with.
        steps: of the boundary search; None: 40 where nothing else is run, 50 before attacks.
        restarts: of the boundary search; None: 7 where nothing else is run, 2 before attacks.
        precision: of the attacks: ``"ieee"`` float32, ``"tf32"`` or ``"bf16"``; ``"auto"``: on a GPU bf16 for linf
            radii from 2/255 of the box on, else TF32. What an attack finds there and the model itself does not confirm
            is attacked again in plain float32 (not by PGD where others come after it).
        compile: compile a copy of the model for the attacks; ``"auto"``: on a GPU, from 2,000 examples on.
        progress: True for a progress line on stderr, or a callable ``(done, total)`` of batches.
        facts: further entries for ``evaluation.json``, e.g. the name of the data set.
        team: processes that divide the batches among them (``dyart.data.ranks.team_here()``): each calls this alike and
            has the same result, that of one process; the first alone writes.

    Raises:
        PreflightError: the model or the inputs are not what attacks need; the message says what to do.
        JournalError: the folder holds an unfinished evaluation of something else, or another process is at work there.
        ImportError: ``"autoattack"``, or ``"apgd"`` for L1, without pyautoattack.
    """
    validation.check_choice("norm", norm, NORMS)
    if radii is RADII and norm != "linf":
        if attack != "clean":
            raise ValueError(f"norm={norm!r} needs radii: the usual ones are of linf")
        radii = ()
    validation.check_choice("precision", precision, PRECISIONS)
    validation.check_choice("compile", compile, get_args(Switch))
    if batch_size is not None:
        validation.check_count("batch_size", batch_size, 1)
    validation.check_count("seed", seed, 0)
    if steps is not None:
        validation.check_count("steps", steps, 2)
    if restarts is not None:
        validation.check_count("restarts", restarts, 1)
    if expected_accuracy is not None and not 0 <= expected_accuracy <= 1:
        raise ValueError(
            f"expected_accuracy is a share between 0 and 1, got {expected_accuracy!r}: divide percents by 100"
        )
    model = getattr(model, COMPILED, model)
    examples = Examples(inputs, labels, device, model, index)
    called = examples.index if rows is None else np.asarray(rows, dtype=np.int64)[examples.index]
    if len(files) not in (0, len(inputs)):
        raise ValueError(f"files names {len(files)} files, there are {len(inputs)} inputs")
    check_box(bounds, examples.inputs.dtype)
    tier, notes = tier_of(attack, norm, bounds, examples.shape)
    _need_pyautoattack(attack, tier, norm)
    ascending = named_radii(radii)
    if not ascending and attack != "clean":
        raise ValueError("radii is empty: give at least one, or use attack='clean'")
    check_radii(ascending, norm, int(np.prod(examples.shape)), width_of(bounds))
    usual = FIRST if tier.battery else ALONE
    batch = batch_size or (GPU_BATCH if examples.device.type == "cuda" else BATCH)
    counts = (int(batch), int(steps or usual[0]), int(restarts or usual[1]))  # numpy's integers are none to JSON
    settings = Settings(ascending, attack, norm, strict or tier.walks_up, int(seed), bounds, *counts)
    target = None if folder is None else Path(folder)
    with ExitStack() as stack:
        stack.enter_context(ieee_float32(examples.device))
        findings = _checked(model, examples, settings, expected_accuracy) if preflight else []
        stack.enter_context(evaluation_mode(model))
        stack.enter_context(unchanged(model, examples.device))
        plain, view, slower = _views(model, examples, settings, tier, precision, compile)
        notes += slower
        weaker = [] if settings.strict else [{"attack": name} for name in beginnings(attack)]
        journal = open_journal(team, target, lambda: _about(model, plain, view, examples, settings), fresh, weaker)
        stack.callback(journal.close)
        names = ([MARGINS] if tier.search else []) + ([PGD] if tier.probe else []) + list(tier.battery)
        width, coarse = _slack(settings, examples)
        notes += coarse
        ledger = Ledger(called, examples.labels, settings.radii, width, norm, names)
        runner = Runner(settings, tier, examples, plain, view, journal, ledger, progress, team)
        if journal.resumed and progress is True:
            print(f"going on after {journal.resumed} batches in {journal.path}", file=sys.stderr)
        runner.run()
        notes += standard.replaced(tier.battery, runner.classes, norm)
        verdicts = ledger.close()
        notes += [words] if (words := guessing(verdicts.predictions, verdicts.labels)) else []
        notes += _divided(ledger, tier, settings.batch_size)
        result = Evaluation(
            verdicts=verdicts,
            settings=settings,
            words=tier.words,
            findings=findings,
            alarms=masking_alarms(verdicts),
            notes=notes,
            costs={name: dict(cost) for name, cost in ledger.costs.items()},
            view=_facts_of(view, examples.device),
            facts=dict(facts or {}),
            files=[files[place] for place in examples.index] if len(files) else (),
            taken=journal.finished,
            replaced=journal.replaced,
            versions=versions() if journal.path is None else journal.about.get(VERSIONS, {}),  # {}: of earlier versions
        )
        if target is not None and team.rank == 0:
            write_records(result, target)
    return result


def _divided(ledger: Ledger, tier: Tier, batch_size: int) -> list[str]:
    """Return a note on attacks whose random starts depend on how batches were divided; none where none were."""
    drawn = {name: ledger.divided[name] for name in tier.battery if name in ledger.divided and name != PGD}
    if not drawn:
        return []
    size = min(drawn.values())
    return [
        f"memory ran out: {', '.join(drawn)} attacked some batches of {batch_size} in parts, with other random starts "
        f"than a whole batch has; an evaluation with batch_size={size} can be repeated"
    ]


def _slack(settings: Settings, examples: Examples) -> tuple[npt.NDArray[np.float64], list[str]]:
    """Return what rounding may add to each radius, by the size of the inputs; and a note where it would add more."""
    double = str(examples.inputs.dtype).endswith("float64")
    largest = examples.largest() + max(map(float, settings.radii), default=0.0)
    extent = min(extent_of(settings.bounds), largest)
    precision = float(np.finfo(np.float64 if double else np.float32).eps)
    about = settings.norm, int(np.prod(examples.shape)), extent, precision
    lost, notes = rounding(*about), []
    coarse = [str(radius) for radius in settings.radii if lost > MOST * float(radius)]
    if coarse:
        words = f"inputs are as large as {extent:.3g}, and rounding there moves a point by up to {lost:.2g}"
        notes = [f"{words}: no small part of the radius {', '.join(coarse)}; scale the features, or pass float64"]
    return slack(settings.radii, *about), notes


def _about(model: Model, plain: View, view: View, examples: Examples, settings: Settings) -> dict[str, Any]:
    """Return what a journal is about: settings, data, and the model by its weights and by what it does.

    A callable shows no weights, and two networks with the same ones may differ in what they do with them.
    """
    few = examples.batch(np.arange(min(len(examples), FEW)))[0]
    return settings.plain() | {
        "model": model_digest(model),
        "precision": view.precision,
        OUTPUTS: behaviour(plain, few, settings.bounds),
        "data": examples.digest(),
        "examples": len(examples),
        VERSIONS: versions(),
    }


def _checked(model: Model, examples: Examples, settings: Settings, expected_accuracy: float | None) -> list[Finding]:
    """Return what the preflight finds on a sample of the examples; fatal findings are raised."""
    from dyart.evaluation.preflight import preflight, stop_on_fatal

    rows = np.sort(np.random.RandomState(0).permutation(len(examples))[:SAMPLE]).astype(np.int64)
    x, y = examples.batch(rows)
    findings = preflight(
        model,
        x,
        y,
        norm=settings.norm,
        bounds=settings.bounds,
        expected_accuracy=expected_accuracy,
        index=torch.from_numpy(examples.index[rows]),
    )
    stop_on_fatal(findings)
    return [finding for finding in findings if finding.kind != SAID]


def _views(
    model: Model, examples: Examples, settings: Settings, tier: Tier, precision: str, compile: Switch
) -> tuple[View, View, list[str]]:
    """Return the user's model in plain float32, what attacks search on, and a note where that is not compiled."""
    device, batch = examples.device, min(settings.batch_size, len(examples))
    dtype = torch.float64 if str(examples.inputs.dtype).endswith("float64") else torch.float32
    plain = View(model, Count(), "ieee", dtype, room=room_of(device, "ieee", batch))
    if precision == "auto":
        precision = _usual_precision(settings, device) if dtype == torch.float32 else "ieee"
    wanted, reason = wants_compile(compile, device)
    enough = compile == "on" or (len(examples) >= COMPILE_FROM and (tier.search or bool(tier.battery)))
    few = examples.batch(np.arange(min(2, len(examples))))[0]
    view = attack_view(model, plain, device, precision, wanted and enough, batch, few)  # type: ignore[arg-type]
    return plain, view, [f"attacked {reason}"] if reason and enough else []


def _usual_precision(settings: Settings, device: torch.device) -> Precision:
    """Return the quickest precision that attacks lose nothing by, as far as that was measured."""
    if device.type != "cuda":
        return "ieee"
    finest = min(map(float, settings.radii), default=0.0) / width_of(settings.bounds)
    coarse = settings.norm == "linf" and finest > 0.999 * BF16_FROM
    return "bf16" if coarse and torch.cuda.get_device_capability(device) >= BF16_CAPABILITY else "tf32"


def _facts_of(view: View, device: torch.device) -> dict[str, Any]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {"precision": view.precision, "compiled": view.fast is not None, "device": name}


def _need_pyautoattack(attack: str, tier: Tier, norm: Norm) -> None:
    if standard.needs_pyautoattack(tier.battery, norm):
        try:
            import pyautoattack  # noqa: F401
        except ImportError as error:
            others = "attack='margins'" if norm == "l1" else "attack='apgd' or 'margins'"
            raise ImportError(
                f"attack={attack!r} in {norm} needs the package pyautoattack: pip install pyautoattack, or use {others}"
            ) from error
