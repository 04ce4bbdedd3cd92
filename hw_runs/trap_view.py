"""What the runs of `hw_runs.trap` show: courses, recovery, and what the usual signals said meanwhile."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from artifact.metrics import capacity, column, hit_rate, windows
from artifact.records.schema import Records
from artifact.reproduce.figures import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    course,
    log_axis,
    panels,
    shade,
    under,
)
from artifact.reproduce.scenarios import recorded
from hw_runs.experiment import own_or_shipped
from hw_runs.fidelity import COLLAPSED, HEALTHY, last_third
from hw_runs.scrape import CPU_SECONDS, load_engines
from hw_runs.trap import ARMS, BURST_S, CONTROL_S, CONTROLS, FOLDER, LONG_S, SIX

Runs = Mapping[str, Sequence[Records]]

BIN_S = 5.0
BACK_WITHIN_S = 60.0
NO_CURE = ("admission-only",)
"""Leaves everybody inside who is there: run to be compared with, not expected to bring a collapsed engine back."""
STYLES = {
    "twin": ("no burst", BLUE, "-"),
    "burst": ("burst", VERMILION, "-"),
    "large-pool": ("burst, pool ×4", SKY, "-"),
    "budgeter": ("budgeter late", GREEN, "--"),
    "basin": ("Basin late", BLACK, "--"),
    "basin-suspend": ("Basin, suspending, late", PURPLE, "--"),
    "admission-only": ("admission only, late", ORANGE, ":"),
}
SIGNALS = {
    "kv_usage": "KV usage",
    "waiting": "queue length",
    "utilisation": "utilisation of a core",
    "w_over_c": "working set / pool",
}


def shelf(root: Path | None = None) -> Path:
    """Where the runs to show are: this machine's own if there are any, else those that come with the artifact."""
    return own_or_shipped([FOLDER], root) / FOLDER


def trap_runs(seeds: Sequence[int] | None = None, root: Path | None = None) -> dict[str, list[Records]]:
    """The recorded arms, one run a seed that all have; of the six, an arm without any is an empty list."""
    found = recorded(FOLDER, list(ARMS), seeds, root, shelf(root).parent.name)
    return {arm: runs for arm, runs in found.items() if runs or arm in SIX}


class Outcome(NamedTuple):
    """One run against its bar. `back_s`: seconds from the control until the hit rate is healthy for two bins."""

    arm: str
    seed: int
    hit_last: float
    ttft_last_s: float
    back_s: float
    calls_after: int
    completed: int
    waiting_at_door: int
    met: bool | None
    """None: there is no bar for this arm."""


def outcome(run: Records, arm: str) -> Outcome:
    """Over the last third; calls and completions from the control's time on, in arms without one, too."""
    last = last_third(run)
    first, finished = column(run.calls, "first_token_s"), column(run.calls, "finished_s")
    wait = first - column(run.calls, "released_s")
    inside = (first >= last[0]) & (first < last[1])
    hit, back = hit_rate(run, last), back_s(run)
    bars = {"twin": hit >= HEALTHY, "burst": hit <= COLLAPSED, "large-pool": hit >= HEALTHY}
    ended = run.sessions.to_pandas()
    return Outcome(
        arm,
        int(run.meta["seed"]),
        hit,
        float(np.median(wait[inside])) if inside.any() else float("nan"),
        back if arm in CONTROLS else float("nan"),
        int((finished >= CONTROL_S).sum()),
        int(((ended["outcome"] == "completed") & (ended["ended_s"] >= CONTROL_S)).sum()),
        int(column(run.samples, "parked_sessions")[-1] + column(run.samples, "suspended_sessions")[-1]),
        (back <= BACK_WITHIN_S if arm not in NO_CURE else None) if arm in CONTROLS else bool(bars[arm]),
    )


def back_s(run: Records) -> float:
    """Seconds from the control to the end of the first bin of two healthy ones in a row; infinite if there are none."""
    bins = windows(run, BIN_S, CONTROL_S)
    healthy = bins["hit_rate"].to_numpy() >= HEALTHY
    twice = np.flatnonzero(healthy[:-1] & healthy[1:])
    return float(bins["end_s"].iloc[twice[0]] - CONTROL_S) if len(twice) else float("inf")


