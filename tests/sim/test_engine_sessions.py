"""Sessions on the engine: the unloaded reference, warm start, ending a group, a policy switched on late."""

import gc
from pathlib import Path
from typing import Any

import pytest
from engine_rig import assert_idle
from small_world import calibration_file, scenario, trajectory

from artifact.control.policy import Policy
from artifact.records.schema import Records
from artifact.workload.catalog import workload
from sim.run import Simulation, run
from sim.scenario import EndGroup, PolicyChoice, Scenario


def sessions(records: Records) -> dict[str, dict[str, Any]]:
    return {row["session_id"]: row for row in records.sessions.to_pylist()}


def calls(records: Records) -> list[dict[str, Any]]:
    return records.calls.to_pylist()


@pytest.mark.parametrize("hybrid", [False, True])
def test_a_session_alone_takes_its_unloaded_duration(tmp_path: Path, hybrid: bool) -> None:
    made = trajectory("t", (96, 160, 500), output=9, gap_s=4.0, head=32)
    alone = scenario(
        tmp_path, [made], deployment={"calibration": calibration_file(tmp_path, hybrid, call_overhead_s=0.25)}
    )
    [row] = sessions(run(alone)).values()
    by_hand = (
        3 * (0.25 + 0.5 + 8 * 0.25)  # overhead, transfer, decode
        + 2 * 4.0  # gaps
        + (1 + 1 + 64 * 64 / 4096)
        + (1 + 1 + 64 * 128 / 4096)
        + (6 * 1 + 340 / 64 + 340 * 330 / 4096)
    )
    assert row["ended_s"] - row["arrival_s"] == row["unloaded_s"] == by_hand


def test_the_shipped_sessions_alone_take_their_unloaded_duration(tmp_path: Path) -> None:
    """On a published calibration contexts grow during decode, which the simulator's pace follows only from event to
    event: a call alone comes out short by at most half its growth times the context term."""
    for made in workload("terminal-bench")[:3]:
        alone = scenario(tmp_path, [made], duration_s=4000.0, deployment={"calibration": "h200"})
        simulation = Simulation(alone)
        [row] = sessions(simulation.finish()).values()
        short = sum(simulation.costs.decode_context_s * output**2 / 2 for output in made.output_tokens)
        assert row["unloaded_s"] - short <= row["ended_s"] - row["arrival_s"] <= row["unloaded_s"] + 1e-6
        assert short < 0.02 * row["unloaded_s"]


@pytest.mark.parametrize("start", ["cold", "cached"])
def test_a_warm_session_goes_on_where_it_is(tmp_path: Path, start: str) -> None:
    made = trajectory("t", (64, 96, 128), output=9, gap_s=50.0)
    load = {"warm_sessions": 1, "warm_start": start, "duration_s": 400.0}
    warm = scenario(tmp_path, [made], arrivals_s=(0.0,), load=load, seed=3)
    simulation = Simulation(warm)
    [plan] = [s.plan for s in simulation.driver.sessions.values() if s.group == "warm"]
    assert 0 < plan.first_call < 3
    held = made.prompt_tokens[plan.first_call - 1] if start == "cached" else 0
    assert simulation.engine.prefills[0].cache.peek(plan.id) == held
    records = simulation.finish()
    row = sessions(records)[plan.id]
    assert (row["arrival_s"], row["admitted_s"], row["outcome"]) == (0.0, 0.0, "completed")
    assert row["calls_planned"] == row["calls_done"] == 3 - plan.first_call
    first = next(c for c in calls(records) if c["session_id"] == plan.id)
    assert (first["call_index"], first["released_s"]) == (plan.first_call, plan.first_gap_s)
    assert (plan.first_gap_s > 0, first["cached_tokens"]) == (start == "cached", held)


def test_ending_a_group_ends_its_sessions_wherever_they_are_and_no_others(tmp_path: Path) -> None:
    burst = {"start_s": 0.0, "end_s": 100.0, "rate_factor": 12.0, "max_unloaded_s": 1000.0}
    made = trajectory("t", (200, 300, 400), output=9)
    crowded = scenario(
        tmp_path,
        [made],
        arrivals_s=[10.0 * i for i in range(12)],
        duration_s=1200.0,
        load={"burst": burst},
        end_group=EndGroup(at_s=100.0),
    )
    simulation = Simulation(crowded)
    simulation.advance(99.9)
    inside = {s.current.stage for s in simulation.driver.sessions.values() if s.group == "burst" and s.current}
    assert len(inside) >= 2  # they are at different stages
    records = simulation.finish()
    rows = sessions(records).values()
    ended = [row for row in rows if row["outcome"] == "ended"]
    assert ended and {row["group"] for row in ended} == {"burst"}
    assert {row["ended_s"] for row in ended} == {100.0}
    assert {row["outcome"] for row in rows if row["group"] == "base"} == {"completed"}
    late = {row["session_id"] for row in ended}
    assert all(call["finished_s"] <= 100.0 for call in calls(records) if call["session_id"] in late)
    assert records.meta["ended_at_s"] == 100.0
    assert_idle(simulation.engine)


