"""Paper A, Figures 12 to 16: all systems after the same surges.

All take arms "<setting>/<policy>" of `artifact.reproduce.scenarios_policies`, one run a seed.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from artifact.metrics import evaluated, slowdown, windows
from artifact.records.schema import Records
from artifact.reproduce.compare import Runs, by_arrival, table, waits
from artifact.reproduce.figures import cdf, course, log_axis, panels, shade, under
from artifact.reproduce.plots.bars import STYLES, bars, legend, rows
from artifact.reproduce.scenarios_policies import (
    EVALUATED,
    HARDWARE,
    SHORT_SURGE_S,
    SIX,
    SIZES,
    SURGE_S,
    Setting,
)

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
    fig, axes = rows(2)
    found = table(runs)
    halves = {kind: {n: s for n, s in SIZES.items() if n.rsplit("-", 1)[0] == kind} for kind in ("1p3d", "1p3d-tools3")}
    titles = ("(a) 1P3D", "(b) 1P3D, tools ×3")
    drawn = []
    for ax, settings, title in zip(axes, halves.values(), titles, strict=True):
        drawn.append(bars(ax, found, settings, "goodput", letters=True).assign(panel=title[1]))
        ax.set(ylabel="Goodput (sessions/h)")
        ax.set_xlabel(f"20-minute surge\n{title}")
    legend(fig, found)
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


def _bar_figure(runs: Runs, settings: Mapping[str, Setting], metrics: Mapping[str, str]) -> tuple[Figure, pd.DataFrame]:
    """A row of bars a metric, the end states on those of the first."""
    fig, axes = rows(len(metrics))
    found = table(runs)
    drawn = []
    for number, (ax, (metric, label)) in enumerate(zip(axes, metrics.items(), strict=True)):
        panel = "ab"[number]
        drawn.append(bars(ax, found, settings, metric, letters=number == 0).assign(panel=panel))
        ax.set(ylabel=label, xlabel=f"({panel}) {label}")
    legend(fig, found)
    return fig, pd.concat(drawn, ignore_index=True)


# Common ------------------------------------------------------------------------------------------------------------


def _of(setting: str, runs: Runs) -> dict[str, Sequence[Records]]:
    """The runs of a setting by policy."""
    return {name.split("/")[1]: seeds for name, seeds in runs.items() if name.split("/")[0] == setting}


def _slowdowns(seeds: Sequence[Records]) -> np.ndarray:
    """Of all seeds' sessions; unfinished ones are infinite, so that the curve ends below 1."""
    return np.concatenate([slowdown(evaluated(run, EVALUATED)).fillna(np.inf) for run in seeds])


def _waits(seeds: Sequence[Records]) -> np.ndarray:
    return np.concatenate([waits(run).clip(lower=WAIT_FLOOR_S) for run in seeds])
