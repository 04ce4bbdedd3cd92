"""Which resource limits a deployment first as sessions accumulate (paper A §5.1, Eq. 2 and Fig. 9b)."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sim.fluid.equilibria import curve
from sim.fluid.hits import Array
from sim.fluid.model import FluidDeployment

TOLERANCE = 0.01
"""At the crossover (§5.1). The paper does not say to which side; ours is the cautious one, so that none is missed."""


def memory_criterion(d: FluidDeployment, in_service: ArrayLike | None = None) -> Any:
    """C over D_KV/(kappa x_k f), which is N_c/N_d: below 1 the cache cliff comes before full decode memory (Eq. 2).

    `in_service` is f, the fraction of active sessions in a call; None: f as the closed loop has it with memory full.
    Shape of the fields.
    """
    if in_service is None:
        return d.cliff_sessions / d.memory_sessions
    return d.cache_tokens * d.hits.cliff * np.asarray(in_service, float) / d.decode_kv_tokens


def resource_ratio(d: FluidDeployment) -> Array:
    """Peak call throughput under the closed-loop and prefill bounds over the decode bound (Fig. 9b).

    It weighs service rates as well as memory. Shape of the fields.
    """
    n, _ = curve(d)
    col = d.column()
    peak = col.smooth_min(col.closed_loop(n), col.prefill_bound(n)).max(axis=-1)
    return np.maximum(peak, d.smooth_min(*d.collapsed_bounds)) / d.decode_bound


def cache_first(d: FluidDeployment, tolerance: float = TOLERANCE) -> Any:
    """Whether the model flags the deployment: cache pressure limits its throughput before decode does (§5.1)."""
    return resource_ratio(d) < 1 + tolerance
