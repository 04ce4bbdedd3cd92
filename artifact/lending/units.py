"""Lent units on one decode instance, under the rules of `artifact.control.lending` (paper A §6.2).

Sizes are KV tokens. Units of different sessions may share the pages of a common head; each is counted in full, so
`lent_tokens` is an upper bound on the memory held and the cap φ errs to the safe side.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from artifact.control.lending import DecodeMemory, may_adopt, reclaim_key, reclaim_tokens
from artifact.control.parameters import BasinParameters


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


@dataclass(slots=True)
class UnitTable:
    """All units of an instance. The caller owns the memory: it unlocks what this table hands back."""

    units: dict[int, Unit] = field(default_factory=dict)

    @property
    def lent_tokens(self) -> int:
        return sum(unit.tokens for unit in self.units.values())

    def of_session(self, session: str) -> Unit | None:
        return next((u for u in self.units.values() if u.session == session), None)

    def adoption(self, session: str, tokens: int, memory: DecodeMemory, rules: BasinParameters) -> list[Unit] | None:
        """Units to give back for a prompt of this size: the session's earlier one, and at the cap φ as many others as
        exceed it. None: the rules refuse the prompt even with that room made."""
        earlier = self.of_session(session)
        kept = memory.lent_tokens - (earlier.tokens if earlier is not None else 0)
        over = kept + tokens - int(rules.lend_cap * memory.capacity_tokens)
        if not may_adopt(memory._replace(lent_tokens=max(kept - max(over, 0), 0)), tokens, rules):
            return None
        others = [unit for unit in self.reclaim_order() if unit is not earlier]
        return ([] if earlier is None else [earlier]) + list(_covering(others, over))

    def reclaim_order(self) -> list[Unit]:
        return sorted(self.units.values(), key=lambda u: (reclaim_key(u.on_prefill, u.used_s), u.id))

    def short(self, memory: DecodeMemory, rules: BasinParameters) -> list[Unit]:
        """Units to give back, in order, to bring the spare memory up to the reclaim margin."""
        return list(_covering(self.reclaim_order(), reclaim_tokens(memory, rules)))


def _covering(order: list[Unit], tokens: float) -> Iterator[Unit]:
    for unit in order:
        if tokens <= 0:
            return
        tokens -= unit.tokens
        yield unit
