"""The host of one run: sessions, the policy and the engine on one SimPy clock. Plain event callbacks, no processes."""

from collections.abc import Sequence
from typing import Any

from mypy_extensions import mypyc_attr
from simpy import Environment, Event

from artifact.control.policy import Action, Policy, SessionFacts, Signals
from artifact.workload.load import PlannedSession
from sim.engine.call import EngineCall
from sim.engine.kinds import Engine
from sim.engine.occupancy import Occupancy
from sim.scenario import Scenario
from sim.session import LiveSession


@mypyc_attr(allow_interpreted_subclasses=True)
class Driver:
    """Tells the policy every fact once, carries out its decisions and writes the records' rows.

    Invariant: population = arrivals let in - departures; a session has at most one call in the engine.
    """

    def __init__(self, env: Environment, scenario: Scenario, policy: Policy, plans: Sequence[PlannedSession]) -> None:
        self.env = env
        self.scenario = scenario
        self.policy = policy
        self.sessions = {plan.id: LiveSession(plan) for plan in plans}
        self.calls: list[tuple[Any, ...]] = []
        self.samples: list[tuple[Any, ...]] = []
        self.engine: Engine
        self.working_set = 0
        self.active = self.active_extra = self.suspended = 0
        self.parked: dict[str, LiveSession] = {}
        self.calls_done = 0
        self.reorders = True
        """Calls that wait follow a change of order. On a real engine they keep the priority that they came with."""
        self._ordering = False
        self._seen = (0, 0)
        self._controlling = 0

    def start(self, engine: Engine) -> None:
        """Schedule arrivals, control and sampling."""
        self.engine = engine
        for session in self.sessions.values():
            if session.group == "warm":
                self._warm_start(session)
            else:
                self._after(session.plan.arrival_s, self._arrive, session)
        engine.lend_compute(self.policy.lease)
        self._after(0.0, self._control, self._controlling)
        self._after(0.0, self._sample, None)

    def switch(self, policy: Policy) -> None:
        """Put another policy in charge of the running engine; who is inside is adopted."""
        now = self.env.now
        self.policy = policy
        for session in self.sessions.values():
            if session.active:
                policy.adopt(self._facts(session), session.context, now)
            elif session.id in self.parked:
                policy.arrive(self._facts(session), now)
        self.engine.lend_compute(policy.lease)
        self._controlling += 1
        self._control_now()

    def replace_arrivals(self, plans: Sequence[PlannedSession]) -> None:
        """From now on these sessions arrive, and none that was still to come."""
        now = self.env.now
        self.sessions = {id: s for id, s in self.sessions.items() if s.plan.arrival_s <= now}
        for session in map(LiveSession, plans):
            self.sessions[session.id] = session
            self._after(session.plan.arrival_s - now, self._arrive, session)

    def end(self, session: LiveSession) -> None:
        """End a live session from outside, wherever its call is."""
        if session.current is not None:
            self.engine.abort(session.current)
        self._depart(session, "ended")
        self._decide()

    # Sessions --------------------------------------------------------------------------------------------------
    def _warm_start(self, session: LiveSession) -> None:
        self._enter(session)
        self.policy.adopt(self._facts(session), session.context, 0.0)
        if session.plan.cached:
            self.engine.preload(session, session.trajectory.prompt_tokens[session.first_call - 1])
        if self.engine.ranked:
            self.engine.note(session, session.plan.first_gap_s, 0.0)
        self._after(session.plan.first_gap_s, self._ready, session)

    def _arrive(self, event: Event) -> None:
        session: LiveSession = event._value
        if self.sessions.get(session.id) is not session:
            return  # other arrivals have taken its place
        self.parked[session.id] = session
        self.policy.arrive(self._facts(session), self.env.now)
        self._decide()

    def _ready(self, event: Event) -> None:
        """The gap is over."""
        session: LiveSession = event._value
        if not session.active:
            return
        prompt = session.trajectory.prompt_tokens[session.next_call]
        if self.policy.turn(session.id, prompt, self.env.now):
            self._release(session, self.engine.costs.overhead_s)
        else:
            session.suspended = True
            self.suspended += 1
        self._decide()

    def _release(self, session: LiveSession, overhead_s: float) -> None:
        """Hand the next call to the engine; its overhead (client, tokenizer, router) has just been waited out."""
        call = EngineCall(session, session.next_call, self.env.now - overhead_s)
        session.current = call
        self._context(session, call.prompt)
        if self.engine.ranked:
            self.engine.note(session, self.env.now, None)
        if self._ordering:
            call.order = self.policy.order_key(session.id)
        self.engine.submit(call)

    def scheduled(self, call: EngineCall) -> None:
        """A fact for the policy only: within an engine step nothing is decided."""
        now = self.env.now
        self.policy.started(call.session.id, now - call.released, call.cached, now)

    def first_token(self, call: EngineCall) -> None:
        session: LiveSession = call.session
        if session.started_s is None:
            session.started_s = self.env.now
        if self.engine.ranked:
            decoding_s = max(call.output - 1, 0) * call.decode.plain_step_s()
            self.engine.note(session, self._next_use(session, call.index + 1, self.env.now + decoding_s), None)

    def finished(self, call: EngineCall) -> None:
        session: LiveSession = call.session
        now = self.env.now
        slow = call.decode.slow_steps(call)
        self.calls.append(self._call_row(call, now, slow))
        self.calls_done += 1
        session.current = None
        session.calls_done += 1
        session.decode_steps += max(call.output - 1, 0)
        session.slow_steps += slow
        self._context(session, call.prompt + call.output)
        self.policy.call_done(session.id, session.context, now)
        session.next_call += 1
        if session.next_call == session.trajectory.n_calls:
            self._depart(session, "completed")
            self._decide()
        else:
            pin_s = self.policy.pin_s(session.id, now)
            if pin_s > 0:
                self.engine.hold(call, session.plan.arrival_s, pin_s)
            if self.engine.ranked:
                self.engine.note(session, self._next_use(session, session.next_call, now), now)
            gap = session.trajectory.gap_before_s[session.next_call] + self.engine.costs.overhead_s
            self._after(gap, self._ready, session)

    def _next_use(self, session: LiveSession, call: int, gap_begins_s: float) -> float:
        gaps = session.trajectory.gap_before_s
        return gap_begins_s + gaps[call] if call < len(gaps) else float("inf")

    def _enter(self, session: LiveSession) -> None:
        session.active = True
        session.admitted_s = self.env.now
        self.active += 1
        self.active_extra += session.extra
        self.working_set += session.context

    def _context(self, session: LiveSession, tokens: int) -> None:
        self.working_set += tokens - session.context
        session.context = tokens

    def _depart(self, session: LiveSession, outcome: str) -> None:
        if session.active:
            session.active = False
            self.active -= 1
            self.active_extra -= session.extra
            self.working_set -= session.context
        if session.suspended:
            session.suspended = False
            self.suspended -= 1
        self.parked.pop(session.id, None)
        session.current = None
        session.ended_s = self.env.now
        session.outcome = outcome
        if session.home is not None:
            session.home.homes -= 1
        self.engine.forget(session)
        self.policy.depart(session.id, self.env.now)

    # Policy ----------------------------------------------------------------------------------------------------
    def _decide(self) -> None:
        """Carry out what the policy wants now, until it wants nothing."""
        policy = self.policy
        while (decision := policy.next(self.env.now)) is not None:
            session = self.sessions[decision.session_id]
            if decision.action is Action.ADMIT:
                del self.parked[session.id]
                self._enter(session)
                self._after(self.engine.costs.overhead_s, self._first_call, session)
            elif decision.action is Action.RESUME:
                session.suspended = False
                self.suspended -= 1
                self._release(session, 0.0)
            else:
                self._depart(session, "shed")

    def _first_call(self, event: Event) -> None:
        if event._value.active:
            self._release(event._value, self.engine.costs.overhead_s)

    def _control(self, event: Event) -> None:
        if event._value == self._controlling:
            self._control_now()

    def _control_now(self) -> None:
        self.policy.observe(self._signals(), self.env.now)
        self._decide()
        self._apply_order()
        self.engine.lend_memory(self.policy.lending())
        self._after(self.policy.interval_s, self._control, self._controlling)

    def _apply_order(self) -> None:
        if self.policy.ordering() != self._ordering:
            self._ordering = not self._ordering
            if not self.reorders:
                return
            if self._ordering:
                self.engine.reorder(lambda call: self.policy.order_key(call.session.id))
            else:
                self.engine.reorder(lambda call: 0.0)

    def _signals(self) -> Signals:
        o, capacities = self.engine.occupancy(), self.engine.capacities
        prompt, cached = o.prompt_tokens - self._seen[0], o.cached_tokens - self._seen[1]
        self._seen = (o.prompt_tokens, o.cached_tokens)
        return Signals(
            hit_rate=cached / prompt if prompt else None,
            prefill_queue=o.prefill_calls,
            prefill_queue_tokens=self.engine.outstanding_tokens(),
            decode_waiting=o.decode_waiting,
            decode_running=o.decode_running,
            decode_kv_used_tokens=o.kv_running + o.kv_idle,
            decode_kv_capacity_tokens=capacities.decode_kv_tokens,
            prefill_cache_capacity_tokens=capacities.prefill_cache_tokens,
            host_cache_capacity_tokens=capacities.host_cache_tokens,
            lent_tokens=o.lent,
        )

    def _facts(self, session: LiveSession) -> SessionFacts:
        t = session.trajectory
        return SessionFacts(session.id, session.plan.arrival_s, t.prompt_tokens[0], t.task_text, t.peak_tokens)

    # Records ---------------------------------------------------------------------------------------------------
    def _sample(self, event: Event) -> None:
        self.samples.append(self._sample_row(self.engine.occupancy()))
        self._after(self.scenario.sample_s, self._sample, None)

    def _sample_row(self, o: Occupancy) -> tuple[Any, ...]:
        """In the order of `artifact.records.schema.SAMPLES`, for a colocated engine of `COLOCATED_SAMPLES`."""
        state = self.policy.state()
        return (
            self.env.now,
            self.active,
            self.active_extra,
            len(self.parked),
            self.suspended,
            self.working_set,
            o.prompt_tokens,
            o.cached_tokens,
            o.computed_tokens,
            self.calls_done,
            o.prefill_calls,
            o.decode_waiting,
            o.decode_running,
            o.kv_running,
            o.kv_idle,
            o.lent,
            o.prefill_busy_s,
            state.reference_budget_tokens,
            state.budget_tokens,
            state.admitting,
            state.ordering,
            state.lending,
            *(() if o.preemptions is None else (o.preemptions,)),
        )

    def unfinished_rows(self) -> list[tuple[Any, ...]]:
        """Calls that are inside the engine when the run ends."""
        inside = [s.current for s in self.sessions.values() if s.current is not None]
        return [self._call_row(call, None, None) for call in inside]

    def _call_row(self, call: EngineCall, finished: float | None, slow: int | None) -> tuple[Any, ...]:
        """In the order of `artifact.records.schema.CALLS`."""
        begun = call.scheduled is not None
        return (
            call.session.id,
            call.index,
            call.released,
            call.reserve_wait if begun else None,
            call.scheduled,
            call.first_token,
            finished,
            call.prompt,
            call.cached if begun else None,
            call.cached_host if begun else None,
            call.cached_lent if begun else None,
            call.output,
            slow,
            None if call.elastic else call.prefill.number,
            call.decode.number,
        )

    def _after(self, delay: float, then: Any, value: Any) -> None:
        self.env.timeout(delay, value).callbacks.append(then)