def test_a_policy_switched_on_late_adopts_those_inside(tmp_path: Path) -> None:
    made = trajectory("t", (64, 96, 128), output=9, gap_s=30.0)
    heard: list[tuple[str, str]] = []

    class Listening(Policy):
        def adopt(self, session: Any, context_tokens: int, now: float) -> None:
            assert now == 50.0
            heard.append(("adopt", session.id))
            super().adopt(session, context_tokens, now)

        def arrive(self, session: Any, now: float) -> None:
            assert now > 50.0
            heard.append(("arrive", session.id))
            super().arrive(session, now)

    late = scenario(tmp_path, [made], arrivals_s=(0.0, 20.0, 60.0), policy=PolicyChoice(from_s=50.0))
    rows = sessions(Simulation(late, Listening()).finish())
    assert heard == [("adopt", "base-0-00000"), ("adopt", "base-0-00001"), ("arrive", "base-0-00002")]
    assert {row["outcome"] for row in rows.values()} == {"completed"}


def test_nothing_controls_the_engine_before_the_switch(tmp_path: Path) -> None:
    made = trajectory("t", (64, 96, 128), output=9, gap_s=30.0)
    arrivals = [2.0 * i for i in range(10)] + [60.0]
    one_at_a_time = PolicyChoice(name="admission-only", parameters={"admit": 1}, from_s=40.0)
    capped = scenario(tmp_path, [made], arrivals_s=arrivals, policy=one_at_a_time)
    rows = sessions(run(capped)).values()
    early = [row for row in rows if row["arrival_s"] < 40]
    [late] = [row for row in rows if row["arrival_s"] == 60]
    assert all(row["admitted_s"] == row["arrival_s"] for row in early)
    assert late["admitted_s"] >= max(row["ended_s"] for row in early)


def test_calls_and_sessions_that_do_not_end_within_the_run_say_so(tmp_path: Path) -> None:
    made = trajectory("t", (64, 96), output=9, gap_s=4.0)
    cut = scenario(tmp_path, [made], duration_s=8.0)
    records = run(cut)
    [row] = sessions(records).values()
    assert (row["outcome"], row["ended_s"], row["calls_done"], row["calls_planned"]) == ("unfinished", None, 1, 2)
    done = calls(records)
    first = 2.5 + 0.5 + 8 * 0.25
    assert [c["finished_s"] for c in done] == [first]
    cut = scenario(tmp_path, [made], duration_s=first + 4 + 1)
    second = calls(run(cut))[1]
    assert (second["scheduled_s"], second["first_token_s"], second["finished_s"]) == (first + 4, None, None)


def test_a_trajectory_that_no_instance_can_hold_is_refused(tmp_path: Path) -> None:
    large = trajectory("large", (900, 999), output=9)
    with pytest.raises(ValueError, match=r"'large' reaches 1008 tokens, more than the prefill cache .*\(1000\)"):
        Simulation(scenario(tmp_path, [large]))


def test_samples_count_what_the_calls_say(tmp_path: Path) -> None:
    made = [trajectory("t", (64, 96, 128), output=9), trajectory("u", (200, 400), output=30)]
    busy = scenario(tmp_path, made, arrivals_s=[5.0 * i for i in range(20)], duration_s=600.0)
    records = run(busy)
    last = records.samples.to_pylist()[-1]
    done = calls(records)
    assert last["prompt_tokens_total"] == sum(c["prompt_tokens"] for c in done)
    assert last["cached_tokens_total"] == sum(c["cached_tokens"] for c in done)
    assert last["computed_tokens_total"] == last["prompt_tokens_total"] - last["cached_tokens_total"]
    assert last["calls_done_total"] == len(done) == sum(row["calls_done"] for row in sessions(records).values())
    assert (last["active_sessions"], last["working_set_tokens"], last["decode_kv_running_tokens"]) == (0, 0, 0)


def test_a_run_in_steps_is_the_run_and_leaves_no_garbage(tmp_path: Path) -> None:
    made = [trajectory("t", (64, 96, 128), output=9), trajectory("u", (200, 400), output=30)]
    busy = scenario(tmp_path, made, arrivals_s=[5.0 * i for i in range(20)], duration_s=600.0)
    stepwise = Simulation(busy)
    gc.collect()
    gc.disable()  # `advance` turns the collector off while it runs
    try:
        for time_s in (10.0, 10.0, 300.0, 600.0):
            stepwise.advance(time_s)
        assert not gc.isenabled()
        assert gc.collect() == 0
    finally:
        gc.enable()
    stepwise.advance(600.0)
    assert gc.isenabled()
    assert stepwise.finish().calls.equals(run(busy).calls)


def test_scenario_fields_are_checked() -> None:
    with pytest.raises(ValueError, match="rooter"):
        Scenario.model_validate({"deployment": {"rooter": "affinity"}, "load": {"rate_per_min": 1, "duration_s": 1}})
