"""Whole runs on a colocated engine: conservation, determinism, branches, every policy, and what is refused."""

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from colocated_rig import COSTS, assert_idle, assert_pool_adds_up, colocated_file
from conserved import check_calls, check_samples, check_sessions, trajectories
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from small_world import calibration_file, scenario, trajectory

from artifact.baselines.registry import POLICIES
from artifact.control.profile import DeploymentProfile
from artifact.metrics import turn_hit_ratio, turn_rate
from artifact.records.schema import COLOCATED_SAMPLES, TABLES, Records
from artifact.workload.load import Load, RateChange, Shift, Surge
from sim import policies
from sim.calibration.model import colocated_calibration
from sim.engine.colocated_costs import ColocatedCosts
from sim.engine.costs import unloaded_duration
from sim.engine.kinds import capacities_of
from sim.run import Simulation, run
from sim.scenario import Deployment, EndGroup, Flush, PolicyChoice, Scenario

VLLM, SGLANG = "mi300x-qwen3-8b", "mi300x-qwen3-8b-sglang"
BURST = Surge(start_s=60, end_s=360, factor=4)
LOAD = Load(workload="paper-b", rate_per_min=2.4, duration_s=1200, surges=(BURST,), warm_sessions=0)


def colocated(calibration: str = VLLM, load: Load = LOAD, flush_s: float | None = None, **fields: Any) -> Scenario:
    options = fields.pop("options", {})
    flush = None if flush_s is None else Flush(at_s=flush_s)
    return Scenario(
        deployment=Deployment(kind="colocated", calibration=calibration, **options), load=load, flush=flush, **fields
    )


def assert_same(one: Records, other: Records) -> None:
    for name in TABLES:
        assert getattr(one, name).equals(getattr(other, name)), name
    assert one.meta == other.meta


@pytest.fixture
def no_ramp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Basin's profile without the ramps that measure it."""
    profile = DeploymentProfile(kappa=0.6, critical_rate_per_min=3.0, plateau=0.95, floor=0.13)
    monkeypatch.setattr(policies, "_profile", lambda scenario: profile)


@pytest.mark.parametrize("chunk", [2048, 16384])
def test_the_degraded_regime_does_not_hinge_on_the_chunk(tmp_path: Path, chunk: int) -> None:
    """vLLM's other defaults in place of 8192, which is the server's on GPUs of this class: a collapsed engine finishes
    turns at the same rate within 5%."""
    data = colocated_calibration(VLLM).model_dump(mode="json")
    data["chunk_tokens"]["value"] = chunk
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(data))
    shipped, other = (run(colocated(name)) for name in (VLLM, str(tmp_path / "other.yaml")))
    late = (600.0, 1200.0)
    assert turn_hit_ratio(shipped, late) < 0.15
    assert turn_rate(other, late) == pytest.approx(turn_rate(shipped, late), rel=0.05)


# Conservation ------------------------------------------------------------------------------------------------------


