"""How long the healthy side lasts: mean time to spontaneous collapse over the load, by simulation, by splitting, and by
a birth-death chain on the fluid departure curve. Paper B reports a Poisson model off by an order of magnitude (§4)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from artifact.metrics import hit_curve, knee
from artifact.reproduce.claims import load_claims
from artifact.reproduce.colocated import MINUTE
from artifact.reproduce.outcomes import Resources, kept
from artifact.reproduce.paths import check_profile, check_source
from artifact.reproduce.runs_colocated import colocated_runs
from artifact.reproduce.scenarios_colocated import PAIRED_RATE, engine, offered
from artifact.reproduce.scenarios_maps import origin

if TYPE_CHECKING:
    from sim.escape.splitting import Split
    from sim.escape.watch import EscapeTime
    from sim.fluid.hits import HitCurve
    from sim.fluid.model import FluidDeployment
    from sim.scenario import Scenario

LOADS = (0.03, 0.035, 0.04, 0.045, 0.05)
"""Sessions/s; paper B's pairs ran at 0.035, its recoveries at 0.04, and 0.05 is its cache-warm capacity."""
RARE = LOADS[:3]
"""Loads at which collapses are rare enough for splitting."""
LEVELS = (0.55, 0.7, 0.85, 1.0)
"""Of the working set over the pool."""


class Effort(NamedTuple):
    """Seeds and hours watched of every load, and branches a level."""

    seeds: int
    hours: float
    tries: int


EFFORTS = {"smoke": Effort(4, 3, 20), "quick": Effort(8, 6, 60), "full": Effort(32, 12, 200)}
SPLIT_SEEDS = 4


@dataclass(frozen=True)
class Escape:
    """Mean times to collapse at one load: simulated, by splitting (None: not tried, or no excursion seen), by the
    chain."""

    per_s: float
    plain: "EscapeTime"
    split: "Split | None"
    chain_s: float
    meta: dict[str, Any] = field(default_factory=dict)


def escapes(
    source: str,
    profile: str,
    seeds: Iterable[int] | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
) -> Mapping[str, Sequence[Escape]]:
    """Arm `escape`: one `Escape` a load; none with source "hw", where nobody has waited for days. Raises `ValueError`
    for another source."""
    check_source(source)
    if source == "hw":
        return {"escape": []}
    from sim.escape.watch import escape_time
    from sim.sweep import open_executor

    effort = EFFORTS[check_profile(profile)]
    numbers = list(seeds) if seeds is not None else list(range(effort.seeds))
    fluid = fluid_model(measured_hits(workers, scheduler))
    with open_executor(workers, scheduler) as executor:
        plain = [escape_time(undisturbed(per_s, effort.hours), numbers, executor) for per_s in LOADS]
    split = dict(zip(RARE, _splits(effort, Resources(workers, scheduler)), strict=True))
    meta = origin([engine()], numbers, hours=effort.hours, levels=LEVELS, tries=effort.tries)
    return {
        "escape": [
            Escape(per_s, found, split.get(per_s), chain_s(fluid, per_s), meta)
            for per_s, found in zip(LOADS, plain, strict=True)
        ]
    }


def undisturbed(per_s: float, hours: float) -> "Scenario":
    """Paper B's main set-up without a trigger."""
    from sim.scenario import Scenario

    return Scenario(deployment=engine(), load=offered(per_s, 60 * hours))


def measured_hits(workers: int | None = None, scheduler: str | None = None) -> "HitCurve":
    """The hit curve that the fluid model needs, from paired runs with and without a burst: plateau and floor beside the
    drop, which stands at kappa times the reference curve's knee."""
    from artifact.control.profile import KNEE
    from sim.fluid.hits import HitCurve

    runs = colocated_runs(["pairs/none", "pairs/burst"], "sim", "quick", None, workers, scheduler)
    found = knee(hit_curve([run for seeds in runs.values() for run in seeds]))
    return HitCurve(plateau=found.shoulder, floor=found.floor, kappa=found.w_over_c / KNEE)


def fluid_model(hits: "HitCurve") -> "FluidDeployment":
    from sim.fluid.calibrated import fluid_deployment

    return fluid_deployment(engine(), "paper-b", hits)


def chain_s(fluid: "FluidDeployment", per_s: float) -> float:
    """Mean time from the healthy population to the tipping point, seconds; 0 beyond the highest departure rate, where
    there is no healthy population."""
    from sim.fluid.birth_death import escape_time

    try:
        return escape_time(fluid.departures, per_s).mean_s
    except ValueError:
        return 0.0


