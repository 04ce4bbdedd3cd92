"""Adaptation of the admission budget B around its reference B0 (paper A §6.4, Algorithm 1 lines 7 to 12)."""

import math

from artifact.control.parameters import BasinParameters
from artifact.control.profile import DeploymentProfile
from artifact.control.working_set import Smoothed


class Budget:
    """B in tokens, infinite while entry is unrestricted, and the healthy plateau of the hit rate it is judged by."""

    def __init__(self, parameters: BasinParameters, profile: DeploymentProfile) -> None:
        self._p = parameters
        self._profile = profile
        self._learned = Smoothed(parameters.context_smoothing_s)
        self.tokens = math.inf

    @property
    def plateau(self) -> float:
        """The profiled plateau until health has been seen; never taken from a collapsed cache."""
        lowest = (self._profile.plateau + self._profile.floor) / 2
        return max(lowest, self._learned.value if self._learned.value is not None else self._profile.plateau)

    def is_low(self, hit_rate: float) -> bool:
        """Whether the hit rate asks for a lower budget."""
        return hit_rate < self.plateau - 2 * self._p.plateau_slack

    def engage(self, reference: float) -> None:
        """Admission begins: from unrestricted to B0; a budget that was reopening is kept within the range."""
        self.tokens = reference if math.isinf(self.tokens) else self.tokens
        self.clamp(reference)

    def clamp(self, reference: float) -> None:
        """Keep B within the range around a B0 that moves with lent capacity."""
        low, high = self._p.budget_range
        self.tokens = min(max(self.tokens, low * reference), high * reference)

    def step(self, reference: float, hit_rate: float | None, demand: float, parked: bool) -> None:
        """One step while admission is active; `demand` is what residents hold of B.

        A downward step starts from what residents really hold, so that unused budget does not delay it, and is left
        out while they hold more than B: entry is shut then, and B must not sink for what no entry has caused.
        """
        step = self._p.budget_step * reference
        if hit_rate is None:
            return
        if hit_rate >= self.plateau - self._p.plateau_slack:
            if parked:
                self.tokens += step
        elif self.is_low(hit_rate) and demand <= self.tokens:
            self.tokens = demand - step
        self.clamp(reference)

    def reopen(self, reference: float) -> None:
        """One step after release while sessions are still parked."""
        self.tokens += self._p.reopening_step * reference

    def release(self, hit_rate: float | None, now: float) -> None:
        """Nothing parked and no control: entry is unrestricted, and the hit rate shows what health looks like."""
        self.tokens = math.inf
        if hit_rate is not None:
            self._learned.update(hit_rate, now)
