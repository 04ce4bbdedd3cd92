"""Figures 1 and 2 of paper A, drawn from the fluid model instead of by hand."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from artifact.control.parameters import BasinParameters
from artifact.reproduce.figures import BLUE, COLUMN_IN, GREEN, GREY, ORANGE, VERMILION, use_style
from artifact.reproduce.ledger import commit
from artifact.reproduce.paths import repository_root
from sim.fluid.dynamics import Path, Segment, admission, integrate, resident_first
from sim.fluid.equilibria import Landscape, OperatingPoint, landscape, operating_point
from sim.fluid.model import FluidDeployment
from sim.fluid.plots import arrow, equilibria, note

MINUTE = 60.0
LOOKED_S = 3600.0
"""When Fig. 1a reads the run for its second number."""


@dataclass(frozen=True)
class Surge:
    """A deployment at a base load, and a surge on it; rates in sessions/s."""

    d: FluidDeployment
    rate: float
    factor: float
    start_s: float = 900.0
    end_s: float = 1500.0
    total_s: float = 6000.0

    @classmethod
    def at(cls, d: FluidDeployment, share_of_peak: float, factor: float) -> "Surge":
        """With the base load as a share of the highest departure rate."""
        return cls(d, share_of_peak * float(landscape(d).peak), factor)

    @property
    def segments(self) -> list[Segment]:
        high = Segment(self.end_s, self.rate * self.factor)
        return [Segment(self.start_s, self.rate), high, Segment(self.total_s, self.rate)]

    @property
    def marks(self) -> Landscape:
        return landscape(self.d)

    @property
    def point(self) -> OperatingPoint:
        return operating_point(self.d, self.rate)

    @property
    def words(self) -> str:
        minutes = (self.end_s - self.start_s) / MINUTE
        load = f"{self.rate * MINUTE:.1f} sessions/min, +{self.factor - 1:.0%} for {minutes:.0f} min"
        return f"fluid model of {self.d.name}, {load}"


def about(surge: Surge) -> dict[str, Any]:
    """The provenance of a figure drawn from the model, for `artifact.reproduce.figures.save`."""
    return {
        "source": "model",
        "model": surge.words,
        "terms": surge.d.model_dump(mode="json"),
        "commit": commit(repository_root()),
    }


def figure_1(surge: Surge) -> tuple[Figure, pd.DataFrame]:
    """Population-cache feedback: (a) the loop, with the model's numbers before the surge and at minute 60,
    (b) departures against active sessions. Returns the figure and the curve of (b)."""
    use_style()
    fig = Figure(figsize=(2 * COLUMN_IN, 2.7), layout="constrained")
    left, right = fig.subplots(1, 2, width_ratios=[1, 1.1])
    _loop(left, surge, integrate(surge.d, surge.segments))
    data = _effect(right, surge)
    left.set_title(f"(a) Why: a feedback loop (minute 0 → {LOOKED_S / MINUTE:.0f})")
    right.set_title("(b) Effect: completions fall")
    fig.supxlabel(surge.words, fontsize=7, color=GREY)
    return fig, data


def _loop(ax: Axes, surge: Surge, path: Path) -> None:
    ax.set_axis_off()
    ax.set(xlim=(0, 1), ylim=(0, 1))
    d, n = surge.d, np.interp([0.0, LOOKED_S], path.time_s, path.active)
    ratio, latency = d.working_set_ratio(n), n / d.throughput(n) - d.gap_s
    hits = d.hits(ratio)
    boxes = {
        (0.5, 0.9): f"more sessions active\n{n[0]:.0f} → {n[1]:.0f}",
        (0.82, 0.5): f"working set\n> cache\n{ratio[0]:.1f}C → {ratio[1]:.1f}C",
        (0.5, 0.1): f"cache misses: re-prefill\nhit rate {hits[0]:.2f} → {hits[1]:.2f}",
        (0.18, 0.5): f"slower calls,\nsessions stay\n{latency[0]:.0f} s → {latency[1]:.0f} s",
    }
    for (x, y), text in boxes.items():
        box = {"boxstyle": "round,pad=0.35", "fc": "white", "ec": GREY}
        ax.text(x, y, text, ha="center", va="center", fontsize=7, bbox=box)
    corners = [((0.74, 0.84), (0.84, 0.67)), ((0.84, 0.33), (0.74, 0.16)), ((0.26, 0.16), (0.16, 0.33))]
    for tail, head in [*corners, ((0.16, 0.67), (0.26, 0.84))]:
        arrow(ax, tail, head, VERMILION, bend=-0.25)
    ax.text(0.5, 0.5, "loop", ha="center", va="center", color=VERMILION, style="italic")
    arrow(ax, (0.02, 0.94), (0.25, 0.94), "black")
    ax.text(0.02, 0.96, "surge", fontsize=7)


def _effect(ax: Axes, surge: Surge) -> pd.DataFrame:
    d, rate, point, marks = surge.d, surge.rate * MINUTE, surge.point, surge.marks
    reach = 1.75 * float(point.tipping)
    n = np.linspace(0, reach, 500)
    departures = d.departures(n) * MINUTE
    top = 1.22 * float(marks.peak) * MINUTE
    ax.axvspan(float(point.tipping), reach, color=VERMILION, alpha=0.08, lw=0)
    ax.plot(n, departures, color="black", lw=1.6)
    ax.axhline(rate, color=BLUE, ls="--", lw=1.2)
    ax.text(0.99 * reach, rate, "arrivals", color=BLUE, ha="right", va="bottom", fontsize=7)
    ax.text(0.35 * float(point.stable), 0.6 * rate, "cache fits", rotation=52, fontsize=7, ha="left", va="bottom")
    ax.text(0.99 * reach, departures[-1], "loop active", ha="right", va="bottom", fontsize=7)
    equilibria(ax, float(point.stable), float(point.tipping), rate)
    healthy, tipping = (float(point.stable), rate), (float(point.tipping), rate)
    note(ax, "healthy", healthy, (-4, 6), GREEN, ha="right")
    note(ax, "tipping point", tipping, (7, -11), VERMILION)
    arrow(ax, (healthy[0], 1.1 * rate), (1.3 * tipping[0], 1.12 * rate), ORANGE, bend=-0.55)
    ax.text((healthy[0] + 1.3 * tipping[0]) / 2, 0.99 * top, "surge", color=ORANGE, ha="center", va="top", fontsize=7)
    low = 0.16 * rate
    arrow(ax, (0.92 * tipping[0], low), (1.12 * healthy[0], low), GREEN)
    ax.text((tipping[0] + healthy[0]) / 2, 1.3 * low, "recovers", color=GREEN, ha="center", fontsize=7)
    arrow(ax, (1.08 * tipping[0], low), (0.97 * reach, low), VERMILION)
    ax.text((tipping[0] + reach) / 2, 1.3 * low, "piles up", color=VERMILION, ha="center", fontsize=7)
    ax.set(xlim=(0, reach), ylim=(0, top), xlabel="active sessions", ylabel="completions / min")
    return pd.DataFrame(
        {
            "active_sessions": n,
            "working_set_over_cache": d.working_set_ratio(n),
            "completions_per_min": departures,
            "arrivals_per_min": rate,
        }
    )


@dataclass(frozen=True)
class Remedies:
    """What Fig. 2 compares on one deployment and surge: budgets in tokens, the rest as its panels show it."""

    surge: Surge
    more_cache: FluidDeployment
    """Twice the cache."""
    lent: FluidDeployment
    """The cache that lending at most phi of decode memory makes (§6.1)."""
    resident_first: Path
    tight_tokens: float
    """A budget under which departures stay below base arrivals: the door queue never drains."""
    loose_tokens: float
    """A budget beyond the tipping point: it admits the trap."""
    reference_tokens: float
    """B0 = min(m W_c, C_eff) on the lent cache (§6.1)."""
    basin: Path

    @classmethod
    def of(cls, surge: Surge, first_prompt_tokens: float, parameters: BasinParameters | None = None) -> "Remedies":
        """`first_prompt_tokens` is what a new session's first call prefills."""
        p, d = parameters or BasinParameters(), surge.d
        lent = d.replace(cache_tokens=d.cache_tokens + p.lend_cap * d.decode_kv_tokens)
        reference = min(p.margin * lent.hits.cliff, 1.0) * lent.cache_tokens
        starved = operating_point(d, 0.8 * surge.rate).stable
        return cls(
            surge=surge,
            more_cache=d.scaled(cache=2.0),
            lent=lent,
            resident_first=integrate(d, surge.segments, resident_first(first_prompt_tokens)),
            tight_tokens=float(starved) * d.context_tokens,
            loose_tokens=1.15 * float(surge.point.tipping) * d.context_tokens,
            reference_tokens=reference,
            basin=integrate(lent, surge.segments, admission(reference)),
        )


