import numpy as np
import pytest

from sim.fluid.classify import cache_first, memory_criterion, resource_ratio
from sim.fluid.model import FluidDeployment


def test_the_rule_is_cache_below_decode_memory_over_twice_the_fraction_in_service(h100: FluidDeployment) -> None:
    """Claim A-fluid-rule (Eq. 2): at the crossover C = D_KV/(k f) with k = 2 within 0.2."""
    f = 0.4
    crossover = h100.replace(cache_tokens=h100.cache_tokens / memory_criterion(h100, f))
    k = h100.decode_kv_tokens / (f * crossover.cache_tokens)
    assert k == pytest.approx(2.0, abs=0.2)


def test_the_criterion_compares_the_two_populations(h100: FluidDeployment) -> None:
    """N_c = 1.9 C/c̄ and N_d = D_KV/(f c̄) (§5.1), f as the closed loop has it with decode memory full."""
    f = h100.memory_limit / h100.memory_sessions
    assert h100.cliff_sessions == pytest.approx(1.9 * 1.09e6 / 33.6e3)
    assert h100.memory_sessions == pytest.approx(1.66e6 / (f * 33.6e3))
    assert memory_criterion(h100, f) == pytest.approx(memory_criterion(h100))
    assert h100.in_service(h100.memory_sessions) == pytest.approx(f * h100.memory_sessions)


def test_scaling_both_memories_preserves_the_criterion_at_fixed_f(h100: FluidDeployment) -> None:
    """§5.1: 'Scaling C and D_KV together preserves the criterion at fixed f.'"""
    twice = h100.replace(cache_tokens=2 * h100.cache_tokens, decode_kv_tokens=2 * h100.decode_kv_tokens)
    assert memory_criterion(twice, 0.5) == pytest.approx(memory_criterion(h100, 0.5))


def test_what_shifts_the_limit_towards_the_cache(h100: FluidDeployment) -> None:
    """Observation 2: decode capacity and tool time do, more cache does the opposite."""
    assert np.all(np.diff(resource_ratio(h100.scaled(tool_time=np.array([1.0, 3, 10, 30])))) <= 1e-9)
    assert np.all(np.diff(resource_ratio(h100.scaled(cache=np.array([1.0, 2, 10, 40])))) >= -1e-9)
    more_decode = h100.replace(
        decode_kv_tokens=h100.decode_kv_tokens * np.array([1.0, 2, 3]),
        latency_s_per_request=h100.latency_s_per_request / np.array([1.0, 2, 3]),
    )
    assert np.all(np.diff(resource_ratio(more_decode)) < 0)


def test_limits_that_the_paper_names(h100: FluidDeployment, host_1p3d: FluidDeployment) -> None:
    """§4.2, Fig. 8: 1P1D with a host tier is decode-first at short tool times; 1P3D is cache-first with GPU-only
    caching or a host tier of twice the GPU cache at every tool time, and at 10 times with tool time x30."""
    tools = np.array([1.0, 3, 10, 30])
    assert not np.any(cache_first(h100.scaled(cache=2.0, tool_time=tools[:2])))
    assert np.all(cache_first(host_1p3d.scaled(tool_time=tools)))
    assert np.all(cache_first(host_1p3d.scaled(cache=0.5, tool_time=tools)))
    assert cache_first(host_1p3d.scaled(cache=5.0, tool_time=30.0))


def test_the_tolerance_is_cautious(h100: FluidDeployment) -> None:
    caches = np.linspace(1, 2, 400)
    ratios = resource_ratio(h100.scaled(cache=caches))
    crossover = h100.scaled(cache=float(caches[np.argmin(abs(ratios - 1.005))]))
    assert 1.0 < resource_ratio(crossover) < 1.01
    assert cache_first(crossover)
    assert not cache_first(crossover, tolerance=0.0)
