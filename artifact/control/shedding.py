"""Removal of persistent excess demand (paper A §6.4, Algorithm 1 lines 17 and 18)."""

import math


class ArrivalRate:
    """Long-run mean arrival rate λ̄ in sessions a second: exponentially weighted, unbiased from the start on."""

    def __init__(self, smoothing_s: float) -> None:
        self._smoothing_s = smoothing_s
        self._count = 0.0
        self._start: float | None = None
        self._at = 0.0

    def arrived(self, now: float) -> None:
        if self._start is None:
            self._start = self._at = now
        self._decay(now)
        self._count += 1

    def rate(self, now: float) -> float:
        """λ̄; 0 until some time has passed since the first arrival."""
        if self._start is None or now <= self._start:
            return 0.0
        self._decay(now)
        return self._count / (self._smoothing_s * -math.expm1((self._start - now) / self._smoothing_s))

    def _decay(self, now: float) -> None:
        self._count *= math.exp((self._at - now) / self._smoothing_s)
        self._at = now


def excess(arrival_rate: float, critical_rate: float, head_wait_s: float, shed_after_s: float) -> bool:
    """Whether to shed one session: λ̄ > λ_c, and even the highest-priority parked session has waited beyond T_s."""
    return arrival_rate > critical_rate and head_wait_s > shed_after_s
