"""How paper B's runs end: Tables 2 and 3 and Figures 6 and 8 as pictures, and the experiments without a picture there.

All take arms "<experiment>/<arm>" of `artifact.reproduce.scenarios_colocated`, one run a seed; a point is a run.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from artifact.metrics import duration_s, evaluated, in_system_at, turn_windows
from artifact.metrics.turns import DEGRADED_HIT
from artifact.records.schema import Records
from artifact.reproduce.colocated import (
    MINUTE,
    cohort_done,
    collapsed,
    degraded,
    end_hit,
    end_sessions,
    recovery_min,
)
from artifact.reproduce.evaluate.colocated_prevention import first_turn_wait_min
from artifact.reproduce.figures import BLACK, BLUE, GREY, ORANGE, VERMILION, panels, shade, under
from artifact.reproduce.plots.colocated import CONTROLLER, PAIR, WIDTH_S, Runs, Style
from artifact.reproduce.scenarios_colocated import (
    COHORT_S,
    CONTROL_32B_S,
    CONTROL_S,
    FLUSH_S,
    MIX_CAPS,
    PAIRED_BURST_S,
    RECOVERY_ARMS,
    TRACE_ARMS,
)

MIX = {
    "none": CONTROLLER["none"],
    **{
        f"cap{k}": Style(f"cap {k}", color)
        for k, color in zip(MIX_CAPS, ("#4d4d4d", "#7f7f7f", "#a6a6a6", "#cccccc"), strict=True)
    },
    "adaptive": CONTROLLER["adaptive"],
    "budgeter": CONTROLLER["budgeter"],
}
COHORT_BIN_S = {"recovery": 5 * MINUTE, "32b03": 10 * MINUTE}
"""Arrival bins of Figure 8."""
NEVER = 1.08
"""Where a run that does not recover is drawn, as a multiple of the longest time that one could take."""


def table_b2(runs: Runs) -> tuple[Figure, pd.DataFrame]:
    """Hit ratio and sessions at the end of every pair; a line joins the two runs of a seed."""
    fig, axes = panels(1, 2.3)
    data = pairs_table(runs)
    for ax, column in zip(axes, ("hit", "sessions"), strict=True):
        for row in data.itertuples():
            values = [getattr(row, f"{column}_none"), getattr(row, f"{column}_burst")]
            ax.plot([0, 1], values, color=GREY, lw=0.7, zorder=1)
            for place, arm, value in zip((0, 1), PAIR, values, strict=True):
                fell = getattr(row, f"degraded_{arm}")
                ax.plot(
                    place, value, "o", ms=5, mec=PAIR[arm].color, mfc=PAIR[arm].color if fell else "white", zorder=2
                )
        ax.set(xticks=[0, 1], xticklabels=[style.label for style in PAIR.values()], xlim=(-0.4, 1.4), ylim=(0, None))
    axes[0].set_ylabel("Hit ratio")
    axes[1].set_ylabel("Sessions")
    under(axes[0], "a", "Last 10 minutes", "")
    under(axes[1], "b", "In the system, last 5 minutes", "")
    return fig, data


def pairs_table(runs: Runs) -> pd.DataFrame:
    """Table 2: one row a seed, `hit_`, `sessions_` and `degraded_` of the arms `none` and `burst`."""
    rows = []
    for none, burst in zip(runs["pairs/none"], runs["pairs/burst"], strict=True):
        row: dict[str, object] = {"seed": none.meta["seed"]}
        for arm, run in (("none", none), ("burst", burst)):
            row |= {f"hit_{arm}": end_hit(run), f"sessions_{arm}": end_sessions(run)}
            row[f"degraded_{arm}"] = degraded(run, PAIRED_BURST_S[1])
        rows.append(row)
    return pd.DataFrame(rows)


def table_b3(runs: Runs) -> tuple[Figure, pd.DataFrame]:
    """Time to recover and share of the 20-minute cohort completed, of every collapsed run, by controller."""
    fig, axes = panels(1, 2.3)
    data = recovery_table(runs)
    longest = (duration_s(runs["recovery/none"][0]) - CONTROL_S) / MINUTE
    shown = data.assign(minutes=data["minutes"].clip(upper=NEVER * longest))
    _strips(axes[0], shown, "minutes", RECOVERY_ARMS)
    _strips(axes[1], shown, "cohort_done", RECOVERY_ARMS)
    axes[0].axhline(longest, color=BLACK, ls=":", lw=0.8)
    axes[0].set(ylabel="Minutes to recover", ylim=(-1, 1.15 * longest))
    axes[0].annotate(
        "not recovered", (0.98, longest), (0, -8), ("axes fraction", "data"), "offset points", fontsize=6, ha="right"
    )
    axes[1].set(ylabel="Cohort completed", ylim=(-0.05, 1.05))
    under(axes[0], "a", "Recovery", "")
    under(axes[1], "b", "Sessions of minutes 20-40", "")
    return fig, data


def recovery_table(runs: Runs) -> pd.DataFrame:
    """Table 3's runs: `arm`, `seed`, `minutes` to recover (infinite: not), `hit` at the end, `cohort_done`."""
    return pd.DataFrame(
        {
            "arm": arm,
            "seed": run.meta["seed"],
            "minutes": recovery_min(run, CONTROL_S),
            "hit": end_hit(run),
            "cohort_done": cohort_done(run, CONTROL_S, COHORT_S),
        }
        for arm in RECOVERY_ARMS
        for run in collapsed(runs[f"recovery/{arm}"], CONTROL_S)
    )


