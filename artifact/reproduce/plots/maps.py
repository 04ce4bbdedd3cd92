"""Paper A, Figures 7 to 10: who can be trapped, by which resource, and what it takes to recover.

All take the results of `artifact.reproduce.scenarios_maps` and `scenarios_recovery` by arm; seeds are pooled.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from artifact.metrics import EndState
from artifact.reproduce.evaluate.recovery import HYSTERESIS_W_OVER_C, trapped_runs, undisturbed
from artifact.reproduce.evaluate.vulnerability import tier_name
from artifact.reproduce.figures import BLACK, BLUE, GREEN, GREY, ORANGE, SKY, VERMILION, log_axis, panels, under
from artifact.reproduce.post_surge import BASE_SHARE, Branch
from artifact.reproduce.scenarios_maps import Classified, Grid, SurgeMap
from artifact.reproduce.scenarios_recovery import PostSurge

Arms = Mapping[str, Sequence[Any]]

LIMITS = {"cache": ("cache cliff first", ORANGE), "decode": ("decode saturates first", SKY)}
NO_LIMIT = ("neither, or undecided", "#dddddd")
TEXT_PT = 7


def figure_7(runs: Arms) -> tuple[Figure, pd.DataFrame]:
    """Share of seeds that a ten-minute surge traps, by base load over overload and surge size: arms `map_1p1d` and
    `map_1p3d`."""
    fig, axes = panels(1, height_in=2.4)
    drawn = [
        _surge_map(axes[0], runs["map_1p1d"][0], "a", "1P1D, GPU cache"),
        _surge_map(axes[1], runs["map_1p3d"][0], "b", "1P3D, HiCache"),
    ]
    seeds = len(runs["map_1p1d"][0].meta["scenario"]["seeds"])
    keys = [Patch(color=_shade(n / seeds), label=f"{n} of {seeds}") for n in range(seeds, -1, -1)]
    keys.append(Patch(color=GREY, label="overloaded without a surge"))
    fig.legend(handles=keys, title="trapped seeds", loc="outside upper left", ncols=len(keys), fontsize=TEXT_PT)
    return fig, pd.concat(drawn, ignore_index=True)


def _surge_map(ax: Axes, found: SurgeMap, panel: str, title: str) -> pd.DataFrame:
    control = found.surges.index(0.0)
    shown = [i for i in range(len(found.surges)) if i != control]
    colors = np.empty((len(found.loads), len(shown), 4))
    for row, shares in enumerate(found.trapped):
        overloaded = shares[control] > 0.5
        colors[row] = [to_rgba(GREY) if overloaded else to_rgba(_shade(shares[i])) for i in shown]
    ax.imshow(colors, origin="lower", aspect="auto")
    ax.set(
        xticks=range(len(shown)),
        xticklabels=[f"{found.surges[i]:.0%}".rstrip("%") for i in shown],
        yticks=range(len(found.loads)),
        yticklabels=[f"{load:g}" for load in found.loads],
        ylabel="Load / overload",
    )
    ax.grid(False)
    under(ax, panel, title, "Surge (+%, 10 min)")
    return pd.DataFrame(
        {"panel": panel, "load": load, "surge": surge, "trapped": share}
        for load, shares in zip(found.loads, found.trapped, strict=True)
        for surge, share in zip(found.surges, shares, strict=True)
    )


def _shade(share: float) -> Any:
    """From pale (no seed trapped) to vermilion (all)."""
    return tuple(np.array(to_rgba("#f2f2f2")) * (1 - share) + np.array(to_rgba(VERMILION)) * share)


def figure_8(runs: Arms) -> tuple[Figure, pd.DataFrame]:
    """Highest load that recovers from +100%, by cache tier and tool time, colored by the first resource to limit
    service above it: arms `grid_1p1d` and `grid_1p3d`."""
    fig, axes = panels(1, height_in=2.2)
    grids = {"a": runs["grid_1p1d"][0], "b": runs["grid_1p3d"][0]}
    drawn = [_grid(ax, grid, panel) for ax, (panel, grid) in zip(axes, grids.items(), strict=True)]
    seen = {word for frame in drawn for word in frame["limit"]}
    keys = [Patch(color=color, label=label) for word, (label, color) in LIMITS.items() if word in seen]
    if not seen <= set(LIMITS):
        keys.append(Patch(color=NO_LIMIT[1], label=NO_LIMIT[0]))
    fig.legend(handles=keys, loc="outside upper left", ncols=3, fontsize=TEXT_PT)
    return fig, pd.concat(drawn, ignore_index=True)


def _grid(ax: Axes, grid: Grid, panel: str) -> pd.DataFrame:
    colors = np.array([[to_rgba(LIMITS.get(word, NO_LIMIT)[1], 0.75) for word in row] for row in grid.limits])
    ax.imshow(colors, aspect="auto")
    for (row, column), load in np.ndenumerate(grid.recoverable):
        ax.text(column, row, "none" if np.isnan(load) else f"{load:g}", ha="center", va="center", fontsize=8)
    ax.set(
        xticks=range(len(grid.tools)),
        xticklabels=[f"x{tool:g}" for tool in grid.tools],
        yticks=range(len(grid.tiers)),
        yticklabels=[tier_name(tier) for tier in grid.tiers],
        ylabel="Cache tier",
    )
    ax.grid(False)
    under(ax, panel, f"1P{grid.decode}D", "Tool time")
    return pd.DataFrame(
        {"panel": panel, "tier": tier, "tool_time": tool, "sessions_per_min": load, "limit": word}
        for tier, loads, words in zip(grid.tiers, grid.recoverable, grid.limits, strict=True)
        for tool, load, word in zip(grid.tools, loads, words, strict=True)
    )


def figure_9(runs: Arms) -> tuple[Figure, pd.DataFrame]:
    """Departures against population in the fluid model, and the model's resource ratio against the simulated hit rate
    at overload: arms `fluid` and `deployments`."""
    fig, axes = panels(1, height_in=2.4)
    drawn = [_departures(axes[0], runs["fluid"][0].model), _classification(axes[1], runs["deployments"])]
    fig.legend(*axes[1].get_legend_handles_labels(), loc="outside upper right", ncols=3, fontsize=TEXT_PT)
    return fig, pd.concat(drawn, ignore_index=True)


def _departures(ax: Axes, d: Any) -> pd.DataFrame:
    from sim.fluid.equilibria import landscape, operating_point

    marks = landscape(d)
    rate = BASE_SHARE * float(marks.peak)
    point = operating_point(d, rate)
    end = float(point.tipping) * 1.25 if np.isfinite(point.tipping) else 2 * float(marks.peak_sessions)
    n = np.linspace(0, end, 400)
    departures = d.departures(n) * 60
    ax.plot(n, departures, color=BLACK, lw=1.4)
    ax.axhline(rate * 60, color=BLUE, ls="--", lw=1)
    middle = (float(point.stable) + end) / 2
    ax.annotate("arrivals λ", (middle, rate * 60), (0, 3), "data", "offset points", color=BLUE, fontsize=7, ha="center")
    places = {
        "$N_s$": (float(point.stable), rate, True),
        "$N_u$": (float(point.tipping), rate, False),
        "$N^*$": (float(marks.peak_sessions), float(marks.peak), True),
    }
    for name, (x, y, filled) in places.items():
        ax.plot(x, y * 60, "o", ms=5, color=BLACK if filled else "white", mec=BLACK)
        ax.annotate(name, (x, y * 60), (3, 5 if filled else -11), "data", "offset points", fontsize=8)
    if np.isfinite(point.tipping):
        ax.axvspan(float(point.tipping), end, color=VERMILION, alpha=0.12, lw=0)
        ax.annotate("trapped", (end, 0.03), (-2, 0), ("data", "axes fraction"), "offset points", fontsize=7, ha="right")
    ax.set(xlim=(0, end), ylim=(0, 1.15 * float(marks.peak) * 60), ylabel="Departures / min")
    under(ax, "a", "Equilibria and tipping", "Active sessions N")
    return pd.DataFrame({"panel": "a", "series": "departures per min", "x": n, "y": departures})


def _classification(ax: Axes, found: Sequence[Classified]) -> pd.DataFrame:
    from sim.fluid.classify import TOLERANCE

    for decode, (color, marker) in {1: (GREEN, "s"), 2: (BLUE, "^"), 3: (ORANGE, "o")}.items():
        label: str | None = f"1P{decode}D"
        for cache_first in (True, False):
            some = [d for d in found if d.decode == decode and d.cache_first == cache_first]
            if some:
                ratios, hits = [d.ratio for d in some], [d.hit_rate for d in some]
                ax.plot(ratios, hits, marker, ms=4, mec=color, color=color if cache_first else "white", label=label)
                label = None
    ax.axvline(1 + TOLERANCE, color=BLACK, ls="--", lw=0.8)
    missed = sum(d.cache_first and not d.flagged for d in found)
    over = sum(d.flagged and not d.cache_first for d in found)
    corner: dict[str, Any] = {"fontsize": 7, "transform": ax.transAxes}
    ax.text(0.02, 0.02, "flagged", va="bottom", **corner)
    ax.text(0.02, 0.98, f"over-cautious: {over}", va="top", **corner)
    ax.text(0.98, 0.98, "safe", ha="right", va="top", **corner)
    ax.text(0.98, 0.02, f"missed: {missed or 'none'}", ha="right", va="bottom", **corner)
    ax.set(ylim=(0, 1.05), ylabel="Sim. hit rate at overload")
    under(ax, "b", "Model vs. simulator", "Model: cache / decode bound")
    return pd.DataFrame(
        {"panel": "b", "series": d.name, "x": d.ratio, "y": d.hit_rate, "limit": d.first_limit} for d in found
    )


def figure_10(runs: Arms) -> tuple[Figure, pd.DataFrame]:
    """Active sessions at the end of the run by post-surge arrival rate, and hit rate against working set with and
    without a collapse before: arms `post_gpu` and `post_host`."""
    fig, axes = panels(1, height_in=2.6)
    drawn = [_recovery(axes[0], runs["post_gpu"][0], runs["post_host"][0]), _hysteresis(axes[1], runs["post_host"][0])]
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=2, fontsize=TEXT_PT)
    return fig, pd.concat(drawn, ignore_index=True)


def _recovery(ax: Axes, gpu: PostSurge, host: PostSurge) -> pd.DataFrame:
    lines = {
        "GPU-only, +300%": (gpu, "plus300", VERMILION, "-"),
        "host 2x, +300%": (host, "plus300", BLUE, "-"),
        "GPU-only, +100%": (gpu, "plus100", VERMILION, ":"),
        "host 2x, +100%": (host, "plus100", BLUE, ":"),
    }
    drawn = []
    for name, (found, surge, color, style) in lines.items():
        branches = [found.of(surge, share) for share in found.shares]
        active = [float(np.mean([b.outcome.active_end for b in some])) for some in branches]
        ax.plot(found.shares, active, color=color, ls=style, lw=1.1, label=name)
        for share, y, some in zip(found.shares, active, branches, strict=True):
            ax.plot(share, y, "o", ms=4.5, mec=color, color=_fill(some, color))
        drawn.append(pd.DataFrame({"panel": "a", "series": name, "x": found.shares, "y": active}))
    ax.axvline(BASE_SHARE, color=GREY, ls="--", lw=0.8)
    log_axis(ax)
    ax.set(ylabel="Sessions at 2 h")
    under(ax, "a", "Recovery vs. base rate", "Base rate after surge (x overload)")
    return pd.concat(drawn)


def _fill(branches: Sequence[Branch], color: str) -> str:
    """Filled: no seed is trapped; hollow: all are; grey: some."""
    trapped = sum(b.state == EndState.TRAPPED for b in branches)
    return color if trapped == 0 else "white" if trapped == len(branches) else GREY


def _hysteresis(ax: Axes, host: PostSurge) -> pd.DataFrame:
    series = {
        "no surge": (undisturbed(host), BLUE),
        "after +300%, trapped": ([run.outcome.windows for run in trapped_runs(host)], VERMILION),
    }
    drawn = []
    ax.axvspan(*HYSTERESIS_W_OVER_C, color=GREY, alpha=0.25, lw=0)
    for name, (runs, color) in series.items():
        points = np.array([point for windows in runs for point in windows]).reshape(-1, 2)
        ax.plot(points[:, 0], points[:, 1], ".", ms=2.5, alpha=0.6, color=color, label=name)
        drawn.append(pd.DataFrame({"panel": "b", "series": name, "x": points[:, 0], "y": points[:, 1]}))
    ax.set(ylim=(0, 1.02), xlim=(0, 4), ylabel="Prefix hit rate")
    ax.legend(loc="center right", fontsize=7, markerscale=3, handlelength=1)
    under(ax, "b", "Hit rate, host 2x", "Working set / cache size")
    return pd.concat(drawn)
