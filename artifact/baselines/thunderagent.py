"""ThunderAgent (arXiv 2602.13692) at a router: footprints of admitted sessions fit one cache tier."""

import math
from collections import OrderedDict
from collections.abc import Mapping
from heapq import heappop, heappush
from typing import Any, Literal

from artifact.control.capacity import Capacities
from artifact.control.policy import Action, Decision, Policy, PolicyState, SessionFacts, Signals

ROUTER_PORT: Mapping[str, Any] = {"idle_lease_s": 30.0, "new_order": "smallest"}
"""The router port as its authors describe it, beside the form that paper A evaluates, which is the default."""


class ThunderAgent(Policy):
    """Sessions wait at the gateway until their footprint fits what unpaused sessions leave of the larger cache tier.

    A footprint is the larger of the last call's total and the estimate of the call in flight. Turns of unpaused
    sessions always pass. Of those waiting, paused sessions go before new ones; the first of a class that does not fit
    does not block the next class. Room is made on demand by pausing the session that has been idle longest, once idle
    beyond `idle_lease_s`; it notices at its next turn, and paused ones return the smallest footprint first. Who has
    waited `promote_after_s` goes first and holds back the rest until it fits. With nobody unpaused, the first enters
    whatever its size.

    By default nobody is paused and new sessions enter in arrival order (`new_order`): paper A speaks of parking the
    head until it fits (§6.4) and measures first-call waits of 35 to 48 minutes for all who arrive half an hour after a
    surge (§7.4), which neither pausing nor smallest-first gives. `ROUTER_PORT` has both.

    `output_estimate_tokens` is added to a prompt in flight (ours: the reference's 100 tokens a program).
    `shared_head_tokens` common to all prompts are counted once instead of once a session (0, as published).
    """

    def __init__(
        self,
        capacities: Capacities,
        idle_lease_s: float = math.inf,
        promote_after_s: float = 1800.0,
        output_estimate_tokens: int = 100,
        shared_head_tokens: int = 0,
        new_order: Literal["oldest", "smallest"] = "oldest",
    ) -> None:
        if new_order not in ("oldest", "smallest"):
            raise ValueError(f"thunderagent: new_order: {new_order!r} is neither 'oldest' nor 'smallest'")
        super().__init__()
        self.new_order = new_order
        self._capacities = capacities
        self.idle_lease_s = idle_lease_s
        self.promote_after_s = promote_after_s
        self.output_estimate_tokens = output_estimate_tokens
        self.shared_head_tokens = shared_head_tokens
        self._footprint: dict[str, int] = {}
        self._unpaused: set[str] = set()
        self._held_tokens = 0
        # Ordered dictionaries, since a plain one looks for its first key in time linear in what was deleted before it.
        self._idle_since: OrderedDict[str, float] = OrderedDict()
        self._line: OrderedDict[str, tuple[Action, float]] = OrderedDict()
        self._suspended = 0
        self._waits = 0
        self._heaps: dict[Action, list[tuple[int, float, int, str]]] = {Action.RESUME: [], Action.ADMIT: []}

    # Facts ---------------------------------------------------------------------------------------------------
    def arrive(self, session: SessionFacts, now: float) -> None:
        self._footprint[session.id] = self._net(session.first_prompt_tokens + self.output_estimate_tokens)
        self._wait(session.id, Action.ADMIT, now)

    def adopt(self, session: SessionFacts, context_tokens: int, now: float) -> None:
        self._footprint[session.id] = self._net(context_tokens)
        self._unpause(session.id)

    def turn(self, session_id: str, prompt_tokens: int, now: float) -> bool:
        estimate = self._net(prompt_tokens + self.output_estimate_tokens)
        self._resize(session_id, max(self._footprint[session_id], estimate))
        self._idle_since.pop(session_id, None)
        if session_id in self._unpaused:
            return True
        self._wait(session_id, Action.RESUME, now)
        return False

    def call_done(self, session_id: str, context_tokens: int, now: float) -> None:
        self._resize(session_id, self._net(context_tokens))
        self._idle_since[session_id] = now

    def depart(self, session_id: str, now: float) -> None:
        self._pause(session_id)
        self._leave_line(session_id)
        self._footprint.pop(session_id, None)

    def observe(self, signals: Signals, now: float) -> None:
        self._capacities = self._capacities.updated(signals)

    # Questions -----------------------------------------------------------------------------------------------
    def next(self, now: float) -> Decision | None:
        if not self._line:
            return None
        oldest, (_, since) = next(iter(self._line.items()))
        if now - since > self.promote_after_s:
            candidates = [oldest]
        else:
            candidates = [c for c in (self._first(Action.RESUME), self._first(Action.ADMIT)) if c is not None]
        for session_id in candidates:
            if self._fits(session_id) or self._make_room(session_id, now):
                self._unpause(session_id)
                return Decision(self._leave_line(session_id), session_id)
        return None

    def state(self) -> PolicyState:
        return PolicyState(
            resident=len(self._unpaused),
            parked=len(self._line) - self._suspended,
            suspended=self._suspended,
            budget_tokens=self.room_tokens + self._held_tokens,
            admitting=bool(self._line),
        )

    def explain(self, session_id: str) -> str:
        if session_id in self._unpaused:
            return "admitted"
        if session_id in self._line:
            return f"waits for {self._footprint[session_id]:,} tokens; {self.room_tokens:,} are free"
        return "paused while idle" if session_id in self._footprint else "unknown session"

    @property
    def room_tokens(self) -> int:
        """Bound less what unpaused sessions hold; negative after they have grown past it."""
        return self._capacities.cache_tokens - self.shared_head_tokens - self._held_tokens

    # Parts ---------------------------------------------------------------------------------------------------
    def _net(self, tokens: int) -> int:
        return max(tokens - self.shared_head_tokens, 0)

    def _fits(self, session_id: str) -> bool:
        return not self._unpaused or self._footprint[session_id] <= self.room_tokens

    def _make_room(self, session_id: str, now: float) -> bool:
        while self._idle_since:
            idle, since = next(iter(self._idle_since.items()))
            if now - since <= self.idle_lease_s:
                return False
            self._pause(idle)
            if self._fits(session_id):
                return True
        return False

    def _wait(self, session_id: str, action: Action, now: float) -> None:
        self._line[session_id] = (action, now)
        self._suspended += action is Action.RESUME
        self._waits += 1
        by_size = action is Action.RESUME or self.new_order == "smallest"
        size = self._footprint[session_id] if by_size else 0
        heappush(self._heaps[action], (size, now, self._waits, session_id))

    def _leave_line(self, session_id: str) -> Action:
        action, _ = self._line.pop(session_id, (Action.ADMIT, 0.0))
        self._suspended -= action is Action.RESUME
        return action

    def _first(self, action: Action) -> str | None:
        heap = self._heaps[action]
        while heap:
            _, since, _, session_id = heap[0]
            if self._line.get(session_id) == (action, since):
                return session_id
            heappop(heap)
        return None

    def _resize(self, session_id: str, tokens: int) -> None:
        if session_id in self._unpaused:
            self._held_tokens += tokens - self._footprint[session_id]
        self._footprint[session_id] = tokens

    def _unpause(self, session_id: str) -> None:
        self._unpaused.add(session_id)
        self._held_tokens += self._footprint[session_id]

    def _pause(self, session_id: str) -> None:
        self._idle_since.pop(session_id, None)
        if session_id in self._unpaused:
            self._unpaused.discard(session_id)
            self._held_tokens -= self._footprint[session_id]
