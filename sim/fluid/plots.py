"""Marks that the pictures of the fluid model share."""

from typing import Any

from matplotlib.axes import Axes

from artifact.reproduce.figures import GREEN, VERMILION

Point = tuple[float, float]


def arrow(ax: Axes, tail: Point, head: Point, color: str, bend: float = 0.0) -> None:
    """An arrow between two points in data coordinates; `bend` is the curvature as matplotlib's arc3 counts it."""
    style = {"arrowstyle": "-|>", "color": color, "lw": 1.2, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", head, tail, arrowprops=style | {"connectionstyle": f"arc3,rad={bend}"})


def note(ax: Axes, text: str, at: Point, offset: Point, color: str, **style: Any) -> None:
    """Small text `offset` points away from a point."""
    ax.annotate(text, at, offset, textcoords="offset points", color=color, fontsize=7, **style)


def equilibria(ax: Axes, stable: float, tipping: float, rate: float, size: float = 6) -> None:
    """The stable equilibrium as a full green dot, the unstable one as an open red circle (Figs. 1b, 9a)."""
    ax.plot(stable, rate, "o", color=GREEN, ms=size, zorder=5)
    ax.plot(tipping, rate, "o", mfc="white", mec=VERMILION, mew=1.4, ms=size, zorder=5)
