"""Continuum (arXiv 2511.02230): program order with a time to live for the KV of a program whose tool runs."""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Literal

from artifact.control.policy import Policy, SessionFacts

PINNED_FIRST_S = 1e9
"""Head start of the pinned class in the order key: longer than any run, and arrivals keep their microseconds."""


class Continuum(Policy):
    """Pinned programs first, then by first arrival; pins prefixes over tool calls that are worth waiting for.

    `ttl="cdf"` (the paper): pin for the τ in {0} ∪ S that maximises P(τ)·B − τ, where P is the empirical distribution
    of tool durations S and B = T·η + reload(context) the seconds saved by a hit: T the average queue wait of calls
    whose prefix was evicted, η how much a program's progress tells about its end (minus the correlation of turn index
    and remaining turns). Until `cold_samples` durations are known, an exponential prior of mean `prior_mean_s`.
    `ttl="fixed"` (the released code): pin for `fixed_ttl_s` if tools take at most that on average.

    `reload_s` gives the seconds to recompute a context of that many tokens. Tools have no names at this seam, so S is
    the distribution over all tools, the paper's own fallback. The paper's class of preempted calls is left to the
    engine, which alone knows and resumes them. Ours, since left open: averages over `window` durations and with weight
    `wait_weight` for T, and a call counts as evicted when over a tenth of its program's context was not found.
    """

    def __init__(
        self,
        reload_s: Callable[[int], float],
        ttl: Literal["cdf", "fixed"] = "cdf",
        fixed_ttl_s: float = 2.0,
        cold_samples: int = 100,
        prior_mean_s: float = 1.0,
        window: int = 1000,
        wait_weight: float = 0.05,
    ) -> None:
        if ttl not in ("cdf", "fixed"):
            raise ValueError(f"continuum: ttl: {ttl!r} is neither 'cdf' nor 'fixed'")
        super().__init__()
        self._reload_s = reload_s
        self._ttl = ttl
        self.fixed_ttl_s = fixed_ttl_s
        self._durations = ToolDurations(window, cold_samples, prior_mean_s)
        self._progress = Progress()
        self._wait_weight = wait_weight
        self._evicted_wait_s = 0.0
        self._arrival: dict[str, float] = {}
        self._context: dict[str, int] = {}
        self._done_at: dict[str, float] = {}
        self._turns: dict[str, int] = {}
        self._deadline: dict[str, float] = {}
        self._pinned: set[str] = set()

    def arrive(self, session: SessionFacts, now: float) -> None:
        super().arrive(session, now)
        self._arrival[session.id] = session.arrival_s

    def adopt(self, session: SessionFacts, context_tokens: int, now: float) -> None:
        super().adopt(session, context_tokens, now)
        self._arrival[session.id] = session.arrival_s
        self._context[session.id] = context_tokens

    def turn(self, session_id: str, prompt_tokens: int, now: float) -> bool:
        done = self._done_at.pop(session_id, None)
        if done is not None:
            self._durations.add(now - done)
        if now <= self._deadline.pop(session_id, -math.inf):
            self._pinned.add(session_id)
        return True

    def started(self, session_id: str, waited_s: float, cached_tokens: int, now: float) -> None:
        if cached_tokens < 0.9 * self._context.get(session_id, 0):
            self._evicted_wait_s += self._wait_weight * (waited_s - self._evicted_wait_s)

    def call_done(self, session_id: str, context_tokens: int, now: float) -> None:
        self._context[session_id] = context_tokens
        self._done_at[session_id] = now
        self._turns[session_id] = self._turns.get(session_id, 0) + 1
        self._pinned.discard(session_id)
        self._deadline[session_id] = now + self._time_to_live(context_tokens)

    def depart(self, session_id: str, now: float) -> None:
        super().depart(session_id, now)
        self._progress.add(self._turns.pop(session_id, 0))
        for known in (self._arrival, self._context, self._done_at, self._deadline):
            known.pop(session_id, None)
        self._pinned.discard(session_id)

    def ordering(self) -> bool:
        return True

    def order_key(self, session_id: str) -> float:
        arrival = self._arrival[session_id]
        return arrival - PINNED_FIRST_S if session_id in self._pinned else arrival

    def pin_s(self, session_id: str, now: float) -> float:
        return max(self._deadline.get(session_id, now) - now, 0.0)

    def _time_to_live(self, context_tokens: int) -> float:
        if self._ttl == "fixed":
            return self.fixed_ttl_s if self._durations.mean_s <= self.fixed_ttl_s else 0.0
        eta = 1.0 if self._durations.cold else self._progress.eta
        return self._durations.best_ttl(self._evicted_wait_s * eta + self._reload_s(context_tokens))


