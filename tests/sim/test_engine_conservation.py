"""Whatever the load, deployment and policy: nothing is lost, nothing is served twice, nothing leaks."""

import tempfile
from pathlib import Path

from conserved import check_calls, check_samples, check_sessions, trajectories
from engine_rig import assert_adds_up, assert_idle
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_world import calibration_file, scenario

from artifact.records.schema import Records
from sim.run import Simulation
from sim.scenario import EndGroup, PolicyChoice, Scenario

DRAINED_S = 6000.0


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
        check_sessions(simulation, records)
        check_calls(simulation, records)
        check_samples(records)
        _check_prompts(simulation, records)
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


def _check_prompts(simulation: Simulation, records: Records) -> None:
    engine = simulation.engine
    prompt, cached, computed = (
        sum(getattr(p, name) for p in engine.prefills) for name in ("prompt_tokens", "cached_tokens", "computed_tokens")
    )
    assert cached + computed == prompt  # hit + miss, aborted calls included
    assert prompt >= sum(call["prompt_tokens"] for call in records.calls.to_pylist())
