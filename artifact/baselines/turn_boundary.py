"""Paper B's gateway controllers (§5): one actuator at turn boundaries, several limits."""

from collections import OrderedDict
from statistics import median

from artifact.control.capacity import Capacities
from artifact.control.policy import Action, Decision, Policy, PolicyState, SessionFacts, Signals


class TurnBoundary(Policy):
    """The shared actuator: park a session at its turn boundary while a limit says so, let sessions in again while it
    does not; FIFO, parked sessions before new ones, in-flight turns never interrupted, and one session always runs.

    A limit is a pair of questions over `demand` (Σ context + output budget of active sessions), the number of active
    sessions and the budget of one output (`output_tokens`, ours where a client states no max_tokens).
    """

    def __init__(self, output_tokens: int = 1024) -> None:
        super().__init__()
        self.output_tokens = output_tokens
        self.demand = 0
        self._size: dict[str, int] = {}
        self._parked: OrderedDict[str, None] = OrderedDict()
        self._new: OrderedDict[str, None] = OrderedDict()

    def may_enter(self, size: int) -> bool:
        """Whether a session of this demand may become active."""
        raise NotImplementedError

    def must_park(self) -> bool:
        """Whether an active session at its turn boundary has to stand aside."""
        raise NotImplementedError

    def arrive(self, session: SessionFacts, now: float) -> None:
        self._size[session.id] = session.first_prompt_tokens + self.output_tokens
        self._new[session.id] = None

    def adopt(self, session: SessionFacts, context_tokens: int, now: float) -> None:
        self._size[session.id] = context_tokens + self.output_tokens
        self._activate(session.id)

    def turn(self, session_id: str, prompt_tokens: int, now: float) -> bool:
        self._resize(session_id, prompt_tokens + self.output_tokens)
        if len(self._resident) <= 1 or not self.must_park():
            return True
        self._deactivate(session_id)
        self._parked[session_id] = None
        return False

    def call_done(self, session_id: str, context_tokens: int, now: float) -> None:
        self._resize(session_id, context_tokens + self.output_tokens)

    def depart(self, session_id: str, now: float) -> None:
        self._deactivate(session_id)
        self._parked.pop(session_id, None)
        self._new.pop(session_id, None)
        self._size.pop(session_id, None)

    def next(self, now: float) -> Decision | None:
        for line, action in ((self._parked, Action.RESUME), (self._new, Action.ADMIT)):
            if line:
                session_id = next(iter(line))
                if self._resident and not self.may_enter(self._size[session_id]):
                    return None
                del line[session_id]
                self._activate(session_id)
                return Decision(action, session_id)
        return None

    def state(self) -> PolicyState:
        return PolicyState(len(self._resident), len(self._new), len(self._parked), admitting=bool(self._new))

    def explain(self, session_id: str) -> str:
        if session_id in self._resident:
            return "active"
        if session_id not in self._size:
            return "unknown session"
        return f"waits in line: {len(self._parked)} parked before {len(self._new)} new, {len(self._resident)} active"

    def _resize(self, session_id: str, size: int) -> None:
        if session_id in self._resident:
            self.demand += size - self._size[session_id]
        self._size[session_id] = size

    def _activate(self, session_id: str) -> None:
        self._resident.add(session_id)
        self.demand += self._size[session_id]

    def _deactivate(self, session_id: str) -> None:
        if session_id in self._resident:
            self._resident.discard(session_id)
            self.demand -= self._size[session_id]


class Budgeter(TurnBoundary):
    """Admit while D ≤ 0.75 C, park while D > 0.95 C."""

    def __init__(
        self, capacities: Capacities, admit: float = 0.75, park: float = 0.95, output_tokens: int = 1024
    ) -> None:
        super().__init__(output_tokens)
        self._capacity = capacities.prefill_cache_tokens
        self.admit, self.park = admit, park

    def may_enter(self, size: int) -> bool:
        return self.demand + size <= self.admit * self._capacity

    def must_park(self) -> bool:
        return self.demand > self.park * self._capacity


class SessionCap(TurnBoundary):
    """At most `admit` sessions become active; more than `park` stand aside (infinite: admission only)."""

    def __init__(self, admit: float = 14, park: float = 17, output_tokens: int = 1024) -> None:
        super().__init__(output_tokens)
        self.admit, self.park = admit, park

    def may_enter(self, size: int) -> bool:
        return len(self._resident) + 1 <= self.admit

    def must_park(self) -> bool:
        return len(self._resident) > self.park


class AdaptiveCap(SessionCap):
    """A cap that follows d̂, an EWMA over turns of a session's demand: ⌊0.75 C/d̂⌋ in, above ⌊0.95 C/d̂⌋ aside."""

    def __init__(
        self,
        capacities: Capacities,
        alpha: float = 0.02,
        admit_share: float = 0.75,
        park_share: float = 0.95,
        output_tokens: int = 1024,
    ) -> None:
        super().__init__(float("inf"), float("inf"), output_tokens)
        self._capacity = capacities.prefill_cache_tokens
        self._alpha = alpha
        self._shares = (admit_share, park_share)
        self._mean: float | None = None

    def turn(self, session_id: str, prompt_tokens: int, now: float) -> bool:
        size = prompt_tokens + self.output_tokens
        self._mean = size if self._mean is None else self._mean + self._alpha * (size - self._mean)
        self.admit, self.park = (max(share * self._capacity // self._mean, 1) for share in self._shares)
        return super().turn(session_id, prompt_tokens, now)


class LatencyCap(SessionCap):
    """AIMD on the median turn latency: every 10 s halved above `slo_s`, else one more; admit and park at the same K."""

    def __init__(
        self, slo_s: float = 15.0, initial: float = 32, increase: float = 1, floor: float = 1, output_tokens: int = 1024
    ) -> None:
        super().__init__(initial, initial, output_tokens)
        self.interval_s = 10.0
        self.slo_s, self.increase, self.floor = slo_s, increase, floor
        self._began: dict[str, float] = {}
        self._latencies: list[float] = []

    def turn(self, session_id: str, prompt_tokens: int, now: float) -> bool:
        proceeds = super().turn(session_id, prompt_tokens, now)
        if proceeds:
            self._began[session_id] = now
        return proceeds

    def next(self, now: float) -> Decision | None:
        decision = super().next(now)
        if decision is not None:
            self._began[decision.session_id] = now
        return decision

    def call_done(self, session_id: str, context_tokens: int, now: float) -> None:
        super().call_done(session_id, context_tokens, now)
        if (began := self._began.pop(session_id, None)) is not None:
            self._latencies.append(now - began)

    def depart(self, session_id: str, now: float) -> None:
        super().depart(session_id, now)
        self._began.pop(session_id, None)

    def observe(self, signals: Signals, now: float) -> None:
        if self._latencies:
            slow = median(self._latencies) > self.slo_s
            self.admit = max(self.admit / 2, self.floor) if slow else self.admit + self.increase
            self.park = self.admit
            self._latencies.clear()