class ToolDurations:
    """The last durations of tool calls, and the time to live that pays best.

    P(τ)·B − τ is largest on the upper concave hull of the distribution, where its slope passes 1/B; the hull is
    refreshed every tenth of the window, so that a query costs one bisection.
    """

    def __init__(self, window: int, cold_samples: int, prior_mean_s: float) -> None:
        self._last: deque[float] = deque(maxlen=window)
        self._sum = 0.0
        self._cold_samples = cold_samples
        self._prior_mean_s = prior_mean_s
        self._refresh = max(window // 10, 1)
        self._stale = self._refresh
        self._ttls: list[float] = [0.0]
        self._worth: list[float] = []

    @property
    def cold(self) -> bool:
        return len(self._last) < self._cold_samples

    @property
    def mean_s(self) -> float:
        """Mean duration, 0 while none is known (as the released code counts an unknown tool)."""
        return self._sum / len(self._last) if self._last else 0.0

    def add(self, duration_s: float) -> None:
        if len(self._last) == self._last.maxlen:
            self._sum -= self._last[0]
        self._last.append(duration_s)
        self._sum += duration_s
        self._stale += 1

    def best_ttl(self, benefit_s: float) -> float:
        """argmax over τ in {0} ∪ S of P(τ)·B − τ, the smaller on a tie."""
        if self.cold:
            mean = self._prior_mean_s
            return mean * math.log(benefit_s / mean) if benefit_s > mean else 0.0
        if self._stale >= self._refresh:
            self._build()
        return self._ttls[bisect_right(self._worth, benefit_s - 1e-12)]

    def _build(self) -> None:
        """Hull corners as times to live, and between neighbours the benefit from which the later one pays: seconds of
        pinning per unit of probability gained."""
        ordered = sorted(self._last)
        taus, shares = [0.0], [0.0]
        worth: list[float] = []
        for i, tau in enumerate(ordered, start=1):
            share = i / len(ordered)
            if tau == taus[-1]:
                taus.pop()
                shares.pop()
                del worth[-1:]
            while taus:
                pays_from = (tau - taus[-1]) / (share - shares[-1])
                if not worth or pays_from > worth[-1]:
                    worth.append(pays_from)
                    break
                taus.pop()  # below the line between its neighbours
                shares.pop()
                worth.pop()
            taus.append(tau)
            shares.append(share)
        self._ttls, self._worth = taus, worth
        self._stale = 0


class Progress:
    """η = −corr(turn index, remaining turns) over all turns of programs that ended; 1 until it is defined.

    A program of K turns contributes the pairs (i, K − i), i = 1..K, whose sums have closed forms.
    """

    def __init__(self) -> None:
        self._n = self._x = self._y = self._xx = self._yy = self._xy = 0
        self.eta = 1.0

    def add(self, turns: int) -> None:
        if turns == 0:
            return
        k = turns
        x, xx = k * (k + 1) // 2, k * (k + 1) * (2 * k + 1) // 6
        self._n += k
        self._x += x
        self._xx += xx
        self._y += k * k - x
        self._yy += k**3 - 2 * k * x + xx
        self._xy += k * x - xx
        spread = (self._n * self._xx - self._x**2) * (self._n * self._yy - self._y**2)
        if spread > 0:
            self.eta = -(self._n * self._xy - self._x * self._y) / math.sqrt(spread)
