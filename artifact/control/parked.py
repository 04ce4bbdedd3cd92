"""The queue of parked sessions in fixed priority order (paper A §6.3)."""

from heapq import heappop, heappush
from typing import NamedTuple

from artifact.control.policy import SessionFacts


def priority(arrival_s: float, footprint_tokens: float, tokens_per_s: float) -> float:
    """p = a + Ŵ/r, smaller first: no session that arrives after p can overtake, whatever its size."""
    return arrival_s + footprint_tokens / tokens_per_s


class Parked(NamedTuple):
    """A session at the door; ties in priority go by order of arrival."""

    priority: float
    order: int
    session: SessionFacts
    footprint_tokens: float


class ParkedQueue:
    """Sessions by priority, with both ends at hand; every operation is O(log n) amortised.

    Each session sits in a min-heap and a max-heap; what left through one end or by name is skipped at the other.
    """

    def __init__(self) -> None:
        self._parked: dict[str, Parked] = {}
        self._first: list[tuple[float, int, str]] = []
        self._last: list[tuple[float, int, str]] = []
        self._order = 0

    def __len__(self) -> int:
        return len(self._parked)

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._parked

    def push(self, session: SessionFacts, key: float, footprint_tokens: float) -> None:
        self._order += 1
        self._parked[session.id] = Parked(key, self._order, session, footprint_tokens)
        heappush(self._first, (key, self._order, session.id))
        heappush(self._last, (-key, -self._order, session.id))

    def head(self) -> Parked | None:
        """The highest-priority session, or None."""
        return self._top(self._first)

    def tail(self) -> Parked | None:
        """The lowest-priority session, or None."""
        return self._top(self._last)

    def remove(self, session_id: str) -> Parked | None:
        """Take a session out, wherever it stands; None if it is not here."""
        gone = self._parked.pop(session_id, None)
        if not self._parked:
            self._first.clear()
            self._last.clear()
        return gone

    def _top(self, heap: list[tuple[float, int, str]]) -> Parked | None:
        while heap:
            _, order, session_id = heap[0]
            entry = self._parked.get(session_id)
            if entry is not None and entry.order == abs(order):
                return entry
            heappop(heap)
        return None
