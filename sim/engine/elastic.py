"""Decode-side elastic prefill (Crossflow): whole calls prefilled on a decode instance, in chunks mixed into its steps.

A call placed here takes its decode memory at once and reads its cached prefix from the prefill instance that it would
have gone to; the prompt's new part is computed here and stays here, so prefill's cache does not learn of it. What a
step may carry is the lease's to say. Instances with nothing to prefill cost no events.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr
from simpy import Event

from artifact.control.policy import PrefillLease
from sim.engine.call import CallQueue, EngineCall, Stage

if TYPE_CHECKING:
    from sim.engine.decode import DecodeInstance

RETRY_S = 0.1
"""How often an instance with calls to prefill asks a lease that grants nothing."""


@mypyc_attr(allow_interpreted_subclasses=True)
class ElasticPrefill:
    """`on_scheduled(call)` when a call's first chunk begins, `on_done(call)` when its prompt is computed."""

    def __init__(
        self,
        decode: "DecodeInstance",
        lease: PrefillLease,
        on_scheduled: Callable[[EngineCall], None],
        on_done: Callable[[EngineCall], None],
    ) -> None:
        self.decode = decode
        self.lease = lease
        self.on_scheduled = on_scheduled
        self.on_done = on_done
        self.open = True
        """Calls may be placed here; those already here are finished in any case."""
        self.queue = CallQueue()
        self.prompt_tokens = self.cached_tokens = self.computed_tokens = 0
        self._inside: list[EngineCall] = []
        self._begun: list[EngineCall] = []
        self._stepping = False

    @property
    def load(self) -> int:
        """Calls waiting here or being prefilled."""
        return len(self.queue) + len(self._inside)

    def place(self, call: EngineCall) -> bool:
        """Take a call if the lease grants a chunk now, memory is there and the line is shorter than at prefill."""
        if not self.open or self.load >= call.prefill.load or not self._granted(call.prompt):
            return False
        if not self.decode.take(call):
            return False
        call.elastic = True
        call.stage = Stage.ELASTIC
        cached, call.cached_host = call.prefill.cache.read(call.key, call.limit - call.head)
        call.cached = call.position = call.head + cached
        call.remaining = call.prompt - call.cached
        self._inside.append(call)
        costs = self.decode.costs
        self.decode.env.timeout(costs.transfer_s, call).callbacks.append(self._prefix_arrived)
        return True

    def withdraw(self, call: EngineCall) -> None:
        """Take back a call that waits in the queue."""
        self.queue.remove(call)
        self.decode.cancel_reservation(call)

    def _prefix_arrived(self, event: Event) -> None:
        call: EngineCall = event._value
        self._inside.remove(call)
        if call.aborted:
            self.decode.cancel_reservation(call)
            return
        call.stage = Stage.ELASTIC_QUEUE
        self.queue.push(call)
        if not self._stepping:
            self._step(None)

    def _granted(self, position: int) -> int:
        costs, decode = self.decode.costs, self.decode
        token_s = costs.prefill_token_s + position * costs.prefill_position_s
        return self.lease.prefill_tokens(decode.plain_step_s(), token_s, decode.env.now)

    def _next(self) -> EngineCall | None:
        """The call to compute for next: first the one whose prompt is half done, then the queue."""
        if self._begun:
            return self._begun[0]
        call = self.queue.peek()
        if call is not None:
            self.queue.pop()
            self._inside.append(call)
            self._begun.append(call)
            call.stage = Stage.ELASTIC
            call.scheduled = self.decode.env.now
            self.prompt_tokens += call.prompt
            self.cached_tokens += call.cached
            self.on_scheduled(call)
        return call

    def _step(self, event: Event | None) -> None:
        """Begin a mixed step, or wait for a lease that grants one."""
        self._stepping = bool(self._begun or self.queue)
        if not self._stepping:
            return
        costs = self.decode.costs
        head = self._begun[0] if self._begun else self.queue.peek()
        budget = left = self._granted(head.position if head else 0)
        if not budget:
            self.decode.env.timeout(max(RETRY_S, self.decode.plain_step_s())).callbacks.append(self._step)
            return
        extra = self.lease.chunk_charge_s
        finished: list[EngineCall] = []
        while left > 0 and (call := self._next()) is not None:
            take = min(call.remaining, left)
            extra += take * (costs.prefill_token_s + (call.position + take / 2) * costs.prefill_position_s)
            call.position += take
            call.remaining -= take
            left -= take
            if not call.remaining:
                self._begun.remove(call)
                finished.append(call)
        self.computed_tokens += budget - left
        step_s = self.decode.plain_step_s() + extra
        self.decode.stretch(extra)
        self.decode.env.timeout(step_s, (step_s, finished)).callbacks.append(self._step_done)

    def _step_done(self, event: Event) -> None:
        step_s, finished = event._value
        self.decode.stretch(0.0)
        self.lease.step_done(step_s, self.decode.env.now)
        for call in finished:
            self._inside.remove(call)
            if call.aborted:
                self.decode.cancel_reservation(call)
            else:
                self.on_done(call)
        self._step(None)
