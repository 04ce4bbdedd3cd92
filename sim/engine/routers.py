"""Prefill routers (paper A §7.6): a function of the call and the instances."""

from collections.abc import Callable, Sequence
from typing import Any

from sim.engine.call import EngineCall
from sim.engine.prefill import PrefillInstance

Router = Callable[[EngineCall, Sequence[PrefillInstance]], PrefillInstance]

MATCH_THRESHOLD = 0.5
"""cache_aware follows a cached prefix only if it covers this share of the prompt (SGLang's default)."""
BALANCE_ABS, BALANCE_REL = 32, 1.0001
"""cache_aware ignores the cache while loads differ by more than both (SGLang's defaults)."""


def least_loaded(call: EngineCall, instances: Sequence[PrefillInstance]) -> PrefillInstance:
    """Fewest calls waiting or in prefill; ties to the lowest number."""
    return min(instances, key=lambda p: p.load)


def home(session: Any, instances: Sequence[PrefillInstance]) -> PrefillInstance:
    """The instance a session belongs to: the one with the fewest live sessions when it first needed one."""
    if session.home is None:
        session.home = min(instances, key=lambda p: p.homes)
        session.home.homes += 1
    chosen: PrefillInstance = session.home
    return chosen


def affinity(call: EngineCall, instances: Sequence[PrefillInstance]) -> PrefillInstance:
    """Every call of a session goes to its home."""
    return home(call.session, instances)


def cache_aware(call: EngineCall, instances: Sequence[PrefillInstance]) -> PrefillInstance:
    """The longest cached prefix if it covers enough of the prompt and the loads are balanced, else the least loaded."""
    loads = [p.load for p in instances]
    if max(loads) - min(loads) > BALANCE_ABS and max(loads) > BALANCE_REL * min(loads):
        return least_loaded(call, instances)
    best = max(instances, key=lambda p: p.cache.peek(call.key))
    held = min(best.cache.peek(call.key) + call.head, call.limit)
    if held < MATCH_THRESHOLD * call.prompt or not best.cache.peek(call.key):
        return least_loaded(call, instances)
    return best


ROUTERS: dict[str, Router] = {"affinity": affinity, "cache_aware": cache_aware, "least_loaded": least_loaded}
