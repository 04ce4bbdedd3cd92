"""Paper A, Figures 17 to 20, and what §7.3 and §7.5 say without a figure: lines and bars over summaries of runs.

All take arms "<setting>/<policy>" of `artifact.reproduce.scenarios_sweeps`, one `Summary` a seed.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from artifact.reproduce.figures import BLUE, GREY, ORANGE, PURPLE, SKY, VERMILION, log_axis, panels, under
from artifact.reproduce.plots.bars import STYLES, bars, legend, lines, rows
from artifact.reproduce.scenarios_sweeps import (
    CONTROLS,
    EVICTIONS,
    HOST_RATIOS,
    LRU_SURGES,
    OPEN_SETTINGS,
    ROUTED,
    ROUTED_STEADY,
)
from artifact.reproduce.summaries import Summary, frame

Runs = Mapping[str, Sequence[Summary]]
FLOOR_S = 0.1
"""Shorter times are drawn as this on a logarithmic axis."""
SECONDS = (0.1, 1, 10, 100, 1000)


def figure_17(runs: Runs) -> tuple[Figure, pd.DataFrame]:
    """Goodput and p90 TTFT over the offered load."""
    found = _over_load(frame(runs))
    fig, axes = panels(1, 2.3)
    drawn = [
        lines(axes[0], found, "goodput").assign(panel="a"),
        lines(axes[1], _floored(found, "ttft_p90_s"), "ttft_p90_s").assign(panel="b"),
    ]
    _finish(fig, axes, found, ("Goodput", "TTFT, p90"), "Offered load (sessions/min)")
    axes[0].set(ylabel="Goodput (sessions/h)", ylim=(0, None))
    axes[1].set_ylabel("TTFT p90 (s)")
    log_axis(axes[1], ticks=SECONDS)
    return fig, pd.concat(drawn, ignore_index=True)


def figure_18(runs: Runs) -> tuple[Figure, pd.DataFrame]:
    """Goodput under coder arrivals, dotted HiCache under Poisson ones, stars trace A; second-hour median TTFT with
    outputs scaled by 3."""
    found = _over_load(frame(runs))
    kind = found["setting"].str.rsplit("-", n=1).str[0]
    fig, axes = panels(1, 2.3)
    drawn = [
        lines(axes[0], found[kind == "coder"], "goodput").assign(panel="a"),
        lines(axes[0], found[kind == "poisson"], "goodput", linestyle=":").assign(panel="a"),
        _stars(axes[0], found[kind == "a"]).assign(panel="a"),
        lines(axes[1], _floored(found[kind == "coder-out3"], "second_hour_s"), "second_hour_s").assign(panel="b"),
    ]
    _finish(fig, axes, found[kind == "coder"], ("1P3D", "1P3D, outputs ×3"), "Mean load (sessions/min)")
    axes[0].set(ylabel="Goodput (sessions/h)", ylim=(0, None))
    axes[1].set_ylabel("Median TTFT (s)")
    log_axis(axes[1], ticks=SECONDS)
    return fig, pd.concat(drawn, ignore_index=True)


def _stars(ax: Axes, found: pd.DataFrame) -> pd.DataFrame:
    for policy, seeds in found.groupby("policy"):
        ax.plot(seeds["x"], seeds["goodput"], "*", ms=4, color=STYLES[str(policy)][1], mew=0)
    drawn = found[["setting", "policy", "seed", "x", "goodput", "state"]]
    return drawn.rename(columns={"goodput": "value"}).assign(metric="goodput")


def figure_19(runs: Runs) -> tuple[Figure, pd.DataFrame]:
    """p90 first-call wait at steady load and goodput after the surge, over the host tier."""
    found = frame(runs)
    found = found.assign(x=found["setting"].str.extract(r"host(\d+)")[0].astype(float))
    steady = found["setting"].str.endswith("-steady")
    fig, axes = panels(1, 2.3)
    drawn = [
        lines(axes[0], _floored(found[steady], "wait_p90_s"), "wait_p90_s").assign(panel="a"),
        lines(axes[1], found[~steady], "goodput").assign(panel="b"),
    ]
    titles = ("Steady load, wait of new sessions", "×5 surge, goodput")
    _finish(fig, axes, found, titles, "Host tier / GPU prefix cache")
    axes[0].set_ylabel("p90 wait (s)")
    axes[1].set(ylabel="Goodput (sessions/h)", ylim=(0, None))
    log_axis(axes[0], ticks=SECONDS)
    for ax in axes:
        ax.set(xscale="log", xticks=HOST_RATIOS, xticklabels=[f"{ratio}×" for ratio in HOST_RATIOS])
        ax.minorticks_off()
    return fig, pd.concat(drawn, ignore_index=True)


def figure_20(runs: Runs) -> tuple[Figure, pd.DataFrame]:
    """Goodput on 2P6D by router, at steady load and after the surge."""
    found = frame(runs)
    fig, axes = rows(2)
    drawn = []
    halves = {"(a) Steady load": ROUTED_STEADY, "(b) ×5 surge, 20 min": ROUTED}
    for ax, (title, settings) in zip(axes, halves.items(), strict=True):
        here = found[found["setting"].isin(list(settings))]
        if len(here):
            drawn.append(bars(ax, here, settings, "goodput", letters=True).assign(panel=title[1]))
        ax.set(ylabel="Goodput (sessions/h)", xlabel=title)
    legend(fig, found)
    return fig, pd.concat(drawn, ignore_index=True)


def controls_figure(runs: Runs) -> tuple[Figure, pd.DataFrame]:
    """Basin over the best of the others in each healthy control, a dot a seed; the line is the paper's 0.996."""
    found = frame(runs)
    best = found[found["policy"] != "basin"].groupby(["setting", "seed"])["goodput"].max()
    basin = found[found["policy"] == "basin"].set_index(["setting", "seed"])
    drawn = (basin["goodput"] / best).rename("value").reset_index().assign(state=basin["state"].to_numpy())
    places = {name: place for place, name in enumerate(CONTROLS) if name in set(drawn["setting"])}
    fig, (ax,) = rows(1, 2.6)
    ax.axhline(0.996, color=GREY, lw=1, ls="--")
    ax.plot(drawn["setting"].map(places), drawn["value"], "o", ms=3, color=BLUE, alpha=0.7)
    ax.set(xticks=list(places.values()), ylabel="Basin / best other, goodput")
    ax.set_xticklabels([name.replace("-calm", "") for name in places], rotation=60, ha="right")
    return fig, drawn


