"""Orders in which a prefix cache gives up unpinned prefixes (paper A §7.5): pure keys that the cache asks."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol


class CachedPrefix(NamedTuple):
    """What an eviction order may know of one session's cached prefix when it stops being in use."""

    tokens: int
    last_used_s: float
    next_use_s: float
    """When the session's next call will come: its known or simulated time, infinite after its last call. Only an
    oracle may look at it."""
    gap_since_s: float | None
    """When the session's tool began to run; None while a call of it waits or runs, and after its last call."""


class EvictionOrder(Protocol):
    """A key, smallest evicted first. It must not depend on the present time, so that a heap stays in order."""

    def __call__(self, prefix: CachedPrefix) -> tuple[float, float]: ...


def lru(prefix: CachedPrefix) -> tuple[float, float]:
    """The engine's own order: the least recently used first."""
    return (0.0, prefix.last_used_s)


def next_call_oracle(prefix: CachedPrefix) -> tuple[float, float]:
    """Belady's rule with the true future: the prefix needed last, or never again, goes first."""
    return (-prefix.next_use_s, prefix.last_used_s)


def tool_gap_pinning(prefix: CachedPrefix) -> tuple[float, float]:
    """Prefixes of sessions whose tool runs go last; within each group the least recently used first."""
    return (0.0 if prefix.gap_since_s is None else 1.0, prefix.last_used_s)


def largest_first(prefix: CachedPrefix) -> tuple[float, float]:
    """The longest prefix first, which frees the most room an eviction and costs the most to compute again."""
    return (-prefix.tokens, prefix.last_used_s)


EVICTION_ORDERS: Mapping[str, EvictionOrder] = {
    "lru": lru,
    "next-call-oracle": next_call_oracle,
    "tool-gap-pinning": tool_gap_pinning,
    "largest-first": largest_first,
}


def eviction_order(name: str) -> EvictionOrder:
    """An order by name. Raises `ValueError` listing the names."""
    if name not in EVICTION_ORDERS:
        raise ValueError(f"no eviction order {name!r}; there are {', '.join(EVICTION_ORDERS)}")
    return EVICTION_ORDERS[name]