def figure_2(remedies: Remedies) -> tuple[Figure, pd.DataFrame]:
    """Existing remedies (a-c) and Basin (d) on the curve of Fig. 1b. Returns the figure and its curves in long form
    (`panel`, `curve`, `working_set_over_cache`, `completions_per_min`), working sets over the unchanged cache."""
    use_style()
    fig = Figure(figsize=(2 * COLUMN_IN, 2.2), layout="constrained")
    axes = fig.subplots(1, 4, sharey=True)
    r, surge = remedies, remedies.surge
    wide, narrow = (1.35 * float(_x(surge, operating_point(d, surge.rate).tipping)) for d in (r.lent, surge.d))
    data = []
    for ax, panel, other, reach, draw in zip(
        axes, PANELS, (r.more_cache, None, None, r.lent), (wide, narrow, narrow, wide), DRAW, strict=True
    ):
        x = np.linspace(0, reach, 500)
        curves = {"unchanged": surge.d} | ({"changed": other} if other else {})
        for name, d in curves.items():
            rates = d.departures(x * surge.d.cache_tokens / surge.d.context_tokens) * MINUTE
            ax.plot(x, rates, color=GREY if name == "unchanged" else BLUE, lw=1.4)
            data.append(
                pd.DataFrame(
                    {"panel": panel[1], "curve": name, "working_set_over_cache": x, "completions_per_min": rates}
                )
            )
        ax.axhline(surge.rate * MINUTE, color="black", ls="--", lw=0.8)
        equilibria(ax, _x(surge, surge.point.stable), _x(surge, surge.point.tipping), surge.rate * MINUTE, size=4)
        draw(ax, r)
        ax.set(title=panel, xlabel="working set / cache", xlim=(0, reach))
    axes[0].set(ylabel="completions / min", ylim=(0, 1.6 * MINUTE * float(landscape(r.lent).peak)))
    fig.supxlabel(surge.words, fontsize=7, color=GREY)
    return fig, pd.concat(data, ignore_index=True)