EVICTION_STYLES = {
    "lru": ("LRU", GREY),
    "oracle": ("next-call oracle", ORANGE),
    "pinning": ("tool-gap pinning", SKY),
    "largest": ("largest first", VERMILION),
    "basin": ("Basin, LRU", BLUE),
}


def evictions_figure(runs: Runs) -> tuple[Figure, pd.DataFrame]:
    """Goodput of HiCache by what the GPU evicts first, beside Basin's, by surge factor."""
    found = frame(runs)
    found = found[found["setting"].str.startswith("1p3d-") & found["policy"].isin(["hicache", "basin"])]
    order = found["setting"].str.rsplit("-", n=1).str[1]
    evicted = order.isin(list(EVICTIONS))
    found = found.assign(
        policy=order.where(evicted, found["policy"].replace("hicache", "lru")),
        setting=found["setting"].where(~evicted, found["setting"].str.rsplit("-", n=1).str[0]),
    )
    found = found.sort_values("policy", key=lambda names: names.map(list(EVICTION_STYLES).index), kind="stable")
    settings = {name: setting for name, setting in LRU_SURGES.items() if name in set(found["setting"])}
    fig, (ax,) = rows(1)
    drawn = bars(ax, found, settings, "goodput", letters=True, styles=EVICTION_STYLES)
    ax.set(ylabel="Goodput (sessions/h)", xlabel="20-minute surge")
    legend(fig, found, EVICTION_STYLES)
    return fig, drawn


def open_figure(runs: Runs) -> tuple[Figure, pd.DataFrame]:
    """Goodput of each baseline over Basin's: black as we run it, coloured with one open choice made otherwise; the bar
    at each point is the range of the seeds."""
    found = frame(runs)
    basin = found[found["policy"] == "basin"].set_index(["setting", "seed"])["goodput"]
    pairs = pd.MultiIndex.from_frame(found[["setting", "seed"]])
    found = found.assign(value=found["goodput"].to_numpy() / basin.reindex(pairs).to_numpy())
    found = found[found["policy"] != "basin"].assign(baseline=found["policy"].str.split(":").str[0])
    settings = [name for name in OPEN_SETTINGS if name in set(found["setting"])]
    fig, axes = rows(len(settings), 2.3)
    baselines = list(dict.fromkeys(found["baseline"]))
    for ax, setting in zip(axes, settings, strict=True):
        ax.axhline(1, color=PURPLE, lw=1, ls="--")
        for place, baseline in enumerate(baselines):
            variants = found[(found["setting"] == setting) & (found["baseline"] == baseline)].groupby("policy")["value"]
            spread = variants.agg(["median", "min", "max"])
            offsets = place + np.linspace(-0.35, 0.35, len(spread)) if len(spread) > 1 else [float(place)]
            for x, (policy, row) in zip(offsets, spread.iterrows(), strict=True):
                color = "black" if policy == baseline else STYLES[baseline][1]
                ax.plot([x, x], [row["min"], row["max"]], color=color, lw=0.8)
                ax.plot(x, row["median"], "o", ms=3.5, color=color)
        ax.set(xticks=range(len(baselines)), xticklabels=[STYLES[name][0] for name in baselines], ylim=(0, None))
        ax.set(ylabel="Goodput / Basin", xlabel=OPEN_SETTINGS[setting].title)
    return fig, found[["setting", "policy", "seed", "goodput", "value", "state"]]


def _over_load(found: pd.DataFrame) -> pd.DataFrame:
    return found.assign(x=found["setting"].str.rsplit("-", n=1).str[1].astype(float))


def _floored(found: pd.DataFrame, metric: str) -> pd.DataFrame:
    return found.assign(**{metric: found[metric].clip(lower=FLOOR_S)})


def _finish(fig: Figure, axes: Iterable[Axes], found: pd.DataFrame, titles: Sequence[str], label: str) -> None:
    for ax, panel, title in zip(axes, "ab", titles, strict=True):
        under(ax, panel, title, label)
    legend(fig, found)
