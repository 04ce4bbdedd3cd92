"""The evaluators of the trap against arms whose every figure is known."""

import numpy as np
import pytest
from handmade import call, records, sample, session

from artifact.metrics import NotObserved
from artifact.records.schema import Records
from artifact.reproduce.evaluate.workload import burst as burst_of
from artifact.reproduce.registry import evaluate, evaluators

MINUTES = 100
SURGE = {"start_s": 900.0, "end_s": 1500.0}


def arm(trapped_from=MINUTES, w_over_c=1.0, sessions=(), seed=0, burst_active=0, base_growth=0, minutes=MINUTES):
    """A call and a sample a minute. Before minute `trapped_from`: TTFT 0.2 s, hit 0.95, 5 of 100 tokens/s computed,
    0.4 of decode KV in use. From then on: 60 s, 0.27, all 100 tokens/s, 0.3 decoding and 0.67 idle."""
    calls, samples, computed, busy = [], [], 0.0, 0.0
    for minute in range(minutes + 1):
        bad, t = minute >= trapped_from, 60.0 * minute
        samples.append(
            sample(
                t,
                active_sessions=40 + burst_active * (15 <= minute < 40) + base_growth * bad * minute,
                active_extra_sessions=burst_active * (15 <= minute < 40),
                working_set_tokens=int(1000 * (3.0 if bad else w_over_c)),
                computed_tokens_total=int(computed),
                prefill_busy_s_total=busy,
                prefill_queue_calls=20 if bad else 0,
                decode_waiting_calls=0,
                decode_running_calls=10 if bad else 20,
                decode_kv_running_tokens=600 if bad else 800,
                decode_kv_idle_tokens=1340 if bad else 0,
            )
        )
        computed, busy = computed + (6000 if bad else 300), busy + (60 if bad else 3)
        if minute < minutes:
            calls.append(call(t, 60.0 if bad else 0.2, cached_tokens=27 if bad else 95, reserve_wait_s=25.0 * bad))
    return records(calls, list(sessions), samples, 60.0 * minutes, trigger=SURGE, seed=seed)


def base_sessions(lasts_s):
    """One arrival every two minutes; `lasts_s` from minute 25 on, 100 s (the unloaded duration) before."""
    return [session(str(m), 60.0 * m, 100.0 if m < 25 else lasts_s) for m in range(0, MINUTES - 10, 2)]


NONE = arm(sessions=base_sessions(100.0))
PLUS33 = arm(w_over_c=1.4, sessions=base_sessions(100.0))
PLUS100 = arm(trapped_from=20, sessions=base_sessions(500.0))


def value(claim_id, **runs):
    arms = {name: run if isinstance(run, list) else [run] for name, run in runs.items()}
    return evaluate(evaluators()[claim_id], arms).obtained


@pytest.mark.parametrize(
    ("claim_id", "expected"),
    [
        ("A-trap-ttft-base", 0.2),
        ("A-trap-hit-base", 0.95),
        ("A-trap-util-base", 0.05),
        ("A-trap-33-recovers", 0.0),
        ("A-trap-100-trapped", ["trapped"]),
        ("A-trap-ttft", 60.0),
        ("A-trap-hit", 0.27),
        ("A-trap-calls", 75 / 75),  # one call finishes each minute in both, a minute later in the trap
        ("A-trap-goodput-hour", 0.0),
        ("A-trap-goodput-ctrl", 30.0),
        ("A-trap-goodput-drop", 1.0),
        ("A-trap-goodput-run", 13 / 45),
        ("A-trap-goodput-abs", {"surge": 13 / (100 / 60), "none": 45 / (100 / 60)}),
        ("A-trap-slowdown", [5.0, 5.0]),
        ("A-trap-persists", True),
        ("A-trap-no-warning", True),
        ("A-loop-uncached", [146 / 120, 146 / 120]),
        ("A-loop-uncached-0", 50 / 600),
        ("A-loop-saturation", 100.0),
        ("A-loop-kv-full", 0.97),
        ("A-loop-kv-idle", 0.67),
        ("A-loop-decoding", 0.5),
        ("A-loop-resv-wait", 25.0),
    ],
)
def test_surge_claims(claim_id, expected):
    found = value(claim_id, none=NONE, plus33=PLUS33, plus100=PLUS100)
    assert found == (pytest.approx(expected) if claim_id != "A-trap-100-trapped" else expected)


