"""The words under the figures say what the runs say."""

from dataclasses import replace

import pyarrow as pa
from test_evaluate_trap import NONE, PLUS33, PLUS100, arm, base_sessions, burst_arm

from artifact.records.schema import CALLS
from artifact.reproduce.findings import loop_findings, residual_findings, trap_findings, workload_findings
from artifact.workload.stats import workload_stats
from artifact.workload.trajectory import Trajectory

BURST = burst_arm(trapped_from=23, base_growth=1)


def surge(**arms):
    return {"none": [NONE], "plus33": [PLUS33], "plus100": [PLUS100]} | arms


def test_a_trap_is_called_so_with_its_numbers():
    words = trap_findings(surge())
    assert "**In 1 of 1 seeds the engine is trapped**" in words
    assert "median TTFT is 60 s and the hit rate 0.27" in words
    assert "0 sessions/h against 30" in words and "End states: trapped 1." in words


def test_seeds_are_counted_apart():
    two = {name: runs * 2 for name, runs in surge().items()}
    words = trap_findings(two | {"plus100": [PLUS100, NONE]})
    assert "Medians over 2 seeds" in words and "**In 1 of 2 seeds" in words and "trapped 1, healthy 1" in words


def test_no_trap_and_an_engine_that_fails_without_a_surge_are_not_called_one():
    assert "**No trap at this load**" in trap_findings(surge(plus100=[NONE]))
    failing = arm(trapped_from=20, sessions=base_sessions(500.0))
    words = trap_findings(surge(none=[failing]))
    assert "even without a surge" in words and "seeds the engine is trapped" not in words


def test_runs_too_short_for_an_end_state_are_said_to_be():
    short = arm(trapped_from=20, minutes=70)
    assert "too early for an end state" in trap_findings({"none": [short], "plus33": [short], "plus100": [short]})


def test_what_ending_the_burst_does():
    runs = {"none": [NONE], "burst": [BURST], "burst_ended": [NONE]}
    words = residual_findings(runs)
    assert "**In 1 of 1 seeds** ending the residual sessions" in words
    assert "129 sessions are active, 65 of them the burst's" in words
    assert "leaves 15 min after minute 25" in words and "after 0 min" in words
    assert "**In no seed**" in residual_findings(runs | {"burst_ended": [BURST]})
    assert "not before the run's end" in residual_findings(runs | {"burst_ended": [BURST]})


def missing_all(run):
    """The run with 6,000 prompt tokens a minute, none of them cached: all that prefill can compute."""
    calls = run.calls.to_pandas().assign(prompt_tokens=6000, cached_tokens=0)
    return replace(run, calls=pa.Table.from_pandas(calls, schema=CALLS, preserve_index=False))


def test_saturation_is_a_matter_of_the_numbers():
    runs = {"none": [NONE], "plus33": [PLUS33], "plus100": [PLUS100], "burst": [BURST], "burst_ended": [NONE]}
    words = loop_findings(runs)
    assert "falls from 0.95 to 0.27, most steeply at W/C = 2.25" in words and "at least 1% of the 100 tokens/s" in words
    assert "prefill is not always saturated" in words
    words = loop_findings(runs | {"plus100": [missing_all(PLUS100)]})
    assert "at least 100% of the 100 tokens/s" in words and "prefill is saturated" in words


def test_what_a_real_run_did_not_record_is_not_made_up():
    def unsampled(run):
        capacity = {"prefill_cache_tokens": 1000, "host_cache_tokens": 0, "decode_kv_tokens": 2000}
        meta = run.meta | {"capacity": capacity | {"saturated_prefill_tokens_per_s": float("nan")}}
        return replace(run, samples=run.samples.slice(0, 0), meta=meta)

    runs = {"none": [NONE], "plus33": [PLUS33], "plus100": [PLUS100], "burst": [BURST], "burst_ended": [NONE]}
    bare = {arm: [unsampled(run) for run in seeds] for arm, seeds in runs.items()}
    assert "prefill at not observed of its saturated throughput" in trap_findings(bare)
    words = loop_findings(bare)
    assert "nan" not in words and "prefill is" not in words and "W/C = not observed" in words
    assert "a call waits 25 s" in words


def test_workload_words_hold_its_statistics():
    sessions = [Trajectory("a", (1000, 1100, 1200), (1000, 100, 100), (0, 0, 0), (0.0, 0.5, 1.5))]
    words = workload_findings(workload_stats(sessions))
    assert "makes 3 calls" in words and "adds 100 tokens" in words
    assert "91.3%" in words  # 2,100 of the returning calls' 2,300 prompt tokens
    assert "1 s at the median, 1.0 s in the mean" in words
