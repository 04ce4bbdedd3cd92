"""The prefill-decode disaggregated engine: instances, routing and the way of a call through them.

early reservation (SGLang):   router -> decode memory -> prefill queue -> prefill -> transfer -> decode
at prefill completion:        router -> prefill queue -> prefill -> decode memory -> transfer -> decode

What policies add, nothing by default: pins on prefill's lines, units lent by decode memory.
"""

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from simpy import Environment, Event

from artifact.control.parameters import BasinParameters
from sim.engine.cache import PrefixCache
from sim.engine.call import EngineCall, Stage
from sim.engine.costs import Costs, capacities
from sim.engine.decode import DecodeInstance
from sim.engine.lent import LentTier
from sim.engine.pins import Pins
from sim.engine.prefill import PrefillInstance
from sim.engine.routers import ROUTERS, home
from sim.scenario import Deployment


class Occupancy(NamedTuple):
    """The engine at one moment, summed over instances; counters run from the start."""

    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    prefill_calls: int
    prefill_busy_s: float
    decode_waiting: int
    decode_running: int
    kv_running: int
    kv_idle: int
    lent: int


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
        self.on_first_token = on_first_token
        self.pins = Pins(env)
        self.lent = LentTier(lending_rules or BasinParameters(), self._in_prefill, costs.hybrid)
        host = self.capacities.host_cache_tokens // deployment.prefill
        self.prefills = [
            PrefillInstance(
                env,
                i,
                costs,
                PrefixCache(costs.cache_tokens, host, costs.cache_slots, costs.hybrid),
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

    @property
    def cache_capacity(self) -> int:
        """C_G over all prefill instances."""
        return self.capacities.prefill_cache_tokens

    @property
    def host_capacity(self) -> int:
        """C_H, inclusive of what the GPU holds too."""
        return self.capacities.host_cache_tokens

    @property
    def kv_capacity(self) -> int:
        return self.capacities.decode_kv_tokens

    def outstanding_tokens(self) -> int:
        """Uncached prompt tokens of the calls waiting for or in prefill, at today's cache contents."""
        return sum(p.outstanding_tokens() for p in self.prefills)

    def preload(self, session: Any, prompt: int) -> None:
        """Place a warm session's context where it will be served: its home, balanced over the instances."""
        cache = home(session, self.prefills).cache
        cache.preload(session.id, prompt - session.trajectory.shared_head_tokens)

    def hold(self, call: EngineCall, arrival_s: float, for_s: float) -> None:
        """Pin a finished call's prefix where it was prefilled, for its session's next call."""
        self.pins.hold(call.key, call.prefill, arrival_s, for_s)

    def forget(self, session: Any) -> None:
        """The session is over: nothing is kept for it on purpose."""
        self.pins.drop(session.id)
        self.lent.drop(session.id)

    def submit(self, call: EngineCall) -> None:
        self.pins.expect(call.key)
        call.prefill = self.route(call, self.prefills)
        call.decode = min(self.decodes, key=lambda d: (len(d.waiting), d.kv_running + d.kv_idle))
        if self.late:
            call.prefill.submit(call)
        else:
            call.decode.reserve(call)

    def abort(self, call: EngineCall) -> None:
        """Withdraw a call wherever it is. In prefill or in transfer it is dropped when that step ends."""
        if call.stage is Stage.AWAITS_MEMORY:
            call.decode.withdraw(call)
            if self.late:
                call.prefill.let_go(call)
        elif call.stage is Stage.PREFILL_QUEUE:
            call.prefill.withdraw(call)
            if not self.late:
                call.decode.cancel_reservation(call)
        elif call.stage in (Stage.DECODE, Stage.RETRACTED):
            call.decode.abort(call)
        call.aborted = True

    def reorder(self, key: Callable[[EngineCall], float]) -> None:
        """Re-sort every queue."""
        for prefill in self.prefills:
            prefill.queue.reorder(key)
        for decode in self.decodes:
            decode.waiting.reorder(key)

    def occupancy(self) -> Occupancy:
        p, d = self.prefills, self.decodes
        return Occupancy(
            prompt_tokens=sum(x.prompt_tokens for x in p),
            cached_tokens=sum(x.cached_tokens for x in p),
            computed_tokens=sum(x.computed_tokens for x in p),
            prefill_calls=sum(x.load for x in p),
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
        self.env.timeout(self.costs.transfer_s, call).callbacks.append(self._arrived)

    def _arrived(self, event: Event) -> None:
        call: EngineCall = event._value
        call.prefill.let_go(call)
        if call.aborted:
            call.decode.cancel_reservation(call)
            return
        call.first_token = self.env.now
        self.on_first_token(call)
        call.decode.join(call)
