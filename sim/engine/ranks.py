"""Eviction in another order than the least recently used first (paper A §7.5)."""

from collections.abc import Container, Hashable
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from mypy_extensions import mypyc_attr

from artifact.baselines.eviction import CachedPrefix, EvictionOrder


class Use(NamedTuple):
    """What an eviction order may know of a session beside its prefix's length; see `CachedPrefix`."""

    last_used_s: float
    next_use_s: float
    gap_since_s: float | None


@mypyc_attr(allow_interpreted_subclasses=True)
class Ranks:
    """The lines of a cache by an eviction order: a heap in which outdated entries are skipped."""

    def __init__(self, order: EvictionOrder) -> None:
        self.order = order
        self._rank: dict[Hashable, tuple[float, float]] = {}
        self._heap: list[tuple[tuple[float, float], int, Hashable]] = []
        self._pushed = 0

    def put(self, key: Hashable, tokens: int, use: Use) -> None:
        """The line can be evicted, or what its rank depends on has changed."""
        rank = self._rank[key] = self.order(CachedPrefix(tokens, *use))
        self._pushed += 1
        heappush(self._heap, (rank, self._pushed, key))
        if len(self._heap) > 64 + 4 * len(self._rank):
            self._heap = [entry for entry in self._heap if self._rank.get(entry[2]) == entry[0]]
            heapify(self._heap)

    def first(self, evictable: Container[Hashable]) -> Hashable:
        """The line to evict next. A line that is in use now has to be `put` again when it is not."""
        while True:
            rank, _, key = self._heap[0]
            if key in evictable and self._rank.get(key) == rank:
                return key
            heappop(self._heap)
            if key not in evictable:
                self._rank.pop(key, None)
