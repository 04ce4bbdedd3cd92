"""The trap on H100 1P1D at 3.3 sessions/min (paper A §3.2, §3.3, Figs. 4-6).

| arm           | run: one `Records` a seed, the same base arrivals in all arms of a seed               |
|---------------|---------------------------------------------------------------------------------------|
| `none`        | no surge                                                                              |
| `plus33`      | surge of +33% in minutes 15-25                                                        |
| `plus100`     | surge of +100% in minutes 15-25                                                       |
| `burst`       | short sessions at 4x the base rate in minutes 15-25 (group "burst"), left to finish   |
| `burst_ended` | the same, all ended at minute 25                                                      |

"Trapped" quantities are taken from minute 60 to the end of the +100% run, when the surge is 35 minutes past; "before"
is minutes 5-15. Whatever the seed did is what counts: a seed that escaped the trap is not left out.
"""

import numpy as np
import pandas as pd

from artifact.metrics import (
    Interval,
    Knee,
    NotObserved,
    capacity,
    column,
    duration_ratio,
    duration_s,
    end_state,
    evaluated,
    goodput,
    hit_curve,
    hit_rate,
    knee,
    normal_band,
    rate,
    reserve_wait,
    sampled,
    time_to_normal,
    ttft,
    windows,
)
from artifact.metrics.states import HIT_DROP, MAX_TTFT_S
from artifact.records.schema import Records
from artifact.reproduce.registry import Noted, evaluates

MINUTE = 60.0
HALF_MINUTE = 30.0
BEFORE: Interval = (5 * MINUTE, 15 * MINUTE)
SURGE_END_S = 25 * MINUTE
TRAPPED_FROM_S = 60 * MINUTE
FOLLOWING_HOUR: Interval = (SURGE_END_S, SURGE_END_S + 60 * MINUTE)
ARMS = ("none", "plus33", "plus100", "burst", "burst_ended")
FAR_FROM_SATURATED = 0.7
"""Ours: share of prefill throughput and of decode KV below which no utilisation threshold in use would fire."""
FEW_WAITING = 0.1
"""Ours: calls in engine queues, as a share of the active sessions, below which nobody would speak of a queue."""
AFTERMATH_S = 14 * MINUTE
"""Ours: how long after the last burst session, and before the run's end, the hit rate is looked at."""
PLATEAU = (0.1, 0.9)
"""Ours: quantiles of the 2-minute windows between which a published plateau "28-35K" is read."""
MIN_SESSIONS = 5
"""Ours: sessions that a start-time bin needs for its median to count."""


def trapped(run: Records) -> pd.DataFrame:
    """The 2-minute windows from minute 60 to the end. Raises `NotObserved` for a shorter run."""
    return windows(run, start_s=TRAPPED_FROM_S)


def until_end(run: Records, start_s: float) -> Interval:
    if not duration_s(run) > start_s:
        raise NotObserved(f"the run ends at minute {duration_s(run) / MINUTE:g}, before minute {start_s / MINUTE:g}")
    return (start_s, duration_s(run))


def calls_finished(run: Records, interval: Interval) -> int:
    finished = column(run.calls, "finished_s")
    return int(np.sum((finished >= interval[0]) & (finished < interval[1])))


def at(run: Records, name: str, time_s: float) -> float:
    """A column of `samples` at a moment: the mean of the minute around it, of its first half at the run's end."""
    until_end(run, time_s - HALF_MINUTE)
    return sampled(run, name, (time_s - HALF_MINUTE, time_s + HALF_MINUTE))


def just_before(run: Records, name: str, time_s: float) -> float:
    """The last reading before a moment, for counts that an event changes at that moment."""
    time = column(run.samples, "time_s")
    earlier = np.flatnonzero(time < time_s)
    if not len(earlier) or duration_s(run) < time_s:
        raise NotObserved(f"no sample of {name} before minute {time_s / MINUTE:g} of the run")
    return float(column(run.samples, name)[earlier[-1]])


def base_active(run: Records, time_s: float) -> float:
    return at(run, "active_sessions", time_s) - at(run, "active_extra_sessions", time_s)


def burst_sessions(run: Records) -> pd.DataFrame:
    sessions = evaluated(run)
    found = sessions[sessions["group"] == "burst"]
    if found.empty:
        raise NotObserved("the run has no burst sessions")
    return found


# Figure 4: the surge and what it leaves ------------------------------------------------------------------------


@evaluates("A-trap-ttft-base")
def ttft_base(none: Records) -> float:
    return float(np.median(ttft(none))) if len(none.calls) else float("nan")


@evaluates("A-trap-hit-base")
def hit_base(plus100: Records) -> float:
    return hit_rate(plus100, BEFORE)


@evaluates("A-trap-util-base")
def util_base(none: Records) -> float:
    used = rate(none, "computed_tokens_total", until_end(none, BEFORE[0]))
    return used / capacity(none, "saturated_prefill_tokens_per_s")


