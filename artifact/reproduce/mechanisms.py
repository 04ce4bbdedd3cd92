"""Table 1 of paper A, with what each of Basin's mechanisms does in a run."""

from collections.abc import Mapping, Sequence
from math import nan
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from artifact.control.parameters import BasinParameters
from artifact.metrics import column
from artifact.records.schema import Records
from artifact.reproduce.figures import GREEN, ORANGE, PURPLE, shade
from artifact.reproduce.paths import check_source
from artifact.reproduce.plots.bars import rows
from artifact.reproduce.registry import over_seeds
from artifact.reproduce.render import text
from artifact.reproduce.scenarios import MINUTE, Runs, recorded, run_arms
from artifact.reproduce.scenarios_ablation import OVERLOADS
from artifact.reproduce.scenarios_policies import SIX, Variant, base_rates_per_min, scenario, seeds_of
from artifact.reproduce.summaries import cells

SHOWN = {name: SIX[name] for name in ("1p3d", "1p3d-gpu", "1p1d")} | {"overload": OVERLOADS["overload"]}
"""Three surges of Fig. 14 and the hour of overload of Fig. 23."""


class Mechanism(NamedTuple):
    """A row of the table. `column` is the one of `samples` that says whether it is engaged; "" for shedding."""

    principle: str
    term: str
    mechanism: str
    engaged: str
    column: str
    color: str = ""


def principles(p: BasinParameters) -> list[Mechanism]:
    """The table's rows, with the parameters that are in force."""
    return [
        Mechanism(
            "Priority",
            "entry balance: Eq. 3",
            f"fixed session priority p = a + Ŵ/r, r = {p.priority_tokens_per_s:g} tokens/s",
            f"persistent prefill backlog, wait for decode memory, W ≥ {p.alpha_order:g} B0, or admission active",
            "ordering",
            GREEN,
        ),
        Mechanism(
            "Capacity",
            "C, hence Wc and D(N*)",
            f"lend decode memory as a cache tier, at most {p.lend_cap:g} of it",
            f"W ≥ {p.alpha_lend:g} B0 of the prefill tiers or admission active, and decode has spare memory",
            "lending",
            PURPLE,
        ),
        Mechanism(
            "Entry",
            "N",
            "Denning admission: ΣŴ ≤ B",
            f"W ≥ B0, until W < {p.alpha_release:g} B0 for {p.cooldown_s:g} s",
            "admitting",
            ORANGE,
        ),
        Mechanism(
            "Entry",
            "Q when λ > D(N*)",
            "shed the lowest priority, one an interval",
            f"long-run arrivals exceed λc and the head has waited {p.shed_after_s / MINUTE:g} min",
            "",
        ),
    ]


def mechanism_runs(
    source: str,
    profile: str,
    seeds: Sequence[int] | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
) -> Runs:
    """Records of Basin in the settings shown, arms "<setting>/basin". Raises `ValueError` for an unknown source."""
    parts = cells(SHOWN, {"basin": Variant("basin")})
    if source == "hw":
        return recorded("policies", list(parts), seeds)
    check_source(source)
    rates = base_rates_per_min(list(SHOWN.values()), workers, scheduler)
    arms = {
        name: [scenario(*cell, rate, seed) for seed in seeds_of(profile, seeds)]
        for (name, cell), rate in zip(parts.items(), rates, strict=True)
    }
    return run_arms(arms, workers, scheduler, "mechanisms")


class Engaged(NamedTuple):
    """When a control is on: from which minute, for which share of the run, and W/B0 as it first engages; NaN: never."""

    from_min: float
    share: float
    w_over_b0: float


def engaged(run: Records, control: str) -> Engaged:
    """Of a boolean column of `samples`; W is the whole contexts of the active sessions, as the run knows them."""
    on = np.array([bool(value) for value in column(run.samples, control)])
    if not on.any():
        return Engaged(nan, 0.0, nan)
    first = int(np.argmax(on))
    working_set = column(run.samples, "working_set_tokens")[first]
    reference = column(run.samples, "reference_budget_tokens")[first]
    return Engaged(
        float(column(run.samples, "time_s")[first]) / MINUTE, float(on.mean()), float(working_set / reference)
    )


def table_1(runs: Mapping[str, Sequence[Records]]) -> pd.DataFrame:
    """The table's rows, and for each setting when the mechanism engages, for how much of the run, and at which W/B0:
    medians over seeds. Of shedding, the sessions shed."""
    rows_ = []
    for row in principles(BasinParameters()):
        cells_ = {
            name.split("/")[0]: _said([engaged(run, row.column) for run in seeds]) if row.column else _shed(seeds)
            for name, seeds in runs.items()
        }
        about = {"model term": row.term, "mechanism": row.mechanism, "engaged when": row.engaged}
        rows_.append({"principle": row.principle, **about, **cells_})
    pd.set_option("display.max_colwidth", None)  # the table is all words
    return pd.DataFrame(rows_).set_index("principle")


def _said(seeds: Sequence[Engaged]) -> str:
    found = [one for one in seeds if one.share > 0]
    if 2 * len(found) <= len(seeds):
        return "never"
    minute, share, level = (over_seeds([getattr(one, name) for one in found]) for name in Engaged._fields)
    return f"from minute {minute:.0f}, {share:.0%} of the run; W = {text(level)} B0"


def _shed(seeds: Sequence[Records]) -> str:
    return f"{over_seeds([float((column(run.sessions, 'outcome') == 'shed').sum()) for run in seeds]):.0f} sessions"


def table_1_figure(runs: Mapping[str, Sequence[Records]]) -> tuple[Figure, pd.DataFrame]:
    """Working set over the reference budget, and when each mechanism is engaged, first seed of each setting."""
    fig, axes = rows(len(runs), 1.5)
    drawn = []
    controls = [row for row in principles(BasinParameters()) if row.column]
    for ax, (name, seeds) in zip(axes, runs.items(), strict=True):
        time = column(seeds[0].samples, "time_s") / MINUTE
        samples = seeds[0].samples
        level = column(samples, "working_set_tokens") / column(samples, "reference_budget_tokens")
        ax.plot(time, level, color="black", lw=0.9)
        ax.axhline(1, color="black", lw=0.5, ls="--")
        for number, row in enumerate(controls):
            on = [bool(value) for value in column(samples, row.column)]
            place = 0.93 - 0.09 * number
            ax.fill_between(
                time, place, place + 0.07, where=on, step="post", color=row.color, lw=0,
                transform=ax.get_xaxis_transform(), label=row.column if ax is axes[0] else None,
            )  # fmt: skip
            drawn.append(
                pd.DataFrame({"setting": name, "minute": time, "control": row.column, "on": on, "w_b0": level})
            )
        setting = SHOWN[name.split("/")[0]]
        shade(ax, setting.surge_s)
        ax.set(ylabel="W / B0", ylim=(0, 1.45 * np.nanmax(level)))
        ax.set_xlabel(" ".join(setting.title.replace("-\n", "").split()))
    axes[-1].set_xlabel(f"{axes[-1].get_xlabel()}\nTime (min)")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=7)
    return fig, pd.concat(drawn, ignore_index=True)
