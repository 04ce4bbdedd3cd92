"""Paper A, Figures 4 to 6: the surge that leaves a trap, what holds it, and the loop that sustains it.

All take the arms of `artifact.reproduce.scenarios.trap_h100`, one run a seed. Lines are medians over seeds of 2-minute
windows, bands the range over seeds; the shaded span is the surge.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from artifact.metrics import capacity, duration_ratio, duration_s, hit_curve, trigger, windows
from artifact.records.schema import Records
from artifact.reproduce.evaluate.trap_h100 import last_burst_end_s
from artifact.reproduce.figures import (
    ARMS,
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    SKY,
    course,
    log_axis,
    panels,
    shade,
    under,
)

Runs = Mapping[str, Sequence[Records]]
Windows = dict[str, list[pd.DataFrame]]

START_BIN_S = 600.0
TTFT_TICKS_S = (0.1, 1, 10, 100)
SLOWDOWN_TICKS = (0.5, 1, 2, 5, 10)
TICK_MIN = 20


def figure_4(runs: Runs) -> tuple[Figure, pd.DataFrame]:
    """Median TTFT, hit rate and calls completed over time, and session durations over those of the same sessions
    without a surge by arrival: arms `none`, `plus33`, `plus100`."""
    fig, axes = panels(2)
    shown = {arm: runs[arm] for arm in ("none", "plus33", "plus100")}
    frames = _windows(shown)
    drawn = [
        _ttft(axes[0], frames, "a"),
        _hit_rate(axes[1], frames, "b"),
        _lines(axes[2], frames, "calls_per_min", "c"),
        _slowdowns(axes[3], shown),
    ]
    axes[2].set(ylabel="Calls / min", ylim=(0, None))
    under(axes[2], "c", "Completed calls")
    _time_axes(axes, shown)
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=3)
    return fig, _data(drawn)


def figure_5(runs: Runs) -> tuple[Figure, pd.DataFrame]:
    """Median TTFT and hit rate without a burst of short sessions, with it, and with its sessions ended at minute 25:
    arms `none`, `burst`, `burst_ended`. Dotted: the last call of the burst sessions that are left in place."""
    fig, axes = panels(1, height_in=2.1)
    shown = {arm: runs[arm] for arm in ("none", "burst", "burst_ended")}
    frames = _windows(shown)
    drawn = [_ttft(axes[0], frames, "a"), _hit_rate(axes[1], frames, "b")]
    last = float(np.median([last_burst_end_s(run) for run in runs["burst"]]))
    if last < duration_s(runs["burst"][0]):
        for ax in axes:
            ax.axvline(last / 60, color=ARMS["burst"][1], ls=":", lw=1)
        drawn.append(pd.DataFrame({"panel": "ab", "series": "last burst session leaves", "x": [last / 60]}))
    _time_axes(axes, runs)
    handles, labels = axes[0].get_legend_handles_labels()
    fig.legend(handles, ["no burst", *labels[1:]], loc="outside upper left", ncols=3)
    return fig, _data(drawn)


def figure_6(runs: Runs) -> tuple[Figure, pd.DataFrame]:
    """Active sessions after the burst; hit rate against working set over cache size in every window of all arms;
    prefill tokens that miss; decode KV by what it waits for, after +100%. Stacked areas are means over seeds."""
    fig, (population, cliff, uncached, memory) = panels(2)
    frames = _windows(runs)
    drawn = [
        _population(population, frames["burst"]),
        _cliff(cliff, runs),
        _uncached(uncached, {arm: frames[arm] for arm in ("none", "plus100")}, runs["plus100"][0]),
        _decode_kv(memory, frames["plus100"]),
    ]
    _time_axes((population, uncached, memory), runs)
    return fig, _data(drawn)


# Panels that figures share -----------------------------------------------------------------------------------------


def _lines(ax: Axes, frames: Windows, column: str, panel: str, scale: float = 1.0) -> pd.DataFrame:
    """One line an arm, in the arm's style."""
    drawn = []
    for arm, seeds in frames.items():
        label, color, style = ARMS[arm]
        line = course(ax, seeds, column, scale, label=label, color=color, ls=style, lw=1.2)
        drawn.append(_tidy(line, panel, arm))
    return pd.concat(drawn)


def _ttft(ax: Axes, frames: Windows, panel: str) -> pd.DataFrame:
    drawn = _lines(ax, frames, "ttft_p50_s", panel)
    log_axis(ax, ticks=TTFT_TICKS_S)
    ax.set_ylabel("TTFT p50 (s)")
    under(ax, panel, "Median TTFT")
    return drawn


def _hit_rate(ax: Axes, frames: Windows, panel: str) -> pd.DataFrame:
    drawn = _lines(ax, frames, "hit_rate", panel)
    ax.set(ylabel="Prefix hit rate", ylim=(0, 1.02), yticks=np.linspace(0, 1, 5))
    under(ax, panel, "Prefix hit rate")
    return drawn


def _slowdowns(ax: Axes, runs: Runs) -> pd.DataFrame:
    """Figure 4d. A seed's bin of which half has not completed has no ratio yet: it counts as above all others, and
    where that is so of half of the seeds, nothing is drawn."""
    frames = {
        arm: [
            duration_ratio(run, pair, START_BIN_S).fillna({"ratio": np.inf})
            for run, pair in zip(seeds, runs["none"], strict=True)
        ]
        for arm, seeds in runs.items()
    }
    drawn = _lines(ax, frames, "ratio", "d")
    log_axis(ax, ticks=SLOWDOWN_TICKS)
    ax.set(ylabel="Slowdown ratio", ylim=(SLOWDOWN_TICKS[0], None))
    under(ax, "d", "Session slowdown", "Session start (min)")
    return drawn.replace([np.inf], np.nan)


