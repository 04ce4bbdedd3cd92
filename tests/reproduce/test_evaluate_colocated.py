"""The evaluators of paper B against arms whose every figure is known."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from handmade import call, records, sample, session

from artifact.metrics import NotObserved
from artifact.reproduce.colocated import demand_by_minute, drained_min, extent, matched, per
from artifact.reproduce.registry import evaluate, evaluators
from artifact.reproduce.runs_colocated import trace_shapes
from artifact.reproduce.scenarios_colocated import DRAIN_RATES, MIX_CAPS, RECOVERY_ARMS, TRACE_ARMS
from artifact.workload.trajectory import Trajectory

PREEMPTIONS = 30
TRACES = Path(__file__).parents[1] / "data" / "traces"


def run(minutes=90, bad=range(0), turns_per_min=2, sessions=(), waiting=range(0), cached=95, **call_fields):
    """So many turns of 100 prompt tokens a minute, with `cached` of them cached, 10 in the bad minutes; somebody waits
    at the gateway in the `waiting` minutes; 900 of the pool's 1,000 tokens (2,000 by the second reading) are in use."""
    calls = [
        call(60.0 * m + i, 20.0, cached_tokens=10 if m in bad else cached, **call_fields)
        for m in range(minutes)
        for i in range(turns_per_min)
    ]
    samples = [
        (
            *sample(
                60.0 * m,
                parked_sessions=int(m in waiting),
                suspended_sessions=0,
                decode_kv_running_tokens=1700,
                decode_kv_idle_tokens=100,
            ),
            PREEMPTIONS * m // minutes,
        )
        for m in range(minutes + 1)
    ]
    return records(calls, list(sessions), samples, 60.0 * minutes)


def arriving(minutes, lasts_min, every_min=1.0, group="base", from_min=0.0, admitted_min=0.0):
    """A session every so many minutes, each lasting so long (None: for ever)."""
    times = np.arange(from_min, minutes, every_min) * 60
    lasts = None if lasts_min is None else lasts_min * 60
    return [session(f"{group}-{t}", t, lasts, group=group, admitted_s=t + admitted_min * 60) for t in times]


def value(claim_id, runs):
    return evaluate(evaluators()[claim_id], runs).obtained


def seeds(*runs):
    return [replace(one, meta=one.meta | {"seed": seed}) for seed, one in enumerate(runs)]


HEALTHY = run(sessions=arriving(90, 5))
LOST = run(bad=range(18, 90), turns_per_min=1, sessions=[*arriving(90, 5)[:20], *arriving(90, None, from_min=20)])
SPONTANEOUS = run(bad=range(30, 90), sessions=arriving(90, None))
PAIRS = {"pairs/none": seeds(HEALTHY, HEALTHY, SPONTANEOUS), "pairs/burst": seeds(LOST, HEALTHY, LOST)}


def approx(expected):
    """`pytest.approx` for the lists in a table, too."""
    if isinstance(expected, dict):
        return {key: pytest.approx(entry) for key, entry in expected.items()}
    return expected if isinstance(expected, bool) else pytest.approx(expected)


@pytest.mark.parametrize(
    ("claim_id", "expected"),
    [
        ("B-pairs", {"burst_only": 4, "no_burst_only": 0, "both": 4, "neither": 4}),  # one of three each, of 12
        ("B-hit-degraded", [0.1, 0.1]),
        ("B-hit-healthy", [0.95, 0.95]),
        ("B-backlog", [68.0, 88.0]),  # one a minute since minutes 20 and 0, in the middle of the last five minutes
        ("B-sessions-healthy", [5.0, 5.0]),
        ("B-throughput", [1 / 60, 1 / 60]),
        ("B-twin-spont", 4.0),
        ("B-twin-onset", [30.0, 30.0]),
        ("B-miss-share", [1.0, 1.0]),
        ("B-engine-busy", {"running": [20 / 60] * 2, "kv_use": [0.9, 0.9], "preemptions_per_run": [PREEMPTIONS] * 2}),
        ("B-nstar", 10.0),  # 1,000 tokens of pool, 100 of context
        ("B-recompute", {"before": 5 / 60, "after": 90 / 60}),
        ("B-demand", {"before": 0.5, "minute25": 0.6, "end": 6.8, "twin_peak": 0.5}),  # sessions over ten
    ],
)
def test_claims_of_the_pairs(claim_id, expected):
    assert value(claim_id, PAIRS) == approx(expected)


