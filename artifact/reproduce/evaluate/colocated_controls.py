"""Not just overload, other triggers, another engine (paper B §2-3, Fig. 3).

Arms of `artifact.reproduce.scenarios_colocated`, one run a seed; counts are scaled to the published number of runs.
"""

import numpy as np
import pandas as pd

from artifact.metrics import NotObserved, duration_s, in_system, in_system_at, turn_windows, turns
from artifact.metrics.turns import DEGRADED_HIT, WINDOW_S
from artifact.records.schema import Records
from artifact.reproduce.colocated import (
    MINUTE,
    degraded,
    end_hit,
    end_rate,
    end_sessions,
    of,
    per,
    share,
)
from artifact.reproduce.registry import Noted, evaluates
from artifact.reproduce.scenarios_colocated import FLUSH_S, LONG_BURST_S, PAIRED_BURST_S, SMALL_BURST_S

BURST_S, BURST_END_S = PAIRED_BURST_S
SETTLED_S = 5 * MINUTE
"""A run begins with an empty cache; what happens before this says nothing about the load."""
HALF_HOUR_S = 30 * MINUTE
MIDDLE = (0.05, 0.95)
"""Speeds are given between these quantiles of the turns: the extremes are single turns of a few tokens."""
DEEP = (20_000, 36_000)
"""Contexts, tokens, at which the paper measures cold prefill; a mid-session turn has 21,600."""
MID_SESSION = (21_000, 22_200)


# Speeds of the engine (§2) -----------------------------------------------------------------------------------------


@evaluates("B-turn-cost", pooled=True, arms=("idle/no-cache", "idle/cached"))
def turn_cost(cold: list[Records], cached: list[Records]) -> dict[str, float]:
    """Median seconds from scheduling to the first token of mid-session turns, on an engine with few others in it."""
    return {"miss": _mid_session_prefill_s(cold), "hit": _mid_session_prefill_s(cached)}


@evaluates("B-rates", pooled=True, arms=("idle/no-cache", "idle/cached", "pairs/none"))
def rates(cold: list[Records], cached: list[Records], none: list[Records]) -> dict[str, list[float]]:
    """Tokens a second, from the 5th to the 95th percentile of turns: cold prefill of 20-36K contexts; new tokens on a
    cached prefix; decode of a request, on a nearly idle engine and at the paired load, where turns hit: in the degraded
    regime the prefills of others stand between its tokens."""
    deep, warm = _all(cold), _all(cached)
    deep, warm = deep[deep["prompt_tokens"].between(*DEEP)], warm[warm["cached_tokens"] > 0]
    decoding = _all(cached + none)
    decoding = decoding[decoding["cached_tokens"] > 0]
    decode = (decoding["output_tokens"] - 1) / (decoding["finished_s"] - decoding["first_token_s"])
    return {
        "cold": _middle(deep["prompt_tokens"] / _prefill_s(deep)),
        "incremental": _middle((warm["prompt_tokens"] - warm["cached_tokens"]) / _prefill_s(warm)),
        "decode_per_request": _middle(decode),
    }


# Without a cache ---------------------------------------------------------------------------------------------------


@evaluates("B-nocache", pooled=True, arms=("nocache/burst", "nocache/small", "nocache/none"))
def no_second_regime(burst: list[Records], small: list[Records], none: list[Records]) -> Noted:
    """Every burst run drains: its sessions in the system shrink over the last 30 minutes (the last five against the
    five that begin there), or are no more at the end than some twin has had at some time."""
    usual = max(float(_sessions_by_second(run).max()) for run in none)
    drained = [_shrinks(run) or end_sessions(run) <= usual for run in burst + small]
    return Noted(all(drained), f"{sum(drained)} of {len(drained)} runs drain")


@evaluates("B-nocache-backlog", pooled=True, arms=("nocache/burst",))
def nocache_backlog(burst: list[Records]) -> list[float]:
    """Most sessions in the system at any second from the burst's start on."""
    return of(burst, lambda run: float(_sessions_by_second(run, BURST_S).max()), "run")


@evaluates("B-nocache-small", pooled=True, arms=("nocache/none", "nocache/small"))
def nocache_small(none: list[Records], small: list[Records]) -> list[float]:
    """Sessions that have arrived and not ended when the run does."""
    return of(none + small, lambda run: float(in_system_at(run, np.array([duration_s(run)]))[0]), "run")


@evaluates("B-throughput-nocache", pooled=True, arms=("nocache/loaded",))
def nocache_throughput(loaded: list[Records]) -> list[float]:
    """The paired burst runs again with prefix caching off: the same arrivals are the comparable load."""
    return of(loaded, end_rate, "run")


# With a cap, without a burst, after a flush ------------------------------------------------------------------------