@st.composite
def small_scenarios(draw: st.DrawFn, folder: Path) -> Scenario:
    values = {
        "pool_tokens": draw(st.sampled_from([500, 700, 2000])),
        "max_running": draw(st.sampled_from([2, 100])),
        "per_context_token_s": draw(st.sampled_from([0.0, 1 / 8192])),
        "call_overhead_s": draw(st.sampled_from([0.0, 0.25])),
    }
    cached = draw(st.booleans())
    deployment = {
        "kind": "colocated",
        "calibration": colocated_file(folder, draw(st.sampled_from(["vllm", "sglang"])), **values),
        "prefix_caching": cached,
        "host_ratio": draw(st.sampled_from([0, 2])) if cached else 0,
        "eviction": draw(st.sampled_from(["lru", "largest-first"])),
    }
    named = [("hicache", {}), ("continuum", {}), ("session-cap", {"admit": 2, "park": 1}), ("latency-aimd", {})]
    name, parameters = draw(st.sampled_from(named))
    return scenario(
        folder,
        draw(trajectories()),
        arrivals_s=[0.0, *sorted(draw(st.lists(st.floats(0.0, 60.0), max_size=9)))],
        duration_s=6000.0,
        deployment=deployment,
        load={"warm_sessions": draw(st.integers(0, 2))},
        policy=PolicyChoice(name=name, parameters=parameters, from_s=draw(st.sampled_from([0.0, 25.0]))),
        end_group=draw(st.sampled_from([None, EndGroup(at_s=30.0, group="base"), EndGroup(at_s=7.25, group="warm")])),
        flush=draw(st.sampled_from([None, Flush(at_s=20.0)])),
    )


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_conservation(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        simulation = Simulation(data.draw(small_scenarios(Path(folder))))
        engine = simulation.engine
        while simulation.env.peek() < 400.0:
            simulation.env.step()
            assert_pool_adds_up(engine)
            held = engine.occupancy()
            assert 0 <= held.kv_running + held.kv_idle <= engine.costs.pool_tokens
        records = simulation.finish()
        check_sessions(simulation, records)
        check_calls(simulation, records)
        check_samples(records)
        assert_idle(engine)
        counted = engine.cached_tokens + engine.computed_tokens - engine.prompt_tokens
        # Beyond hits and misses, the engine computes anew what preempted calls lose; aborted ones may lack the rest.
        assert counted == 0 or engine.preemptions or simulation.scenario.end_group


# Determinism and branches ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("calibration", [VLLM, SGLANG])
@pytest.mark.parametrize("policy", ["hicache", "composition", "budgeter", "basin-suspend"])
@pytest.mark.usefixtures("no_ramp")
@pytest.mark.filterwarnings("ignore:An input array is constant")
def test_a_branch_ends_as_the_run_itself(calibration: str, policy: str) -> None:
    whole = colocated(calibration, policy=PolicyChoice(name=policy), flush_s=500.0)
    simulation = Simulation(whole)
    simulation.advance(450.0)
    branch = simulation.fork()
    assert_same(branch.finish(), run(whole))
    assert_same(simulation.finish(), branch.finish())


@pytest.mark.usefixtures("no_ramp")
def test_branches_change_load_and_policy() -> None:
    simulation = Simulation(colocated())
    simulation.advance(600.0)
    calm, late = simulation.fork(), simulation.fork()
    changed = LOAD.model_copy(update={"rate_change": RateChange(at_s=600.0, factor=0.2)})
    calm.change_load(changed)
    assert_same(calm.finish(), run(colocated(load=changed)))
    late.change_policy(PolicyChoice(name="budgeter"))
    assert_same(late.finish(), run(colocated(policy=PolicyChoice(name="budgeter", from_s=600.0))))


@pytest.mark.parametrize("name", sorted(POLICIES))
@pytest.mark.usefixtures("no_ramp")
@pytest.mark.filterwarnings("ignore:An input array is constant")
def test_every_policy_runs_on_it(name: str) -> None:
    """Late, in an overloaded engine; nobody is lost."""
    short = LOAD.model_copy(update={"duration_s": 600.0})
    records = run(colocated(load=short, policy=PolicyChoice(name=name, from_s=300.0)))
    last = records.samples.to_pylist()[-1]
    stays = zip(*(records.sessions[name].to_pylist() for name in ("arrival_s", "ended_s")), strict=True)
    there = [begun <= last["time_s"] and (ended is None or ended > last["time_s"]) for begun, ended in stays]
    assert last["active_sessions"] + last["parked_sessions"] == sum(there)
    assert last["decode_running_calls"] > 0


# What records tell -------------------------------------------------------------------------------------------------


def test_samples_of_a_colocated_engine() -> None:
    records = run(colocated())
    assert records.samples.schema.equals(COLOCATED_SAMPLES)
    last = records.samples.to_pylist()[-1]
    used = last["decode_kv_running_tokens"] + last["decode_kv_idle_tokens"]
    assert 0 < used <= 400_000
    assert records.meta["capacity"]["prefill_cache_tokens"] == records.meta["capacity"]["decode_kv_tokens"] == 400_000


def test_records_survive_disk(tmp_path: Path) -> None:
    records = run(colocated(load=LOAD.model_copy(update={"duration_s": 120.0})))
    records.save(tmp_path)
    assert_same(Records.load(tmp_path), records)


def test_a_flush_is_the_runs_trigger() -> None:
    records = run(colocated(flush_s=300.0, load=LOAD.model_copy(update={"surges": (), "duration_s": 400.0})))
    assert records.meta["trigger"] == {"start_s": 300.0, "end_s": 300.0}
    assert records.samples["preemptions_total"].to_pylist()[-1] > 0


def test_slowdown_reference_by_hand(tmp_path: Path) -> None:
    """First call: 64 of 104 tokens beyond the head, one chunk, two further tokens. Second, after a gap of 4 s: 42 new
    tokens of which three were generated."""
    costs = ColocatedCosts(**asdict(COSTS) | {"overhead_s": 0.25})
    t = trajectory("t", (104, 146), output=3, gap_s=4.0, head=40)
    first = 0.25 + 0.625 + 1.0 + 2 * 0.625
    second = 0.25 + 0.625 + 39 / 64 + 2 * 0.625
    assert unloaded_duration(costs)(t, 0) == first + 4.0 + second
    assert unloaded_duration(costs)(t, 1) == second
    assert costs.prefill_s(128) == 2 * 0.625 + 2.0


def test_capacities_of_the_offload_tier() -> None:
    host = capacities_of(Deployment(kind="colocated", calibration=VLLM, host_ratio=2.25))
    assert (host.prefill_cache_tokens, host.decode_kv_tokens, host.host_cache_tokens) == (400_000, 400_000, 900_000)


# What is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "pd", "prefix_caching": False}, "only a colocated engine can do without"),
        ({"kind": "colocated", "prefill": 2}, "prefill=2: a colocated engine has no such choice"),
        ({"kind": "colocated", "reserve_at": "arrival"}, "reserve_at='arrival'"),
        ({"kind": "colocated", "prefix_caching": False, "host_ratio": 2}, "keeps nothing there"),
    ],
)
def test_a_deployment_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Deployment(**options)