def split_once(job: "tuple[Scenario, int]") -> list[Any] | None:
    """`split_escape_time` of a scenario with so many branches a level, as a list; None if no excursion was seen."""
    from sim.escape.splitting import split_escape_time

    scenario, tries = job
    try:
        return list(split_escape_time(scenario, LEVELS, tries, range(SPLIT_SEEDS)))
    except ValueError:
        return None


def _splits(effort: Effort, resources: Resources) -> "list[Split | None]":
    from sim.escape.splitting import Split
    from sim.sweep import determinants

    jobs = []
    for per_s in RARE:
        scenario = undisturbed(per_s, effort.hours)
        about = {**determinants(scenario), "levels": LEVELS, "tries": effort.tries, "seeds": SPLIT_SEEDS}
        jobs.append((about, (scenario, effort.tries)))
    return [None if row is None else Split(*row) for row in kept(split_once, jobs, resources, "splitting")]


def published() -> "EscapeTime":
    """What paper B's twins at 0.035/s say: two of twelve collapsed by themselves, in minutes 25 and 30 of 90."""
    from sim.escape.watch import SETTLE_S, Watched, estimate

    claims = load_claims()
    count, onsets = int(claims["B-twin-spont"].expect), claims["B-twin-onset"].expect
    fell = [Watched(onset * MINUTE - SETTLE_S, True) for onset in onsets]
    return estimate([*fell, *[Watched(90 * MINUTE - SETTLE_S, False)] * (12 - count)])


def escape_table(results: Mapping[str, Sequence[Escape]]) -> pd.DataFrame:
    """One row a load, minutes: the simulated mean with its 95% interval and the number of collapses seen, splitting
    with its interval, the chain, and the chain over the simulated mean."""
    return pd.DataFrame(
        {
            "per_s": e.per_s,
            "simulated_min": e.plain.mean_s / MINUTE,
            "low_min": e.plain.low_s / MINUTE,
            "high_min": e.plain.high_s / MINUTE,
            "collapses": e.plain.collapses,
            "split_min": e.split.mean_s / MINUTE if e.split else np.nan,
            "split_low_min": e.split.low_s / MINUTE if e.split else np.nan,
            "split_high_min": e.split.high_s / MINUTE if e.split else np.nan,
            "chain_min": e.chain_s / MINUTE,
            "chain_over_simulated": e.chain_s / e.plain.mean_s,
        }
        for e in results["escape"]
    )


ORDER = 10.0


def escape_findings(results: Mapping[str, Sequence[Escape]]) -> str:
    """What the chain is worth, in words."""
    table = escape_table(results)
    seen = table[table["collapses"] > 0]
    lines = [_line(e) for e in results["escape"]]
    twins = published()
    lines.append(f"- **Paper B's twins** at {PAIRED_RATE:g}/s, measured: mean {_span(twins)}.")
    return "\n".join([*lines, "", _verdict(seen)])


def _line(e: Escape) -> str:
    number = f"{e.plain.collapses} collapse{'' if e.plain.collapses == 1 else 's'} seen"
    split = f"; by splitting {_span(e.split)}" if e.split else ""
    return f"- **{e.per_s:g}/s**: {number}, mean {_span(e.plain)}{split}; chain {e.chain_s / MINUTE:,.0f} min."


def _span(found: "EscapeTime | Split") -> str:
    mean, low, high = (seconds / MINUTE for seconds in (found.mean_s, found.low_s, found.high_s))
    middle = f"{mean:,.0f} min" if np.isfinite(mean) else "not reached"
    above = f"{high:,.0f}" if np.isfinite(high) else "no bound"
    return f"{middle} (95%: {low:,.0f} to {above})"


def _verdict(seen: pd.DataFrame) -> str:
    if seen.empty:
        return "No collapse was seen at any load, so the chain cannot be judged."
    inside = ((seen["chain_min"] >= seen["low_min"]) & (seen["chain_min"] <= seen["high_min"])).sum()
    off = np.abs(np.log10(seen["chain_over_simulated"].clip(lower=1e-9)))
    worst = seen.loc[off.idxmax()]
    word = (
        "stays within an order of magnitude" if 10 ** off.max() < ORDER else "is wrong by an order of magnitude or more"
    )
    return (
        f"**The chain {word}** at the loads where collapses were seen: it lies within the simulation's interval at "
        f"{inside} of {len(seen)}, and is furthest off at {worst['per_s']:g}/s, by a factor of "
        f"{worst['chain_over_simulated']:.2g}. It knows the number of sessions only: not their ages, on which the cost "
        "of a miss and the demand depend, nor what the cache still holds."
    )