def outcomes(runs: Runs) -> pd.DataFrame:
    """A row a run."""
    return pd.DataFrame([outcome(run, arm) for arm, seeds in runs.items() for run in seeds])


def figure_trap(runs: Runs) -> tuple[Figure, pd.DataFrame]:
    """Hit rate, median TTFT, active sessions and working set over pool in 5-second windows; dotted: the control."""
    fig, axes = panels(2, height_in=2.0)
    columns = (
        ("hit_rate", "Prefix hit rate"),
        ("ttft_p50_s", "Median TTFT (s)"),
        ("active_sessions", "Active sessions"),
        ("w_over_c", "Working set / pool"),
    )
    frames = {arm: [windows(run, BIN_S) for run in seeds] for arm, seeds in runs.items() if seeds}
    drawn = []
    for letter, ax, (name, title) in zip("abcd", axes, columns, strict=True):
        for arm, seeds in frames.items():
            label, color, line = STYLES[arm]
            data = course(ax, seeds, name, color=color, ls=line, lw=1.2, label=label)
            drawn.append(data.assign(panel=letter, arm=arm))
        shade(ax, BURST_S)
        ax.axvline(CONTROL_S / 60, color=BLACK, ls=":", lw=0.8)
        under(ax, letter, title)
    axes[0].set_ylim(0, 1)
    log_axis(axes[1], ticks=(0.1, 1, 10))
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=3)
    return fig, pd.concat(drawn, ignore_index=True)


def signals(run: Records, folder: Path) -> pd.DataFrame:
    """What an operator's dashboard shows, by second: KV usage, waiting requests and CPU use of the engine, and W/C."""
    said = load_engines(folder)
    table = said.pivot_table(index="time_s", columns="name", values="value", aggfunc="sum", observed=True)
    time_s = table.index.to_numpy()
    samples = run.samples.to_pandas()
    in_use = np.interp(time_s, samples["time_s"], samples["working_set_tokens"])
    busy = np.gradient(table[CPU_SECONDS].to_numpy(), time_s) if len(time_s) > 1 else np.zeros(len(time_s))
    return pd.DataFrame(
        {
            "time_s": time_s,
            "kv_usage": table["vllm:kv_cache_usage_perc"].to_numpy(),
            "waiting": table["vllm:num_requests_waiting"].to_numpy(),
            "utilisation": busy,
            "w_over_c": in_use / capacity(run, "prefill_cache_tokens"),
        }
    )


def folder_of(arm: str, seed: int, root: Path | None = None) -> Path:
    return shelf(root) / arm / f"seed{seed}"


class Lead(NamedTuple):
    """How long before the collapse a signal told the burst that traps from what does no harm.

    `harmless_max`: its highest 5-second mean in the two harmless runs (no burst; the burst with the larger pool);
    `trapped_mean`: its mean between burst and control in the trapped run; `told_s`: when it had exceeded the harmless
    maximum for two windows in a row (infinite: never); `lead_s`: that much before the hit rate fell below `COLLAPSED`
    for good."""

    signal: str
    harmless_max: float
    trapped_mean: float
    told_s: float
    lead_s: float


