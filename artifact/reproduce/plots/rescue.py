"""Every controller switched on in the same trapped state, on both engines (ours; paper B compares five on one)."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from artifact.metrics import turn_windows
from artifact.reproduce.colocated import MINUTE
from artifact.reproduce.figures import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PANELS_IN,
    PURPLE,
    SKY,
    VERMILION,
    under,
    use_style,
)
from artifact.reproduce.rescue import NONE, SYSTEMS, Seeds, engines, medians, quiet_table, rescue_table

COURSES = {
    NONE: ("no control", VERMILION),
    "admission-only": ("admission only", ORANGE),
    "concur": ("CONCUR", PURPLE),
    "basin": ("Basin", SKY),
    "basin-suspend": ("Basin, suspending", BLUE),
    "budgeter": ("budgeter", GREEN),
}
"""The systems drawn over time: more would hide one another."""
WIDTH_S = 240.0


def figure_rescue(runs: Seeds) -> tuple[Figure, pd.DataFrame]:
    """Hit ratio over time, medians over the trapped seeds (a, b); goodput of the sessions that arrive in the 40 minutes
    after control begins, beside that of undisturbed runs under the same controller, grey (c, d)."""
    use_style()
    fig, axes = plt.subplots(2, 2, figsize=(PANELS_IN, 5.2), height_ratios=(1, 1.7))
    found, quiet = rescue_table(runs), quiet_table(runs)
    drawn = []
    for column, (name, one) in enumerate(engines().items()):
        above, below = axes[:, column]
        drawn.append(_courses(above, name, runs, "ab"[column]))
        drawn.append(_bars(below, medians(found, name), medians(quiet, name), "cd"[column]))
        above.axvline(one.control_s / MINUTE, color=BLACK, ls="--", lw=0.8)
        under(above, "ab"[column], one.title)
        under(below, "cd"[column], one.title, "Goodput (sessions/h)")
    axes[0, 0].set_ylabel("Hit ratio")
    axes[1, 1].set_yticklabels([])
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper left", ncols=3, fontsize=7)
    return fig, pd.concat(drawn, ignore_index=True)


def _courses(ax: Axes, name: str, runs: Seeds, panel: str) -> pd.DataFrame:
    drawn = []
    for system, (label, color) in COURSES.items():
        frames = [turn_windows(run, WIDTH_S) for run in runs[f"{name}/{system}"]]
        minute = (frames[0]["start_s"] + WIDTH_S / 2) / MINUTE
        hit = np.nanmedian([frame["hit_ratio"] for frame in frames], axis=0)
        ax.plot(minute, hit, color=color, lw=1.2, label=label)
        drawn.append(pd.DataFrame({"panel": panel, "policy": system, "x": minute, "y": hit}))
    ax.set_ylim(0, 1.02)
    return pd.concat(drawn)


def _bars(ax: Axes, found: pd.DataFrame, quiet: pd.DataFrame, panel: str) -> pd.DataFrame:
    """One row a system in the papers' order, from the top."""
    place = np.arange(len(SYSTEMS))[::-1]
    trapped, calm = (frame["goodput"].reindex(list(SYSTEMS)) for frame in (found, quiet))
    ax.barh(place + 0.2, trapped, 0.38, color=BLUE, lw=0)
    ax.barh(place - 0.2, calm, 0.38, color=GREY, lw=0, alpha=0.5)
    ax.set_yticks(place, SYSTEMS, fontsize=7)
    ax.grid(axis="y", visible=False)
    return pd.DataFrame({"panel": panel, "policy": SYSTEMS, "y": trapped.to_numpy(), "undisturbed": calm.to_numpy()})
