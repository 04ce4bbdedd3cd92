"""Basin's control loop (paper A §6, Algorithm 1), composed of the small parts beside this file."""

from dataclasses import dataclass
from typing import Literal

from artifact.control.admission import CurrentContexts, Demand, PeakReservations, admits
from artifact.control.budget import Budget
from artifact.control.capacity import Capacities, cliff_bound, effective_capacity, reference_budget
from artifact.control.latch import Latch
from artifact.control.lending import has_spare_memory
from artifact.control.parameters import BasinParameters
from artifact.control.parked import ParkedQueue, priority
from artifact.control.peaks import Predict, Progress, Revise
from artifact.control.policy import Action, Decision, Policy, PolicyState, SessionFacts, Signals
from artifact.control.profile import DeploymentProfile
from artifact.control.shedding import ArrivalRate, excess
from artifact.control.working_set import Smoothed, WorkingSet

BACKLOG_CALLS = 8
"""Calls in or before prefill that make a backlog if they persist. A healthy engine works off a handful within a second;
a collapsed one holds hundreds (paper A §7.9: 620), so the place in between does not matter."""


@dataclass(frozen=True, slots=True)
class Mechanisms:
    """What this Basin does: all of it by default, less or otherwise in the paper's ablations (§7.9)."""

    lending: bool = True
    engine_order: bool = True
    """Sort the prefill and decode-memory queues by p; admission uses p regardless."""
    admission: Literal["adaptive", "always", "off"] = "adaptive"
    size_aware: bool = True
    """p = a + Ŵ/r; otherwise p = a, as in the prototype."""
    demand: Literal["peaks", "contexts"] = "peaks"
    """Reserve predicted peaks, or count current contexts, as in the prototype."""
    capacity_term: bool = True
    """B0 = min(m W_c, C_eff); otherwise m W_c."""
    lent_under_backlog: bool = True
    """Keep lent capacity in C_eff while a prefill backlog persists."""


