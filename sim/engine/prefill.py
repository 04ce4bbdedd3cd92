"""One prefill instance: a queue, a prefix cache, and serial steps of chunked batches."""

from collections.abc import Callable

from mypy_extensions import mypyc_attr
from simpy import Environment, Event

from sim.engine.cache import PrefixCache
from sim.engine.call import CallQueue, EngineCall, Stage
from sim.engine.costs import Costs
from sim.engine.lent import LentTier
from sim.engine.pins import Pins


@mypyc_attr(allow_interpreted_subclasses=True)
class PrefillInstance:
    """Serves calls in queue order. The prefix match is taken when a call is scheduled, not when it arrives.

    `on_scheduled(call)` is told when a call's prompt has been matched, `on_done(call)` when it is computed; the line
    stays pinned until `let_go(call)`.
    """

    def __init__(
        self,
        env: Environment,
        number: int,
        costs: Costs,
        cache: PrefixCache,
        pins: Pins,
        lent: LentTier,
        on_scheduled: Callable[[EngineCall], None],
        on_done: Callable[[EngineCall], None],
    ) -> None:
        self.env = env
        self.number = number
        self.costs = costs
        self.cache = cache
        self.pins = pins
        self.lent = lent
        self.on_scheduled = on_scheduled
        self.on_done = on_done
        self.queue = CallQueue()
        self.busy = False
        self.busy_s = 0.0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.computed_tokens = 0
        self._chunked: EngineCall | None = None
        self.in_batch = 0
        self.matched = 0
        """Calls whose lines are in use, from their match to `let_go`."""
        self.homes = 0
        """Live sessions that an affinity router keeps here."""

    @property
    def load(self) -> int:
        """Calls waiting or in prefill."""
        return len(self.queue) + self.in_batch

    def outstanding_tokens(self) -> int:
        """Prompt tokens still to compute for the calls here, at today's cache contents."""
        peek = self.cache.peek
        waiting = sum(c.prompt - min(peek(c.key) + c.head, c.limit) for c in self.queue.waiting())
        return waiting + (self._chunked.remaining if self._chunked is not None else 0)

    def submit(self, call: EngineCall) -> None:
        call.stage = Stage.PREFILL_QUEUE
        self.queue.push(call)
        if not self.busy:
            self._step()

    def withdraw(self, call: EngineCall) -> None:
        """Take back a call that waits in the queue."""
        self.queue.remove(call)

    def let_go(self, call: EngineCall) -> None:
        """The transfer is over, or the call given up: the prompt may be evicted."""
        self.cache.release(call.key)
        self.matched -= 1
        if not self.busy and self.queue:
            self._step()

    def _step(self) -> None:
        """Fill one chunk budget: first the call whose prompt is half done, then the queue."""
        c = self.costs
        budget = c.chunk_tokens
        finished: list[EngineCall] = []
        duration = c.prefill_fixed_s
        fetched = 0
        call = self._chunked
        self._chunked = None
        while budget > 0:
            if call is None:
                call = self._schedule_next()
                if call is None:
                    break
                duration += call.cached_host * c.host_load_token_s
                fetched += call.cached_lent
            take = min(call.remaining, budget)
            duration += take * (c.prefill_token_s + (call.position + take / 2) * c.prefill_position_s)
            call.position += take
            call.remaining -= take
            budget -= take
            if call.remaining:
                self._chunked = call
            else:
                finished.append(call)
            call = None
        taken = c.chunk_tokens - budget
        self.busy = taken > 0
        if taken:
            # Fetches run beside compute, layer by layer: the step lasts as long as the slower of the two.
            duration = max(duration, fetched * c.link_token_s)
            self.in_batch = len(finished) + (self._chunked is not None)
            self.computed_tokens += taken
            self.busy_s += duration
            self.env.timeout(duration, finished).callbacks.append(self._step_done)

    def _schedule_next(self) -> EngineCall | None:
        """Match and pin the head of the queue; None when it is empty or the cache has no room for its prompt.

        When no call in progress will make room, policies' pins do, the latest-arrived session's first.
        """
        call = self.queue.peek()
        if call is None:
            return None
        head = call.head
        room = self.cache.acquire(call.key, call.prompt - head, call.limit - head)
        while room is None and not self.matched and self.pins.drop_latest(self):
            room = self.cache.acquire(call.key, call.prompt - head, call.limit - head)
        if room is None:
            return None
        self.queue.pop()
        self.matched += 1
        if self.pins.held:
            self.pins.drop(call.key)
        cached, call.cached_host, call.extra = room
        call.cached = min(head + cached, call.limit)  # the last token is always computed
        if self.lent.units and (gain := self.lent.usable(call) - call.cached) > 0:
            self.lent.touch(call, self.env.now)
            call.cached_lent = gain
            call.cached += gain
        call.position = call.cached
        call.remaining = call.prompt - call.cached
        call.scheduled = self.env.now
        call.stage = Stage.PREFILL
        self.prompt_tokens += call.prompt
        self.cached_tokens += call.cached
        self.on_scheduled(call)
        return call

    def _step_done(self, event: Event) -> None:
        for call in event._value:
            self.cache.commit(call.key, call.prompt - call.head, call.extra, call.branch)
            self.on_done(call)
        self.in_batch = 0
        self._step()
