"""Sessions at random, and what holds of every run's records whatever the engine."""

from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from artifact.records.schema import Records
from artifact.workload.trajectory import Trajectory
from sim.run import Simulation

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


def check_sessions(simulation: Simulation, records: Records) -> None:
    rows = records.sessions.to_pylist()
    assert {row["session_id"] for row in rows} == set(simulation.driver.sessions)
    for row in rows:
        assert row["outcome"] in ("completed", "ended", "shed")
        assert (row["calls_done"] == row["calls_planned"]) == (row["outcome"] == "completed")
        if row["admitted_s"] is not None:
            assert row["arrival_s"] <= row["admitted_s"] <= row["ended_s"]


def check_calls(simulation: Simulation, records: Records) -> None:
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


def check_samples(records: Records) -> None:
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