class Basin(Policy):
    """Fixed priority, working-set admission, lending and shedding for one engine (paper A §6).

    `predict` gives Ŵ; a session's first prompt is its lower bound. `revise`, if given, renews the reservation of a
    resident after each call, never its priority. `reserve_after_prefill`: Basin's engine extension moves the
    reservation of decode KV to prefill completion.
    """

    reserve_after_prefill = True

    def __init__(
        self,
        predict: Predict,
        profile: DeploymentProfile,
        capacities: Capacities,
        parameters: BasinParameters | None = None,
        mechanisms: Mechanisms | None = None,
        revise: Revise | None = None,
    ) -> None:
        super().__init__()
        self.parameters = p = parameters or BasinParameters()
        self.mechanisms = mechanisms or Mechanisms()
        self.profile = profile
        self.interval_s = p.interval_s
        self._predict = predict
        self._revise = revise
        self._facts: dict[str, SessionFacts] = {}
        self._progress: dict[str, Progress] = {}
        self._capacities = capacities
        self._working_set = WorkingSet(p.context_smoothing_s)
        contexts = self.mechanisms.demand == "contexts"
        self._demand: Demand = CurrentContexts(self._working_set) if contexts else PeakReservations()
        self._parked = ParkedQueue()
        self._priority: dict[str, float] = {}
        self._budget = Budget(p, profile)
        self._arrivals = ArrivalRate(p.arrival_smoothing_s)
        self._hit_rate = Smoothed(p.interval_s)
        self._lent = Smoothed(p.interval_s)
        self._prefill_backlog = Latch(p.backlog_persistence_s, 0)
        self._decode_wait = Latch(p.backlog_persistence_s, 0)
        self._admit = Latch(0, p.cooldown_s)
        self._order = Latch(0, p.cooldown_s)
        self._lend = Latch(0, p.cooldown_s)
        self._spare = True
        self._backlog_now = False
        self._last_step_s: float | None = None
        self._shed_due = False
        self._reference = self._bound(0.0)
        if self.mechanisms.admission == "always":
            self._admit.on = True
            self._budget.engage(self._reference)

    # Facts ---------------------------------------------------------------------------------------------------
    def arrive(self, session: SessionFacts, now: float) -> None:
        self._arrivals.arrived(now)
        footprint = self._announce(session)
        self._parked.push(session, self._priority[session.id], footprint)

    def adopt(self, session: SessionFacts, context_tokens: int, now: float) -> None:
        """As in `Policy`; the context already reached is a lower bound of the peak."""
        footprint = max(self._announce(session), context_tokens)
        self._enter(session.id, context_tokens, footprint)

    def call_done(self, session_id: str, context_tokens: int, now: float) -> None:
        self._working_set.grow(session_id, context_tokens)
        if self._revise is not None:
            self._progress[session_id] = progress = self._progress[session_id].after(context_tokens)
            revised = self._revise(self._facts[session_id], progress)
            self._demand.revise(session_id, max(revised, context_tokens))

    def depart(self, session_id: str, now: float) -> None:
        self._priority.pop(session_id, None)
        self._facts.pop(session_id, None)
        self._progress.pop(session_id, None)
        self._parked.remove(session_id)
        self._working_set.leave(session_id)
        self._demand.leave(session_id)

    def observe(self, signals: Signals, now: float) -> None:
        """Algorithm 1, once: conditions at every reading, budget steps and shedding at most once in Δ."""
        self._read(signals, now)
        due = self._last_step_s is None or now - self._last_step_s >= self.parameters.interval_s
        self._regulate_entry(due, now)
        self._schedule(now)
        if due:
            self._last_step_s = now
            self._shed_due = self._has_excess(now)
        busy = self._backlog_now or self._admit.on or self._order.on or self._lend.on or len(self._parked) > 0
        self.interval_s = self.parameters.busy_interval_s if busy else self.parameters.interval_s

    # Questions -----------------------------------------------------------------------------------------------
    def next(self, now: float) -> Decision | None:
        if self._shed_due:
            self._shed_due = False
            if (tail := self._parked.tail()) is not None:
                self._parked.remove(tail.session.id)
                return Decision(Action.SHED, tail.session.id)
        head = self._parked.head()
        if head is None or not self._fits(head.footprint_tokens):
            return None
        self._parked.remove(head.session.id)
        self._enter(head.session.id, head.session.first_prompt_tokens, head.footprint_tokens)
        return Decision(Action.ADMIT, head.session.id)

    def ordering(self) -> bool:
        return self._order.on and self.mechanisms.engine_order

    def order_key(self, session_id: str) -> float:
        return self._priority[session_id]

    def lending(self) -> bool:
        return self._lend.on and self._spare and self.mechanisms.lending

    def state(self) -> PolicyState:
        return PolicyState(
            resident=len(self._working_set),
            parked=len(self._parked),
            working_set_tokens=self._working_set.tokens,
            reference_budget_tokens=self._reference,
            budget_tokens=self._budget.tokens,
            admitting=self._admit.on,
            ordering=self.ordering(),
            lending=self.lending(),
        )

    def explain(self, session_id: str) -> str:
        if session_id in self._working_set:
            return "resident: admitted, and stays so until it completes"
        if session_id not in self._parked:
            return "unknown session"
        head = self._parked.head()
        if head is not None and head.session.id != session_id:
            return f"parked: {head.session.id} is first in line, by arrival plus predicted peak over r"
        need = self._demand.of(head.footprint_tokens) if head else 0.0
        return (
            f"parked first in line: it needs {need:,.0f} tokens, residents hold {self._demand.tokens():,.0f} "
            f"of a budget of {self._budget.tokens:,.0f}; it enters as they leave or the budget rises"
        )

    # Parts ---------------------------------------------------------------------------------------------------
    def _announce(self, session: SessionFacts) -> float:
        footprint = max(self._predict(session), session.first_prompt_tokens)
        if self._revise is not None:
            self._facts[session.id] = session
        weight = footprint if self.mechanisms.size_aware else 0.0
        self._priority[session.id] = priority(session.arrival_s, weight, self.parameters.priority_tokens_per_s)
        return footprint

    def _enter(self, session_id: str, context_tokens: int, footprint_tokens: float) -> None:
        self._working_set.enter(session_id, context_tokens)
        self._demand.enter(session_id, footprint_tokens)
        if self._revise is not None:
            self._progress[session_id] = Progress(context_tokens)

    def _fits(self, footprint_tokens: float) -> bool:
        return admits(self._demand, footprint_tokens, self._budget.tokens, len(self._working_set))

    def _bound(self, lent_tokens: float) -> float:
        if self._prefill_backlog.on and not self.mechanisms.lent_under_backlog:
            lent_tokens = 0.0
        capacity = effective_capacity(self._capacities, lent_tokens, self.parameters.lend_cap)
        bound = reference_budget if self.mechanisms.capacity_term else cliff_bound
        return bound(capacity, self.profile, self.parameters.margin)

    def _read(self, signals: Signals, now: float) -> None:
        self._capacities = self._capacities.updated(signals)
        self._working_set.observe(now)
        if signals.hit_rate is not None:
            self._hit_rate.update(signals.hit_rate, now)
        if signals.lent_tokens is not None:
            self._lent.update(signals.lent_tokens, now)
        if signals.prefill_queue is not None:
            self._prefill_backlog.update(signals.prefill_queue >= BACKLOG_CALLS, now)
            self._backlog_now = signals.prefill_queue >= BACKLOG_CALLS
        if signals.decode_waiting is not None:
            self._decode_wait.update(signals.decode_waiting > 0, now)
            self._backlog_now = self._backlog_now or signals.decode_waiting > 0
        used = signals.decode_kv_used_tokens
        if used is not None:
            waiting = signals.decode_waiting or 0
            self._spare = has_spare_memory(waiting, used, self._capacities.decode_kv_tokens, self.parameters)
        self._reference = self._bound(self._lent.value or 0.0)

    def _regulate_entry(self, due: bool, now: float) -> None:
        if self.mechanisms.admission == "off":
            return
        was_on, working_set, reference = self._admit.on, self._working_set.tokens, self._reference
        if self.mechanisms.admission == "adaptive":
            threshold = self.parameters.alpha_release if was_on else 1.0
            self._admit.update(working_set >= threshold * reference, now)
        if self._admit.on and not was_on:
            self._budget.engage(reference)
        elif self._admit.on and due:
            self._budget.step(reference, self._hit_rate.value, self._demand.tokens(), len(self._parked) > 0)
        elif self._admit.on:
            self._budget.clamp(reference)
        elif not self._parked:
            self._budget.release(self._hit_rate.value, now)
        elif due:
            self._budget.reopen(reference)

    def _schedule(self, now: float) -> None:
        working_set, p = self._working_set.tokens, self.parameters
        backlog = self._prefill_backlog.on or self._decode_wait.on
        self._order.update(backlog or working_set >= p.alpha_order * self._reference or self._admit.on, now)
        prefill_only = self._bound(0.0)
        self._lend.update(working_set >= p.alpha_lend * prefill_only or self._admit.on, now)

    def _has_excess(self, now: float) -> bool:
        head = self._parked.head()
        if head is None:
            return False
        wait = now - head.session.arrival_s
        rate, critical = self._arrivals.rate(now), self.profile.critical_rate_per_s
        return excess(rate, critical, wait, self.parameters.shed_after_s)
