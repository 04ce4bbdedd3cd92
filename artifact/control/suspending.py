"""Basin with suspension: what paper B found to get a collapsed engine out (§5), under paper A's budget and priority.

Basin never interrupts a session it has admitted, so a late start leaves the residents thrashing until they complete.
Here residents beyond the budget stand aside at their turn boundaries for as long as the hit rate is so low that Basin
lowers that budget: the lowest in the fixed priority first. They wait in the queue of the new sessions, each at its own
priority.
"""

from dataclasses import replace
from typing import Any

from artifact.control.basin import Basin
from artifact.control.policy import Action, Decision, PolicyState, SessionFacts, Signals


class SuspendingBasin(Basin):
    """As `Basin`; `turn` may suspend and `next` resumes.

    A session is suspended at a turn boundary while all of this holds: admission is engaged, the smoothed hit rate is
    so low that Basin lowers its budget B, residents of higher or equal priority hold more than B, and another resident
    is left. In-flight calls are never interrupted; nobody suspended is shed.
    """

    def __init__(self, *args: Any, **parameters: Any) -> None:
        """As for `Basin`."""
        super().__init__(*args, **parameters)
        self._known: dict[str, SessionFacts] = {}
        self._footprints: dict[str, float] = {}
        self._suspended: dict[str, int] = {}
        """Context tokens of those that stand aside."""

    # Facts ---------------------------------------------------------------------------------------------------
    def turn(self, session_id: str, prompt_tokens: int, now: float) -> bool:
        if not self._collapsed() or len(self._working_set) <= 1 or self._within_budget(session_id):
            return True
        footprint = max(self._footprints[session_id], prompt_tokens)
        self._working_set.leave(session_id)
        self._demand.leave(session_id)
        del self._footprints[session_id]
        self._suspended[session_id] = prompt_tokens
        self._parked.push(self._known[session_id], self._priority[session_id], footprint)
        return False

    def observe(self, signals: Signals, now: float) -> None:
        super().observe(signals, now)
        tail = self._parked.tail()
        self._shed_due = self._shed_due and tail is not None and tail.session.id not in self._suspended

    def depart(self, session_id: str, now: float) -> None:
        super().depart(session_id, now)
        for known in (self._known, self._footprints, self._suspended):
            known.pop(session_id, None)

    # Questions -----------------------------------------------------------------------------------------------
    def next(self, now: float) -> Decision | None:
        decision = super().next(now)
        if decision is None or decision.session_id not in self._suspended:
            return decision
        self._working_set.grow(decision.session_id, self._suspended.pop(decision.session_id))
        return Decision(Action.RESUME, decision.session_id)

    def state(self) -> PolicyState:
        state, aside = super().state(), len(self._suspended)
        return replace(state, parked=state.parked - aside, suspended=aside)

    def explain(self, session_id: str) -> str:
        aside = "stands aside at a turn boundary; " if session_id in self._suspended else ""
        return aside + super().explain(session_id)

    # Parts ---------------------------------------------------------------------------------------------------
    def _announce(self, session: SessionFacts) -> float:
        self._known[session.id] = session
        return super()._announce(session)

    def _enter(self, session_id: str, context_tokens: int, footprint_tokens: float) -> None:
        super()._enter(session_id, context_tokens, footprint_tokens)
        self._footprints[session_id] = footprint_tokens

    def _collapsed(self) -> bool:
        hit_rate = self._hit_rate.value
        return self._admit.on and hit_rate is not None and self._budget.is_low(hit_rate)

    def _within_budget(self, session_id: str) -> bool:
        """Whether the residents up to this one in priority fit the budget."""
        own = self._priority[session_id]
        ahead = sum(
            self._demand.of(tokens) for other, tokens in self._footprints.items() if self._priority[other] <= own
        )
        return ahead <= self._budget.tokens