def extra(count, lasts_min=5):
    return arriving(15 + count * 0.1, lasts_min, 0.1, "surge", 15.0)[:count]


def test_what_the_burst_injected_and_whether_it_is_gone():
    gone, there = run(bad=range(18, 90), sessions=extra(11)), run(bad=range(18, 90), sessions=extra(13, None))
    spared = run(sessions=extra(17))
    runs = {"pairs/burst": [gone, there, spared], "recovery/none": [spared]}
    assert value("B-burst-gone", runs) == 0.5
    assert value("B-trigger-state", runs) is True
    assert value("B-trigger-state", runs | {"pairs/burst": [gone, run(sessions=extra(9))]}) is False
    with pytest.raises(NotObserved, match="one fate"):
        value("B-trigger-state", {"pairs/burst": [gone], "recovery/none": [spared]})


def test_what_no_run_shows_is_not_observed():
    healthy = {"pairs/none": [HEALTHY], "pairs/burst": [HEALTHY], "recovery/none": [HEALTHY]}
    for claim_id in ("B-hit-degraded", "B-twin-onset", "B-demand", "B-recover-none", "B-burst-gone"):
        with pytest.raises(NotObserved):
            value(claim_id, healthy)


# Controls ----------------------------------------------------------------------------------------------------------


def test_speeds_are_those_of_single_turns():
    cold = records([call(0.0, 2.0, prompt_tokens=21_600, cached_tokens=0, output_tokens=101, finished_s=12.0)])
    warm = records([call(0.0, 0.2, prompt_tokens=21_600, cached_tokens=20_600, output_tokens=101, finished_s=1.2)])
    runs = {"idle/no-cache": [cold], "idle/cached": [warm], "pairs/none": [warm]}
    assert value("B-turn-cost", runs) == approx({"miss": 2.0, "hit": 0.2})
    assert value("B-rates", runs) == approx(
        {"cold": [10_800] * 2, "incremental": [5_000] * 2, "decode_per_request": [100] * 2}
    )


def test_without_a_cache_the_backlog_drains():
    twin = run(cached=0, sessions=arriving(90, 5, 2))
    drained = run(cached=0, sessions=[*arriving(90, 5, 2), *arriving(20, 30, 0.25, "surge", 15)])
    growing = run(cached=0, sessions=[*arriving(90, 5, 2), *arriving(90, None, 2, "surge", 15)])
    runs = {"nocache/none": [twin], "nocache/small": [twin], "nocache/burst": [drained], "nocache/loaded": [LOST]}
    assert value("B-nocache", runs) is True
    assert value("B-nocache", runs | {"nocache/burst": [drained, growing]}) is False
    assert value("B-nocache-backlog", runs) == [23.0, 23.0]  # 20 of the burst's and three others
    assert value("B-nocache-small", runs) == [2.0, 2.0]
    assert value("B-throughput-nocache", runs) == approx([1 / 60, 1 / 60])


def test_small_triggers_and_the_second_engine():
    runs = {
        "cap/burst": [HEALTHY, HEALTHY],
        "quiet/none": [run(30), run(30, bad=range(20, 30)), run(30), run(30, bad=range(4))],
        "flush/none": [run(60), run(60, bad=range(10, 60)), run(60), run(60, bad=range(10, 20))],
        "small/none": [run(60), run(60, bad=range(11, 60))],
        "sglang/small": [run(60), run(60)],
        "sglang/five": [run(60, bad=range(18, 60), sessions=arriving(60, None))],
        "sglang/ten": [run(60, bad=range(18, 60), sessions=arriving(60, None, 2))],
        "sglang/none": [run(90), run(90)],
        "sglang/burst": [run(90, bad=range(20, 90)), run(90)],
        "sglang/flush": [run(60, bad=range(10, 20)), run(60)],
    }
    expected = {
        "B-cap-prevents": 0.0,
        "B-quiet-04": 0.75,
        "B-flush": True,
        "B-flush-share": 0.25,
        "B-vllm-small": {"vllm": 0.5, "sglang": 0.0},
        "B-sglang": True,
        "B-sglang-large": {"collapsed_of_6": 6, "hit": [0.1, 0.1], "sessions": [29.2, 58.0]},
        "B-sglang-pairs": {"burst_only": 2, "no_burst": 0},
        "B-sglang-flush": 1.0,
    }
    for claim_id, what in expected.items():
        assert value(claim_id, runs) == approx(what), claim_id
    assert value("B-sglang", runs | {"sglang/five": [run(60)]}) is False
    assert value("B-flush", runs | {"flush/none": [run(60)]}) is False


