"""A colocated engine in the fluid model's terms."""

import pytest

from sim.calibration.model import colocated_calibration
from sim.engine.colocated_costs import ColocatedCosts
from sim.fluid.calibrated import fluid_deployment
from sim.fluid.hits import HitCurve
from sim.scenario import Deployment

HITS = HitCurve(plateau=0.95, floor=0.1, kappa=0.6)


def deployment(calibration: str = "mi300x-qwen3-8b", **options) -> Deployment:
    return Deployment(kind="colocated", calibration=calibration, **options)


def test_terms_of_the_main_sessions() -> None:
    """25 turns, mean prompt 21.6K; a turn adds 1K beyond the cached answer, the first one 4K: 28K in all."""
    fluid = fluid_deployment(deployment(), "paper-b", HITS)
    assert fluid.calls_per_session == 25
    assert fluid.prompt_tokens == pytest.approx(21_600)
    assert fluid.new_tokens == pytest.approx(28_000 / 25)
    assert fluid.gap_s == pytest.approx(5.0 * 24 / 25, rel=0.03)
    assert (fluid.cache_tokens, fluid.decode_kv_tokens) == (400_000, 400_000)


def test_published_capacity_of_the_healthy_side() -> None:
    """Paper B §3: about 0.05 sessions/s at most while the cache is warm."""
    fluid = fluid_deployment(deployment(), "paper-b", HITS)
    peak = max(float(fluid.departures(n)) for n in range(1, 40))
    assert peak == pytest.approx(0.05, rel=0.15)


def test_published_capacity_of_the_degraded_side() -> None:
    """Paper B §4: 1/S of 0.012-0.013 sessions/s when every turn misses; measured break-even 0.010-0.014."""
    fluid = fluid_deployment(deployment(), "paper-b", HITS)
    assert 0.010 <= float(fluid.departures(100)) <= 0.0145


def test_the_host_tier_moves_the_cliff_and_sglang_mixes_no_steps() -> None:
    pool = fluid_deployment(deployment(), "paper-b", HITS)
    host = fluid_deployment(deployment(host_ratio=2.25), "paper-b", HITS)
    assert host.cliff_sessions == pytest.approx(2.25 * pool.cliff_sessions)
    sglang = fluid_deployment(deployment("mi300x-qwen3-8b-sglang"), "paper-b", HITS)
    assert sglang.prefill_tokens_per_s > 1.2 * pool.prefill_tokens_per_s
    alone = ColocatedCosts.of(colocated_calibration("mi300x-qwen3-8b-sglang"))
    assert sglang.prefill_tokens_per_s < 1 / alone.prefill_token_s
