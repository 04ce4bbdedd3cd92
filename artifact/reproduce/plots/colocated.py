"""Paper B's pictures over time (Figs. 1-5 and 7): one seed each, as in the paper.

All take arms "<experiment>/<arm>" of `artifact.reproduce.scenarios_colocated`, one run a seed. Lines are 2-minute
windows of the turns completed in them; the shaded span is the burst, the dashed line where control begins.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from artifact.metrics import Interval, degraded_from, duration_s, in_system_at, recovered_after_s, turn_windows
from artifact.records.schema import Records
from artifact.reproduce.colocated import MINUTE, demand_by_minute, end_hit
from artifact.reproduce.figures import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION, panels, shade, under
from artifact.reproduce.scenarios_colocated import (
    CONTROL_32B_S,
    CONTROL_S,
    DRAIN_CHANGE_S,
    DRAIN_RATES,
    LONG_BURST_S,
    PAIRED_BURST_S,
    RECOVERY_ARMS,
    RECOVERY_BURST_S,
    SMALL_BURST_S,
    TRACE_ARMS,
    TRACE_BURST_S,
)

Runs = Mapping[str, Sequence[Records]]
WIDTH_S = 120.0


class Style(NamedTuple):
    """Label, colour and line style of an arm."""

    label: str
    color: str
    line: str = "-"


PAIR = {"none": Style("no burst", BLUE), "burst": Style("burst", VERMILION)}
CONTROLLER = {
    "none": Style("no control", VERMILION),
    "admission": Style("admission-only cap", ORANGE),
    "aimd": Style("AIMD + park", PURPLE),
    "cap": Style("session cap + park", GREEN),
    "adaptive": Style("adaptive cap + park", SKY),
    "budgeter": Style("budgeter + park", BLUE),
}
"""The controllers of §5, each with one colour in every figure."""
TRACES = {**PAIR, "budgeter": Style("burst, budgeter", GREEN)}
SGLANG = {
    "small": Style("2x, 2 min", BLUE),
    "five": Style("+1.5λ, 5 min", ORANGE),
    "ten": Style("+1.5λ, 10 min", VERMILION),
}
TITLES = {"sessions": "Sessions in the system", "recomputed_per_s": "Recomputed prompt tokens"}
RATE_COLORS = (BLUE, SKY, ORANGE, VERMILION)


def figure_b1(runs: Runs) -> tuple[Figure, pd.DataFrame]:
    """Hit ratio, turns a second, sessions in the system, and cumulative turns of one pair."""
    fig, axes = panels(2)
    pair = typical_pair(runs)
    columns = {"hit_ratio": "Hit ratio", "turns_per_s": "Turns / s", "sessions": "Sessions"}
    drawn = [
        _course(ax, pair, PAIR, column, letter, label)
        for ax, letter, (column, label) in zip(axes, "abc", columns.items(), strict=False)
    ]
    for name, run in pair.items():
        done = np.sort(run.calls.to_pandas()["finished_s"].dropna())
        axes[3].plot(done / MINUTE, np.arange(1, len(done) + 1) / 1000, color=PAIR[name].color, lw=1.2)
    axes[3].set_ylabel("Turns done (K)")
    under(axes[3], "d", "Turns completed")
    _time(fig, axes, pair, PAIRED_BURST_S)
    return fig, pd.concat(drawn, ignore_index=True)


def figure_b2(runs: Runs) -> tuple[Figure, pd.DataFrame]:
    """Hit ratio and sessions on 32B with trace shapes: no burst, a burst, and the burst under the budgeter; the seed
    whose burst run ends with the lowest hit ratio."""
    seed = min(runs["traces/burst"], key=end_hit).meta["seed"]
    return _two(_of("traces", runs, TRACES, seed), TRACES, RECOVERY_BURST_S)


def figure_b3(runs: Runs) -> tuple[Figure, pd.DataFrame]:
    """Hit ratio and sessions on the second engine after three bursts, the first seed."""
    return _two(_of("sglang", runs, SGLANG, runs["sglang/five"][0].meta["seed"]), SGLANG, SMALL_BURST_S, LONG_BURST_S)


def figure_b4(runs: Runs) -> tuple[Figure, pd.DataFrame]:
    """The loop in one pair, by the minute: resident demand over the pool, recomputed tokens, hit ratio. And the
    sessions of a collapsed engine once arrivals are lowered."""
    fig, axes = panels(2)
    pair = typical_pair(runs)
    columns = {"d_over_c": "Demand / pool", "recomputed_per_s": "Recomputed (K tok/s)", "hit_ratio": "Hit ratio"}
    drawn = [
        _course(ax, pair, PAIR, column, letter, label, demand_by_minute)
        for ax, letter, (column, label) in zip(axes, "abc", columns.items(), strict=False)
    ]
    axes[0].axhline(1, color=BLACK, ls="--", lw=0.8)
    axes[1].yaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}")
    _time(fig, axes[:3], pair, PAIRED_BURST_S)
    drawn.append(_drains(axes[3], {rate: runs[f"drain/{rate}"] for rate in DRAIN_RATES}))
    return fig, pd.concat(drawn, ignore_index=True)


def figure_b5(runs: Runs) -> tuple[Figure, pd.DataFrame]:
    """Hit ratio and sessions with no control and four controllers from minute 20 on, one collapsed seed."""
    return _recovery("recovery", runs, RECOVERY_ARMS, CONTROL_S, RECOVERY_BURST_S)


def figure_b7(runs: Runs) -> tuple[Figure, pd.DataFrame]:
    """The same on 32B with trace shapes at 0.03/s, control from minute 25 on."""
    return _recovery("32b03", runs, TRACE_ARMS, CONTROL_32B_S, TRACE_BURST_S)


def typical_pair(runs: Runs) -> dict[str, Records]:
    """The first seed of which only the burst run degrades, or else the first; by arm."""
    both = list(zip(runs["pairs/none"], runs["pairs/burst"], strict=True))
    after = PAIRED_BURST_S[1]
    split = [pair for pair in both if degraded_from(pair[1], after) < np.inf <= degraded_from(pair[0], after)]
    return dict(zip(("none", "burst"), (split or both)[0], strict=True))


# Panels ------------------------------------------------------------------------------------------------------------


def _recovery(
    experiment: str, runs: Runs, arms: Sequence[str], control_s: float, burst_s: Interval
) -> tuple[Figure, pd.DataFrame]:
    """The collapsed seed that the budgeter takes longest to bring back."""
    slowest = max(runs[f"{experiment}/budgeter"], key=lambda run: recovered_after_s(run, control_s))
    styles = {arm: CONTROLLER[arm] for arm in arms}
    fig, data = _two(_of(experiment, runs, styles, slowest.meta["seed"]), styles, burst_s)
    for ax in fig.axes:
        ax.axvline(control_s / MINUTE, color=BLACK, ls="--", lw=0.8)
    return fig, data


def _two(shown: Mapping[str, Records], styles: Mapping[str, Style], *spans: Interval) -> tuple[Figure, pd.DataFrame]:
    fig, axes = panels(1, 2.3)
    drawn = [
        _course(axes[0], shown, styles, "hit_ratio", "a", "Hit ratio"),
        _course(axes[1], shown, styles, "sessions", "b", "Sessions"),
    ]
    _time(fig, axes, shown, *spans)
    return fig, pd.concat(drawn, ignore_index=True)


def _of(experiment: str, runs: Runs, styles: Mapping[str, Style], seed: int) -> dict[str, Records]:
    """The runs of one seed by arm; an arm that did not run it is left out."""
    found = {arm: [run for run in runs[f"{experiment}/{arm}"] if run.meta["seed"] == seed] for arm in styles}
    return {arm: one[0] for arm, one in found.items() if one}


def _course(
    ax: Axes,
    shown: Mapping[str, Records],
    styles: Mapping[str, Style],
    column: str,
    panel: str,
    label: str,
    windows: Callable[[Records], pd.DataFrame] = lambda run: turn_windows(run, WIDTH_S),
) -> pd.DataFrame:
    drawn = []
    for name, run in shown.items():
        course = windows(run)
        minute = (course["start_s"] + course["end_s"]) / 2 / MINUTE
        style = styles[name]
        ax.plot(minute, course[column], color=style.color, ls=style.line, lw=1.2, label=style.label)
        seed = run.meta.get("seed")
        drawn.append(pd.DataFrame({"panel": panel, "series": name, "seed": seed, "x": minute, "y": course[column]}))
    ax.set(ylabel=label, ylim=(0, 1.02) if column == "hit_ratio" else (0, None))
    under(ax, panel, TITLES.get(column, label))
    return pd.concat(drawn)


def _drains(ax: Axes, drains: Runs) -> pd.DataFrame:
    """Sessions in the system of every run, by arrival rate after the change."""
    drawn = []
    for (rate, seeds), color in zip(drains.items(), RATE_COLORS, strict=True):
        for number, run in enumerate(seeds):
            minute = np.arange(0, duration_s(run) / MINUTE + 1)
            sessions = in_system_at(run, minute * MINUTE)
            ax.plot(minute, sessions, color=color, lw=1, label=f"{rate}/s" if number == 0 else None)
            drawn.append(pd.DataFrame({"panel": "d", "series": rate, "seed": number, "x": minute, "y": sessions}))
    ax.axvline(DRAIN_CHANGE_S / MINUTE, color=GREY, ls=":", lw=1)
    ax.set(ylabel="Sessions", ylim=(0, 1.25 * ax.get_ylim()[1]), xlim=(0, None))
    under(ax, "d", "Arrivals lowered in minute 20")
    ax.legend(fontsize=6, loc="upper left", ncols=4, columnspacing=0.8, handlelength=1, borderaxespad=0.1)
    return pd.concat(drawn)


def _time(fig: Figure, axes: Iterable[Axes], shown: Mapping[str, Records], *spans: Interval) -> None:
    """The runs' minutes, the burst, and one legend above all panels."""
    end = max(duration_s(run) for run in shown.values()) / MINUTE
    axes = list(axes)
    for ax in axes:
        for span in spans:
            shade(ax, span)
        ax.set(xlim=(0, end), xticks=np.arange(0, end + 1, 10 if end <= 60 else 20))
    handles, labels = axes[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside upper left", ncols=3, fontsize=7)
