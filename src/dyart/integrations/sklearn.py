"""A classifier of tables for scikit-learn: a small network trained by DyART on standardised features."""

import numbers
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from dyart.boundary.norms import Norm
from dyart.boundary.points import BoundaryPoints
from dyart.boundary.search import closest_boundary_points
from dyart.boundary.validation import check_choice, check_count, check_positive
from dyart.integrations.tabular import mlp, train
from dyart.methods.base import Method
from dyart.methods.dyart import DyART
from dyart.methods.natural import Natural

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError("a classifier for scikit-learn needs its package: pip install scikit-learn") from error

Network = Callable[[int, int], nn.Module]
MethodName = Literal["dyart", "natural"]

METHODS: tuple[MethodName, ...] = ("dyart", "natural")
# Of a search for margins, unless other ones are asked for.
RESTARTS = 4


class DyARTClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A robust classifier of tables: a multilayer perceptron whose margins are pushed beyond ``r0``.

        model = DyARTClassifier(r0=0.5).fit(X, y)
        model.score(X_test, y_test), model.margins(X_test).min()

    Features are standardised by the training set's mean and deviation, and distances are measured there: a margin of
    0.5 is half a standard deviation, all features together. There is no box. Everything is computed in float64 on
    the CPU; equal seeds give equal networks on one machine.

    Args:
        method: ``"dyart"``, or ``"natural"`` for the same network without margins in its loss. (The other methods of
            this package are for images: they keep their points in [0, 1].)
        r0: margins from here on cost nothing, in standard deviations.
        alpha: how strongly small margins come first.
        lam: weight of the margins in the loss.
        norm: of the margins: ``"l2"``, ``"linf"`` or ``"l1"``.
        steps: of the boundary search in training.
        hidden: widths of the hidden layers.
        network: from the numbers of features and classes to an ``nn.Module``, instead of ``hidden``.
        epochs: over the training set.
        burn_in: the first share of the epochs, without margins.
        batch_size: examples per step.
        lr: the largest learning rate of AdamW, which decays to zero along a cosine.
        weight_decay: of AdamW.
        random_state: of initial weights and order: an integer, a ``numpy.random.RandomState`` or None.

    Attributes:
        classes_: the labels, sorted.
        n_features_in_: how many features there are.
        mean_, scale_: of the features.
        network_: the trained network, from standardised features to logits, in eval mode.
        loss_curve_: mean loss of every epoch.
        n_iter_: epochs.
    """

    def __init__(
        self,
        method: MethodName = "dyart",
        r0: float = 0.5,
        alpha: float = 3.0,
        lam: float = 5.0,
        norm: Norm = "l2",
        steps: int = 10,
        hidden: tuple[int, ...] = (64, 64),
        network: Network | None = None,
        epochs: int = 100,
        burn_in: float = 0.2,
        batch_size: int = 128,
        lr: float = 0.01,
        weight_decay: float = 1e-4,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        """Keep the settings as they are: scikit-learn reads and sets them by name."""
        self.method = method
        self.r0 = r0
        self.alpha = alpha
        self.lam = lam
        self.norm = norm
        self.steps = steps
        self.hidden = hidden
        self.network = network
        self.epochs = epochs
        self.burn_in = burn_in
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> "DyARTClassifier":  # noqa: ANN401
        """Train on a table and its labels, and return the classifier itself."""
        self._check()
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"a boundary needs two classes, the labels have one class: {self.classes_[0]!r}")
        self.mean_, deviation = X.mean(axis=0), X.std(axis=0)
        # A column that never changes says nothing; divided by its rounding error it would say a lot.
        constant = deviation <= 10 * np.finfo(float).eps * np.abs(self.mean_)
        self.scale_ = np.where(constant, 1.0, deviation)
        seed = int(check_random_state(self.random_state).randint(2**31))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            sizes = (X.shape[1], len(self.classes_))
            model = mlp(sizes[0], tuple(self.hidden), sizes[1]) if self.network is None else self.network(*sizes)
            self.loss_curve_ = train(
                model.double(),
                self._standardised(X),
                torch.from_numpy(np.asarray(codes, dtype=np.int64)),
                self._objective(),
                epochs=self.epochs,
                burn_in=round(self.burn_in * self.epochs),
                batch_size=self.batch_size,
                lr=self.lr,
                weight_decay=self.weight_decay,
            )
        self.network_, self.n_iter_ = model.eval(), self.epochs
        return self

    def decision_function(self, X: Any) -> np.ndarray:  # noqa: ANN401
        """Return the logits ``[N, K]``; for two classes, the second's minus the first's, ``[N]``."""
        logits = self._logits(X).numpy()
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: ANN401
        """Return the probabilities of the classes, ``[N, K]``."""
        return self._logits(X).softmax(dim=1).numpy()

    def predict(self, X: Any) -> np.ndarray:  # noqa: ANN401
        """Return the likeliest class of every row."""
        # By the same numbers as decision_function, so that the two never disagree about a tie.
        scores = self.decision_function(X)
        places = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        predicted: np.ndarray = self.classes_[places]
        return predicted

    def margins(self, X: Any, y: Any = None) -> np.ndarray:  # noqa: ANN401
        """Return every row's distance to the decision boundary, ``[N]``, in standard deviations.

        Args:
            X: the rows.
            y: their labels; a row that is classified otherwise has margin 0. None: as they are classified.

        Returns:
            The distance of the closest point that a search found; inf where it found none.
        """
        found = self.boundary_points(X, y)
        margin = torch.where(found.inside, found.margin.nan_to_num(nan=torch.inf), 0.0)
        return margin.numpy()

    def closest_points(self, X: Any, y: Any = None) -> np.ndarray:  # noqa: ANN401
        """Return the closest point across the boundary for every row, in the table's own units, ``[N, D]``.

        A row with margin 0 or inf is returned as it is.
        """
        points = self.boundary_points(X, y).points.numpy()
        found: np.ndarray = points * self.scale_ + self.mean_
        return found

    def boundary_points(self, X: Any, y: Any = None, **search: Any) -> BoundaryPoints:  # noqa: ANN401
        """Return the search's result in standardised features, with optimality and all.

        Args:
            X: the rows.
            y: their labels; None: as they are classified.
            search: further arguments of ``dyart.closest_boundary_points``; ``restarts`` is 4 unless given. Among few
                features a way to a farther point is easily taken, and passes cost little.
        """
        inputs, labels = self._inputs(X), None
        if y is not None:
            labels = torch.from_numpy(self._codes(np.asarray(y), len(inputs)))
        settings = {"norm": self.norm, "bounds": None, "restarts": RESTARTS, **search}
        return closest_boundary_points(self.network_, inputs, labels, **settings)

    def _check(self) -> None:
        check_choice("method", self.method, METHODS)
        check_positive("lr", self.lr)
        check_count("epochs", self.epochs, 1)
        check_count("batch_size", self.batch_size, 1)
        if self.network is None and not _are_widths(self.hidden):
            raise ValueError(f"hidden has the widths of the hidden layers, e.g. (64, 64); got {self.hidden!r}")
        if not (isinstance(self.burn_in, numbers.Real) and 0 <= self.burn_in <= 1):
            raise ValueError(f"burn_in is a share of the epochs, from 0 to 1, got {self.burn_in!r}")

    def _objective(self) -> Method[Any]:
        if self.method == "natural":
            return Natural()
        return DyART(self.alpha, self.r0, self.lam, steps=self.steps, norm=self.norm, bounds=None)

    def _inputs(self, X: Any) -> Tensor:  # noqa: ANN401
        check_is_fitted(self)
        return self._standardised(validate_data(self, X, reset=False, dtype=np.float64))

    def _standardised(self, X: np.ndarray) -> Tensor:
        return torch.from_numpy((X - self.mean_) / self.scale_)

    def _logits(self, X: Any) -> Tensor:  # noqa: ANN401
        inputs = self._inputs(X)
        with torch.no_grad():
            logits: Tensor = self.network_(inputs)
        return logits

    def _codes(self, y: np.ndarray, rows: int) -> np.ndarray:
        """Return the places of labels among the classes."""
        if y.shape != (rows,):
            raise ValueError(f"labels must have the shape ({rows},), got {y.shape}")
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(
                f"labels that were not trained on: {unknown[:3].tolist()}; known: {self.classes_.tolist()}"
            )
        return np.searchsorted(self.classes_, y).astype(np.int64)


def _are_widths(hidden: Any) -> bool:  # noqa: ANN401
    if isinstance(hidden, str) or not isinstance(hidden, Sequence | np.ndarray):
        return False
    return all(isinstance(width, numbers.Integral) and int(width) >= 1 for width in hidden)
