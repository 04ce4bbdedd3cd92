"""Whatever the load, deployment and policy: nothing is lost, nothing is served twice, nothing leaks."""

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

from engine_rig import assert_adds_up, assert_idle
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_world import calibration_file, scenario

from artifact.records.schema import Records
from artifact.workload.trajectory import Trajectory
from sim.run import Simulation
from sim.scenario import EndGroup, PolicyChoice, Scenario

DRAINED_S = 6000.0
HEAD = 20


@st.composite
def trajectories(draw: st.DrawFn) -> list[Trajectory]:
    """Up to three sessions whose prompts grow, shrink (compaction) or stay, and whose outputs may be empty."""
    return [_trajectory(draw, f"t{i}") for i in range(draw(st.integers(1, 3)))]


def _trajectory(draw: st.DrawFn, id: str) -> Trajectory:
    prompts = draw(st.lists(st.integers(HEAD, 420), min_size=1, max_size=4))
    if draw(st.booleans()):
        prompts.sort()
    new = [prompts[0]]
    for before, prompt in pairwise(prompts):
        extends = prompt >= before and draw(st.booleans())
        new.append(prompt - (before if extends else draw(st.integers(0, min(before, prompt)))))
    n = len(prompts)
    outputs = draw(st.lists(st.integers(0, 60), min_size=n, max_size=n))
    gaps = draw(st.lists(st.sampled_from([0.0, 0.5, 7.0, 40.0]), min_size=n, max_size=n))
    return Trajectory(id, tuple(prompts), tuple(new), tuple(outputs), tuple(gaps), shared_head_tokens=HEAD)


@st.composite
def scenarios(draw: st.DrawFn, folder: Path) -> Scenario:
    values = {
        "prefill__cache_tokens": draw(st.sampled_from([480, 700, 2000])),
        "prefill__state_slots": draw(st.sampled_from([2, 100])),
        "decode__kv_tokens": draw(st.sampled_from([480, 700, 2000])),
        "decode__held_back_tokens": draw(st.sampled_from([0, 16])),
        "decode__state_slots": draw(st.sampled_from([2, 100])),
        "decode__per_context_token_s": draw(st.sampled_from([0.0, 1 / 8192])),
        "call_overhead_s": draw(st.sampled_from([0.0, 0.25])),
    }
    deployment = {
        "calibration": calibration_file(folder, draw(st.booleans()), **values),
        "prefill": draw(st.integers(1, 2)),
        "decode": draw(st.integers(1, 2)),
        "host_ratio": draw(st.sampled_from([0, 2])),
        "router": draw(st.sampled_from(["affinity", "cache_aware", "least_loaded"])),
        "reserve_at": draw(st.sampled_from(["arrival", "prefill_end"])),
    }
    policies = [("hicache", {}), ("admission-only", {"admit": 2}), ("session-cap", {"admit": 2, "park": 1})]
    policies += [("concur", {}), ("thunderagent", {})]
    name, parameters = draw(st.sampled_from(policies))
    arrivals = [0.0, *sorted(draw(st.lists(st.floats(0.0, 60.0), max_size=9)))]
    return scenario(
        folder,
        draw(trajectories()),
        arrivals_s=arrivals,
        duration_s=DRAINED_S,
        deployment=deployment,
        load={"warm_sessions": draw(st.integers(0, 2))},
        policy=PolicyChoice(name=name, parameters=parameters, from_s=draw(st.sampled_from([0.0, 25.0]))),
        end_group=draw(st.sampled_from([None, EndGroup(at_s=30.0, group="base"), EndGroup(at_s=7.25, group="warm")])),
    )


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_conservation(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        simulation = Simulation(data.draw(scenarios(Path(folder))))
        _watch(simulation, until_s=400.0)
        records = simulation.finish()
        _check_sessions(simulation, records)
        _check_calls(simulation, records)
        _check_samples(records)
        assert_idle(simulation.engine)


def _watch(simulation: Simulation, until_s: float) -> None:
    """Occupancy after every single event."""
    env, engine, driver = simulation.env, simulation.engine, simulation.driver
    while env.peek() < until_s:
        env.step()
        for prefill in engine.prefills:
            assert_adds_up(prefill.cache)
        for decode in engine.decodes:
            assert decode.kv_idle >= 0 and decode.kv_running >= -1e-6
            # The batch is looked at once a step at least: it may be one step of growth over.
            assert decode.kv_running + decode.kv_idle <= decode.costs.kv_tokens + decode.running + 1e-6
            assert decode.running + decode.reserved <= max(decode.costs.decode_slots, 1)
        active = [s for s in driver.sessions.values() if s.active]
        assert (driver.active, driver.working_set) == (len(active), sum(s.context for s in active))
        assert driver.suspended == sum(s.suspended for s in active)


def _check_sessions(simulation: Simulation, records: Records) -> None:
    rows = records.sessions.to_pylist()
    assert {row["session_id"] for row in rows} == set(simulation.driver.sessions)
    for row in rows:
        assert row["outcome"] in ("completed", "ended", "shed")
        assert (row["calls_done"] == row["calls_planned"]) == (row["outcome"] == "completed")
        if row["admitted_s"] is not None:
            assert row["arrival_s"] <= row["admitted_s"] <= row["ended_s"]


def _check_calls(simulation: Simulation, records: Records) -> None:
    calls = records.calls.to_pylist()
    by_session: dict[str, list[int]] = {}
    for call in calls:
        by_session.setdefault(call["session_id"], []).append(call["call_index"])
        t = simulation.driver.sessions[call["session_id"]].trajectory
        i = call["call_index"]
        assert (call["prompt_tokens"], call["output_tokens"]) == (t.prompt_tokens[i], t.output_tokens[i])
        assert 0 <= call["cached_host_tokens"] <= call["cached_tokens"] < call["prompt_tokens"]
        assert call["released_s"] <= call["scheduled_s"] < call["first_token_s"] <= call["finished_s"]
        assert call["slow_steps"] >= 0 and call["reserve_wait_s"] >= 0
    for row in records.sessions.to_pylist():
        first = row["calls_planned"]
        t = simulation.driver.sessions[row["session_id"]].trajectory
        start = t.n_calls - first
        assert by_session.get(row["session_id"], []) == list(range(start, start + row["calls_done"]))
    engine = simulation.engine
    prompt, cached, computed = (
        sum(getattr(p, name) for p in engine.prefills) for name in ("prompt_tokens", "cached_tokens", "computed_tokens")
    )
    assert cached + computed == prompt  # hit + miss, aborted calls included
    assert prompt >= sum(call["prompt_tokens"] for call in calls)


def _check_samples(records: Records) -> None:
    rows: list[dict[str, Any]] = records.samples.to_pylist()
    sessions = records.sessions.to_pylist()
    for before, row in pairwise(rows):
        assert row["time_s"] > before["time_s"]
        for name in row:
            if name.endswith("_total"):
                assert row[name] >= before[name], name
    for row in rows:
        now = row["time_s"]
        arrived = sum(s["arrival_s"] < now or (s["arrival_s"] == now == 0) for s in sessions)
        departed = sum(s["ended_s"] < now for s in sessions)
        at_once = sum(now in (s["arrival_s"], s["ended_s"]) for s in sessions)
        assert abs(row["active_sessions"] + row["parked_sessions"] - (arrived - departed)) <= at_once
        assert row["suspended_sessions"] <= row["active_sessions"]
