"""Paired runs on the colocated engine (paper B §3-4, Figs. 1 and 4, Table 2).

Arms: `pairs/none` and `pairs/burst`, one run a seed. "Degraded" is persistently degraded after the burst's end;
counts are scaled to the published number of pairs where fewer were run.
"""

import numpy as np

from artifact.metrics import (
    Interval,
    NotObserved,
    capacity,
    column,
    degraded_from,
    duration_s,
    mean_running,
    missed,
    paired_test,
    sampled,
    turns,
)
from artifact.records.schema import Records
from artifact.reproduce.colocated import (
    MINUTE,
    degraded,
    demand_by_minute,
    end_hit,
    end_rate,
    end_sessions,
    extent,
    last,
    matched,
    mean_context,
    of,
    per,
    share,
)
from artifact.reproduce.registry import Noted, evaluates
from artifact.reproduce.scenarios_colocated import PAIRED_BURST_S, RECOVERY_BURST_S

BURST_END_S = PAIRED_BURST_S[1]
BEFORE_S = (5 * MINUTE, PAIRED_BURST_S[0])
"""Before the burst, once the engine has filled from empty."""
PAIRS = 12
NONE, BURST = "pairs/none", "pairs/burst"


def lost(runs: list[Records]) -> list[Records]:
    """The persistently degraded ones."""
    return [run for run in runs if degraded(run, BURST_END_S)]


def kept(runs: list[Records]) -> list[Records]:
    return [run for run in runs if not degraded(run, BURST_END_S)]


@evaluates("B-pairs", pooled=True, arms=(BURST, NONE))
def pairs(burst: list[Records], none: list[Records]) -> Noted:
    """Pairs are runs of the same seed; p is that of the two-sided sign test over the discordant ones."""
    both = matched(burst, none)
    found = paired_test(*([degraded(run, BURST_END_S) for run in arm] for arm in zip(*both, strict=True)))
    counts = dict(zip(("burst_only", "no_burst_only", "both", "neither"), found[:4], strict=True))
    scaled = {name: PAIRS * count / len(both) for name, count in counts.items()}
    return Noted(scaled, f"{len(both)} pairs; sign test p = {found.p:.3g}")


@evaluates("B-hit-degraded", pooled=True, arms=(BURST, NONE))
def hit_degraded(burst: list[Records], none: list[Records]) -> list[float]:
    """Over the last ten minutes of every degraded run."""
    return of(lost(burst + none), end_hit, "degraded run")


@evaluates("B-hit-healthy", pooled=True, arms=(NONE,))
def hit_healthy(none: list[Records]) -> list[float]:
    """Over the last ten minutes of the twins that did not degrade."""
    return of(kept(none), end_hit, "healthy run")


@evaluates("B-backlog", pooled=True, arms=(BURST, NONE))
def backlog(burst: list[Records], none: list[Records]) -> list[float]:
    """Mean over the last five minutes of every degraded run."""
    return of(lost(burst + none), end_sessions, "degraded run")


@evaluates("B-sessions-healthy", pooled=True, arms=(BURST, NONE))
def sessions_healthy(burst: list[Records], none: list[Records]) -> list[float]:
    """Mean over the last five minutes of every run that did not degrade."""
    return of(kept(burst + none), end_sessions, "healthy run")


@evaluates("B-throughput", pooled=True, arms=(BURST,))
def throughput(burst: list[Records]) -> list[float]:
    """Turns completed a second over the last ten minutes of the degraded burst runs."""
    return of(lost(burst), end_rate, "degraded run")


@evaluates("B-twin-spont", pooled=True, arms=(NONE,))
def twins_lost(none: list[Records]) -> float:
    return per(PAIRS, (degraded(run, BURST_END_S) for run in none))


@evaluates("B-twin-onset", pooled=True, arms=(NONE,))
def twin_onset(none: list[Records]) -> list[float]:
    """Start of their first degraded window, in minutes."""
    return of(lost(none), lambda run: degraded_from(run, BURST_END_S) / MINUTE, "degraded twin")


@evaluates("B-burst-gone", pooled=True, arms=(BURST,))
def burst_gone(burst: list[Records]) -> float:
    """Share of the degraded burst runs in which every injected session has ended when the run does."""
    extent(map(end_hit, lost(burst)), "degraded run")
    return share(np.isfinite(extra_ends(run)).all() for run in lost(burst))


