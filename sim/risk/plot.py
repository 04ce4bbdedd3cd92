"""The answer of `basin risk` as a picture: departures against arrivals, and the surges that tip."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, StrMethodFormatter

from sim.fluid.model import FluidDeployment
from sim.risk.assess import Assessment, Load
from sim.risk.question import UsageError

LONGEST_MIN = 240


def draw(a: Assessment, path: Path) -> None:
    """Write the picture. Raises `UsageError` when too little is known to draw one, or the file cannot be written."""
    if a.model is None or a.load is None:
        lacking = "; ".join(f"{what} ({why})" for what, why in a.missing.items())
        raise UsageError(f"--plot needs the departure curve and a load; still missing: {lacking}")
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    _curve(left, a.model, a.load)
    _surges(right, a.load)
    figure.suptitle(f"{a.name}: {a.load.state} at {a.load.sessions_per_min:.3g} sessions/min (fluid model)")
    try:
        figure.savefig(path, dpi=160)
    except (OSError, ValueError) as error:
        raise UsageError(f"--plot {path}: cannot be written: {error}") from None


def _curve(ax: Axes, d: FluidDeployment, load: Load) -> None:
    reach = 1.3 * max(d.cliff_sessions, load.tipping_sessions or 0, load.stable_sessions or 0)
    n = np.linspace(0, reach, 400)
    ax.plot(n, d.departures(n) * 60, color="C0", label="departures")
    ax.axhline(load.sessions_per_min, color="0.4", ls="--", label="arrivals")
    ax.axvline(d.cliff_sessions, color="0.7", ls=":", label="cache cliff")
    for name, at, filled in (
        ("healthy", load.stable_sessions, "C2"),
        ("tipping point", load.tipping_sessions, "white"),
    ):
        if at is not None:
            ax.plot(at, load.sessions_per_min, "o", mec="C2" if filled == "C2" else "C3", mfc=filled, label=name)
    ax.set(xlabel="Active sessions", ylabel="Sessions / min", xlim=(0, reach), ylim=(0, None))
    ax.legend(frameon=False, fontsize=8)


def _surges(ax: Axes, load: Load) -> None:
    ax.set(xlabel="Surge length (min)", ylabel="Arrivals over present load")
    if not load.curve:
        ax.text(
            0.5, 0.5, "no surge tips it" if load.stable_sessions else "overloaded", ha="center", transform=ax.transAxes
        )
        return
    factor, minutes = np.transpose(load.curve)
    ax.plot(minutes, factor, color="C3")
    ax.fill_between(minutes, factor, factor.max(), color="C3", alpha=0.12)
    ax.set(xscale="log", ylim=(1, factor.max()), xlim=(minutes.min(), min(minutes.max(), LONGEST_MIN)))
    ax.xaxis.set_ticks([m for m in (1, 2, 5, 10, 20, 30, 60, 120) if minutes.min() <= m <= minutes.max()])
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.text(0.95, 0.9, "trapped", color="C3", ha="right", transform=ax.transAxes)
    ax.text(0.05, 0.08, "recovers", color="C2", transform=ax.transAxes)
