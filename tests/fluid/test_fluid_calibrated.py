import pytest

from artifact.reproduce import ledger
from artifact.reproduce.paths import repository_root
from artifact.workload.trajectory import Trajectory
from sim.calibration.model import calibration
from sim.fluid.calibrated import fluid_deployment, session_terms
from sim.fluid.equilibria import landscape
from sim.scenario import Deployment

FULL = repository_root() / "figures" / "claims.json"

TWO = [
    Trajectory("a", (1000, 2000), (1000, 1000), (100, 100), (0.0, 10.0), shared_head_tokens=400),
    Trajectory("b", (3000, 5000), (3000, 2000), (200, 0), (0.0, 30.0), shared_head_tokens=400),
]


def test_session_terms_by_hand() -> None:
    terms = session_terms(TWO, token_s=0.01)
    assert terms.calls_per_session == 2
    assert terms.prompt_tokens == 2750
    assert terms.new_tokens == (600 + 1000 + 2600 + 2000) / 4
    assert terms.first_prompt_tokens == (600 + 2600) / 2
    assert terms.output_tokens == 100
    assert terms.gap_s == 10
    # seconds at each prompt: 1, 11, 2, 30
    assert terms.context_tokens == pytest.approx((1000 * 1 + 2000 * 11 + 3000 * 2 + 5000 * 30) / 44)
    assert terms.prefill_position == pytest.approx((1e6 + 4e6 + 9e6 + 25e6) / 11000 / 2)


def test_no_trajectories_is_an_error() -> None:
    with pytest.raises(ValueError, match="no trajectories"):
        session_terms([], token_s=0.01)


def test_capacities_are_those_of_the_simulated_deployment() -> None:
    engine = calibration("h200")
    gpu = fluid_deployment(Deployment(calibration="h200", prefill=2, decode=6), TWO)
    host = fluid_deployment(Deployment(calibration="h200", prefill=2, decode=6, host_ratio=2), TWO)
    assert gpu.cache_tokens == 2 * engine.prefill.cache_tokens.value
    assert host.cache_tokens == 2 * gpu.cache_tokens  # inclusive: C = max(C_G, C_H)
    assert gpu.decode_kv_tokens == 6 * engine.decode.kv_tokens.value
    assert (gpu.name, host.name) == ("H200 2P6D, GPU", "H200 2P6D, host ×2")


def test_call_latency_follows_the_engine_costs() -> None:
    engine = calibration("h100")
    d = fluid_deployment(Deployment(calibration="h100"), TWO)
    decode, context = engine.decode, d.context_tokens
    per_request = decode.per_request_s.value + decode.per_context_token_s.value * context
    assert d.latency_s_per_request == pytest.approx(100 * per_request)
    outside = engine.call_overhead_s.value + engine.transfer_s.value + engine.prefill.fixed_s.value
    assert d.unloaded_latency_s == pytest.approx(100 * decode.fixed_s.value + outside, abs=0.1)  # rest: 1550 new tokens
    three = fluid_deployment(Deployment(calibration="h100", decode=3), TWO)
    assert three.latency_s_per_request == pytest.approx(d.latency_s_per_request / 3)


@pytest.mark.parametrize(("host_ratio", "claim"), [(0, "A-lref-gpu"), (2, "A-lref-host")])
def test_the_peak_is_near_the_load_that_overloads_the_simulator(host_ratio: float, claim: str) -> None:
    """§5.2: reference overload rates of HiCache alone on H200 1P3D, as the full run of Figure 10 found them."""
    (overload_per_min,) = (row.obtained for row in ledger.load(FULL) if row.id == claim)
    d = fluid_deployment(Deployment(calibration="h200", decode=3, host_ratio=host_ratio))
    assert 60 * float(landscape(d).peak) == pytest.approx(overload_per_min, rel=0.15)