@evaluates("B-trigger-state", pooled=True, arms=(BURST, "recovery/none"))
def trigger_state(burst: list[Records], recovery: list[Records]) -> Noted:
    """In the paired runs or in the uncontrolled ones of the recovery experiment, whose bursts are all of one kind, some
    run degrades after fewer injected sessions than another that does not."""
    tipped = [_extra_sessions(burst, BURST_END_S), _extra_sessions(recovery, RECOVERY_BURST_S[1])]
    seen = "; ".join(
        f"from {min(lost)} extra sessions on degraded, up to {max(kept)} withstood"
        for lost, kept in tipped
        if lost and kept
    )
    if not seen:
        raise NotObserved("all runs of each experiment share one fate")
    return Noted(any(lost and kept and min(lost) < max(kept) for lost, kept in tipped), seen)


@evaluates("B-miss-share", pooled=True, arms=(BURST,))
def miss_share(burst: list[Records]) -> list[float]:
    """Of the turns completed in the last ten minutes, those with less than half of their prompt cached."""
    return of(lost(burst), lambda run: float(missed(turns(run, last(run))).mean()), "degraded run")


@evaluates("B-engine-busy", pooled=True, arms=(BURST,))
def engine_busy(burst: list[Records]) -> dict[str, list[float]]:
    """Time means over the last ten minutes of the degraded burst runs; preemptions over the whole run."""
    runs = lost(burst)
    return {
        "running": of(runs, lambda run: mean_running(run, *last(run)), "degraded run"),
        "kv_use": of(runs, kv_use, "degraded run"),
        "preemptions_per_run": of(runs, preemptions, "degraded run"),
    }


@evaluates("B-nstar", arms=(NONE,))
def sessions_that_fit(none: Records) -> float:
    """N* = C over the mean context of all its turns."""
    return capacity(none, "prefill_cache_tokens") / mean_context(none)


@evaluates("B-demand", pooled=True, arms=(BURST, NONE))
def demand(burst: list[Records], none: list[Records]) -> Noted:
    """Sessions in the system times the mean context of their turns, over C, by the minute: the median over the pairs
    in which only the burst run degrades. Before: minutes 5-15; end: the last five."""
    rows = []
    for run, twin in split_pairs(burst, none):
        course = demand_by_minute(run)["d_over_c"]
        before, later = (int(time // MINUTE) for time in (BEFORE_S[0], BURST_END_S + 5 * MINUTE))
        peak = demand_by_minute(twin)["d_over_c"].max()
        rows.append((course[before : int(BEFORE_S[1] // MINUTE)].mean(), course[later], course.tail(5).mean(), peak))
    medians = np.median(rows, axis=0)
    names = ("before", "minute25", "end", "twin_peak")
    return Noted(dict(zip(names, medians.tolist(), strict=True)), f"{len(rows)} pairs")


@evaluates("B-recompute", pooled=True, arms=(BURST, NONE))
def recompute(burst: list[Records], none: list[Records]) -> dict[str, float]:
    """Prompt tokens a second that completed turns had not cached, in the same pairs: minutes 5-15, and from five
    minutes after the burst to the end."""
    found = []
    for run, _ in split_pairs(burst, none):
        after = (BURST_END_S + 5 * MINUTE, duration_s(run))
        found.append([recomputed_per_s(run, interval) for interval in (BEFORE_S, after)])
    return dict(zip(("before", "after"), np.median(found, axis=0).tolist(), strict=True))


def split_pairs(burst: list[Records], none: list[Records]) -> list[tuple[Records, Records]]:
    """The pairs in which only the burst run degrades, as Figure 4's does."""
    found = [(run, twin) for run, twin in matched(burst, none) if lost([run]) and kept([twin])]
    extent((0.0 for _ in found), "pair in which only the burst run degrades")
    return found


def recomputed_per_s(run: Records, interval: Interval) -> float:
    done = turns(run, interval)
    return float((done["prompt_tokens"] - done["cached_tokens"]).sum() / (interval[1] - interval[0]))


def kv_use(run: Records) -> float:
    """Mean share of the pool that running requests hold, last ten minutes."""
    used = sum(sampled(run, f"decode_kv_{part}_tokens", last(run)) for part in ("running", "idle"))
    return used / capacity(run, "decode_kv_tokens")


def extra_ends(run: Records) -> np.ndarray:
    """When each injected session ended; infinite if it did not."""
    ended = column(run.sessions, "ended_s")[column(run.sessions, "group") == "surge"]
    return np.where(np.isnan(ended), np.inf, ended)


def preemptions(run: Records) -> float:
    return float(column(run.samples, "preemptions_total")[-1])


def _extra_sessions(runs: list[Records], after_s: float) -> tuple[list[int], list[int]]:
    """How many sessions the burst injected into the runs that degrade, and into those that do not."""
    found = [(degraded(run, after_s), len(extra_ends(run))) for run in runs]
    return [number for fell, number in found if fell], [number for fell, number in found if not fell]
