"""Paper A, Figures 12 to 16: all systems after the same surges.

All take arms "<setting>/<policy>" of `artifact.reproduce.scenarios_policies`, one run a seed. Bars are medians over
seeds, dots the seeds, the letter on a bar its end state in most seeds: h healthy, r recovering, o overloaded, t
trapped, ? mixed or not observed.
"""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from artifact.metrics import evaluated, slowdown, windows
from artifact.records.schema import Records
from artifact.reproduce.compare import UNKNOWN, Runs, by_arrival, table, waits
from artifact.reproduce.figures import PANELS_IN, SYSTEMS, cdf, course, log_axis, panels, shade, under, use_style
from artifact.reproduce.registry import over_seeds
from artifact.reproduce.scenarios_policies import (
    EVALUATED,
    HARDWARE,
    PROTOTYPE,
    SHORT_SURGE_S,
    SIX,
    SIZES,
    SURGE_S,
    Setting,
)

STYLES = {name.lower(): (name, color) for name, color in SYSTEMS.items()}
STYLES[PROTOTYPE] = ("Basin prototype", SYSTEMS["Basin"])
"""Label and colour of each policy."""
BAR_WIDTH = 0.86
"""Of all bars of a setting together."""
WAIT_FLOOR_S = 0.1
"""Shorter waits are drawn as this on a logarithmic axis."""
SLOWDOWN_TICKS = (1, 2, 4, 10, 30)
TTFT_TICKS_S = (0.1, 1, 10, 100)
WAIT_TICKS = (0.1, 1, 10, 100, 1000)


def figure_12(runs: Runs) -> tuple[Figure, pd.DataFrame]:
    """Goodput and completed sessions in the hardware scenarios."""
    return _bar_figure(runs, HARDWARE, {"goodput": "Goodput (sessions/h)", "completed": "Completed share"})


def figure_14(runs: Runs) -> tuple[Figure, pd.DataFrame]:
    """Goodput and median slowdown in the six scenarios."""
    return _bar_figure(runs, SIX, {"goodput": "Goodput (sessions/h)", "slowdown": "Median slowdown"})


def figure_16(runs: Runs) -> tuple[Figure, pd.DataFrame]:
    """Goodput by surge factor, without (a) and with (b) tool time scaled by 3."""
    fig, axes = _rows(2)
    found = table(runs)
    halves = {kind: {n: s for n, s in SIZES.items() if n.rsplit("-", 1)[0] == kind} for kind in ("1p3d", "1p3d-tools3")}
    titles = ("(a) 1P3D", "(b) 1P3D, tools ×3")
    drawn = []
    for ax, settings, title in zip(axes, halves.values(), titles, strict=True):
        drawn.append(_bars(ax, found, settings, "goodput", letters=True).assign(panel=title[1]))
        ax.set(ylabel="Goodput (sessions/h)")
        ax.set_xlabel(f"20-minute surge\n{title}")
    _legend(fig, found)
    return fig, pd.concat(drawn, ignore_index=True)


def figure_13(runs: Runs) -> tuple[Figure, pd.DataFrame]:
    """Hit rate and median first-call wait in 5-minute bins, default surge."""
    fig, axes = panels(1, 2.1)
    drawn = []
    for name, seeds in _of("1p3d", runs).items():
        label, color = STYLES[name]
        bins = [by_arrival(run) for run in seeds]
        hits = course(axes[0], bins, "hit_rate", band=False, label=label, color=color, lw=1.1)
        floored = [frame.assign(wait_p50_s=frame["wait_p50_s"].clip(lower=WAIT_FLOOR_S)) for frame in bins]
        wait = course(axes[1], floored, "wait_p50_s", band=False, color=color, lw=1.1)
        drawn += [hits.assign(panel="a", policy=name), wait.assign(panel="b", policy=name)]
    axes[0].set(ylabel="Prefix hit rate", ylim=(0, 1.02))
    axes[1].set_ylabel("Median wait (s)")
    log_axis(axes[1], ticks=WAIT_TICKS)
    for ax, letter, title in zip(axes, "ab", ("Prefix hit rate", "Wait of new sessions"), strict=True):
        shade(ax, SURGE_S)
        under(ax, letter, title)
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize=7)
    return fig, pd.concat(drawn, ignore_index=True)


