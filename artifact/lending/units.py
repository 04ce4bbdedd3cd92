"""Lent units on one decode instance: when to adopt, what to give back first (paper A §6.2).

Sizes are KV tokens. Units of different sessions may share the pages of a common head; each is counted in full, so
`lent_tokens` is an upper bound on the memory held and the cap φ errs to the safe side.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from artifact.lending.settings import Settings


@dataclass(slots=True)
class Unit:
    """One retained prompt: its pages and, for hybrid models, its recurrent state, held by the cache's own lock."""

    id: int
    session: str
    tokens: int
    digest: bytes
    """Of the prompt's first `tokens` tokens, for prefill to recognise it by."""
    pages: Sequence[int] = ()
    state: int | None = None
    """Slot of the recurrent state at the prompt's end."""
    lock: Any = None
    used_s: float = 0.0
    on_prefill: bool = True
    """Prefill still holds this prefix: true when adopted (it has just computed it), until prefill reports otherwise."""
    readers: int = 0
    """Fetches in flight; while there are any the pages must stay."""
    doomed: bool = False
    """Wanted back: fetches in flight stop at their next layer group."""


@dataclass(frozen=True, slots=True)
class Headroom:
    """One reading of a decode instance's memory."""

    capacity: int
    free: int
    """What an allocation could take now without touching a unit."""
    demand: int
    """Queued requests' prompts and the growth reserved for active ones."""
    running: int
    """Held by running requests."""
    waiting: int = 0
    """Requests that wait for decode memory."""

    @property
    def spare(self) -> int:
        return self.free - self.demand


@dataclass(slots=True)
class UnitTable:
    """All units of an instance. The caller owns the memory: it unlocks what this table hands back."""

    units: dict[int, Unit] = field(default_factory=dict)

    @property
    def lent_tokens(self) -> int:
        return sum(unit.tokens for unit in self.units.values())

    def of_session(self, session: str) -> Unit | None:
        return next((u for u in self.units.values() if u.session == session), None)

    def refusal(self, tokens: int, room: Headroom, rules: Settings) -> str | None:
        """Why a prompt of this size, already out of `room.free`, may not be adopted; None: it may."""
        if room.waiting:
            return "requests wait for decode memory"
        if room.running >= rules.busy * room.capacity:
            return "running requests occupy most of the memory"
        if room.spare < rules.adopt_margin * room.capacity:
            return "no headroom beyond queued and active demand"
        if tokens > rules.phi * room.capacity:
            return "larger than the cap"
        return None

    def reclaim_order(self) -> list[Unit]:
        """Units also held by prefill first, then least recently used."""
        return sorted(self.units.values(), key=lambda u: (not u.on_prefill, u.used_s, u.id))

    def over_cap(self, incoming: int, room: Headroom, rules: Settings) -> Iterator[Unit]:
        """Units to give back, in order, so that `incoming` more tokens stay within φ."""
        excess = self.lent_tokens + incoming - rules.phi * room.capacity
        return _covering(self.reclaim_order(), excess)

    def short(self, room: Headroom, rules: Settings) -> Iterator[Unit]:
        """Units to give back, in order, to bring the spare memory up to the reclaim margin."""
        return _covering(self.reclaim_order(), rules.reclaim_margin * room.capacity - room.spare)


def _covering(order: list[Unit], tokens: float) -> Iterator[Unit]:
    for unit in order:
        if tokens <= 0:
            return
        tokens -= unit.tokens
        yield unit
