"""How comparisons of policies are drawn: grouped bars, and lines over a load.

Bars and lines are medians over seeds. Dots on bars are the seeds, the letter on a bar its end state in most seeds: h
healthy, r recovering, o overloaded, t trapped, ? mixed or not observed. The band about a line is the seeds' range; its
marker is hollow where most seeds end trapped and grey where they end overloaded.
"""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from artifact.metrics import EndState
from artifact.reproduce.compare import UNKNOWN
from artifact.reproduce.figures import GREY, PANELS_IN, SYSTEMS, use_style
from artifact.reproduce.registry import over_seeds
from artifact.reproduce.scenarios_policies import PROTOTYPE, Setting

Styles = Mapping[str, tuple[str, str]]
"""Label and colour of each policy."""
STYLES: dict[str, tuple[str, str]] = {name.lower(): (name, color) for name, color in SYSTEMS.items()}
STYLES[PROTOTYPE] = ("Basin prototype", SYSTEMS["Basin"])
LEGEND_ENTRY_IN = 0.89
BAR_WIDTH = 0.86
"""Of all bars of a setting together."""


def bars(
    ax: Axes,
    found: pd.DataFrame,
    settings: Mapping[str, Setting],
    metric: str,
    letters: bool,
    styles: Styles = STYLES,
) -> pd.DataFrame:
    """Bars of a column of `found` (a row a run, with `setting`, `policy`, `seed`, `state`), a group a setting and in it
    a bar a policy; returns the seeds' values that were drawn."""
    policies = list(dict.fromkeys(found["policy"]))
    width = BAR_WIDTH / len(policies)
    for number, policy in enumerate(policies):
        rows = found[found["policy"] == policy].groupby("setting")
        x = np.arange(len(settings)) - BAR_WIDTH / 2 + (number + 0.5) * width
        ax.bar(x, rows[metric].median().reindex(list(settings)), width * 0.92, color=styles[policy][1], lw=0)
        for place, setting in zip(x, settings, strict=True):
            if setting not in rows.groups:
                continue
            seeds = rows.get_group(setting)
            if len(seeds) > 1:
                ax.plot([place] * len(seeds), seeds[metric], ".", color="black", ms=2, alpha=0.7)
            if letters:
                ax.annotate(
                    letter(list(seeds["state"])), (place, seeds[metric].max()), (0, 1), textcoords="offset points",
                    ha="center", va="bottom", fontsize=6,
                )  # fmt: skip
    ax.set(xticks=range(len(settings)), xticklabels=[setting.title for setting in settings.values()])
    ax.set_ylim(0, None)
    ax.margins(y=0.1)
    ax.grid(axis="x", visible=False)
    names = ["setting", "policy", "seed", metric] + (["state"] if letters else [])
    return found[found["setting"].isin(list(settings))][names].rename(columns={metric: "value"}).assign(metric=metric)


def letter(states: Sequence[str]) -> str:
    """Of the end state of most seeds."""
    word = over_seeds(states)
    return "?" if word in ("mixed", UNKNOWN) else word[0]


def lines(ax: Axes, found: pd.DataFrame, metric: str, styles: Styles = STYLES, linestyle: str = "-") -> pd.DataFrame:
    """Lines of a column of `found` over its column `x`, one a policy; returns the seeds' values that were drawn."""
    for policy in dict.fromkeys(found["policy"]):
        name, color = styles[policy]
        at = found[found["policy"] == policy].groupby("x")
        values = at[metric].agg(["median", "min", "max"])
        ax.plot(values.index, values["median"], linestyle, color=color, lw=1.1, label=name)
        ax.fill_between(values.index, values["min"], values["max"], color=color, alpha=0.15, lw=0)
        for x, states in at["state"]:
            ax.plot(x, values.loc[x, "median"], "o", ms=3.5, mec=color, mfc=_fill(list(states), color), mew=0.9)
    drawn = found[["setting", "policy", "seed", "x", metric, "state"]]
    return drawn.rename(columns={metric: "value"}).assign(metric=metric)


def _fill(states: Sequence[str], color: str) -> str:
    word = over_seeds(states)
    return "white" if word == EndState.TRAPPED else GREY if word == EndState.OVERLOADED else color


def rows(count: int, height_in: float = 2.1) -> tuple[Figure, np.ndarray]:
    """A figure of one wide panel a row."""
    use_style()
    fig, axes = plt.subplots(count, 1, figsize=(1.25 * PANELS_IN, height_in * count), squeeze=False)
    return fig, axes.ravel()


def legend(fig: Figure, found: pd.DataFrame, styles: Styles = STYLES) -> None:
    """The policies of `found`, above the panels."""
    handles = [Patch(color=styles[p][1], label=styles[p][0]) for p in dict.fromkeys(found["policy"])]
    fig.legend(
        handles=handles,
        loc="outside upper center",
        ncols=min(len(handles), int(fig.get_figwidth() / LEGEND_ENTRY_IN)),
        fontsize=7,
        columnspacing=0.9,
        handlelength=1,
    )