def minutes_to_normal(disturbed: list[Records], controls: list[Records]) -> Noted:
    """Median over the seeds; the no-surge band is that of all undisturbed runs, whose windows differ by seed."""
    band = normal_band(controls)
    minutes = [time_to_normal(run, band, SURGE_END_S) for run in disturbed]
    each = ", ".join(f"{m:g}" for m in minutes)
    return Noted(float(np.median(minutes)), f"by seed: {each}; band TTFT {band.ttft_s:.2g} s, hit {band.hit_rate:.2f}")


@evaluates("A-trap-33-recovers", pooled=True)
def plus33_recovers(plus33: list[Records], none: list[Records]) -> Noted:
    return minutes_to_normal(plus33, none)


@evaluates("A-trap-100-trapped")
def plus100_state(plus100: Records) -> Noted:
    note = "source: §3.2 describes this run as trapped ('deteriorating'), §7.10 labels a GPU-only H100 run healthy"
    return Noted(str(end_state(plus100)), f"{note}; both readings are answered by the per-seed labels here")


@evaluates("A-trap-ttft")
def trapped_ttft(plus100: Records) -> float:
    return float(trapped(plus100)["ttft_p50_s"].median())


@evaluates("A-trap-hit")
def trapped_hit(plus100: Records) -> float:
    return float(trapped(plus100)["hit_rate"].median())


@evaluates("A-trap-calls")
def calls_ratio(plus100: Records, none: Records) -> float:
    interval = until_end(plus100, SURGE_END_S)
    reference = calls_finished(none, interval)
    return calls_finished(plus100, interval) / reference if reference else float("nan")


@evaluates("A-trap-goodput-hour")
def goodput_hour(plus100: Records) -> float:
    return goodput(plus100, FOLLOWING_HOUR)


@evaluates("A-trap-goodput-ctrl")
def goodput_control(none: Records) -> float:
    return goodput(none, FOLLOWING_HOUR)


@evaluates("A-trap-goodput-drop")
def goodput_drop(plus100: Records, none: Records) -> float:
    return 1 - ratio(goodput(plus100, FOLLOWING_HOUR), goodput(none, FOLLOWING_HOUR))


@evaluates("A-trap-goodput-run")
def goodput_run(plus100: Records, none: Records) -> float:
    return ratio(goodput(plus100), goodput(none))


@evaluates("A-trap-goodput-abs")
def goodput_abs(plus100: Records, none: Records) -> dict[str, float]:
    return {"surge": goodput(plus100), "none": goodput(none)}


@evaluates("A-trap-slowdown")
def slowdown_bins(plus100: Records, none: Records) -> list[float]:
    bins = duration_ratio(plus100, none, from_s=SURGE_END_S)
    after = bins.loc[bins["sessions"] >= MIN_SESSIONS, "ratio"].dropna()
    if after.empty:
        raise NotObserved("no bin of sessions arriving after minute 25 has mostly completed")
    return [float(after.min()), float(after.max())]


@evaluates("A-trap-persists")
def persists(plus100: Records) -> bool:
    return bool((windows(plus100, start_s=SURGE_END_S)["ttft_p50_s"] > MAX_TTFT_S).all())


@evaluates("A-trap-no-warning")
def no_warning(plus100: Records) -> Noted:
    span = windows(plus100, width_s=BEFORE[1] - BEFORE[0], start_s=BEFORE[0]).iloc[0]
    waiting = span["prefill_queue_calls"] + span["decode_waiting_calls"]
    if np.isnan([span["prefill_use"], span["decode_kv_used"], waiting]).any():
        raise NotObserved("the run did not record prefill use, decode KV or queues")
    seen = (
        f"prefill use {span['prefill_use']:.2f}, decode KV in use {span['decode_kv_used']:.2f}, "
        f"{waiting:.1f} calls queued of {span['active_sessions']:.0f} sessions"
    )
    calm = max(span["prefill_use"], span["decode_kv_used"]) < FAR_FROM_SATURATED
    short = waiting < FEW_WAITING * span["active_sessions"]
    return Noted(bool(calm and short), seen)


# Figure 6: the sustaining loop ---------------------------------------------------------------------------------


@evaluates("A-loop-uncached")
def uncached(plus100: Records) -> list[float]:
    return [float(q) for q in trapped(plus100)["uncached_tokens_per_s"].quantile(PLATEAU)]


@evaluates("A-loop-uncached-0")
def uncached_before(plus100: Records) -> float:
    span = windows(plus100, width_s=BEFORE[1] - BEFORE[0], start_s=BEFORE[0])
    return float(span["uncached_tokens_per_s"].iloc[0])


@evaluates("A-loop-saturation")
def saturation(plus100: Records) -> float:
    """Tokens computed for each second that prefill was busy, trapped: measured, not read from the calibration."""
    interval = until_end(plus100, TRAPPED_FROM_S)
    return ratio(rate(plus100, "computed_tokens_total", interval), rate(plus100, "prefill_busy_s_total", interval))


@evaluates("A-loop-kv-full")
def kv_full(plus100: Records) -> float:
    return float(trapped(plus100)["decode_kv_used"].median())


