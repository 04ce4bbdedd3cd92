"""Prefixes that a policy keeps in prefill caches while tools run (Continuum's time to live)."""

from collections.abc import Hashable
from typing import Any

from mypy_extensions import mypyc_attr
from simpy import Environment, Event


@mypyc_attr(allow_interpreted_subclasses=True)
class Pin:
    """A line that stays in the cache of `instance`, a `PrefillInstance` or the colocated engine."""

    __slots__ = ("arrival_s", "instance", "key", "needed")

    def __init__(self, key: Hashable, instance: Any, arrival_s: float) -> None:
        self.key = key
        self.instance = instance
        self.arrival_s = arrival_s
        """Of the session."""
        self.needed = False
        """The session's next call waits; the pin then outlives its deadline, until that call is scheduled."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Pins:
    """One pin a line, dropped at its deadline, when the next call of its session is scheduled, or at that one's end."""

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.held: dict[Hashable, Pin] = {}

    def __len__(self) -> int:
        return len(self.held)

    def hold(self, key: Hashable, instance: Any, arrival_s: float, for_s: float) -> None:
        """Keep what this instance's GPU still holds of the line for `for_s` seconds."""
        self.drop(key)
        if instance.cache.hold(key):
            pin = self.held[key] = Pin(key, instance, arrival_s)
            self.env.timeout(for_s, pin).callbacks.append(self._expire)

    def expect(self, key: Hashable) -> None:
        """The line's next call has come."""
        if (pin := self.held.get(key)) is not None:
            pin.needed = True

    def drop(self, key: Hashable) -> None:
        if (pin := self.held.pop(key, None)) is not None:
            pin.instance.cache.release(key)

    def drop_latest(self, instance: Any) -> bool:
        """Give up the pin of the session that arrived last on this instance; False if there is none."""
        here = [pin for pin in self.held.values() if pin.instance is instance]
        if not here:
            return False
        self.drop(max(here, key=lambda pin: pin.arrival_s).key)
        return True

    def _expire(self, event: Event) -> None:
        pin: Pin = event._value
        if self.held.get(pin.key) is pin and not pin.needed:
            self.drop(pin.key)
