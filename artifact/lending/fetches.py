"""Fetches in flight on prefill: rows of flags, deadlines, and pages that an abandoned fetch may still write to.

Plain bookkeeping; the engine's memory is only carried along.
"""

import threading
from dataclasses import dataclass, field
from typing import Any

from artifact.lending.index import Lent


@dataclass(slots=True, eq=False)
class Fetch:
    """One unit's tail on its way into pages that belong to one request."""

    id: int
    rid: str
    lent: Lent
    slot: int
    tokens: int
    first_token: int
    kv: Any = None
    state: Any = None
    began_s: float = 0.0
    cause: str | None = None
    """Why it failed; None while it runs or when all arrived."""
    bytes: int = 0
    ended_s: float | None = None
    stopped: bool = False
    """Decode said that it writes no more."""
    spoiled: bool = False
    """A layer ran although its pages had not arrived; `status` says the same from a GPU."""
    status: Any = None
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def epoch(self) -> int:
        return self.id


@dataclass(slots=True)
class FetchTable:
    """Thread-safe: the scheduler begins and collects, the socket thread ends, the monitor gives up."""

    slots: int
    timeout_s: float
    quarantine_s: float
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _free: list[int] = field(default_factory=list)
    _flying: dict[int, Fetch] = field(default_factory=dict)
    _abandoned: dict[int, Fetch] = field(default_factory=dict)
    _next: int = 1

    def __post_init__(self) -> None:
        self._free = list(range(self.slots))

    def begin(self, rid: str, lent: Lent, first_token: int, now: float, **memory: Any) -> Fetch | None:
        """A new fetch with a row of flags of its own; None when all rows are taken."""
        with self._turn:
            if not self._free:
                return None
            fetch = Fetch(
                self._next, rid, lent, self._free.pop(), lent.tokens - first_token, first_token, began_s=now, **memory
            )
            self._next += 1
            self._flying[fetch.id] = fetch
            return fetch

    def flying(self, fetch_id: int) -> Fetch | None:
        return self._flying.get(fetch_id)

    def stopped(self, fetch_id: int, cause: str | None, written: int, now: float) -> Fetch | None:
        """Decode is through with a fetch, well or not; the fetch if it was still wanted."""
        with self._turn:
            late = self._abandoned.get(fetch_id)
            if late is not None:
                late.stopped = True
                return None
            fetch = self._flying.pop(fetch_id, None)
            if fetch is None:
                return None
            fetch.cause, fetch.bytes, fetch.ended_s, fetch.stopped = cause, written, now, True
            self._free.append(fetch.slot)
        fetch.done.set()
        return fetch

    def overdue(self, now: float) -> list[Fetch]:
        """Give up what took too long; their rows of flags and pages stay reserved until `settled` returns them."""
        with self._turn:
            late = [f for f in self._flying.values() if now - f.began_s > self.timeout_s]
            for fetch in late:
                fetch.cause, fetch.ended_s = "timed out", now
                self._abandoned[fetch.id] = self._flying.pop(fetch.id)
        return late

    def withdrawn(self, fetch: Fetch) -> bool:
        """Whether its request may keep, and later free, the memory of a failed fetch: decode writes to it no more.

        False: it stays abandoned, and `settled` will hand its memory back.
        """
        with self._turn:
            if fetch.id not in self._abandoned:
                return True
            if fetch.stopped:
                del self._abandoned[fetch.id]
                self._free.append(fetch.slot)
            return fetch.stopped

    def settled(self, now: float) -> list[Fetch]:
        """Abandoned fetches whose memory may be reused: decode stopped, or has been silent long enough to be dead."""
        with self._turn:
            over = [
                f
                for f in self._abandoned.values()
                if f.stopped or (f.ended_s is not None and now - f.ended_s > self.quarantine_s)
            ]
            for fetch in over:
                del self._abandoned[fetch.id]
                self._free.append(fetch.slot)
        return over

    @property
    def busy(self) -> bool:
        return bool(self._flying or self._abandoned)

    @property
    def quarantined_tokens(self) -> int:
        return sum(f.tokens for f in self._abandoned.values())