@evaluates("A-loop-kv-idle")
def kv_idle(plus100: Records) -> float:
    return float(trapped(plus100)["decode_kv_idle"].median())


@evaluates("A-loop-decoding")
def decoding(plus100: Records, none: Records) -> float:
    return ratio(*(float(trapped(run)["decode_running_calls"].mean()) for run in (plus100, none)))


@evaluates("A-loop-resv-wait")
def reservation_wait(plus100: Records) -> float:
    return reserve_wait(plus100, until_end(plus100, TRAPPED_FROM_S))


def common_knee(*arms: list[Records]) -> Knee:
    return knee(hit_curve([run for arm in arms for run in arm]))


@evaluates("A-cliff", pooled=True, arms=ARMS)
def cliff(*arms: list[Records]) -> float:
    return common_knee(*arms).w_over_c


@evaluates("A-cliff-shoulder", pooled=True, arms=ARMS)
def cliff_shoulder(*arms: list[Records]) -> float:
    return common_knee(*arms).shoulder


@evaluates("A-cliff-floor", pooled=True, arms=ARMS)
def cliff_floor(*arms: list[Records]) -> float:
    return common_knee(*arms).floor


@evaluates("A-cliff-side", pooled=True, arms=ARMS)
def cliff_side(none: list[Records], plus33: list[Records], plus100: list[Records], *bursts: list[Records]) -> Noted:
    """The median over seeds of each arm's largest W/C, against the common knee."""
    at_knee = common_knee(none, plus33, plus100, *bursts).w_over_c
    small, large = (float(np.median([windows(run)["w_over_c"].max() for run in arm])) for arm in (plus33, plus100))
    return Noted(small < at_knee < large, f"largest W/C: +33% {small:.2f}, +100% {large:.2f}; knee {at_knee:.2f}")


# Figure 5: the burst of short sessions, left in place or ended -------------------------------------------------


@evaluates("A-kill-recovers", pooled=True)
def kill_recovers(burst_ended: list[Records], none: list[Records]) -> Noted:
    return minutes_to_normal(burst_ended, none)


@evaluates("A-kill-active")
def kill_active(burst: Records) -> float:
    return just_before(burst, "active_sessions", SURGE_END_S)


@evaluates("A-kill-burst-left")
def kill_burst_left(burst: Records) -> float:
    return just_before(burst, "active_extra_sessions", SURGE_END_S)


@evaluates("A-kill-ttft")
def kill_ttft(burst: Records) -> float:
    return float(windows(burst, start_s=SURGE_END_S - 2 * MINUTE)["ttft_p50_s"].iloc[0])


@evaluates("A-kill-short")
def kill_short(burst: Records) -> list[float]:
    unloaded = burst_sessions(burst)["unloaded_s"] / MINUTE
    return [float(unloaded.min()), float(unloaded.max())]


@evaluates("A-kill-stay")
def kill_stay(burst: Records) -> float:
    return (last_burst_end_s(burst) - SURGE_END_S) / MINUTE


@evaluates("A-kill-base-50")
def kill_base_50(burst: Records, none: Records) -> float:
    return ratio(base_active(burst, 50 * MINUTE), base_active(none, 50 * MINUTE))


@evaluates("A-kill-base-90")
def kill_base_90(burst: Records, none: Records) -> float:
    return ratio(base_active(burst, 90 * MINUTE), base_active(none, 90 * MINUTE))


@evaluates("A-kill-outlives")
def kill_outlives(burst: Records) -> Noted:
    """Tested as: in the 14 minutes after the last burst session left, some 2-minute hit rate exceeds the ten minutes
    before; over the last 14 minutes the mean is 0.10 or more below that of minutes 5-15; and more base sessions are
    active at the end than when the last burst session left."""
    left, end = last_burst_end_s(burst), duration_s(burst)
    if left + 2 * AFTERMATH_S > end:
        raise NotObserved(
            f"the last burst session leaves at minute {left / MINUTE:.0f}, too near the run's end to see what follows"
        )
    peak = windows(burst, start_s=left)["hit_rate"].iloc[: int(AFTERMATH_S // 120)].max()
    before, late = hit_rate(burst, (left - 10 * MINUTE, left)), hit_rate(burst, (end - AFTERMATH_S, end))
    if np.isnan([peak, before, late]).any():
        raise NotObserved("no calls were scheduled around the last burst session's end")
    grown = base_active(burst, end - HALF_MINUTE) / base_active(burst, left)
    brief = peak > before and late <= hit_rate(burst, BEFORE) - HIT_DROP
    seen = f"hit rate {before:.2f} before, at most {peak:.2f} after, {late:.2f} at the end; base sessions x{grown:.2f}"
    return Noted(bool(brief and grown > 1), seen)


def last_burst_end_s(run: Records) -> float:
    """When the last burst session ended; the run's end if one never did, which is then a lower bound."""
    return float(burst_sessions(run)["ended_s"].fillna(duration_s(run)).max())


def ratio(value: float, reference: float) -> float:
    return value / reference if reference else float("nan")
