"""Hysteresis in time: a condition counts once it has lasted, and stops counting once it has stayed away."""


class Latch:
    """On after the condition held at every reading for `persistence_s`, off after it was clear for `cooldown_s`."""

    def __init__(self, persistence_s: float, cooldown_s: float) -> None:
        self.persistence_s = persistence_s
        self.cooldown_s = cooldown_s
        self.on = False
        self._differs_since: float | None = None

    def update(self, condition: bool, now: float) -> bool:
        """Take one reading and return whether the latch is on."""
        if condition == self.on:
            self._differs_since = None
            return self.on
        if self._differs_since is None:
            self._differs_since = now
        if now - self._differs_since >= (self.cooldown_s if self.on else self.persistence_s):
            self.on = not self.on
            self._differs_since = None
        return self.on
