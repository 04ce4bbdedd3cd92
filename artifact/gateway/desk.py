"""Admission as a transaction: every call is opened once and closed once, whatever the exit.

The desk hosts the policy. It owns the table of sessions and the waiting calls, tells the policy each fact exactly
once, and after every fact carries out what `next` decides. Calls of one session that overlap are one turn to the
policy: `turn` is asked when the first of them comes, `call_done` is told when the last has ended.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from artifact.control.policy import Action, Decision, Policy, SessionFacts, Signals
from artifact.gateway.accounting import Books, EntryRate
from artifact.gateway.ask import Ask
from artifact.gateway.config import Limits, Timeouts
from artifact.gateway.identity import Identity, clean_id
from artifact.gateway.session import UNKNOWN_HEAD, AdoptedSession, Call, Outcome, Session, Stage
from artifact.gateway.table import SessionTable
from artifact.gateway.usage import Usage
from artifact.gateway.wire import Refused

log = logging.getLogger("basin.gateway")
P = ParamSpec("P")
T = TypeVar("T")


class Desk:
    """`now` is the gateway's monotonic clock in seconds; `on_wait(kind, seconds)` hears how long calls waited, `on_end`
    of every session that is over."""

    def __init__(
        self,
        policy: Policy,
        now: Callable[[], float],
        limits: Limits | None = None,
        timeouts: Timeouts | None = None,
        on_wait: Callable[[str, float], None] = lambda kind, seconds: None,
        on_end: Callable[[Session], None] = lambda session: None,
    ) -> None:
        self.policy = policy
        self.now = now
        self.limits = limits or Limits()
        self.timeouts = timeouts or Timeouts()
        self.on_wait = on_wait
        self.on_end = on_end
        self.books = Books()
        self.table = SessionTable(self.limits, self.timeouts)
        self.waiting_calls = 0
        self.live_calls: set[Call] = set()
        self.draining = False
        self.decisions: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.policy_errors = 0
        self._policy_broken = False
        self._entries = EntryRate()

    # Calls ---------------------------------------------------------------------------------------------------
    def open(self, identity: Identity, ask: Ask) -> Call:
        """Register a call; it may go on when `passed` returns. Raises `Refused` when a limit is reached."""
        if self.draining:
            raise Refused(503, "draining", "the gateway is shutting down", 1.0)
        if self.waiting_calls >= self.limits.parked_calls:
            raise Refused(429, "saturated", "too many calls are waiting for admission", self.retry_after_s())
        now = self.now()
        known = self.table.get(identity.id)
        prompt_tokens = self.books.estimate_tokens(ask, known.tokens_per_byte if known else None)
        session = known or self._new_session(identity, ask, prompt_tokens, now)
        session.final = session.final or identity.final
        self.table.wake(session)
        call = Call(session, ask, prompt_tokens, now, stuck_since_s=now)
        if session.inside and not session.suspended and (session.turn_open or self._turn(session, prompt_tokens, now)):
            self._pass(call, now)
        else:
            call.gate = asyncio.get_running_loop().create_future()
            session.waiting.append(call)
            self.waiting_calls += 1
        self.settle()
        return call

    async def passed(self, call: Call) -> None:
        """Wait until the policy lets the call through. Raises `Refused` when it is shed instead."""
        if call.gate is not None:
            await call.gate

    def first_byte(self, call: Call) -> None:
        """The engine has begun to answer."""
        if call.stage is Stage.PASSED:
            call.stage = Stage.STREAMING
            call.first_byte_s = self.now()
            self.books.answered(call.prompt_tokens)

    def close(self, call: Call, outcome: Outcome, usage: Usage | None = None, streamed_tokens: int = 0) -> None:
        """End a call, at whatever stage it is; a second close does nothing."""
        if call.stage is Stage.CLOSED:
            return
        session, now = call.session, self.now()
        self.outcomes[outcome] += 1
        session.cut_off = outcome is Outcome.LEFT
        if call.stage is Stage.WAITING:
            session.waiting.remove(call)
            self.waiting_calls -= 1
        else:
            self.books.ended(call.prompt_tokens, answered=call.stage is Stage.STREAMING)
            self.live_calls.discard(call)
            session.live -= 1
            self._account(call, outcome, usage, streamed_tokens)
            if session.live == 0:
                self._end_turn(call, usage, now)
        call.stage = Stage.CLOSED
        self._rest(session, now)
        self.settle()

    # Sessions ------------------------------------------------------------------------------------------------
    def release(self, session_id: str) -> bool:
        """End a session on request: its waiting calls are refused, running ones end first. False if unknown."""
        session = self.table.get(session_id)
        if session is None:
            return False
        session.final = True
        self._refuse_waiting(session, 410, "session_released", "the session was ended meanwhile")
        self.settle()
        return True

    def adopt(self, adopted: AdoptedSession) -> bool:
        """Take in a session that is inside already; False if it is known."""
        now, session_id = self.now(), clean_id(adopted.id)
        if self.table.get(session_id) is not None or self.table.one_too_many() is not None:
            return False
        first = adopted.context_tokens if adopted.first_prompt_tokens is None else adopted.first_prompt_tokens
        session = Session(SessionFacts(session_id, now, first, adopted.task_text), "adopted", inside=True, turns=1)
        session.set_context(UNKNOWN_HEAD, adopted.context_tokens)
        self.table.add(session)
        self.table.rest(session, now)
        self.ask(self.policy.adopt, session.facts, adopted.context_tokens, now)
        return True

    def sweep(self) -> None:
        """Close idle sessions, refuse or cut off calls that are stuck. Wanted about once a second."""
        now, patience = self.now(), self.timeouts
        for session in self.table.expired(now):
            self._depart(session)
        for call in self.live_calls:
            limit_s = patience.first_byte_s if call.stage is Stage.PASSED else patience.stall_s
            if call.stuck_since_s + limit_s < now and call.task is not None and not call.timed_out:
                call.timed_out = True
                call.task.cancel()
        if patience.max_park_s > 0:
            for session in list(self.table):
                if session.waiting and session.waiting[0].opened_s + patience.max_park_s <= now:
                    self._refuse_waiting(session, 429, "park_timeout", f"not let in within {patience.max_park_s:g} s")
        self.settle()

    def drain(self) -> None:
        """Take nothing new and send the waiting away; what runs may end."""
        self.draining = True
        for session in list(self.table):
            self._refuse_waiting(session, 503, "draining", "the gateway is shutting down")

    def retry_after_s(self) -> float:
        """When a refused call may find room, at the recent rate of entry."""
        return self._entries.wait_s(self.waiting_calls, self.now())

    # The policy ----------------------------------------------------------------------------------------------
    def observe(self, signals: Signals) -> None:
        self.ask(self.policy.observe, signals, self.now())
        self.settle()

    def switch(self, policy: Policy) -> None:
        """Put another policy in charge of what is inside, suspended and parked; also how parameters are changed."""
        self.policy = policy
        self._policy_broken = False
        now = self.now()
        for session in list(self.table):
            if not session.inside:
                self.ask(policy.arrive, session.facts, now)
                continue
            self.ask(policy.adopt, session.facts, session.context_tokens, now)
            session.suspended = False
            if session.waiting and self._turn(session, session.waiting[0].prompt_tokens, now):
                self._let_through(session, now)
        self.settle()

    def settle(self) -> None:
        """Carry out decisions until the policy has none left; a policy that raised is replaced by the neutral one."""
        while not self._policy_broken and (decision := self.ask(self.policy.next, self.now())) is not None:
            self._carry_out(decision)
        if self._policy_broken:
            log.error("policy failed; every call is let through until a policy is set again")
            self.switch(Policy())

    def ask(self, question: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Tell or ask the policy; None when it raised: an error in a policy must not take the traffic down with it."""
        try:
            return question(*args, **kwargs)
        except Exception:
            self.policy_errors += 1
            self._policy_broken = True
            log.exception("policy raised")
            return None

    def _carry_out(self, decision: Decision) -> None:
        session, now = self.table.get(decision.session_id), self.now()
        self.decisions[decision.action] += 1
        if session is None:
            log.error("policy decided about an unknown session", extra={"action": decision.action})
        elif decision.action is Action.SHED:
            self._refuse_waiting(session, 429, "shed", "demand exceeds what the engine can sustain")
        else:
            session.inside, session.suspended = True, False
            self._entries.entered(now)
            self._let_through(session, now)

    def _turn(self, session: Session, prompt_tokens: int, now: float) -> bool:
        session.suspended = self.ask(self.policy.turn, session.id, prompt_tokens, now) is False
        return not session.suspended

    # Steps of the transaction --------------------------------------------------------------------------------
    def _new_session(self, identity: Identity, ask: Ask, prompt_tokens: int, now: float) -> Session:
        if (idle := self.table.one_too_many()) is not None:
            self._depart(idle)
        facts = SessionFacts(identity.id, self.table.place(identity.id, now), prompt_tokens, ask.task_text)
        session = Session(facts, identity.source, identity.parent, one_call=identity.source == "none")
        self.table.add(session)
        parent = self.table.get(identity.parent)
        if parent is not None and parent.inside and not parent.suspended:
            # A resident waits for its sub-agent: parking the child would hold the parent's memory for nothing.
            session.inside = True
            self.ask(self.policy.adopt, facts, prompt_tokens, now)
        else:
            self.ask(self.policy.arrive, facts, now)
        return session

    def _let_through(self, session: Session, now: float) -> None:
        waiting, session.waiting = session.waiting, []
        self.waiting_calls -= len(waiting)
        for call in waiting:
            self._pass(call, now)
        if not session.live:  # its caller has left: the turn is over before it began
            self.ask(self.policy.call_done, session.id, session.context_tokens, now)

    def _pass(self, call: Call, now: float) -> None:
        session = call.session
        if session.admitted_s is None:
            session.admitted_s = now
        self.on_wait("turn" if session.turns else "entry", now - call.opened_s)
        session.turn_open = True
        session.live += 1
        call.stage, call.passed_s, call.stuck_since_s = Stage.PASSED, now, now
        self.live_calls.add(call)
        self.books.sent(call.prompt_tokens)
        if call.gate is not None and not call.gate.done():
            call.gate.set_result(None)

    def _refuse_waiting(self, session: Session, status: int, reason: str, message: str) -> None:
        """Closes the session's waiting calls; their tasks hear of it afterwards and send the refusal."""
        waiting, session.waiting = session.waiting, []
        self.waiting_calls -= len(waiting)
        for call in waiting:
            call.stage = Stage.CLOSED
            self.outcomes[Outcome.REFUSED] += 1
            if call.gate is not None and not call.gate.done():
                call.gate.set_exception(Refused(status, reason, message, self.retry_after_s()))
                call.gate.exception()  # the caller may be gone already
        session.cut_off = False
        self._rest(session, self.now())

    def _account(self, call: Call, outcome: Outcome, usage: Usage | None, streamed_tokens: int) -> None:
        """Set the conversation's context: reported, else estimated. A cut-off call leaves a known one as it was."""
        session, ask = call.session, call.ask
        if usage is not None:
            self.books.enter(usage, ask)
            session.counted(usage.prompt_tokens, ask.body_bytes)
            session.set_context(ask.head, usage.prompt_tokens + -(-usage.output_tokens // ask.n))
        elif outcome is Outcome.DONE:
            self.books.calls_without_usage += 1
            session.set_context(ask.head, call.prompt_tokens + streamed_tokens)
        elif call.stage is Stage.STREAMING and not session.context_of(ask.head):
            session.set_context(ask.head, call.prompt_tokens)
        session.turns += outcome is Outcome.DONE
        self.books.calls_done += outcome is Outcome.DONE

    def _end_turn(self, call: Call, usage: Usage | None, now: float) -> None:
        session = call.session
        session.turn_open = False
        if usage is not None and usage.cached_tokens is not None and call.first_byte_s and call.passed_s is not None:
            waited_s = call.first_byte_s - call.passed_s
            self.ask(self.policy.started, session.id, waited_s, usage.cached_tokens, now)
        self.ask(self.policy.call_done, session.id, session.context_tokens, now)
        session.pin_s = self.ask(self.policy.pin_s, session.id, now) or 0.0

    def _rest(self, session: Session, now: float) -> None:
        """Once nothing of a session is under way it rests between turns, or is over if it ended or never got going."""
        if session.live or session.waiting or self.table.get(session.id) is not session:
            return
        if session.turns == 0 and session.cut_off:
            self.table.keep_place(session, now)
        if session.final or session.one_call or session.turns == 0:
            self._depart(session)
        else:
            self.table.rest(session, now)

    def _depart(self, session: Session) -> None:
        self.table.remove(session)
        self.on_end(session)
        self.ask(self.policy.depart, session.id, self.now())