def figure_15(runs: Runs) -> tuple[Figure, pd.DataFrame]:
    """Sessions present and median TTFT over time, distributions of slowdown and of first-call wait, outputs x3."""
    fig, axes = panels(2)
    drawn = []
    for name, seeds in _of("out3", runs).items():
        label, color = STYLES[name]
        frames = [windows(run) for run in seeds]
        present = [f.assign(present=f["active_sessions"] + f["parked_sessions"].fillna(0)) for f in frames]
        drawn += [
            course(axes[0], present, "present", label=label, color=color, lw=1.1).assign(panel="a", policy=name),
            course(axes[1], frames, "ttft_p50_s", color=color, lw=1.1).assign(panel="b", policy=name),
            cdf(axes[2], _slowdowns(seeds), color=color, lw=1.1).assign(panel="c", policy=name),
            cdf(axes[3], _waits(seeds), color=color, lw=1.1).assign(panel="d", policy=name),
        ]
    axes[0].set(ylabel="Sessions", ylim=(0, None))
    axes[1].set_ylabel("Median TTFT (s)")
    log_axis(axes[1], ticks=TTFT_TICKS_S)
    log_axis(axes[2], "x", SLOWDOWN_TICKS)
    log_axis(axes[3], "x", WAIT_TICKS)
    for ax, letter, title in zip(axes[:2], "ab", ("Sessions", "Median TTFT"), strict=True):
        shade(ax, SHORT_SURGE_S)
        under(ax, letter, title)
    under(axes[2], "c", "Session slowdown", "Slowdown")
    under(axes[3], "d", "Wait of new sessions", "Wait (s)")
    for ax in axes[2:]:
        ax.set_ylabel("CDF")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize=7)
    return fig, pd.concat(drawn, ignore_index=True)


# Bars --------------------------------------------------------------------------------------------------------------


def _bar_figure(runs: Runs, settings: Mapping[str, Setting], metrics: Mapping[str, str]) -> tuple[Figure, pd.DataFrame]:
    """A row of bars a metric, the end states on those of the first."""
    fig, axes = _rows(len(metrics))
    found = table(runs)
    drawn = []
    for number, (ax, (metric, label)) in enumerate(zip(axes, metrics.items(), strict=True)):
        panel = "ab"[number]
        drawn.append(_bars(ax, found, settings, metric, letters=number == 0).assign(panel=panel))
        ax.set(ylabel=label, xlabel=f"({panel}) {label}")
    _legend(fig, found)
    return fig, pd.concat(drawn, ignore_index=True)


def _bars(ax: Axes, found: pd.DataFrame, settings: Mapping[str, Setting], metric: str, letters: bool) -> pd.DataFrame:
    """Bars of a metric, a group a setting and in it a bar a policy; returns the seeds' values that were drawn."""
    policies = list(dict.fromkeys(found["policy"]))
    width = BAR_WIDTH / len(policies)
    for number, policy in enumerate(policies):
        rows = found[found["policy"] == policy].groupby("setting")
        x = np.arange(len(settings)) - BAR_WIDTH / 2 + (number + 0.5) * width
        ax.bar(x, rows[metric].median().reindex(list(settings)), width * 0.92, color=STYLES[policy][1], lw=0)
        for place, setting in zip(x, settings, strict=True):
            seeds = rows.get_group(setting)
            if len(seeds) > 1:
                ax.plot([place] * len(seeds), seeds[metric], ".", color="black", ms=2, alpha=0.7)
            if letters:
                ax.annotate(
                    _letter(list(seeds["state"])), (place, seeds[metric].max()), (0, 1), textcoords="offset points",
                    ha="center", va="bottom", fontsize=6,
                )  # fmt: skip
    ax.set(xticks=range(len(settings)), xticklabels=[setting.title for setting in settings.values()])
    ax.set_ylim(0, None)
    ax.margins(y=0.1)
    ax.grid(axis="x", visible=False)
    names = ["setting", "policy", "seed", metric] + (["state"] if letters else [])
    return found[found["setting"].isin(list(settings))][names].rename(columns={metric: "value"}).assign(metric=metric)


def _letter(states: Sequence[str]) -> str:
    word = over_seeds(states)
    return "?" if word in ("mixed", UNKNOWN) else word[0]


def _rows(count: int) -> tuple[Figure, np.ndarray]:
    use_style()
    fig, axes = plt.subplots(count, 1, figsize=(1.25 * PANELS_IN, 2.1 * count))
    return fig, axes


def _legend(fig: Figure, found: pd.DataFrame) -> None:
    handles = [Patch(color=STYLES[p][1], label=STYLES[p][0]) for p in dict.fromkeys(found["policy"])]
    fig.legend(
        handles=handles, loc="outside upper center", ncols=len(handles), fontsize=7, columnspacing=0.9, handlelength=1
    )


# Common ------------------------------------------------------------------------------------------------------------


def _of(setting: str, runs: Runs) -> dict[str, Sequence[Records]]:
    """The runs of a setting by policy."""
    return {name.split("/")[1]: seeds for name, seeds in runs.items() if name.split("/")[0] == setting}


def _slowdowns(seeds: Sequence[Records]) -> np.ndarray:
    """Of all seeds' sessions; unfinished ones are infinite, so that the curve ends below 1."""
    return np.concatenate([slowdown(evaluated(run, EVALUATED)).fillna(np.inf) for run in seeds])


def _waits(seeds: Sequence[Records]) -> np.ndarray:
    return np.concatenate([waits(run).clip(lower=WAIT_FLOOR_S) for run in seeds])