def leads(runs: Runs, root: Path | None = None) -> list[Lead]:
    """Of every signal, in the first seed."""
    seed = int(runs["burst"][0].meta["seed"])
    frames = {arm: signals(runs[arm][0], folder_of(arm, seed, root)) for arm in ("twin", "large-pool", "burst")}
    collapse, found = collapsed_s(runs["burst"][0]), []
    for name, words in SIGNALS.items():
        means = {arm: frame.groupby(frame["time_s"] // BIN_S)[name].mean() for arm, frame in frames.items()}
        harmless = float(max(means["twin"].max(), means["large-pool"].max()))
        above = means["burst"] > harmless
        told = means["burst"].index[(above & above.shift(-1, fill_value=False)).to_numpy()]
        told_s = float(told[0] * BIN_S + 2 * BIN_S) if len(told) else float("inf")
        between = frames["burst"]["time_s"].between(BURST_S[1], CONTROL_S)
        mean = float(frames["burst"].loc[between, name].mean())
        found.append(Lead(words, harmless, mean, told_s, collapse - told_s))
    return found


def warnings(runs: Runs, root: Path | None = None) -> pd.DataFrame:
    """`leads` as a table."""
    return pd.DataFrame(leads(runs, root))


def collapsed_s(run: Records) -> float:
    """Start of the first 5-second window from which the hit rate stays below `COLLAPSED`; infinite if none."""
    bins = windows(run, BIN_S)
    high = np.flatnonzero(~(bins["hit_rate"].to_numpy() < COLLAPSED))
    first = high[-1] + 1 if len(high) else 0
    return float(bins["start_s"].iloc[first]) if first < len(bins) else float("inf")


def figure_signals(runs: Runs, root: Path | None = None) -> tuple[Figure, pd.DataFrame]:
    """The usual signals beside the working set, without a burst and with it in both pools; first seed."""
    fig, axes = panels(2, height_in=1.9)
    seed, drawn = int(runs["burst"][0].meta["seed"]), []
    for arm in ("twin", "large-pool", "burst"):
        label, color, line = STYLES[arm]
        frame = signals(runs[arm][0], folder_of(arm, seed, root))
        for ax, name in zip(axes, SIGNALS, strict=True):
            ax.plot(frame["time_s"] / 60, frame[name], color=color, ls=line, lw=1.0, label=label)
        drawn.append(frame.assign(arm=arm))
    for letter, ax, name in zip("abcd", axes, SIGNALS, strict=True):
        shade(ax, BURST_S)
        under(ax, letter, SIGNALS[name].capitalize())
        ax.set_ylim(0, None)
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=3)
    return fig, pd.concat(drawn, ignore_index=True)


def findings(runs: Runs) -> str:
    """The bars in words, every number from the runs."""
    table = outcomes(runs)
    parts = []
    for arm, group in table.groupby("arm", sort=False):
        label = STYLES[str(arm)][0]
        met = f"{int(group['met'].eq(True).sum())} of {len(group)}"
        hit, wait = group["hit_last"].median(), group["ttft_last_s"].median()
        words = f"- **{label}**: hit rate {hit:.2f} and median TTFT {wait:.2f} s over the last third"
        if arm in CONTROLS:
            back = ", ".join(f"{s:.0f} s" if np.isfinite(s) else "never" for s in group["back_s"])
            expected = "not expected to" if arm in NO_CURE else f"{met} within {BACK_WITHIN_S:.0f} s"
            words += f"; healthy again after {back} ({expected})"
            words += f", {group['waiting_at_door'].median():.0f} sessions still waiting at the gate in the end"
        else:
            words += f" ({met} as expected)"
        if ARMS[str(arm)].duration_s == LONG_S:
            words += f"; {group['calls_after'].median():.0f} calls and {group['completed'].median():.0f} sessions done"
            words += f" after second {CONTROL_S:.0f}"
        parts.append(f"{words}.")
    return "\n".join(parts)


def signal_findings(runs: Runs) -> str:
    """Which signals told in time, in words."""
    collapse, parts = collapsed_s(runs["burst"][0]), []
    for row in leads(runs):
        if not np.isfinite(row.told_s):
            words = "never rose above what it showed in the two harmless runs"
        elif not np.isfinite(collapse):
            words = f"exceeded its harmless maximum at second {row.told_s:.0f}"
        else:
            side = "before" if row.lead_s > 0 else "after"
            words = f"exceeded its harmless maximum {abs(row.lead_s):.0f} s {side} the collapse"
        parts.append(
            f"- **{row.signal}** {words} ({row.trapped_mean:.2f} on average in the trap, {row.harmless_max:.2f})."
        )
    when = f"at second {collapse:.0f}" if np.isfinite(collapse) else "never for good"
    return f"The hit rate fell below {COLLAPSED} {when}.\n" + "\n".join(parts)