def test_a_flush_needs_a_colocated_engine() -> None:
    with pytest.raises(ValidationError, match="only a colocated engine can be flushed"):
        Scenario(deployment=Deployment(calibration="h100"), load=LOAD, flush=Flush(at_s=1))


def test_the_calibration_must_be_of_that_kind() -> None:
    with pytest.raises(ValueError, match="'h100' is of a prefill-decode engine: set the deployment's kind to 'pd'"):
        run(colocated("h100"))
    with pytest.raises(ValueError, match="'mi300x-qwen3-8b' is of a colocated engine: set the deployment's kind"):
        run(Scenario(deployment=Deployment(calibration=VLLM), load=LOAD))


def test_a_session_larger_than_the_pool_is_refused(tmp_path: Path) -> None:
    asked = scenario(
        tmp_path,
        [trajectory("t", (900,), output=200)],
        deployment={"kind": "colocated", "calibration": colocated_file(tmp_path)},
    )
    with pytest.raises(ValueError, match=r"reaches 1100 tokens, more than the KV pool of one instance \(1000\)"):
        run(asked)


def test_a_prefill_decode_file_is_no_colocated_one(tmp_path: Path) -> None:
    path = calibration_file(tmp_path)
    with pytest.raises(ValueError, match="of a prefill-decode engine"):
        run(colocated(path))


# A shift of the mix ------------------------------------------------------------------------------------------------


def test_after_the_shift_other_sessions_arrive() -> None:
    load = Load(
        workload="paper-b-short",
        rate_per_min=6,
        duration_s=1200,
        warm_sessions=0,
        shift=Shift(at_s=600, workload="paper-b-long"),
    )
    rows = run(colocated(load=load)).sessions.to_pylist()
    kinds = {row["arrival_s"] < 600: row["trajectory_id"].rsplit("-", 1)[0] for row in rows}
    assert kinds == {True: "paper-b-short", False: "paper-b-long"}
    assert all((row["trajectory_id"].startswith("paper-b-short")) == (row["arrival_s"] < 600) for row in rows)
    before = run(colocated(load=load.model_copy(update={"shift": None}))).sessions.to_pylist()
    assert [row["arrival_s"] for row in before] == [row["arrival_s"] for row in rows]


@pytest.mark.usefixtures("no_ramp")
@pytest.mark.filterwarnings("ignore:An input array is constant")
def test_peaks_are_known_of_both_sides_of_a_shift() -> None:
    """17.6K and 36.6K tokens, the largest contexts of the two workloads."""
    shift = Shift(at_s=600, workload="paper-b-long")
    load = Load(workload="paper-b-short", rate_per_min=6, duration_s=1200, warm_sessions=0, shift=shift)
    simulation = Simulation(colocated(load=load, policy=PolicyChoice(name="basin")))
    simulation.finish()
    peaks = policies.Peaks("paper-b-short", 1.0, "paper-b-long")
    for session in simulation.driver.sessions.values():
        facts = simulation.driver._facts(session)
        assert peaks(facts) == pytest.approx(17_600 if session.plan.arrival_s < 600 else 36_600, rel=0.02)
