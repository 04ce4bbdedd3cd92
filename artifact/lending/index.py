"""What prefill knows of lent units: the latest of each session, and whether it helps a prompt (paper A §6.2)."""

import hashlib
import threading
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


def prefix_digest(tokens: Sequence[int], length: int) -> bytes:
    """16 bytes that stand for the first `length` token ids; equal on every instance."""
    return hashlib.blake2b(array("q", tokens[:length]).tobytes(), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Lent:
    """A unit as its decode instance announced it."""

    peer: str
    unit: int
    session: str
    tokens: int
    digest: bytes


@dataclass(slots=True)
class UnitIndex:
    """Changed by the socket and the monitor thread, read by the scheduler's."""

    latest: dict[str, Lent] = field(default_factory=dict)
    _checked: dict[tuple[str, int, str], bool] = field(default_factory=dict)
    _turn: threading.RLock = field(default_factory=threading.RLock)

    def announce(self, lent: Lent) -> Lent | None:
        """Record a session's newest unit; the one it replaces when that is on another instance (to be released)."""
        with self._turn:
            before = self.latest.get(lent.session)
            if before is not None:
                self._remove([lent.session])
            self.latest[lent.session] = lent
        return before if before is not None and before.peer != lent.peer else None

    def forget(self, peer: str, unit: int) -> None:
        with self._turn:
            self._remove([s for s, lent in self.latest.items() if lent.peer == peer and lent.unit == unit])

    def _remove(self, sessions: Iterable[str]) -> None:
        for session in sessions:
            lent = self.latest.pop(session)
            self._checked = {k: v for k, v in self._checked.items() if k[:2] != (lent.peer, lent.unit)}

    def better(self, session: str, rid: str, tokens: Sequence[int], local: int, min_gain: int) -> Lent | None:
        """The session's unit if it extends the local match of this prompt by at least `min_gain` tokens.

        A request is matched again and again while it waits, so its digest is computed once.
        """
        lent = self.latest.get(session)
        if lent is None or not local + min_gain <= lent.tokens <= len(tokens):
            return None
        check = (lent.peer, lent.unit, rid)
        if check not in self._checked:
            self._checked[check] = prefix_digest(tokens, lent.tokens) == lent.digest
        return lent if self._checked[check] else None