# Drain condition ---------------------------------------------------------------------------------------------------


def cold_run():
    """Windows of two minutes that a cost of 0.05 s + 0.15 ms a token would make, five turns or more in progress."""
    sizes = [(5, 159_667), (6, 133_000), (8, 99_667)]
    calls = [
        call(120.0 * i + k, 119.0 - k, prompt_tokens=prompt, cached_tokens=0)
        for i in range(15)
        for count, prompt in [sizes[i % 3]]
        for k in range(count)
    ]
    return records(calls, duration_s=1800.0)


def draining(rate):
    """Collapsed at minute 20; sessions of one cold turn of 6,000 tokens arrive or leave by `rate` a minute after it."""
    here = arriving(20, None, 0.1, from_min=10)
    if rate < 0:
        for i in range(100):
            at = 1200.0 + 60 * (i + 1) / -rate
            here[i] = session(f"gone-{i}", 600.0, at - 600.0 if at < 7200 else None)
    else:
        here += arriving(120, None, 1 / rate, from_min=20) if rate else []
    paper_b = [tuple("paper-b-000" if entry == "t" else entry for entry in row) for row in here]
    one = run(120, bad=range(120), sessions=paper_b)
    return replace(one, meta=one.meta | {"scenario": {"load": {"workload": "paper-b"}}})


def test_the_drain_condition():
    rates = dict(zip(DRAIN_RATES, (-0.4, 0, 0.4, 0.8), strict=True))
    runs = {f"drain/{rate}": [draining(change)] for rate, change in rates.items()}
    runs |= {"nocache/none": [cold_run()], "nocache/small": [cold_run()]}
    cost = value("B-cost", runs)
    session_s = 25 * 0.05 + 0.15e-3 * 25 * 21_600
    assert cost["per_token_ms"] == pytest.approx(0.15, rel=1e-3)
    assert cost["S_engine_s"] == pytest.approx(session_s, rel=1e-3)
    signs = value("B-drain-sign", runs)
    assert signs["0.010"][0] == pytest.approx(0.0, abs=1e-6)
    assert signs["0.014"][0] == pytest.approx(24 * session_s, rel=0.02)  # 24 sessions an hour more
    assert signs["0.006"][0] == pytest.approx(-24 * session_s, rel=0.02)
    assert value("B-drain", runs) == pytest.approx(0.010, abs=1e-4)
    assert value("B-drain-cold", runs) is True
    healed = replace(draining(0), calls=run(120, bad=range(60)).calls)
    assert value("B-drain-cold", runs | {"drain/0.018": [healed]}) is False


def test_the_cost_from_degraded_runs_uses_windows_of_misses_only():
    one = cold_run()
    with pytest.raises(NotObserved):
        value("B-cost-alt", {"pairs/burst": [HEALTHY]})
    long = [replace_time(call_row, 2400.0) for call_row in one.calls.to_pylist()]
    bad = records([*long, *[call(m * 60.0, 1.0, cached_tokens=0) for m in range(70, 90)]], duration_s=5400.0)
    assert value("B-cost-alt", {"pairs/burst": [bad]})["per_token_ms"] == pytest.approx(0.15, rel=1e-3)


def replace_time(row, by_s):
    moved = {name: row[name] + by_s for name in ("released_s", "scheduled_s", "first_token_s", "finished_s")}
    return tuple((row | moved).values())


# Getting out -------------------------------------------------------------------------------------------------------