@evaluates("B-cap-prevents", pooled=True, arms=("cap/burst",))
def cap_prevents(burst: list[Records]) -> float:
    return per(10, (degraded(run, BURST_END_S) for run in burst))


@evaluates("B-quiet-04", pooled=True, arms=("quiet/none",))
def quiet(none: list[Records]) -> float:
    """Share of runs without a degraded window in 30 minutes, the first five left out."""
    return share((turn_windows(run, start_s=SETTLED_S)["hit_ratio"] >= DEGRADED_HIT).all() for run in none)


@evaluates("B-flush-share", pooled=True, arms=("flush/none",))
def flush_share(none: list[Records]) -> float:
    """Persistently degraded from the first window after the flush in which it is."""
    return share(degraded(run, FLUSH_S) for run in none)


@evaluates("B-flush", pooled=True, arms=("flush/none",))
def flush(none: list[Records]) -> Noted:
    """At least one run is persistently degraded after the flush, and at least one is not."""
    lost = sum(degraded(run, FLUSH_S) for run in none)
    return Noted(0 < lost < len(none), f"{lost} of {len(none)} runs")


# A second engine ---------------------------------------------------------------------------------------------------


@evaluates("B-sglang", pooled=True, arms=("sglang/small", "sglang/five", "sglang/ten"))
def sglang(small: list[Records], five: list[Records], ten: list[Records]) -> Noted:
    """No run is degraded after the small burst, and every run after either large one."""
    absorbed = [not degraded(run, SMALL_BURST_S[1]) for run in small]
    fell = _fell(five, ten)
    return Noted(
        all(absorbed + fell), f"absorbed {sum(absorbed)} of {len(small)}; collapsed {sum(fell)} of {len(fell)}"
    )


@evaluates("B-vllm-small", pooled=True, arms=("small/none", "sglang/small"))
def small_burst(vllm: list[Records], sglang: list[Records]) -> dict[str, float]:
    return {
        name: share(degraded(run, SMALL_BURST_S[1]) for run in runs)
        for name, runs in (("vllm", vllm), ("sglang", sglang))
    }


@evaluates("B-sglang-large", pooled=True, arms=("sglang/five", "sglang/ten"))
def large_burst(five: list[Records], ten: list[Records]) -> dict[str, object]:
    """At the end of the run, 35 and 40 minutes after the burst; hit ratio and sessions of the collapsed runs."""
    lost = [run for run, fell in zip(five + ten, _fell(five, ten), strict=True) if fell]
    return {
        "collapsed_of_6": per(6, _fell(five, ten)),
        "hit": of(lost, end_hit, "collapsed run"),
        "sessions": of(lost, end_sessions, "collapsed run"),
    }


@evaluates("B-sglang-pairs", pooled=True, arms=("sglang/burst", "sglang/none"))
def sglang_pairs(burst: list[Records], none: list[Records]) -> dict[str, float]:
    """Of four pairs; `no_burst` counts every twin that degrades."""
    twins = [degraded(run, BURST_END_S) for run in none]
    only = [degraded(run, BURST_END_S) and not twin for run, twin in zip(burst, twins, strict=True)]
    return {"burst_only": per(4, only), "no_burst": per(4, twins)}


@evaluates("B-sglang-flush", pooled=True, arms=("sglang/flush",))
def sglang_flush(flush: list[Records]) -> float:
    """Not degraded at the end of the run."""
    return share(end_hit(run) >= DEGRADED_HIT for run in flush)


def _fell(five: list[Records], ten: list[Records]) -> list[bool]:
    return [degraded(run, BURST_END_S) for run in five] + [degraded(run, LONG_BURST_S[1]) for run in ten]


# Helpers -----------------------------------------------------------------------------------------------------------


def _all(runs: list[Records]) -> pd.DataFrame:
    return pd.concat([turns(run) for run in runs], ignore_index=True)


def _prefill_s(calls: pd.DataFrame) -> pd.Series:
    return calls["first_token_s"] - calls["scheduled_s"]


def _mid_session_prefill_s(runs: list[Records]) -> float:
    calls = _all(runs)
    return float(_prefill_s(calls[calls["prompt_tokens"].between(*MID_SESSION)]).median())


def _middle(speeds: pd.Series) -> list[float]:
    if not len(speeds):
        raise NotObserved("no turn of that kind in the runs")
    return [float(q) for q in speeds.quantile(list(MIDDLE))]


def _shrinks(run: Records) -> bool:
    begins = duration_s(run) - HALF_HOUR_S
    return end_sessions(run) < in_system(run, (begins, begins + WINDOW_S))


def _sessions_by_second(run: Records, from_s: float = 0.0) -> np.ndarray:
    return in_system_at(run, np.arange(from_s, duration_s(run)))