def figure_b6(runs: Runs) -> tuple[Figure, pd.DataFrame]:
    """Hit ratio at the end against the wait of first turns before the session mix shifts, every run; and hit ratio over
    time, the first seed."""
    fig, axes = panels(1, 2.3)
    rows = []
    for arm, style in MIX.items():
        for run in runs[f"mix/{arm}"]:
            rows.append((arm, run.meta["seed"], first_turn_wait_min(run), end_hit(run)))
        waits, hits = zip(*[row[2:] for row in rows if row[0] == arm], strict=True)
        axes[0].plot(waits, hits, "o", ms=5, color=style.color, label=style.label, alpha=0.8, clip_on=False)
        course = turn_windows(runs[f"mix/{arm}"][0], WIDTH_S)
        axes[1].plot(course["end_s"] / MINUTE, course["hit_ratio"], color=style.color, lw=1.1)
    axes[0].set(ylabel="End hit ratio", ylim=(0, 1))
    axes[1].set(ylabel="Hit ratio", ylim=(0, 1.02))
    axes[1].axvline(30, color=BLACK, ls="--", lw=0.8)
    under(axes[0], "a", "Every run", "First-turn wait before the shift, p90 (min)")
    under(axes[1], "b", "Sessions are long from minute 30 on")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=4, fontsize=7)
    return fig, pd.DataFrame(rows, columns=["arm", "seed", "first_turn_wait_p90_min", "end_hit"])


