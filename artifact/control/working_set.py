"""The live demand signal W = N c̄ (paper A §6.1) and the smoothing it needs."""

import math


class Smoothed:
    """Exponential average over irregular readings; early on their plain time average, so without bias to the first."""

    def __init__(self, time_constant_s: float) -> None:
        self.time_constant_s = time_constant_s
        self.value: float | None = None
        self._weight = 0.0
        self._at: float | None = None

    def update(self, reading: float, now: float) -> float:
        """Take a reading that stands for the time since the last one."""
        gain = 0.0 if self._at is None else -math.expm1((self._at - now) / self.time_constant_s)
        self._weight += (1 - self._weight) * gain
        if self.value is None or self._weight == 0:
            self.value = reading
        else:
            self.value += (reading - self.value) * gain / self._weight
        self._at = now
        return self.value


class WorkingSet:
    """Contexts of the active sessions, those executing tools included, and W = N c̄ with a smoothed mean c̄.

    A session that enters counts c̄ at once, before its context has developed. All updates are O(1).
    """

    def __init__(self, smoothing_s: float) -> None:
        self._contexts: dict[str, int] = {}
        self._total = 0
        self._mean = Smoothed(smoothing_s)

    def __len__(self) -> int:
        """N."""
        return len(self._contexts)

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._contexts

    def enter(self, session_id: str, context_tokens: int) -> None:
        self._contexts[session_id] = context_tokens
        self._total += context_tokens

    def grow(self, session_id: str, context_tokens: int) -> None:
        """The session's context is now this long (a compacted one is shorter); unknown sessions are ignored."""
        before = self._contexts.get(session_id)
        if before is not None:
            self._contexts[session_id] = context_tokens
            self._total += context_tokens - before

    def leave(self, session_id: str) -> None:
        self._total -= self._contexts.pop(session_id, 0)

    def observe(self, now: float) -> None:
        """Let c̄ follow the present mean; an empty engine teaches it nothing."""
        if self._contexts:
            self._mean.update(self._total / len(self._contexts), now)

    @property
    def mean_tokens(self) -> float:
        """c̄; before the first observation the present mean, and 0 while there is none."""
        if self._mean.value is not None:
            return self._mean.value
        return self._total / len(self._contexts) if self._contexts else 0.0

    @property
    def tokens(self) -> float:
        """W = N c̄."""
        return len(self._contexts) * self.mean_tokens
