"""The prefill-decode disaggregated engine: instances, routing and the way of a call through them.

early reservation (SGLang):   router -> decode memory -> prefill queue -> prefill -> transfer -> decode
at prefill completion:        router -> prefill queue -> prefill -> decode memory -> transfer -> decode

What policies add, nothing by default: pins on prefill's lines, units lent by decode memory, prefill on decode.
"""

from collections.abc import Callable, Hashable
from typing import Any

from mypy_extensions import mypyc_attr
from simpy import Environment, Event

from artifact.baselines.eviction import eviction_order
from artifact.control.parameters import BasinParameters
from artifact.control.policy import PrefillLease
from sim.engine.cache import PrefixCache
from sim.engine.call import EngineCall, Stage
from sim.engine.costs import Costs, capacities
from sim.engine.decode import DecodeInstance
from sim.engine.elastic import ElasticPrefill
from sim.engine.lent import LentTier
from sim.engine.occupancy import Occupancy
from sim.engine.pins import Pins
from sim.engine.prefill import PrefillInstance
from sim.engine.ranks import Use
from sim.engine.routers import ROUTERS, home
from sim.scenario import Deployment


@mypyc_attr(allow_interpreted_subclasses=True)
class PDEngine:
    """`on_scheduled`, `on_first_token` and `on_finished`, each with a call, are the engine's only words to the outside.

    `reserve_after_prefill` is the default of a deployment that does not say when decode memory is reserved.
    """

    def __init__(
        self,
        env: Environment,
        deployment: Deployment,
        costs: Costs,
        on_first_token: Callable[[EngineCall], None],
        on_finished: Callable[[EngineCall], None],
        on_scheduled: Callable[[EngineCall], None] = lambda call: None,
        reserve_after_prefill: bool = False,
        lending_rules: BasinParameters | None = None,
    ) -> None:
        self.env = env
        self.costs = costs
        self.capacities = capacities(deployment, costs)
        self.late = reserve_after_prefill if deployment.reserve_at is None else deployment.reserve_at == "prefill_end"
        self.route = ROUTERS[deployment.router]
        self.on_scheduled = on_scheduled
        self.on_first_token = on_first_token
        self.pins = Pins(env)
        self.lent = LentTier(lending_rules or BasinParameters(), self._in_prefill, costs.hybrid)
        host = self.capacities.host_cache_tokens // deployment.prefill
        self.ranked = deployment.eviction != "lru"
        """Evictions follow what `note` tells."""
        order = eviction_order(deployment.eviction) if self.ranked else None
        self.transfer_token_s = costs.link_token_s if deployment.transfer == "per_token" else 0.0
        self.transfer_s = 0.0 if deployment.transfer == "per_token" else costs.transfer_s
        self.prefills = [
            PrefillInstance(
                env,
                i,
                costs,
                PrefixCache(costs.cache_tokens, host, costs.cache_slots, costs.hybrid, order),
                self.pins,
                self.lent,
                on_scheduled,
                self._prefilled,
            )
            for i in range(deployment.prefill)
        ]
        self.decodes = [
            DecodeInstance(env, i, costs, self.lent, self._reserved, on_finished) for i in range(deployment.decode)
        ]

        self.elastic: dict[int, ElasticPrefill] = {}

    def outstanding_tokens(self) -> int:
        """Uncached prompt tokens of the calls waiting for or in prefill, at today's cache contents."""
        return sum(p.outstanding_tokens() for p in self.prefills)

    def preload(self, session: Any, prompt: int) -> None:
        """Place a warm session's context where it will be served: its home, balanced over the instances."""
        cache = home(session, self.prefills).cache
        cache.preload(session.id, prompt - session.trajectory.shared_head_tokens)

    def lend_compute(self, lease: Callable[[int], PrefillLease | None]) -> None:
        """Let decode instances prefill under these leases from now on; those without one finish what they have."""
        for decode in self.decodes:
            offered, elastic = lease(decode.number), self.elastic.get(decode.number)
            if offered is not None:
                if elastic is None:
                    elastic = ElasticPrefill(decode, offered, self.on_scheduled, self._started)
                    self.elastic[decode.number] = elastic
                elastic.lease = offered
            if elastic is not None:
                elastic.open = offered is not None

    def lend_memory(self, on: bool) -> None:
        """Whether decode instances adopt finished prompts as lent units."""
        self.lent.adopting = on

    def set_lending_rules(self, rules: BasinParameters) -> None:
        """From now on decode lends memory by these rules."""
        self.lent.rules = rules

    def hold(self, call: EngineCall, arrival_s: float, for_s: float) -> None:
        """Pin a finished call's prefix where it was prefilled, for its session's next call."""
        self.pins.hold(call.key, call.prefill, arrival_s, for_s)

    def forget(self, session: Any) -> None:
        """The session is over: nothing is kept for it on purpose."""
        self.pins.drop(session.id)
        self.lent.drop(session.id)
        if self.ranked:
            for prefill in self.prefills:
                prefill.cache.note(session.id, None)

    def note(self, session: Any, next_use_s: float, gap_since_s: float | None) -> None:
        """For eviction orders: when the session's prefix is wanted next, and since when its tool runs."""
        for prefill in self.prefills:
            prefill.cache.note(session.id, Use(self.env.now, next_use_s, gap_since_s))

    def submit(self, call: EngineCall) -> None:
        if self.pins.held:
            self.pins.expect(call.key)
        call.prefill = self.route(call, self.prefills)
        call.decode = min(self.decodes, key=lambda d: (len(d.waiting), d.kv_running + d.kv_idle))
        if self.elastic and self.elastic[call.decode.number].place(call):
            return
        if self.late:
            call.prefill.submit(call)
        else:
            call.decode.reserve(call)

    def abort(self, call: EngineCall) -> None:
        """Withdraw a call wherever it is. In a step of prefill or in transfer it is dropped when that ends."""
        if call.stage is Stage.AWAITS_MEMORY:
            call.decode.withdraw(call)
            if self.late:
                call.prefill.let_go(call)
        elif call.stage is Stage.PREFILL_QUEUE:
            call.prefill.withdraw(call)
            if not self.late:
                call.decode.cancel_reservation(call)
        elif call.stage is Stage.ELASTIC_QUEUE:
            self.elastic[call.decode.number].withdraw(call)
        elif call.stage in (Stage.DECODE, Stage.RETRACTED):
            call.decode.abort(call)
        call.aborted = True

    def reorder(self, key: Callable[[EngineCall], float]) -> None:
        """Re-sort every queue."""
        for prefill in self.prefills:
            prefill.queue.reorder(key)
        for decode in self.decodes:
            decode.waiting.reorder(key)
        for elastic in self.elastic.values():
            elastic.queue.reorder(key)

    def occupancy(self) -> Occupancy:
        p, d = self.prefills, self.decodes
        anywhere: tuple[PrefillInstance | ElasticPrefill, ...] = (*p, *self.elastic.values())
        return Occupancy(
            prompt_tokens=sum(x.prompt_tokens for x in anywhere),
            cached_tokens=sum(x.cached_tokens for x in anywhere),
            computed_tokens=sum(x.computed_tokens for x in anywhere),
            prefill_calls=sum(x.load for x in anywhere),
            prefill_busy_s=sum(x.busy_s for x in p),
            decode_waiting=sum(len(x.waiting) + len(x.retracted) for x in d),
            decode_running=sum(x.running for x in d),
            kv_running=int(sum(x.kv_running for x in d)),
            kv_idle=sum(x.kv_idle for x in d),
            lent=sum(x.lent for x in d),
        )

    def _in_prefill(self, key: Hashable, tokens: int) -> bool:
        return any(prefill.cache.peek(key) >= tokens for prefill in self.prefills)

    def _reserved(self, call: EngineCall) -> None:
        if self.late:
            self._transfer(call)
        else:
            call.prefill.submit(call)

    def _prefilled(self, call: EngineCall) -> None:
        if call.aborted:
            call.prefill.let_go(call)
            if not self.late:
                call.decode.cancel_reservation(call)
        elif self.late:
            call.decode.reserve(call)
        else:
            self._transfer(call)

    def _transfer(self, call: EngineCall) -> None:
        call.stage = Stage.TRANSFER
        delay = self.transfer_s + call.prompt * self.transfer_token_s
        self.env.timeout(delay, call).callbacks.append(self._arrived)

    def _arrived(self, event: Event) -> None:
        call: EngineCall = event._value
        call.prefill.let_go(call)
        if call.aborted:
            call.decode.cancel_reservation(call)
            return
        self._started(call)

    def _started(self, call: EngineCall) -> None:
        """The whole prompt is on decode and its first token out."""
        call.first_token = self.env.now
        self.on_first_token(call)
        call.decode.join(call)