def figure_b8(runs: Runs) -> tuple[Figure, pd.DataFrame]:
    """Completed share of each arrival cohort by the end of the run, mean over collapsed runs: 8B (a) and 32B (b)."""
    fig, axes = panels(1, 2.3)
    drawn = []
    for ax, letter, (experiment, title) in zip(
        axes, "ab", {"recovery": "8B", "32b03": "32B, trace shapes"}.items(), strict=True
    ):
        arms = RECOVERY_ARMS if experiment == "recovery" else TRACE_ARMS
        for arm in arms:
            cohorts = arrival_cohorts(runs[f"{experiment}/{arm}"], COHORT_BIN_S[experiment], _control_s(experiment))
            style = CONTROLLER[arm]
            ax.plot(cohorts["minute"], cohorts["completed"], "o-", ms=2.5, lw=1.1, color=style.color, label=style.label)
            drawn.append(cohorts.assign(panel=letter, arm=arm))
        ax.set(ylabel="Completed share", ylim=(-0.03, 1.03))
        under(ax, letter, title, "Arrival (min)")
    handles = {label: h for ax in axes for h, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    fig.legend(list(handles.values()), list(handles), loc="outside upper left", ncols=3, fontsize=7)
    return fig, pd.concat(drawn, ignore_index=True)


def arrival_cohorts(runs: Sequence[Records], bin_s: float, control_s: float) -> pd.DataFrame:
    """`minute` (the middle of the arrival bin, from when control begins to the end) and `completed`, the share of its
    sessions that completed, mean over the runs that were collapsed."""
    frames = []
    for run in collapsed(runs, control_s):
        sessions = evaluated(run, (control_s, duration_s(run)))
        bins = (sessions["arrival_s"] - control_s) // bin_s
        frames.append((sessions["outcome"] == "completed").groupby(bins).mean())
    mean = pd.concat(frames, axis=1).mean(axis=1)
    return pd.DataFrame({"minute": (control_s + (mean.index + 0.5) * bin_s) / MINUTE, "completed": mean.to_numpy()})


def figure_controls(runs: Runs) -> tuple[Figure, pd.DataFrame]:
    """Every run: without a cache, sessions with and without the burst (a) and with a small one (b); hit ratio after a
    cache flush (c) and under a session cap that fits (d)."""
    fig, axes = panels(2)
    grey, quick = (GREY, 0.8), (VERMILION, 1.0)
    drawn = [
        _sessions(axes[0], {"nocache/none": grey, "nocache/burst": quick}, runs, "a"),
        _sessions(axes[1], {"nocache/none": grey, "nocache/small": (ORANGE, 1.0)}, runs, "b"),
        _hits(axes[2], {"flush/none": quick, "flush/budgeter": (BLUE, 1.0)}, runs, "c"),
        _hits(axes[3], {"cap/burst": (BLUE, 1.0)}, runs, "d"),
    ]
    for ax, letter, title in zip(
        axes, "abcd", ("No cache, +16 sessions", "No cache, +1.5λ", "Cache flush", "Session cap, burst"), strict=True
    ):
        under(ax, letter, title)
    for ax in (axes[0], axes[1], axes[3]):
        shade(ax, PAIRED_BURST_S)
    axes[2].axvline(FLUSH_S / MINUTE, color=BLACK, ls="--", lw=0.8)
    return fig, pd.concat(drawn, ignore_index=True)


def figure_prevention(runs: Runs) -> tuple[Figure, pd.DataFrame]:
    """Hit ratio of every run: the burst with a host tier and without (a); all triggers under the budgeter (b)."""
    fig, axes = panels(1, 2.1)
    drawn = [
        _hits(axes[0], {"pairs/burst": (GREY, 0.8), "offload/burst": (VERMILION, 1.0)}, runs, "a"),
        _hits(axes[1], {f"{name}/budgeter": (BLUE, 0.8) for name in ("small", "flush", "traces")}, runs, "b"),
    ]
    shade(axes[0], PAIRED_BURST_S)
    under(axes[0], "a", "Host tier (grey: without)")
    under(axes[1], "b", "Budgeter from the start")
    return fig, pd.concat(drawn, ignore_index=True)


Line = tuple[str, float]
"""Colour and width."""


def _sessions(ax: Axes, arms: Mapping[str, Line], runs: Runs, panel: str) -> pd.DataFrame:
    def course(run: Records) -> tuple[np.ndarray, np.ndarray]:
        minute = np.arange(0, duration_s(run) / MINUTE + 1)
        return minute, in_system_at(run, minute * MINUTE)

    ax.set_ylabel("Sessions")
    return _every(ax, arms, runs, panel, course)


def _hits(ax: Axes, arms: Mapping[str, Line], runs: Runs, panel: str) -> pd.DataFrame:
    def course(run: Records) -> tuple[np.ndarray, np.ndarray]:
        windows = turn_windows(run, WIDTH_S)
        return windows["end_s"].to_numpy() / MINUTE, windows["hit_ratio"].to_numpy()

    ax.set(ylabel="Hit ratio", ylim=(0, 1.02))
    ax.axhline(DEGRADED_HIT, color=GREY, ls=":", lw=0.8)
    return _every(ax, arms, runs, panel, course)


def _every(
    ax: Axes,
    arms: Mapping[str, Line],
    runs: Runs,
    panel: str,
    course: Callable[[Records], tuple[np.ndarray, np.ndarray]],
) -> pd.DataFrame:
    """A thin line a run."""
    drawn = []
    for arm, (color, width) in arms.items():
        for run in runs[arm]:
            x, y = course(run)
            ax.plot(x, y, color=color, lw=width, alpha=0.8)
            drawn.append(pd.DataFrame({"panel": panel, "arm": arm, "seed": run.meta.get("seed"), "x": x, "y": y}))
    return pd.concat(drawn)


def _strips(ax: Axes, data: pd.DataFrame, column: str, arms: Sequence[str]) -> None:
    """A column of points an arm, spread by seed so that equal values do not hide one another."""
    for place, arm in enumerate(arms):
        values = data.loc[data["arm"] == arm, column].to_numpy()
        x = place + np.linspace(-0.25, 0.25, len(values)) if len(values) > 1 else np.array([float(place)])
        ax.plot(x, values, "o", ms=3.5, color=CONTROLLER[arm].color, alpha=0.8)
    ax.set_xticks(range(len(arms)), arms, fontsize=6)
    ax.grid(axis="x", visible=False)


def _control_s(experiment: str) -> float:
    return CONTROL_S if experiment == "recovery" else CONTROL_32B_S