# Panels of Figure 6 ------------------------------------------------------------------------------------------------


def _population(ax: Axes, seeds: Sequence[pd.DataFrame]) -> pd.DataFrame:
    parts = {"base": ("active_base_sessions", SKY), "burst": ("active_extra_sessions", ORANGE)}
    drawn = _stacked(ax, seeds, parts, "a")
    minute, total = _mean(seeds, "active_sessions")
    ax.plot(minute, total, color=BLACK, lw=1.2, label="total")
    ax.set_ylabel("Active sessions")
    _legend_above(ax)
    under(ax, "a", "Active sessions, burst run")  # trapped in the paper; here that is for the runs to tell
    return pd.concat([drawn, pd.DataFrame({"panel": "a", "series": "total", "x": minute, "y": total})])


def _cliff(ax: Axes, runs: Runs) -> pd.DataFrame:
    curve = hit_curve([run for seeds in runs.values() for run in seeds])
    ax.plot(curve.points["w_over_c"], curve.points["hit_rate"], ".", ms=2, color=SKY, alpha=0.5, label="window")
    ax.plot(curve.bins["w_over_c"], curve.bins["hit_rate"], color=BLUE, lw=1.4, label="window median")
    ax.vlines(1, 0, 1, color=BLACK, ls="--", lw=0.8)
    ax.annotate("cache size", (1, 0.03), (3, 0), "data", "offset points", fontsize=7)
    ax.set(ylabel="Prefix hit rate", ylim=(0, 1.02), xlim=(0, None), yticks=np.linspace(0, 1, 5))
    _legend_above(ax)
    under(ax, "b", "Hit rate vs. working set", "Working set / cache size")
    series = {"window": curve.points, "window median": curve.bins}
    return pd.concat(
        frame[["w_over_c", "hit_rate"]].set_axis(["x", "y"], axis=1).assign(panel="b", series=name)
        for name, frame in series.items()
    )


def _uncached(ax: Axes, frames: Windows, run: Records) -> pd.DataFrame:
    drawn = _lines(ax, frames, "uncached_tokens_per_s", "c", scale=1e-3)
    limit = capacity(run, "saturated_prefill_tokens_per_s") / 1000
    if np.isfinite(limit):  # nothing measures it on a real engine
        ax.axhline(limit, color=BLACK, ls="--", lw=0.8)
        ax.annotate("prefill capacity", (0.02, limit), (0, 1), ("axes fraction", "data"), "offset points", fontsize=7)
    ax.set_ylabel("Uncached (K tok/s)")
    _legend_above(ax)
    under(ax, "c", "Uncached prefill")
    return pd.concat([drawn, pd.DataFrame({"panel": "c", "series": "prefill capacity", "y": [limit]})])


def _decode_kv(ax: Axes, seeds: Sequence[pd.DataFrame]) -> pd.DataFrame:
    parts = {"decoding": ("decode_kv_running", GREEN), "reserved, idle": ("decode_kv_idle", ORANGE)}
    drawn = _stacked(ax, seeds, parts, "d")
    ax.set(ylabel="Decode KV used", yticks=(0, 0.5, 1))
    _legend_above(ax)
    under(ax, "d", "Decode KV, +100% run")
    return drawn


def _stacked(ax: Axes, seeds: Sequence[pd.DataFrame], parts: Mapping[str, tuple[str, str]], panel: str) -> pd.DataFrame:
    """Areas on top of one another, of columns that add up; means over seeds, because medians do not add up."""
    base: np.ndarray | float = 0.0
    drawn = []
    for name, (column, color) in parts.items():
        minute, mean = _mean(seeds, column)
        ax.fill_between(minute, base, base + mean, color=color, alpha=0.8, lw=0, label=name)
        drawn.append(pd.DataFrame({"panel": panel, "series": name, "x": minute, "y": mean}))
        base = base + mean
    return pd.concat(drawn)


# Common ------------------------------------------------------------------------------------------------------------


def _windows(runs: Runs) -> Windows:
    return {arm: [windows(run) for run in seeds] for arm, seeds in runs.items()}


def _mean(seeds: Sequence[pd.DataFrame], column: str) -> tuple[np.ndarray, np.ndarray]:
    """Minutes and the mean over seeds."""
    minute = (seeds[0]["start_s"] + seeds[0]["end_s"]) / 120
    return minute.to_numpy(), np.mean([frame[column].to_numpy() for frame in seeds], axis=0)


def _legend_above(ax: Axes) -> None:
    """A legend in one line, in room made above what is drawn from zero up."""
    ax.set_ylim(0, ax.get_ylim()[1] * 1.3)
    line = ax.legend(
        loc="upper left", ncols=3, handlelength=1, columnspacing=0.8, fontsize=7, borderaxespad=0.1, markerscale=2
    )
    line.set_in_layout(False)


def _time_axes(axes: Iterable[Axes], runs: Runs) -> None:
    """The run's minutes, and the surge of the arm that has one."""
    every = [run for seeds in runs.values() for run in seeds]
    end = max(duration_s(run) for run in every) / 60
    surge = next(trigger(run) for run in every if "trigger" in run.meta)
    for ax in axes:
        shade(ax, surge)
        ax.set(xlim=(0, end), xticks=range(0, int(end) + 1, TICK_MIN))


def _tidy(drawn: pd.DataFrame, panel: str, series: str) -> pd.DataFrame:
    return drawn.rename(columns={"minute": "x"}).assign(panel=panel, series=series)


def _data(drawn: Sequence[pd.DataFrame]) -> pd.DataFrame:
    data = pd.concat(drawn, ignore_index=True)
    return data[[c for c in ("panel", "series", "x", "median", "low", "high", "y") if c in data]]