def controlled(recovers_min=None, minutes=60, from_min=20, queue=range(0), **fields):
    """Collapsed from minute 15; recovers so many minutes after control begins (None: not)."""
    bad = range(15, minutes if recovers_min is None else from_min + recovers_min)
    return run(minutes, bad=bad, waiting=queue, **fields)


SERVED, LEFT = arriving(60, 10), arriving(60, None)
RECOVERY = {
    "recovery/none": seeds(controlled(sessions=LEFT), controlled(sessions=LEFT), run(60, sessions=arriving(60, 4))),
    "recovery/admission": seeds(controlled(sessions=LEFT), controlled(20, sessions=SERVED)),
    "recovery/aimd": seeds(controlled(15, sessions=SERVED), controlled(10, sessions=SERVED)),
    "recovery/cap": seeds(*[controlled(3, sessions=SERVED, queue=range(20, 35))] * 2),
    "recovery/budgeter": seeds(*[controlled(2, sessions=SERVED, queue=range(20, 30))] * 2),
    "recovery/low": seeds(controlled(3, sessions=SERVED, queue=range(20, 30))),
    "recovery/high": seeds(controlled(2, sessions=SERVED, queue=range(20, 30))),
}


@pytest.mark.parametrize(
    ("claim_id", "expected"),
    [
        ("B-recover-budget", {"share": 1.0, "minutes": [2.0, 2.0]}),
        ("B-recover-cap", [3.0, 3.0]),
        ("B-recover-aimd", 1.0),
        ("B-recover-admit", 0.5),
        ("B-recover-none", 0.0),
        ("B-recover-matched", {"budgeter": 7, "cap": 7, "aimd": 7, "admission": 3.5, "none": 0}),
        ("B-recover-slow", {"aimd": [10.0, 15.0], "admission": [20.0, 20.0]}),
        (
            "B-recover-hit",
            {
                "budgeter": [0.95] * 2,
                "cap": [0.95] * 2,
                "aimd": [0.95] * 2,
                "admission": [0.1, 0.95],
                "none": [0.1] * 2,
            },
        ),
        (
            "B-recover-cohort",
            {"budgeter": [1.0] * 2, "cap": [1.0] * 2, "aimd": [1.0] * 2, "admission": [0.0, 1.0], "none": [0.0] * 2},
        ),
        ("B-unfinished", {"aimd": 0.0, "admission": 0.5, "none": 1.0}),
        ("B-latency", {"budgeter": 10.0, "cap": 10.0, "never_collapsed": 4.0}),
        ("B-latency-p90", {"budgeter_p90": 10.0, "cap_p90": 10.0, "aimd_median": 10.0}),
        ("B-start-state", {"sessions": [21.0, 21.0], "turns_left": [0.0, 0.0]}),
        ("B-drain-time", [10.0, 10.0]),
        ("B-capacity", {"turns_per_s": 2 / 60, "sessions_per_s": 2 / 60 / 25, "load_share": 0.035 * 25 * 30}),
        ("B-thresholds", True),
        ("B-thresholds-rate", {"default": [2 / 60] * 2, "others": [2 / 60] * 2}),
    ],
)
def test_claims_of_the_recovery(claim_id, expected):
    if claim_id == "B-start-state":
        one = RECOVERY["recovery/none"][0]
        planned = [session(f"p{i}", 0.0, None, calls_planned=3) for i in range(21)]
        done = [call(0.0, 1.0, session_id="p0"), call(1190.0, 20.0, session_id="p1"), *call_rows(one)]
        runs = {"recovery/none": [records(done, planned, duration_s=3600.0)]}
        assert value(claim_id, runs) == {"sessions": [21.0, 21.0], "turns_left": [62.0, 62.0]}
    else:
        assert value(claim_id, RECOVERY) == approx(expected)


def call_rows(one):
    return [tuple(row.values()) for row in one.calls.to_pylist()]


