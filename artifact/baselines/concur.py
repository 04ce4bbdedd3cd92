"""CONCUR (arXiv 2601.22705) as ported in paper A §7.1: an AIMD window on agents, driven by KV usage and hit rate."""

from collections import OrderedDict

from artifact.control.policy import Action, Decision, Policy, PolicyState, SessionFacts, Signals


class Concur(Policy):
    """Window control at turn boundaries; in-flight calls are never interrupted and pausing drops no KV.

    Every period: usage U < `usage_low` adds `increase` to the window; U > `usage_high` with hit rate H below
    `hit_threshold` multiplies it by `decrease`; otherwise it holds. U is decode occupancy (reserved, transferring or
    running) and H the hit rate since the last reading, unsmoothed. Pending agents, new or paused, wait in one FIFO.

    Paper A raises the published threshold of 0.2 to 0.7. The source leaves open, and these are ours: `interval_s`
    (5 s, as in one public implementation), `initial_window` and `floor`. Whoever is inside when control begins counts
    into the first window; on a cut, the first agents to reach a turn boundary pause.
    """

    def __init__(
        self,
        hit_threshold: float = 0.7,
        usage_low: float = 0.2,
        usage_high: float = 0.5,
        increase: float = 2.0,
        decrease: float = 0.5,
        initial_window: float = 16.0,
        floor: float = 2.0,
        interval_s: float = 5.0,
    ) -> None:
        if floor < 1:
            raise ValueError(f"concur: floor: {floor} would let nobody in; use at least 1")
        super().__init__()
        self.interval_s = interval_s
        self.window = max(initial_window, floor)
        self.hit_threshold = hit_threshold
        self.usage_low, self.usage_high = usage_low, usage_high
        self.increase, self.decrease, self.floor = increase, decrease, floor
        self._pending: OrderedDict[str, Action] = OrderedDict()
        self._suspended = 0

    def arrive(self, session: SessionFacts, now: float) -> None:
        self._pending[session.id] = Action.ADMIT

    def adopt(self, session: SessionFacts, context_tokens: int, now: float) -> None:
        self._resident.add(session.id)
        self.window = max(self.window, len(self._resident))

    def turn(self, session_id: str, prompt_tokens: int, now: float) -> bool:
        if len(self._resident) <= self.window:
            return True
        self._resident.discard(session_id)
        self._pending[session_id] = Action.RESUME
        self._suspended += 1
        return False

    def depart(self, session_id: str, now: float) -> None:
        self._suspended -= self._pending.pop(session_id, None) is Action.RESUME
        self._resident.discard(session_id)

    def observe(self, signals: Signals, now: float) -> None:
        used, capacity = signals.decode_kv_used_tokens, signals.decode_kv_capacity_tokens
        if used is None or not capacity:
            return
        usage = used / capacity
        if usage < self.usage_low:
            self.window += self.increase
        elif usage > self.usage_high and signals.hit_rate is not None and signals.hit_rate < self.hit_threshold:
            self.window = max(self.window * self.decrease, self.floor)

    def next(self, now: float) -> Decision | None:
        if not self._pending or len(self._resident) + 1 > self.window:
            return None
        session_id, action = self._pending.popitem(last=False)
        self._suspended -= action is Action.RESUME
        self._resident.add(session_id)
        return Decision(action, session_id)

    def state(self) -> PolicyState:
        parked = len(self._pending) - self._suspended
        return PolicyState(len(self._resident), parked, self._suspended, admitting=bool(self._pending))

    def explain(self, session_id: str) -> str:
        if session_id in self._resident:
            return "active in the window"
        if session_id not in self._pending:
            return "unknown session"
        place = list(self._pending).index(session_id) + 1
        return f"place {place} of {len(self._pending)} in line; {len(self._resident)} active, window {self.window:.0f}"
