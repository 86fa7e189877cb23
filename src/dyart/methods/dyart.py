"""DyART: dynamics-aware robust training (the paper's section 5).

    L = (1/n) sum_i CE(z(x_i), y_i) + (lambda/n) sum_{i in B+} h(R_soft(x_i))

with B+ the examples inside the soft boundary, R_soft the distance to it, and the margin gradient for the second term.
Points that fail the paper's conditions (a) and (b) are left out, as in the paper (its appendix C.2).
"""

import warnings
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor

from dyart.attacks.kl import kl_divergence
from dyart.attacks.pgd import ATTACK_NORMS, clipped, steepest
from dyart.attacks.radii import check_unit
from dyart.boundary import validation
from dyart.boundary.cost import Cost, ExponentialCost, check_cost
from dyart.boundary.gradient import margin_costs, margin_weights
from dyart.boundary.kernels import compiled
from dyart.boundary.margins import BOUNDARIES, Boundary, boundary_value
from dyart.boundary.model import Model, evaluation_mode, logits_of
from dyart.boundary.norms import NORMS, Norm, flat, per_row, positive
from dyart.boundary.norms import norm as norm_of
from dyart.boundary.points import BoundaryPoints, Passes
from dyart.boundary.problem import Problem
from dyart.boundary.retiring import Retiring
from dyart.boundary.search import assemble
from dyart.boundary.solvers.fast import fast_search_from
from dyart.boundary.solvers.schedules import BRIEF, CRAFTED
from dyart.boundary.validation import Bounds, as_bounds
from dyart.data.loader import Batch
from dyart.data.ranks import Shard, gathered
from dyart.methods.base import Method, Metrics, accuracy, classification_loss, logits_of_both, register
from dyart.methods.idle import why_idle
from dyart.methods.step_count import COUNTS, StepCount
from dyart.methods.ways import Ways

Keep = Literal["conditions", "optimal", "found"]
Statistics = Literal["batch", "running"]

KEEP: tuple[Keep, ...] = get_args(Keep)
STATISTICS: tuple[Statistics, ...] = get_args(Statistics)
# Of Newton's method in a projection: a fixed number needs no host synchronisation. For p = inf two mostly end short of
# the plane by less than a thousandth of the way, which the overshoot makes up for; for p = 2 they may by a tenth.
PROJECTION_ROUNDS: dict[Norm, int] = {"linf": 2, "l2": 4, "l1": 2}
QUANTILES = (10, 50, 90)


