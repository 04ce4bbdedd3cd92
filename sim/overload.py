"""Steady-state overload: the load from which an engine without a surge does not keep up (paper A §4, §5.2)."""

from collections.abc import Sequence
from concurrent.futures import Executor

from artifact.metrics import late_latency
from artifact.workload.load import Load
from sim.run import run
from sim.scenario import Deployment, Scenario

LATE_TTFT_S = 10.0
"""L_late above this marks persistent high latency (paper A §4)."""


def overloaded(scenario: Scenario) -> bool:
    """Whether the highest window-median TTFT of the last 30 minutes exceeds 10 s."""
    return late_latency(run(scenario)) > LATE_TTFT_S


def overload_rate(
    deployment: Deployment, load: Load, rates: Sequence[float], seeds: Sequence[int], executor: Executor
) -> float:
    """The lowest of the ascending `rates` (sessions/min) at which more than half of the seeds are overloaded; infinite
    if none is. `load` gives everything but the rate. By bisection: what is overloaded stays so at higher rates."""
    low, high = 0, len(rates)
    while low < high:
        middle = (low + high) // 2
        this = load.model_copy(update={"rate_per_min": rates[middle]})
        found = list(executor.map(overloaded, [Scenario(deployment=deployment, load=this, seed=s) for s in seeds]))
        if 2 * sum(found) > len(found):
            high = middle
        else:
            low = middle + 1
    return rates[low] if low < len(rates) else float("inf")
