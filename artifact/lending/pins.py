"""TTL pins on prefill's cache, as Continuum wants them: held until a deadline or the session's end."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Pin:
    session: str
    tokens: int
    until_s: float
    arrival_s: float
    lock: Any = None


@dataclass(slots=True)
class PinTable:
    """One pin a session. The caller owns the memory: it unlocks what this table hands back."""

    pins: dict[str, Pin] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return sum(pin.tokens for pin in self.pins.values())

    def put(self, pin: Pin, cap_tokens: float) -> list[Pin]:
        """Pin a prompt in place of the session's earlier one; what goes for that and to stay within the cap, the
        pin that ends first going first (the new one included)."""
        gone = self.end(pin.session)
        self.pins[pin.session] = pin
        for candidate in sorted(self.pins.values(), key=lambda p: p.until_s):
            if self.tokens <= cap_tokens:
                break
            gone += self.end(candidate.session)
        return gone

    def end(self, session: str) -> list[Pin]:
        pin = self.pins.pop(session, None)
        return [] if pin is None else [pin]

    def expired(self, now: float) -> list[Pin]:
        due = [pin.session for pin in self.pins.values() if pin.until_s <= now]
        return [pin for session in due for pin in self.end(session)]

    def newest(self) -> list[Pin]:
        """The pin to give up when nothing can be scheduled: that of the session that arrived last."""
        if not self.pins:
            return []
        return self.end(max(self.pins.values(), key=lambda p: p.arrival_s).session)