@register("dyart")
class DyART(Method[BoundaryPoints]):
    """The DyART objective, for the engine and for anybody's training loop.

    Calling it costs ``steps`` forward and input-gradient passes for the search, which runs in eval mode (BatchNorm
    with its running statistics), and one forward pass over boundary points and clean images together, in the mode
    that the model is in: BatchNorm statistics in training mode see the boundary points too. Autocast applies to both
    if the caller has it on; margins, weights and losses are float32 or better.

    Args:
        alpha: of ``ExponentialCost``: how strongly small margins come first.
        r0: of ``ExponentialCost``: margins from here on cost nothing.
        lam: weight of the margin term (the paper's lambda). Like alpha it has a unit, one over a distance: in another
            norm, or for inputs of another scale, keep ``alpha * r0`` and ``lam * r0``.
        beta: inverse temperature of the soft boundary.
        steps: gradient evaluations of the search, at least 2.
        search_model: what the search calls instead of the model, e.g. a compiled copy that shares its weights, in
            eval mode.
        norm: ``"linf"``, ``"l2"`` or ``"l1"``.
        boundary: ``"soft"`` (the paper's) or ``"exact"``.
        bounds: of the inputs and their boundary points, ``(low, high)``, numbers or tensors; None: none.
        cost: a cost h of one's own instead of alpha and r0 (see ``Cost``); margins from r0 on still take no part.
        joint: clean images and boundary points in one forward pass, so that BatchNorm sees them together. False:
            two passes, boundary points first, as in the paper's released code; with BatchNorm in training mode the
            network then learns to tell the two batches apart.
        statistics: of BatchNorm at boundary points: ``"batch"``, or ``"running"`` for a pass of their own in eval mode:
            the boundary that is raised is then the one that was searched, except that this step's images have updated
            the running statistics in between.
        keep: points that take part: ``"conditions"`` (the paper's (a) and (b)), ``"optimal"`` (value and alignment),
            or ``"found"`` (all).
        box_aware: divide by the multiplier that leaves out pinned coordinates; False: the paper's ||grad_x Phi||_q.
        relative: divide the weights of the margin gradient by their mean over the batch's used points. Without it they
            grow as the network becomes less steep, and with them the share of the margin term in the loss. lam is
            another quantity then, hundreds of times smaller; the logged ``margin_loss`` keeps its meaning.
        kl: weight of one more term, as in TRADES: KL(p(x) || p(x_hat)) of the used points, summed, over the batch size.
        kl_radius: with ``kl``, another place for that term: this far from the input, on the way to the boundary point
            or beyond it; of examples without one, down the gradient of the margin function at the input. All examples
            take part then. One more batch in the forward pass of boundary points. Not for ``"l1"``, where a step down
            would move one coordinate, and not with ``warm_start``, which does not see the gradient at the input.
        warm_start: search from where the example's point was in the epoch before, moved as the image is by its new crop
            and mirroring; an example without one searches as usual. One more forward pass (of the input), one byte of
            memory per coordinate of the training set, on the device and in checkpoints (154 MB for CIFAR-10); in the
            engine, which knows examples by their index, and not elsewhere (a call warns).
        retire: examples leave the search once it shows that they have no margin, one surely beyond r0, or a point that
            is locally optimal to 2 per cent. Host synchronisation: where shapes must be static, i.e. where the network
            is compiled or the step captured, nobody leaves, since a masked example would cost its passes all the same.
        adaptive_steps: take 5, 7, 10, 14 or 20 steps, chosen for every epoch by the share of good points in the one
            before (see ``dyart.methods.step_count``), beginning with ``steps``; in the engine alone (a call warns).
    """

    needs_burn_in = True
    # As fast as bfloat16 and 8 times as fine, which small margins need. Its range suits the margin function: the slope
    # in the logits is about 1 everywhere, where that of a cross-entropy vanishes.
    crafting = torch.float16

    def __init__(
        self,
        alpha: float = 3.0,
        r0: float = 16 / 255,
        lam: float = 1000.0,
        beta: float = 5.0,
        steps: int = 10,
        search_model: Model | None = None,
        *,
        norm: Norm = "linf",
        boundary: Boundary = "soft",
        bounds: Bounds = (0.0, 1.0),
        cost: Cost | None = None,
        joint: bool = True,
        statistics: Statistics = "batch",
        keep: Keep = "conditions",
        box_aware: bool = True,
        relative: bool = False,
        kl: float = 0.0,
        kl_radius: float | None = None,
        warm_start: bool = False,
        retire: bool = False,
        adaptive_steps: bool = False,
    ) -> None:
        """Check and keep the settings; a cost of one's own is checked for what the paper asks of it."""
        validation.check_choice("norm", norm, NORMS)
        validation.check_choice("boundary", boundary, BOUNDARIES)
        validation.check_choice("keep", keep, KEEP)
        validation.check_choice("statistics", statistics, STATISTICS)
        validation.check_weight("kl", kl)
        if kl_radius is not None:
            validation.check_positive("kl_radius", kl_radius)
            validation.check_choice("norm", norm, ATTACK_NORMS)
            if not kl:
                raise ValueError("kl_radius places the term of kl: give kl a weight, or leave kl_radius out")
            if warm_start:
                raise ValueError("kl_radius needs the gradient at the input, which warm_start does without: choose one")
        validation.check_positive("r0", r0)
        validation.check_positive("beta", beta)
        validation.check_count("steps", steps, 2)
        if adaptive_steps and steps > COUNTS[-1]:
            raise ValueError(f"adaptive_steps takes at most {COUNTS[-1]} steps, got steps={steps}: begin with fewer")
        validation.check_weight("lam", lam)
        exponential = ExponentialCost(alpha, r0)
        if cost is not None:
            check_cost(cost, r0)
        self.cost: Cost = exponential if cost is None else cost
        self.r0, self.lam, self.beta, self.steps = r0, lam, beta, steps
        self.norm, self.boundary = norm, boundary
        self.bounds = None if bounds is None else validation.as_pair(bounds)
        self.search_model, self.joint, self.statistics = search_model, joint, statistics
        self.keep, self.box_aware, self.relative = keep, box_aware, relative
        self.kl, self.kl_radius = kl, kl_radius
        self.warm_start, self.retire, self.adaptive_steps, self.examples = warm_start, retire, adaptive_steps, 0
        self.ways: Ways | None = None
        self.counter: StepCount | None = None

    def prepare(self, examples: int, device: torch.device) -> None:
        """Take note of how many examples there are to know the ways of, and choose the steps from here on."""
        self.examples, self.device = examples, device
        if self.adaptive_steps:
            self.counter = StepCount(self.steps, device)

    def advance(self, fraction: float) -> None:
        """Choose the number of steps of an epoch."""
        super().advance(fraction)
        if self.counter is not None:
            self.counter.look(fraction)
            self.steps = self.counter.count

    @property
    def stage(self) -> Hashable:
        """The number of steps, if it changes."""
        return None if self.counter is None else self.steps

    @property
    def couples(self) -> bool:
        """Costs are relative to the mean weight of the batch, if they are ``relative``."""
        return self.relative

    def state_dict(self) -> dict[str, Tensor]:
        """Return what is kept: the ways by index, and what the number of steps is chosen by."""
        ways = {} if self.ways is None else {"steps": self.ways.steps, "sizes": self.ways.sizes}
        return ways | ({} if self.counter is None else {"tally": self.counter.tally, "past": self.counter.past})

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take it back; the number of steps follows with ``advance``."""
        known = ["sizes", "steps"] * self.warm_start + ["past", "tally"] * (self.counter is not None)
        if not known or not state:
            return super().load_state_dict(state)
        if not state.keys() <= set(known) or ("steps" in state) != ("sizes" in state):
            raise ValueError(f"the method {self.name!r} keeps {known}, the checkpoint has {sorted(state)}")
        if "steps" in state:
            self._load_ways(state)
        if self.counter is not None and "past" in state:
            self.counter.tally.copy_(state["tally"])
            self.counter.past.copy_(state["past"])

    def _load_ways(self, state: dict[str, Tensor]) -> None:
        if len(state["steps"]) != self.examples:
            raise ValueError(
                f"the checkpoint has ways of {len(state['steps'])} examples, the training set {self.examples}"
            )
        if self.ways is None:
            self.ways = Ways(self.examples, state["steps"].shape[1:], self.device)
        # In place: what is captured reads them where they are.
        self.ways.steps.copy_(state["steps"])
        self.ways.sizes.copy_(state["sizes"])

    def search(self, model: Model, inputs: Tensor, labels: Tensor) -> BoundaryPoints:
        """Return the points that one call trains on: ``steps`` passes, no host synchronisation but with ``retire``."""
        nothing = torch.zeros((), dtype=torch.int64, device=inputs.device)
        with self._nameless():
            return self.crafted(model, Batch(inputs, labels, nothing, nothing))

    @contextmanager
    def _nameless(self) -> Iterator[None]:
        """Do without warm starts."""
        kept = self.warm_start, self.ways
        self.warm_start, self.ways = False, None
        try:
            yield
        finally:
            self.warm_start, self.ways = kept

    def _crafting_model(self, model: Model) -> Model:
        """Return the search model, if there is one."""
        return super()._crafting_model(model if self.search_model is None else self.search_model)

    def check_settings(self) -> None:
        """Raise if r0 is larger than the box; warn of settings that need the engine."""
        check_unit("r0", self.r0, self.norm, self.bounds)
        if self.kl_radius is not None:
            check_unit("kl_radius", self.kl_radius, self.norm, self.bounds)
        idle = ["warm_start"] * self.warm_start + ["adaptive_steps"] * (self.adaptive_steps and self.counter is None)
        if idle:
            warnings.warn(
                f"{' and '.join(idle)}: without effect in this loop. The engine (dyart train) alone tells the method "
                "which examples these are and when an epoch begins",
                stacklevel=4,
            )

    def _check_crafted(self, crafted: BoundaryPoints) -> None:
        """Warn where no margin takes part: of a loss that is the clean one alone, only ``used`` would tell."""
        if self.lam and (words := why_idle(crafted, self.kept(crafted), self.r0)) is not None:
            warnings.warn(words, stacklevel=3)

    def craft(self, model: Model, batch: Batch) -> BoundaryPoints:
        """Return the boundary points: ``steps`` forward and backward passes, a forward pass more for a warm start."""
        box = as_bounds(self.bounds, batch.inputs, check=False)
        setting = (self.norm, self.boundary, self.beta, *box)
        rounds = PROJECTION_ROUNDS[self.norm]
        problem = Problem(model, batch.inputs, batch.labels.long(), *setting, rounds=rounds, compiled=self.compiled)
        brief = BRIEF if self.norm == "l1" else CRAFTED
        begin = self._begin(problem, batch)
        if begin is None:
            retiring = self._retiring(problem)
            best, first = fast_search_from(problem, problem.origin, self.steps, retiring=retiring, brief=brief)
            value, correct = first.value, first.correct
        else:
            value, correct = problem.look(problem.origin)
            retiring = self._retiring(problem, value <= 0)
            start, warm = begin
            best, first = fast_search_from(problem, start, self.steps, warm=warm, retiring=retiring, brief=brief)
        # An input outside its class counts as its own crossing; it has no margin.
        best = best.where(value > 0, problem.nothing())
        if self._sloped:
            best = best._replace(gradient=torch.where(best.found[:, None], best.gradient, first.gradient))
        last = problem if retiring is None else retiring.problem
        return assemble(problem, self.bounds, best, value, correct, Passes(last.forward, last.backward), "fast")

    def _begin(self, problem: Problem, batch: Batch) -> tuple[Tensor, bool | Tensor] | None:
        """Return where the search begins and whether, or for whom, that is nearly right; None: at the inputs."""
        if not (self.warm_start and self.examples):
            return None
        if self.ways is None:
            self.ways = Ways(self.examples, batch.inputs.shape[1:], self.device)
        return problem.into_box(problem.origin + flat(self.ways.of(batch))), self.ways.known(batch)

    @property
    def _sloped(self) -> bool:
        """Whether an example without a point keeps the gradient where its search began, for ``_aside``."""
        return self.kl_radius is not None

    def _retiring(self, problem: Problem, outside: Tensor | None = None) -> Retiring | None:
        static = self.static or self.compiled
        return Retiring(problem, self.r0, outside) if self.retire and not static else None

    def loss(self, model: Model, batch: Batch, crafted: BoundaryPoints) -> tuple[Tensor, Metrics]:
        """Return the loss at the batch and its boundary points, and what to log.

        Returns:
            The loss (a scalar) and a dictionary of detached scalars on the inputs' device:
            ``clean_loss``, ``margin_loss`` (without lambda); ``accuracy`` (in the model's current mode);
            shares of the batch ``inside``, ``found``, ``optimal``, ``used`` (kept, below r0);
            ``margin_q10``, ``margin_q50``, ``margin_q90`` over the found points; ``phi_shift``, the mean over used
            points of phi_train - phi_eval: far from 0, the model in training mode has another boundary than in eval
            mode, and raises that one. With ``kl`` also that divergence, without its weight; with ``adaptive_steps``
            ``search_steps``; with ``retire`` examples that left because they are beyond r0 may count as not found; in
            the quantiles they are at r0.
        """
        if self.ways is not None:
            self.ways.keep(batch, crafted.points - crafted.inputs, crafted.found)
        judge = compiled(_judged) if self.compiled else _judged
        kept, optimal, multiplier = judge(crafted, self.keep, self.box_aware)
        used = kept & (crafted.margin < self.r0)
        at_points, at_inputs, aside = self._logits(model, crafted, batch.inputs)
        clean = classification_loss(at_inputs, batch)
        costs = margin_costs(at_points, crafted, self.cost, mask=used, multiplier=multiplier)
        margin = costs.sum() / len(batch)
        shares = {"inside": crafted.inside, "found": crafted.found, "optimal": optimal, "used": used}
        metrics = self._metrics(crafted, shares, at_points.detach(), at_inputs.detach(), batch.shard)
        metrics |= {"clean_loss": clean.detach(), "margin_loss": margin.detach()}
        scale = self._scale(crafted, used, multiplier, batch.shard) if self.relative else 1.0
        loss = clean + self.lam * scale * margin
        if self.kl:
            divergences = kl_divergence(at_inputs, at_points if aside is None else aside)
            divergence = torch.where(used | (aside is not None), divergences, 0.0).sum() / len(batch)
            metrics["kl"] = divergence.detach()
            loss = loss + self.kl * divergence
        if self.counter is not None:
            # Nothing found counts as near and not good; unless it may have left the search because it is far.
            searched = crafted.found if self.retire else crafted.inside
            self.counter.note(used, searched & ~(crafted.margin >= self.r0), batch.shard)
            metrics["search_steps"] = torch.full((), float(self.steps), device=margin.device)
        return loss, metrics

    def kept(self, points: BoundaryPoints) -> Tensor:
        """Return which points may take part, ``[N]``: those that are good by the setting ``keep``."""
        return _judged(points, self.keep, self.box_aware)[0]

    def _scale(self, points: BoundaryPoints, used: Tensor, multiplier: Tensor, shard: Shard | None) -> Tensor:
        """Return one over the mean weight of the used points of the whole batch; 0 where there are none."""
        weights, weighed = margin_weights(points, self.cost, mask=used, multiplier=multiplier)
        total, count = gathered(weights.abs(), shard).sum(), gathered(weighed.to(weights), shard).sum()
        return torch.where(total > 0, count / positive(total), 0.0)

    def _logits(self, model: Model, points: BoundaryPoints, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the logits at boundary points, at inputs and, with ``kl_radius``, there."""
        crafted = points.points
        if self.kl_radius is not None:
            crafted = torch.cat([crafted, self._aside(points, self.kl_radius)])
        if self.statistics == "running":
            # In this order: the backward pass of the points reads the statistics, which the other pass changes.
            at_inputs = logits_of(model(inputs))
            with evaluation_mode(model):
                at_crafted = logits_of(model(crafted))
        else:
            at_crafted, at_inputs = logits_of_both(model, crafted, inputs.detach(), self.joint)
        count = len(inputs)
        return at_crafted[:count], at_inputs, None if self.kl_radius is None else at_crafted[count:]

    def _aside(self, points: BoundaryPoints, radius: float | Tensor) -> Tensor:
        """Return points at a distance from the inputs, on the way to the boundary or, without one, down the slope."""
        way, inputs = points.displacement, points.inputs
        way = way / per_row(norm_of(way, self.norm).clamp(min=torch.finfo(way.dtype).tiny), way)
        way = torch.where(per_row(points.found, way), way, -steepest(points.gradient, self.norm))
        way = torch.where(way.isfinite(), way, 0.0)  # a gradient that overflowed says nothing
        return clipped(inputs + (radius * way).to(inputs.dtype), self.bounds)

    def _metrics(
        self,
        points: BoundaryPoints,
        shares: dict[str, Tensor],
        at_points: Tensor,
        at_inputs: Tensor,
        shard: Shard | None,
    ) -> Metrics:
        metrics = {name: rows.float().mean() for name, rows in shares.items()}
        metrics["accuracy"] = accuracy(at_inputs, points.labels)
        margins = points.margin
        if self.retire:
            margins = torch.where(points.inside & ~points.found, self.r0, margins)
        margins = gathered(margins, shard)
        wanted = torch.stack([margins.new_full((), percent / 100) for percent in QUANTILES])
        quantiles = torch.nanquantile(margins, wanted).unbind()
        metrics |= {f"margin_q{percent}": value for percent, value in zip(QUANTILES, quantiles, strict=True)}
        used = shares["used"]
        shift = boundary_value(at_points, points.labels, self.boundary, self.beta) - points.value
        shift, used = gathered(torch.where(used, shift, 0.0), shard), gathered(used, shard)
        metrics["phi_shift"] = shift.sum() / used.sum().clamp(min=1)
        return metrics


def _judged(points: BoundaryPoints, keep: Keep, box_aware: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return which points are to take part, which are locally optimal, and the multiplier of every one."""
    optimal = points.optimal
    if keep == "conditions":
        conditions = points.conditions
        kept = conditions.a & conditions.b
    else:
        kept = optimal if keep == "optimal" else points.found
    return kept, optimal, points.multiplier(box_aware)