def _x(surge: Surge, sessions: Any) -> Any:
    """Working set of a population over the unchanged cache."""
    return surge.d.working_set_ratio(sessions)


def _capacity(ax: Axes, r: Remedies) -> None:
    marks, tipping = landscape(r.more_cache), operating_point(r.more_cache, r.surge.rate).tipping
    equilibria(ax, _x(r.surge, r.surge.point.stable), _x(r.surge, tipping), r.surge.rate * MINUTE, size=4)
    x, peak = 1.2 * float(_x(r.surge, tipping)), float(marks.peak) * MINUTE
    arrow(ax, (x, peak), (x, 1.15 * float(marks.low) * MINUTE), VERMILION)
    ax.text(1.04 * x, 0.75 * peak, "deeper\nfall", color=VERMILION, fontsize=7)


def _scheduling(ax: Axes, r: Remedies) -> None:
    path, rates = r.resident_first, r.surge.d.departures(r.resident_first.active) * MINUTE
    ax.plot(_x(r.surge, path.active), rates, color=BLUE, lw=2)
    longest = int(path.queued.argmax())
    held = (float(_x(r.surge, path.active[longest])), float(rates[longest]))
    ax.plot(*held, "s", color=BLUE, ms=4)
    end = path.events.get("drained")
    drain = f"{(end - r.surge.end_s) / MINUTE:.0f} min to drain" if end else "not drained by the end"
    style = {"arrowstyle": "-", "color": BLUE, "lw": 0.6}
    text = f"{path.queued.max():.0f} wait outside,\n{drain}"
    ax.annotate(
        text,
        held,
        (0.97, 0.95),
        textcoords="axes fraction",
        color=BLUE,
        fontsize=7,
        ha="right",
        va="top",
        arrowprops=style,
    )


def _signals(ax: Axes, r: Remedies) -> None:
    for tokens, word in ((r.tight_tokens, "too tight"), (r.loose_tokens, "too loose")):
        x, rate = tokens / r.surge.d.cache_tokens, r.surge.d.departures(tokens / r.surge.d.context_tokens)
        ax.axvline(x, color=VERMILION, lw=1.3)
        ax.plot(x, float(rate) * MINUTE, "x", color=VERMILION, ms=5, mew=1.5)
        label = ax.text(x - 0.04, 0.98, word, color=VERMILION, fontsize=7, ha="right", va="top", rotation=90)
        label.set_transform(ax.get_xaxis_transform())


def _basin(ax: Axes, r: Remedies) -> None:
    x = _x(r.surge, r.basin.active)
    ax.plot(x, r.lent.departures(r.basin.active) * MINUTE, color=GREEN, lw=3, alpha=0.6)
    budget, top = r.reference_tokens / r.surge.d.cache_tokens, float(landscape(r.lent).peak) * MINUTE
    ax.axvline(budget, color=GREEN, lw=1.2)
    ax.text(1.03 * budget, 0.03, "budget $B_0$", color=GREEN, fontsize=7, transform=ax.get_xaxis_transform())
    shown = f"1 lent cache\n2 fixed priority\n3 admission:\n   at most {r.basin.queued.max():.0f} wait"
    ax.text(0.44, 0.98, shown, fontsize=6.5, va="top", transform=ax.transAxes)
    peak = float(_x(r.surge, landscape(r.lent).peak_sessions))
    for number, x_, y in (
        ("1", 1.33 * peak, 0.97 * top),
        ("2", 0.5 * budget, 0.8 * top),
        ("3", 0.85 * budget, 1.48 * top),
    ):
        ax.text(x_, y, number, fontsize=8, ha="center", va="center", weight="bold")


PANELS = ("(a) Capacity", "(b) Scheduling", "(c) Load signals", "(d) Basin")
DRAW = (_capacity, _scheduling, _signals, _basin)