def test_a_run_that_recovers_fails_the_tests_of_the_trap():
    assert value("A-trap-100-trapped", plus100=NONE) == ["healthy"]
    assert value("A-trap-persists", plus100=NONE) is False
    assert value("A-trap-no-warning", plus100=arm(trapped_from=0)) is False
    assert value("A-trap-33-recovers", none=NONE, plus33=PLUS100) == float("inf")


def test_cliff_claims_pool_all_arms_and_seeds():
    runs = {"none": NONE, "plus33": PLUS33, "plus100": PLUS100, "burst": NONE, "burst_ended": NONE}
    assert value("A-cliff", **runs) == pytest.approx((1.45 + 3.05) / 2)
    assert value("A-cliff-shoulder", **runs) == pytest.approx(0.95)
    assert value("A-cliff-floor", **runs) == pytest.approx(0.27)
    assert value("A-cliff-side", **runs) is True
    assert value("A-cliff-side", **runs | {"plus33": PLUS100, "plus100": PLUS33}) is False


def burst_arm(last_end_min=40.0, **fields) -> Records:
    sessions = [
        session("early", 900.0, 240.0, group="burst", unloaded_s=60.0),
        session("late", 1400.0, last_end_min * 60 - 1400.0, group="burst", unloaded_s=240.0),
    ]
    return arm(sessions=sessions, burst_active=65, **fields)


def test_burst_claims():
    burst = burst_arm(trapped_from=23, base_growth=1)
    assert value("A-kill-active", burst=burst) == 40 + 65 + 24
    assert value("A-kill-burst-left", burst=burst) == 65
    assert value("A-kill-ttft", burst=burst) == pytest.approx(60.0)
    assert value("A-kill-short", burst=burst) == [1.0, 4.0]
    assert value("A-kill-stay", burst=burst) == 15.0
    assert value("A-kill-base-50", burst=burst, none=NONE) == pytest.approx(90 / 40)
    assert value("A-kill-base-90", burst=burst, none=NONE) == pytest.approx(130 / 40)
    assert value("A-kill-recovers", burst_ended=NONE, none=NONE) == 0.0
    assert value("A-kill-recovers", burst_ended=burst, none=NONE) == float("inf")


def relapsing(minutes_of_hits, base_growth=1):
    """The trapped burst run with hits of 0.9 in the given minutes."""
    run = burst_arm(trapped_from=23, base_growth=base_growth)
    calls = run.calls.to_pandas()
    calls.loc[(calls["released_s"] / 60).isin(minutes_of_hits), "cached_tokens"] = 90
    return Records.from_rows(
        [tuple(row) for row in calls.astype(object).where(calls.notna(), None).itertuples(index=False)],
        [tuple(row.values()) for row in run.sessions.to_pylist()],
        [tuple(row.values()) for row in run.samples.to_pylist()],
        run.meta,
    )


def test_the_degradation_outlives_the_burst_only_if_the_rise_is_brief_and_the_base_grows():
    assert value("A-kill-outlives", burst=relapsing(range(42, 46))) is True
    assert value("A-kill-outlives", burst=relapsing([])) is False  # no rise at all
    assert value("A-kill-outlives", burst=relapsing(range(42, 100))) is False  # the rise lasts
    assert value("A-kill-outlives", burst=relapsing(range(42, 46), base_growth=0)) is False
    with pytest.raises(NotObserved, match="too near"):
        value("A-kill-outlives", burst=burst_arm(last_end_min=85.0))
    with pytest.raises(NotObserved, match="no burst sessions"):
        value("A-kill-stay", burst=NONE)


def test_short_runs_are_not_observed_rather_than_judged():
    short = arm(minutes=30, sessions=[])
    for claim_id in ("A-trap-ttft", "A-trap-100-trapped", "A-trap-goodput-hour", "A-loop-saturation"):
        with pytest.raises(NotObserved):
            value(claim_id, plus100=short)
    with pytest.raises(NotObserved):
        value("A-kill-base-90", burst=short, none=short)


def test_the_judged_value_is_the_median_over_seeds():
    assert value("A-trap-hit", plus100=[PLUS100, NONE, PLUS100]) == pytest.approx(0.27)


def test_bailian_burst_is_the_busiest_ten_minutes_over_the_mean():
    arrivals = np.concatenate([np.linspace(0, 599, 20), np.linspace(600, 1199, 40), [1801.0]])
    # windows of 20, 40 and 0 arrivals from the first one on; the last arrival only closes the third
    assert burst_of(arrivals) == pytest.approx(40 / 20 - 1, rel=0.02)
    with pytest.raises(NotObserved):
        burst_of(np.array([0.0, 700.0]))
