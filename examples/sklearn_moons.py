"""A classifier of tables in two dimensions: where its boundary runs, and how far every point is from it.

Draws two networks side by side, one trained naturally and one by DyART, with a line from every point that is classified
correctly to the closest point of the boundary. Run it with:
python examples/sklearn_moons.py [FILE.png]
"""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_moons
from sklearn.model_selection import train_test_split

from dyart.integrations import DyARTClassifier

RADIUS = 0.5


def main(path: str = "sklearn-moons.png") -> None:
    """Train both, print how they do on points they have not seen, and draw."""
    X, y = make_moons(400, noise=0.15, random_state=0)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.25, random_state=0)
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), sharex=True, sharey=True, layout="constrained")
    for axis, method in zip(axes, ("natural", "dyart"), strict=True):
        model = DyARTClassifier(method, r0=0.8, lam=20.0, random_state=0).fit(X_train, y_train)
        margins = model.margins(X_test, y_test)
        words = (
            f"{method}: {model.score(X_test, y_test):.0%} right, {np.mean(margins > RADIUS):.0%} beyond {RADIUS}, "
            f"median margin {np.median(margins):.2f}"
        )
        print(words)
        draw(axis, model, X_test, y_test)
        axis.set_title(words, fontsize=9)
    figure.savefig(path, dpi=130)
    print(path)


def draw(axis: plt.Axes, model: DyARTClassifier, X: np.ndarray, y: np.ndarray) -> None:
    """Draw the sides of the boundary, the points, and the way from each to the boundary."""
    low, high = X.min(axis=0) - 0.5, X.max(axis=0) + 0.5
    columns, rows = np.meshgrid(np.linspace(low[0], high[0], 200), np.linspace(low[1], high[1], 200))
    values = model.decision_function(np.column_stack([columns.ravel(), rows.ravel()])).reshape(columns.shape)
    axis.contourf(columns, rows, values, levels=[-np.inf, 0, np.inf], colors=["#cfe3f3", "#f6dcc9"])
    axis.contour(columns, rows, values, levels=[0], colors="#333333", linewidths=1.2)
    ends = model.closest_points(X, y)
    axis.plot(*np.stack([X, ends], axis=1).transpose(2, 1, 0), color="#777777", linewidth=0.6)
    axis.scatter(*X.T, c=np.where(y == 1, "#c2571a", "#1f6fa8"), s=12, zorder=3)
    axis.set_aspect("equal")


if __name__ == "__main__":
    main(*sys.argv[1:2])
