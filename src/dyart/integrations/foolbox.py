"""The boundary search as an attack of foolbox: give it a model of foolbox's, inputs, a criterion and epsilons."""

from typing import Any

from torch import Tensor

from dyart.integrations.attack import dyart_attack, norm_name

try:
    import eagerpy
    from foolbox import distances
    from foolbox.attacks.base import MinimizationAttack, get_criterion, raise_if_kwargs, verify_input_bounds
    from foolbox.criteria import Misclassification, TargetedMisclassification
except ImportError as error:
    raise ImportError("an attack for foolbox needs its package: pip install foolbox") from error

_DISTANCES = {"l1": distances.l1, "l2": distances.l2, "linf": distances.linf}


class ClosestBoundaryAttack(MinimizationAttack):  # type: ignore[misc]
    """A minimum-norm attack for foolbox: the closest points of the decision boundary.

        attack = ClosestBoundaryAttack(norm="l2")
        raw, clipped, success = attack(fmodel, images, labels, epsilons=[0.25, 0.5, 1.0])

    One search serves all epsilons; None among them asks for the points as they are. Bounds are the model's. It knows
    foolbox's criteria ``Misclassification`` and ``TargetedMisclassification``, and PyTorch models, which are called as
    foolbox calls them: put them into eval mode before. It is deterministic: ``repeat`` finds the same, ``restarts``
    look elsewhere.

    Args:
        norm: ``"linf"``, ``"l2"``, ``"l1"``, or its number.
        steps: gradient evaluations per restart.
        restarts: searches per example; the closest point counts.
        batch_size: examples per pass; None: all at once.
        seed: of random restarts.
    """

    def __init__(
        self,
        *,
        norm: float | str = "linf",
        steps: int = 50,
        restarts: int = 1,
        batch_size: int | None = None,
        seed: int = 0,
    ) -> None:
        """Keep the settings."""
        self.norm, self.steps, self.restarts = norm_name(norm), steps, restarts
        self.batch_size, self.seed = batch_size, seed

    @property
    def distance(self) -> Any:  # noqa: ANN401
        """The distance that is minimised, as foolbox has it."""
        return _DISTANCES[self.norm]

    def run(
        self,
        model: Any,  # noqa: ANN401
        inputs: Any,  # noqa: ANN401
        criterion: Any,  # noqa: ANN401
        *,
        early_stop: float | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Return the points as they are; foolbox clips them to every epsilon and judges them.

        Args:
            model: of foolbox's.
            inputs: inside its bounds.
            criterion: labels, or one of the two criteria.
            early_stop: not used: the search has a fixed cost.
            kwargs: none.
        """
        raise_if_kwargs(kwargs)
        images, restore = eagerpy.astensor_(inputs)
        verify_input_bounds(images, model)
        criterion = get_criterion(criterion)
        targeted = isinstance(criterion, TargetedMisclassification)
        if not targeted and not isinstance(criterion, Misclassification):
            raise ValueError(
                f"unsupported criterion {criterion!r}: use foolbox.criteria.Misclassification (or plain labels), or "
                "TargetedMisclassification"
            )
        if not isinstance(images.raw, Tensor):
            raise TypeError(f"the search needs a PyTorch model and torch tensors, got {type(images.raw).__name__}")
        points = dyart_attack(
            model,
            images.raw,
            (criterion.target_classes if targeted else criterion.labels).raw,
            self.norm,
            targeted,
            self.steps,
            restarts=self.restarts,
            bounds=tuple(map(float, model.bounds)),
            batch_size=self.batch_size,
            seed=self.seed,
        )
        return restore(eagerpy.astensor(points))