def test_a_budgeter_that_is_later_with_other_thresholds_is_not_the_same():
    late = {"recovery/low": seeds(controlled(8, sessions=SERVED)), "recovery/high": RECOVERY["recovery/high"]}
    assert value("B-thresholds", RECOVERY | late) is False
    unserved = {"recovery/low": seeds(controlled(2, sessions=LEFT))}
    assert value("B-thresholds", RECOVERY | unserved) is False
    slow = {"recovery/budgeter": seeds(controlled(None, sessions=LEFT))}
    assert value("B-recover-budget", RECOVERY | slow) == {"share": 0.0, "minutes": [np.inf, np.inf]}


def test_all_collapsed_runs_of_the_budgeter_count_together():
    there = {name: [controlled(2)] for name in ("recovery/budgeter", "recovery/low", "recovery/high")}
    at_25 = {"32b03/budgeter": [controlled(2, 90, 25)], "32b025/budgeter": [controlled(None, 100, 25)]}
    assert value("B-recover-total", there | at_25) == pytest.approx(4 / 5)


def test_the_queue_is_drained_when_nobody_waits_for_the_first_time_after_control():
    assert drained_min(run(60, waiting=[*range(5), *range(22, 30)]), 1200.0) == 10.0
    assert drained_min(run(60, waiting=range(20, 61)), 1200.0) == np.inf
    assert drained_min(run(60), 1200.0) == np.inf, "nobody ever waited"


# Trace shapes on 32B -----------------------------------------------------------------------------------------------


def test_trace_shapes():
    late = run(40, bad=range(34, 40))  # in its last whole window: degraded, so not partial
    partly = run(40, bad=range(39, 40))  # 0.78
    runs = {"traces/none": [run(40)], "traces/burst": [run(40), partly, run(40, bad=range(14, 40)), late]}
    assert value("B-32b-025", runs) == approx({"degraded": 2, "partial": 1, "no_burst_degraded": 0})
    at_03 = {"32b03/quiet": [run(90, bad=range(30, 90)), run(90)], "32b03/none": [run(90, bad=range(18, 90))] * 2}
    assert value("B-32b-03", at_03) == approx({"degraded": 0.75, "end_hit": [0.1, 0.95]})
    assert value("B-32b-03-onset", at_03) == [30.0, 30.0]


def test_recovery_on_32b():
    fates = {"none": None, "admission": None, "cap": None, "adaptive": 12, "budgeter": 1}
    assert tuple(fates) == TRACE_ARMS
    sessions = {None: arriving(90, None), 12: arriving(90, 30), 1: arriving(90, 10)}
    runs = {f"32b03/{arm}": [controlled(at, 90, 25, sessions=sessions[at])] for arm, at in fates.items()}
    assert value("B-32b-recover", runs) == {"budgeter": 3, "adaptive": 3, "cap": 0, "admission": 0}
    assert value("B-users-32b", runs) == {"budgeter": [1.0, 1.0], "adaptive": [1.0, 1.0], "others": [0.0, 0.0]}
    long = {f"32b025/{arm}": [controlled(fates[arm], 100, 25, sessions=arriving(100, None))] for arm in
            ("none", "adaptive", "budgeter")}  # fmt: skip
    assert value("B-32b-long-hit", long) == approx({"budgeter": [0.95] * 2, "adaptive": [0.95] * 2, "none": [0.1] * 2})
    assert value("B-32b-long-cohort", long) == approx({"budgeter": [0, 0], "adaptive": [0, 0], "none": [0, 0]})
    queue = value("B-32b-long-queue", long)
    assert queue == approx({"growth_per_10min": [10.0] * 2, "controlled": [98.0] * 2, "none": [98.0] * 2})


def test_the_shapes_themselves():
    """Two sessions before the cut: one of 2 calls, one of 4, whose last one goes over 38K tokens."""
    short = Trajectory("short", (1000, 1400), (1000, 400), (100, 100), (0.0, 0.1))
    long = Trajectory("long", (1000, 9000, 20000, 39000), (1000, 8000, 11000, 19000), (100,) * 4, (0.0, 0.2, 0.3, 9.0))
    cut = Trajectory("long", (1000, 9000, 20000), (1000, 8000, 11000), (100,) * 3, (0.0, 0.2, 0.3))
    runs = {"trace_shapes_whole": [[short, long]], "trace_shapes": [[short, cut]]}
    found = value("B-wl-shapes", runs)
    assert found == approx({"calls_p50": 3, "context_p50_tokens": 5200, "sessions_over_38k": 0.5, "turns_cut": 1 / 6})
    assert value("B-wl-gap", runs) == pytest.approx(0.25)
    found = value("B-wl-swebench", runs)
    assert found["appended_tokens"] == 9500 and found["context_tokens"] == pytest.approx([10900, 29700])


