"""Simulated over measured, a row a published hardware figure."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from artifact.reproduce.fidelity import label
from artifact.reproduce.figures import BLUE, GREY, ORANGE, PANELS_IN, log_axis, use_style

COLORS = {"calibration": ORANGE, "validation": BLUE}
EDGES = (0.2, 5.0)
"""Beyond these ratios a row is drawn at the edge, as a triangle."""
TICKS = (0.2, 0.5, 1, 2, 5)
ROW_IN, MARGIN_IN = 0.13, 0.9


def fidelity(rows: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Obtained over the published number or the nearer end of its range, calibration rows apart from validation rows,
    each from the worst down; hollow where outside the claim's tolerance. Raises `ValueError` without a row."""
    drawn = rows.dropna(subset=["error"]).assign(ratio=lambda found: 1 + found["error"])
    if drawn.empty:
        raise ValueError("fidelity: no row to draw")
    use_style()
    fig, ax = plt.subplots(figsize=(PANELS_IN, MARGIN_IN + ROW_IN * len(drawn)))
    for place, (_, row) in enumerate(drawn.iterrows()):
        color = COLORS[row["role"]]
        x = float(np.clip(row["ratio"], *EDGES))
        marker = "o" if x == row["ratio"] else ">" if x == EDGES[1] else "<"
        within = abs(row["tolerances"]) <= 1
        ax.plot([1, x], [place, place], color=color, lw=0.7, alpha=0.6)
        ax.plot(x, place, marker, ms=3.5, mec=color, mfc=color if within else "white", mew=0.9)
    ax.axvline(1, color=GREY, lw=0.8)
    log_axis(ax, "x", TICKS)
    ax.set(
        yticks=range(len(drawn)), xlim=(EDGES[0] * 0.93, EDGES[1] * 1.07), xlabel="Simulated / measured (nearer end)"
    )
    ax.set_yticklabels([label(row) for _, row in drawn.iterrows()], fontsize=5)
    ax.set_ylim(len(drawn) - 0.4, -0.6)
    ax.grid(axis="y", visible=False)
    handles = [Line2D([], [], marker="o", ls="", mec=color, mfc=color, label=role) for role, color in COLORS.items()]
    handles.append(Line2D([], [], marker="o", ls="", mec=GREY, mfc="white", label="outside its tolerance"))
    fig.legend(handles=handles, loc="outside upper center", ncols=3, fontsize=7)
    return fig, drawn
