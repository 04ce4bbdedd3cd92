"""The answer of `basin risk`: the fluid model applied to what is known of a deployment (paper A §5)."""

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from sim.fluid.classify import TOLERANCE, resource_ratio
from sim.fluid.equilibria import crossing_time_s, landscape, operating_point, tipping_factor
from sim.fluid.hits import HitCurve
from sim.fluid.model import FluidDeployment
from sim.risk.question import Question
from sim.risk.terms import derive

SURGE_MINUTES = (2, 5, 10, 20, 30, 60)
FACTORS = np.geomspace(1.05, 10, 60)

State = Literal["vulnerable", "recovers", "overloaded", "cannot fall"]


@dataclass(frozen=True)
class Load:
    """Where the present load stands. Rates in sessions/min; None: there is no such point."""

    sessions_per_min: float
    state: State
    """`vulnerable`: between the low-reuse rate and the peak; `recovers`: below both, so that any surge drains by
    itself; `overloaded`: at or above the peak; `cannot fall`: prefill recomputes everything in time."""
    stable_sessions: float | None
    tipping_sessions: float | None
    surges: dict[int, float] = field(default_factory=dict)
    """Minutes of surge to the smallest factor on arrivals that crosses the tipping point."""
    curve: list[tuple[float, float]] = field(default_factory=list)
    """The same the other way round: (factor, minutes until it crosses), where it does."""


@dataclass(frozen=True)
class Assessment:
    """Everything `basin risk` says. Sessions are counts, rates sessions/min; None: not known, see `missing`."""

    name: str
    first_limit: Literal["cache", "decode memory"] | None
    ratio: float | None
    """Of the peak that the cache allows over the decode bound (Fig. 9b), or of N_c over N_d (Eq. 2); below 1 the cache
    comes first."""
    by_service_rates: bool
    """Whether `ratio` weighs service rates as well (Fig. 9b) or memory alone (Eq. 2)."""
    cliff_tokens: float
    cliff_sessions: float
    decode_sessions: float | None
    peak_per_min: float | None
    peak_sessions: float | None
    low_reuse_per_min: float | None
    load: Load | None
    model: FluidDeployment | None
    assumed: dict[str, str]
    missing: dict[str, str]


def assess(question: Question) -> Assessment:
    """Answer a question as far as its numbers go. Raises `UsageError` where they contradict each other."""
    terms = derive(question)
    hits = HitCurve(kappa=question.kappa, plateau=question.plateau, floor=question.floor)
    cliff_tokens = hits.cliff * question.cache_tokens
    cliff_sessions = cliff_tokens / question.context_tokens
    decode_sessions = None
    if terms.in_service is not None:
        decode_sessions = question.decode_kv_tokens / (terms.in_service * question.context_tokens)
    peak = low = at = load = ratio = None
    if terms.model is not None:
        marks = landscape(terms.model)
        peak, low, at = float(marks.peak) * 60, float(marks.low) * 60, _finite(marks.peak_sessions)
        decode_sessions = float(terms.model.memory_sessions)
        ratio = float(resource_ratio(terms.model))
        load = place(terms.model, terms.rate_per_min) if terms.rate_per_min else None
    elif decode_sessions is not None:
        ratio = cliff_sessions / decode_sessions
    return Assessment(
        name=question.name,
        first_limit=None if ratio is None else "cache" if ratio < 1 + TOLERANCE else "decode memory",
        ratio=ratio,
        by_service_rates=terms.model is not None,
        cliff_tokens=cliff_tokens,
        cliff_sessions=cliff_sessions,
        decode_sessions=decode_sessions,
        peak_per_min=peak,
        peak_sessions=at,
        low_reuse_per_min=low,
        load=load,
        model=terms.model,
        assumed=terms.assumed,
        missing=terms.missing,
    )


def place(d: FluidDeployment, per_min: float) -> Load:
    """Where a load of `per_min` sessions/min stands, and which surges tip it."""
    rate = per_min / 60
    marks, point = landscape(d), operating_point(d, rate)
    stable, tipping = _finite(point.stable), _finite(point.tipping)
    if stable is None:
        return Load(per_min, "overloaded", None, None)
    if not np.isfinite(marks.peak_sessions):
        return Load(per_min, "cannot fall", stable, None)
    if tipping is None:
        return Load(per_min, "recovers", stable, None)
    minutes = np.array(SURGE_MINUTES, float)
    factors = tipping_factor(d, rate, minutes * 60)
    durations = crossing_time_s(d, rate, FACTORS) / 60
    curve = [(float(f), float(m)) for f, m in zip(FACTORS, durations, strict=True) if math.isfinite(m)]
    return Load(
        per_min, "vulnerable", stable, tipping, dict(zip(SURGE_MINUTES, map(float, factors), strict=True)), curve
    )


def _finite(value: np.ndarray | float) -> float | None:
    return float(value) if np.isfinite(value) else None