def test_tracelabs_sessions_are_looked_at_where_they_are_at_hand(monkeypatch):
    """In the file: prompts of 1,000, 1,200 and 800 tokens in one session and of 600 in the other, each the context kept
    and the tokens appended."""
    monkeypatch.delenv("BASIN_TRACELAB", raising=False)
    with pytest.raises(NotObserved, match="BASIN_TRACELAB"):
        value("B-wl-tracelab", trace_shapes())
    monkeypatch.setenv("BASIN_TRACELAB", str(TRACES / "tracelab.csv"))
    assert value("B-wl-tracelab", trace_shapes()) == {"first_context": 800.0, "per_call_context": 900.0}


# Staying out -------------------------------------------------------------------------------------------------------


def test_prevention_counts_every_collapse():
    runs = {"small/budgeter": [run(60)] * 5, "flush/budgeter": [run(60)] * 2, "traces/budgeter": [run(40)]}
    assert value("B-prevent", runs) == 0
    assert value("B-prevent", runs | {"flush/budgeter": [run(60, bad=range(10, 60))]}) == 1


def test_the_mix_shift():
    lost = run(80, bad=range(35, 80), sessions=arriving(80, 5))
    waits = run(80, sessions=arriving(80, 5, admitted_min=2.0))
    free = run(80, sessions=arriving(80, 5))
    fate = {10: waits, 14: waits, 22: lost, 34: lost}
    runs = {f"mix/cap{k}": [fate[k]] for k in MIX_CAPS} | {"mix/none": [lost], "mix/budgeter": [free]}
    runs["mix/adaptive"] = [free]
    assert value("B-mix", runs) is True
    shares = {"none": 1.0, "caps_22_34": 1.0, "caps_10_14": 0.0, "budgeter_adaptive": 0.0}
    assert value("B-mix-collapse", runs) == shares
    assert value("B-mix-wait", runs) == {"caps_10_14": [2.0, 2.0], "budgeter_adaptive": [0.0, 0.0]}
    for arm, other in (("cap22", free), ("cap10", free), ("budgeter", waits), ("adaptive", lost)):
        assert value("B-mix", runs | {f"mix/{arm}": [other]}) is False, arm
    assert value("B-mix", runs | {"mix/budgeter": [run(80, sessions=arriving(80, None))]}) is False, "unserved"


def test_a_host_tier():
    late = run(bad=range(40, 90), sessions=arriving(90, None))
    runs = {"offload/none": [HEALTHY] * 2, "offload/burst": [late, HEALTHY], "pairs/burst": [LOST]}
    runs |= {"offload_late/none": [run(60, bad=range(50, 60))], "offload_late/budgeter": [run(60)]}
    assert value("B-offload", runs) == 0.5
    assert value("B-offload-state", runs) == approx({"hit": [0.1] * 2, "sessions": [88.0] * 2, "twins_degraded": 0})
    assert value("B-offload-onset", runs) == {"host": [40.0, 40.0], "none": [20.0, 20.0]}
    assert value("B-offload-prevent", runs) == {"none": 3, "budgeter": 0}


def test_helpers():
    assert per(12, [True, False, False]) == 4.0 and extent([3, 1], "run") == [1.0, 3.0]
    with pytest.raises(NotObserved, match="no run among"):
        extent([], "run")
    one, other = seeds(HEALTHY, LOST), seeds(HEALTHY, LOST)[1:]
    assert [(a.meta["seed"], b.meta["seed"]) for a, b in matched(one, other)] == [(1, 1)]
    assert demand_by_minute(HEALTHY)["d_over_c"].iloc[50] == pytest.approx(0.5)
    assert set(RECOVERY_ARMS) <= {name.split("/")[1] for name in RECOVERY}
