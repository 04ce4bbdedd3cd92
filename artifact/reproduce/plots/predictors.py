"""How well peaks are foretold, at the door and as sessions grow, and what it is worth in goodput."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from artifact.reproduce.figures import BLUE, GREY, VERMILION, log_axis, panels, under
from artifact.reproduce.plots.bars import rows
from artifact.reproduce.predictors import TRAP, VARIANTS, Foretold, gains, growth_table
from artifact.reproduce.summaries import Summaries

COLORS = {"at the door, kept": GREY, "as it grows": BLUE}
STYLES = ("-", "--", ":", "-.")
"""A set each, in the lower row."""
KILO = 1000
TICKS_K = (5, 10, 20, 50, 100, 200)


def predictor(sets: Sequence[Foretold]) -> tuple[Figure, pd.DataFrame]:
    """(a, b) Predicted against true peaks at the door by the paper's ridge, for the first two sets; (c) the error while
    sessions go on; (d) the same over that of the prediction kept from the door."""
    fig, axes = panels(2, 2.1)
    drawn = [_scatter(ax, one).assign(panel=letter) for ax, one, letter in zip(axes, sets[:2], "ab", strict=False)]
    for ax, one, letter in zip(axes, sets[:2], "ab", strict=False):
        under(ax, letter, one.peaks.name, "True peak (K tokens)")
    growth = growth_table(sets)
    for (name, by_set), style in zip(growth.groupby("set", sort=False), STYLES * len(sets), strict=False):
        at = by_set.pivot(index="fifth", columns="predictor", values="error")
        for predictor_name, color in COLORS.items():
            label = f"{name}: {predictor_name}"
            axes[2].plot(at.index + 1, at[predictor_name], style, color=color, lw=1.1, label=label)
        axes[3].plot(at.index + 1, at["as it grows"] / at["at the door, kept"], style, color=BLUE, lw=1.1)
    axes[2].set(ylabel="Mean |log error|", ylim=(0, None))
    axes[3].set(ylabel="Error, over kept", ylim=(0, None))
    axes[3].axhline(1, color=GREY, lw=0.8)
    for ax, letter, title in zip(axes[2:], "cd", ("Error as sessions grow", "Over the prediction kept"), strict=True):
        under(ax, letter, title, "Fifth of a session's calls")
    fig.legend(*axes[2].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=6)
    return fig, pd.concat([*drawn, growth.assign(panel="c")], ignore_index=True)


def _scatter(ax: Axes, one: Foretold) -> pd.DataFrame:
    found = pd.DataFrame(
        {
            "set": one.peaks.name,
            "session": [t.id for t in one.peaks.sessions],
            "peak": [t.peak_tokens for t in one.peaks.sessions],
            "predicted": one.ridge,
        }
    )
    ax.plot(found["peak"] / KILO, found["predicted"] / KILO, ".", ms=2.5, color=BLUE, alpha=0.6)
    ends = np.array([found[["peak", "predicted"]].min().min(), found[["peak", "predicted"]].max().max()]) / KILO
    ax.plot(ends, ends, color=GREY, lw=0.8)
    for axis in "xy":
        log_axis(ax, axis, TICKS_K)
    ax.set_ylabel("Predicted (K tokens)")
    return found


def predictor_goodput(runs: Summaries) -> tuple[Figure, pd.DataFrame]:
    """Goodput over that of the paper's ridge, seed by seed with the same arrivals: diamonds are means, dots seeds."""
    fig, axes = rows(1)
    found = gains({name: seeds for name, seeds in runs.items() if name != f"{TRAP}/hicache"})
    names = list(dict.fromkeys(found["policy"]))[::-1]
    for place, policy in enumerate(names):
        gain = found.loc[found["policy"] == policy, "gain"]
        axes[0].plot(gain, [place] * len(gain), ".", color=BLUE, ms=5, alpha=0.6)
        axes[0].plot(gain.mean(), place, "D", color=VERMILION, ms=5)
    axes[0].set(yticks=range(len(names)), yticklabels=[VARIANTS[policy] for policy in names])
    axes[0].set_xlabel("Goodput / ridge, same arrivals")
    axes[0].axvline(1, color="black", lw=0.8)
    axes[0].margins(y=0.15)
    return fig, found
