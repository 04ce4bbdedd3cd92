"""Paper A, Figures 21 to 24 and Table 1: Basin over time, under post-surge arrivals, taken apart, and with other
parameters. Figure 21 and the table take `Records`, the others a `Summary`, one a seed and arm.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from artifact.metrics import column, windows
from artifact.records.schema import Records
from artifact.reproduce.compare import ratio
from artifact.reproduce.evaluate.sensitivity import changes
from artifact.reproduce.figures import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
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
from artifact.reproduce.plots.bars import STYLES, bars, legend, lines, rows
from artifact.reproduce.scenarios import MINUTE
from artifact.reproduce.scenarios_ablation import (
    LATE_MIN,
    OVERLOADS,
    PARAMETERS,
    PLOTTED,
    PRIORITY_ONLY,
    SENSITIVE,
    SIGMAS,
    TRIGGERS,
    TRUE_PEAKS,
)
from artifact.reproduce.scenarios_policies import PROTOTYPE, SURGE_S
from artifact.reproduce.summaries import Summary, frame

Summaries = Mapping[str, Sequence[Summary]]
SECONDS = (0.1, 1, 10, 100, 1000)
LEAST_SPAN = 0.004
"""So that a bar without any is seen (the margin's, paper A §7.9)."""
LATE_TTFT_S = 10.0
"""Hollow markers of Fig. 22: L_late above this in every seed."""

# Figure 21 -----------------------------------------------------------------------------------------------------------

CONTROLS = {"lending": ("lends", PURPLE), "ordering": ("orders", GREEN), "admitting": ("admits", ORANGE)}
"""Columns of `samples`, with the words and colours of their bands."""
BAND_S = 60.0


def figure_21(runs: Mapping[str, Sequence[Records]]) -> tuple[Figure, pd.DataFrame]:
    """Sessions present under each system, from the start and switched on at minute 45; the bands at the top are when
    Basin lends, orders and admits in most seeds."""
    fig, axes = panels(1, 2.6)
    drawn = []
    for ax, setting, title in zip(axes, ("1p3d", "late"), ("From the start", "Switched on at minute 45"), strict=True):
        for name, seeds in runs.items():
            if name.split("/")[0] == setting:
                policy = name.split("/")[1]
                label, color = STYLES[policy]
                frames = [_present(run) for run in seeds]
                one = course(ax, frames, "present", label=label, color=color, lw=1.1)
                drawn.append(one.assign(panel=setting, policy=policy))
        ax.set_ylim(0, ax.get_ylim()[1] * 1.2)
        for number, (control, (word, color)) in enumerate(CONTROLS.items()):
            _band(ax, runs[f"{setting}/basin"], control, 0.97 - 0.05 * number, color, word)
        shade(ax, SURGE_S)
        under(ax, "a" if setting == "1p3d" else "b", title)
    axes[0].set_ylabel("Sessions")
    axes[1].axvline(LATE_MIN, color=GREY, lw=1, ls=":")
    handles, labels = axes[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside upper center", ncols=5, fontsize=7)
    return fig, pd.concat(drawn, ignore_index=True)


def _present(run: Records) -> pd.DataFrame:
    found = windows(run)
    return found.assign(present=found["active_sessions"] + found["parked_sessions"].fillna(0))


def _band(ax: Axes, seeds: Sequence[Records], control: str, height: float, color: str, word: str) -> None:
    """A line at `height` of the axis over the minutes in which most seeds have the control on."""
    on = np.append(engaged(seeds, control), False)
    minutes = np.arange(len(on)) * BAND_S / MINUTE
    ax.fill_between(
        minutes, height, height + 0.03, where=list(on), step="post", color=color, lw=0,
        transform=ax.get_xaxis_transform(), label=word,
    )  # fmt: skip


def engaged(seeds: Sequence[Records], control: str) -> np.ndarray:
    """For each minute of the runs whether most seeds had the control ("lending", …) on for most of it."""
    votes = []
    for run in seeds:
        time = column(run.samples, "time_s")
        on = np.array([bool(value) for value in column(run.samples, control)], dtype=float)
        place = (time // BAND_S).astype(int)
        votes.append(np.bincount(place, on) / np.maximum(np.bincount(place), 1))
    count = min(map(len, votes))
    found: np.ndarray = np.median([vote[:count] for vote in votes], axis=0) > 0.5
    return found


# Figure 22 -----------------------------------------------------------------------------------------------------------

AFTER_STYLES = STYLES | {PRIORITY_ONLY: ("Basin, priority only", BLACK)}


def figure_22(runs: Summaries) -> tuple[Figure, pd.DataFrame]:
    """Goodput and p90 first-call wait on GPU-only 1P3D over the post-surge rate, after +300% and after ×6; hollow
    where L_late exceeds 10 s in every seed."""
    found = frame(runs)
    found = found[found["setting"].str.startswith("gpu-")]
    late = found.groupby(["setting", "policy"])["late_ttft_s"].transform("min") > LATE_TTFT_S
    found = found.assign(
        x=found["setting"].str.rsplit("-", n=1).str[1].astype(float),
        state=np.where(late, "trapped", "healthy"),
        wait_p90_s=found["wait_p90_s"].clip(lower=1.0),
    )
    fig, axes = panels(2, 1.9)
    drawn = []
    for place, (surge, title) in enumerate({"plus300": "+300%, 10 min", "x6": "×6, 20 min"}.items()):
        here = found[found["setting"].str.contains(f"-{surge}-")]
        drawn.append(lines(axes[place], here, "goodput", AFTER_STYLES).assign(panel=surge))
        drawn.append(lines(axes[2 + place], here, "wait_p90_s", AFTER_STYLES).assign(panel=surge))
        axes[place].set(xlim=(0, 1), ylim=(0, None), ylabel="Goodput (sessions/h)")
        axes[2 + place].set(xlim=(0, 1), ylabel="p90 wait (s)")
        log_axis(axes[2 + place], ticks=SECONDS[1:])
        under(axes[2 + place], "ab"[place], title, "λr / λref")
    legend(fig, found, AFTER_STYLES)
    return fig, pd.concat(drawn, ignore_index=True)


# Figure 23 -----------------------------------------------------------------------------------------------------------

ABLATION_STYLES = {
    "basin-no-lending": ("w/o lending", PURPLE),
    "basin-no-priority": ("w/o priority order", GREEN),
    "basin-no-admission": ("w/o admission", ORANGE),
    "basin-lending-only": ("lending only", SKY),
    PROTOTYPE: ("prior", VERMILION),
}


def figure_23(runs: Summaries) -> tuple[Figure, pd.DataFrame]:
    """Goodput and p90 TTFT of each ablation over Basin's in the same seed."""
    found = frame(runs)
    found = found[found["setting"].isin(list(TRIGGERS | OVERLOADS))]
    basin = found[found["policy"] == "basin"].set_index(["setting", "seed"])
    pairs = pd.MultiIndex.from_frame(found[["setting", "seed"]])
    for name in ("goodput", "ttft_p90_s"):
        found = found.assign(**{f"{name}_ratio": found[name].to_numpy() / basin[name].reindex(pairs).to_numpy()})
    found = found[found["policy"].isin(list(ABLATION_STYLES))]
    settings = {name: s for name, s in (TRIGGERS | OVERLOADS).items() if name in set(found["setting"])}
    fig, axes = rows(2)
    drawn = []
    for ax, panel, name, label in zip(
        axes, "ab", ("goodput_ratio", "ttft_p90_s_ratio"), ("Goodput / Basin", "TTFT p90 / Basin"), strict=True
    ):
        drawn.append(bars(ax, found, settings, name, panel == "a", ABLATION_STYLES).assign(panel=panel))
        ax.axhline(1, color=BLUE, lw=0.8, ls="--")
        ax.set(ylabel=label, xlabel=f"({panel}) {'Goodput' if panel == 'a' else 'TTFT, p90'}")
    log_axis(axes[1], ticks=(0.1, 1, 10, 100))
    axes[1].set_ylim(0.05, None)
    legend(fig, found, ABLATION_STYLES)
    return fig, pd.concat(drawn, ignore_index=True)


# Figure 24 -----------------------------------------------------------------------------------------------------------

GROUPS = {
    "Δ": ("interval_s",),
    "m": ("margin",),
    "α": ("alpha_lend", "alpha_order", "alpha_release"),
    "φ": ("lend_cap",),
    "Ts": ("shed_after_s",),
    "r": ("priority_tokens_per_s",),
}
ESTIMATE_STYLES = {
    PROTOTYPE: ("prior", VERMILION),
    "basin": ("predicted", BLUE),
    **{f"sigma-{s:g}": (f"σ {s:g}", color) for s, color in zip(SIGMAS, (ORANGE, SKY, GREEN), strict=True)},
    TRUE_PEAKS: ("true", PURPLE),
}


def figure_24(runs: Summaries) -> tuple[Figure, pd.DataFrame]:
    """(a) The span over triggers of goodput with a parameter lower or higher, over the default's (means over seeds);
    the thin line spans the single seeds, the white tick is the median over triggers and parameters.

    (b) Goodput with other estimates over the predictor's in the same seed."""
    fig, axes = rows(2, 2.3)
    drawn = pd.concat([_parameters(axes[0], runs).assign(panel="a"), _estimates(axes[1], runs).assign(panel="b")])
    return fig, drawn.reset_index(drop=True)


def _parameters(ax: Axes, runs: Summaries) -> pd.DataFrame:
    change = changes(runs)
    triggers = [name for name in SENSITIVE if f"{name}/basin" in runs]
    known = [v for v in PARAMETERS if any(f"{t}/{v}" in runs for t in triggers)]
    triggers = [t for t in triggers if all(f"{t}/{v}" in runs for v in known)]
    named = {field: group for group, fields in GROUPS.items() for field in fields}
    found = pd.DataFrame(
        [
            (named.get(v.split(":")[0], "impl."), v.split(":")[1], v, t, change(v, t), *_seeds(runs, v, t))
            for v in known
            for t in triggers
        ],
        columns=["group", "side", "policy", "setting", "value", "low", "high"],
    )  # fmt: skip
    groups = [group for group in (*GROUPS, "impl.") if group in set(found["group"])]
    for place, group in enumerate(groups):
        for offset, side, color in ((-0.2, "low", SKY), (0.2, "high", ORANGE)):
            here = found[(found["group"] == group) & (found["side"] == side)]
            x, values = place + offset, here["value"]
            label = {"low": "lower value", "high": "higher value"}[side] if place == 0 else None
            span = max(values.max() - values.min(), LEAST_SPAN)
            ax.bar(x, span, 0.36, bottom=values.min(), color=color, lw=0, label=label)
            ax.plot([x, x], [here["low"].min(), here["high"].max()], color="black", lw=0.6)
            ax.plot([x - 0.18, x + 0.18], [values.median()] * 2, color="white", lw=1)
    ax.axhline(1, color="black", lw=0.6)
    ax.set(
        xticks=range(len(groups)), xticklabels=groups, ylabel="Goodput / default", xlabel="(a) Controller parameters"
    )
    ax.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    return found


def _seeds(runs: Summaries, variant: str, trigger: str) -> tuple[float, float]:
    """Lowest and highest of the seeds' own ratios to the default."""
    pairs = zip(runs[f"{trigger}/{variant}"], runs[f"{trigger}/basin"], strict=True)
    ratios = [ratio(one.goodput, default.goodput) for one, default in pairs]
    return min(ratios), max(ratios)


def _estimates(ax: Axes, runs: Summaries) -> pd.DataFrame:
    found = frame(runs)
    found = found[found["policy"].isin(list(ESTIMATE_STYLES)) & found["setting"].isin(PLOTTED)]
    basin = found[found["policy"] == "basin"].set_index(["setting", "seed"])["goodput"]
    pairs = pd.MultiIndex.from_frame(found[["setting", "seed"]])
    found = found.assign(ratio=found["goodput"].to_numpy() / basin.reindex(pairs).to_numpy())
    found = found.sort_values("policy", key=lambda names: names.map(list(ESTIMATE_STYLES).index), kind="stable")
    settings = {name: SENSITIVE[name] for name in PLOTTED if name in set(found["setting"])}
    drawn = bars(ax, found, settings, "ratio", letters=True, styles=ESTIMATE_STYLES)
    handles = [Patch(color=color, label=name) for name, color in ESTIMATE_STYLES.values()]
    ax.axhline(1, color="black", lw=0.6)
    ax.set(ylabel="Goodput / Basin", xlabel="(b) Working-set estimate")
    ax.legend(handles=handles, fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(handles))
    return drawn
