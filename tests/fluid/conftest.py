"""Deployments with round numbers, so that a test can be checked by hand."""

import pytest

from sim.fluid.model import FluidDeployment


@pytest.fixture
def h100() -> FluidDeployment:
    """Near the paper's H100 1P1D with GPU-only caching (§3.1: C, D_KV; §3.3: mu_p), call costs rounded."""
    return FluidDeployment(
        name="H100 1P1D",
        cache_tokens=1.09e6,
        decode_kv_tokens=1.66e6,
        prefill_tokens_per_s=31e3,
        context_tokens=33.6e3,
        prompt_tokens=31e3,
        new_tokens=1350,
        calls_per_session=33,
        gap_s=7.5,
        unloaded_latency_s=5.0,
        latency_s_per_request=0.38,
    )


@pytest.fixture
def host_1p3d(h100: FluidDeployment) -> FluidDeployment:
    """Three decode instances and a host tier twice the GPU cache (§5.1 Fig. 9a)."""
    return h100.replace(
        name="1P3D, host x2",
        cache_tokens=2 * 1.09e6,
        decode_kv_tokens=3 * 1.66e6,
        latency_s_per_request=0.38 / 3,
    )
