"""A colocated engine: one batch that prefills and decodes, over one pool of running requests and cached prefixes.

waiting -> running: prompt in chunks -> decode -> done; what it leaves in the pool is cached until others need the room.

Steps with a chunk of prompt are simulated one by one. Between them all running requests advance a token a step, so a
stretch of pure decode is one event.
"""

from collections.abc import Callable
from typing import Any

from mypy_extensions import mypyc_attr
from simpy import Environment, Event

from artifact.baselines.eviction import eviction_order
from artifact.control.parameters import BasinParameters
from artifact.control.policy import PrefillLease
from sim.engine.cache import PrefixCache
from sim.engine.call import CallQueue, EngineCall, Stage
from sim.engine.colocated_costs import ColocatedCosts
from sim.engine.decode_batch import DecodeBatch, context_of, steps_of
from sim.engine.occupancy import Occupancy
from sim.engine.pins import Pins
from sim.engine.ranks import Use
from sim.scenario import Deployment

NO_SLOTS = 1 << 60
"""Attention models keep no recurrent states: any number of prefixes."""


@mypyc_attr(allow_interpreted_subclasses=True)
class ColocatedEngine:
    """vLLM's default scheduler: decoding requests first, then prompts in chunks under one token budget, first come
    first served; a request is admitted when its whole prompt fits; when outputs outgrow the pool the newest request is
    preempted and computed anew.

    Invariant: `cache.used` = cached prefixes + contexts of running requests <= pool. The shared head is resident from
    the first prefill on and counts once.
    """

    number = 0
    mixed = True
    """Prompt chunks ride in the steps of the decoding requests."""
    flush_preempts = True
    """A flush does not wait until nothing runs."""

    def __init__(
        self,
        env: Environment,
        deployment: Deployment,
        costs: ColocatedCosts,
        on_first_token: Callable[[EngineCall], None],
        on_finished: Callable[[EngineCall], None],
        on_scheduled: Callable[[EngineCall], None] = lambda call: None,
    ) -> None:
        self.env = env
        self.costs = costs
        self.capacities = costs.capacities(deployment)
        self.prefix_caching = deployment.prefix_caching
        self.on_scheduled = on_scheduled
        self.on_first_token = on_first_token
        self.on_finished = on_finished
        self.ranked = deployment.eviction != "lru"
        """Evictions follow what `note` tells."""
        order = eviction_order(deployment.eviction) if self.ranked else None
        host = self.capacities.host_cache_tokens
        self.cache = PrefixCache(costs.pool_tokens, host, NO_SLOTS, order=order)
        self.pins = Pins(env)
        self.waiting = CallQueue()
        self.preempted: list[EngineCall] = []
        """They go before all that wait, the last preempted first."""
        self.running: dict[EngineCall, None] = {}
        """By admission; decoding or in prefill."""
        self.prefilling: list[EngineCall] = []
        self.head = 0
        self._head_resident = False
        self.decoding = DecodeBatch()
        self.prompt_tokens = self.cached_tokens = self.computed_tokens = 0
        self.preemptions = 0
        self.prefill_busy_s = 0.0
        self._busy = False
        self._step_s = 0.0
        self._stretch: tuple[float, int] | None = None
        """Begin and planned steps of the pure decode under way."""
        self._timer = 0
        self._flush_due = False

    # What the host calls -----------------------------------------------------------------------------------------
    def submit(self, call: EngineCall) -> None:
        call.prefill = call.decode = self
        call.stage = Stage.PREFILL_QUEUE
        call.left = float(steps_of(call))
        call.slow_at_join = 0.0
        self._limit_reuse(call)
        if self.pins.held:
            self.pins.expect(call.key)
        self.waiting.push(call)
        self._look()

    def abort(self, call: EngineCall) -> None:
        """Withdraw a call wherever it is; a running one leaves at the next step."""
        call.aborted = True
        if call in self.running:
            self._look()
        elif call.stage is Stage.RETRACTED:
            self.preempted.remove(call)
        else:
            self.waiting.remove(call)
            self._look()

    def flush(self) -> None:
        """Empty the cache at the next step, once nothing runs any more."""
        self._flush_due = True
        self._look()

    def hold(self, call: EngineCall, arrival_s: float, for_s: float) -> None:
        """Pin a finished call's prefix for its session's next call."""
        self.pins.hold(call.key, self, arrival_s, for_s)

    def forget(self, session: Any) -> None:
        """The session is over: nothing is kept for it on purpose."""
        self.pins.drop(session.id)
        if self.ranked:
            self.cache.note(session.id, None)

    def note(self, session: Any, next_use_s: float, gap_since_s: float | None) -> None:
        """For eviction orders: when the session's prefix is wanted next, and since when its tool runs."""
        self.cache.note(session.id, Use(self.env.now, next_use_s, gap_since_s))

    def preload(self, session: Any, prompt: int) -> None:
        """A warm session's context is cached from the start."""
        if self.prefix_caching:
            self._share_head(session.trajectory.shared_head_tokens)
            self._head_resident = True
            self.cache.preload(session.id, prompt - self.head)

    def reorder(self, key: Callable[[EngineCall], float]) -> None:
        """Re-sort the queue; what runs or was preempted keeps its place."""
        self.waiting.reorder(key)

    def lend_memory(self, on: bool) -> None:
        """Nothing to lend: prefixes and running requests share the pool already."""

    def lend_compute(self, lease: Callable[[int], PrefillLease | None]) -> None:
        """Nothing to lend: every step may hold a chunk of prompt already."""

    def set_lending_rules(self, rules: BasinParameters) -> None:
        """See `lend_memory`."""

    def outstanding_tokens(self) -> int:
        """Uncached prompt tokens of the calls waiting or in prefill, at today's cache contents."""
        head = self.head if self._head_resident else 0
        peek = self.cache.peek
        waiting = sum(c.prompt - min(peek(c.key) + min(head, c.head), c.limit) for c in self.waiting.waiting())
        return waiting + sum(c.remaining for c in self.prefilling)

    def plain_step_s(self) -> float:
        """Length of a decode step now, without prefill."""
        return self.costs.decode_step_s(len(self.decoding), self.decoding.context)

    def slow_steps(self, call: EngineCall) -> int:
        """Steps over the ITL SLO among those of a call that ends now."""
        return -int(call.slow_at_join)

    def occupancy(self) -> Occupancy:
        return Occupancy(
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            computed_tokens=self.computed_tokens,
            prefill_calls=len(self.waiting),
            prefill_busy_s=self.prefill_busy_s,
            decode_waiting=len(self.preempted),
            decode_running=len(self.running),
            kv_running=self.decoding.context - max(len(self.decoding) - 1, 0) * self.head,
            kv_idle=sum(call.position + call.remaining - call.head for call in self.prefilling),
            lent=0,
            preemptions=self.preemptions,
        )

    # Steps -------------------------------------------------------------------------------------------------------
    def _look(self) -> None:
        """Something has come up: an idle engine starts, one that decodes looks at the end of its present step."""
        if not self._busy:
            self._busy = True
            self._next_step()
        elif self._stretch is not None:
            began, planned = self._stretch
            steps = max(int(-(-(self.env.now - began) // self._step_s)), 1)
            if steps < planned:
                self._stretch = (began, steps)
                self._wake(max(began + steps * self._step_s - self.env.now, 0.0))

    def _next_step(self) -> None:
        """Plan what follows: a step with prompt tokens, or decode until something can change."""
        self._drop_aborted()
        if self._flush_due and (self.flush_preempts or not self.running):
            self._flush()
        preempted = self._make_room()
        chunks, fetched = self._fill(allow_new=not preempted)
        if chunks:
            self._prefill(chunks, fetched)
        elif self.decoding:
            self._decode()
        else:
            self._busy = False

    def _prefill(self, chunks: list[tuple[EngineCall, int]], fetched: int) -> None:
        """One step with these chunks, and a token for every decoding request if it is a mixed one."""
        c = self.costs
        requests, context = (len(self.running), self.decoding.context) if self.mixed else (len(chunks), 0)
        duration = c.decode_step_s(requests, context) + fetched * c.host_load_token_s
        for call, tokens in chunks:
            duration += c.chunk_s(call.position, tokens, context)
            call.position += tokens
            call.remaining -= tokens
            self.computed_tokens += tokens
        self.prefill_busy_s += duration
        self._advance(int(self.mixed), duration)
        self._wake(duration)

    def _decode(self) -> None:
        """Pure decode until the next end, or until the pool is full. The pace is that of the stretch's middle."""
        n = len(self.decoding)
        steps = min(self.decoding.to_first_end(), max(self.cache.room // n, 1))
        self._step_s = self.costs.decode_step_s(n, self.decoding.context + n * steps / 2)
        self._stretch = (self.env.now, steps)
        self._wake(steps * self._step_s)

    def _wake(self, after_s: float) -> None:
        self._timer += 1
        self.env.timeout(after_s, self._timer).callbacks.append(self._tick)

    def _tick(self, event: Event) -> None:
        if event._value != self._timer:
            return  # the stretch was cut short
        if self._stretch is not None:
            steps = self._stretch[1]
            self._stretch = None
            self._advance(steps, self._step_s)
        for call in [call for call in self.prefilling if not call.remaining]:
            self._prefilled(call)
        for call in self.decoding.due():
            self._leave(call)
            call.stage = Stage.DONE
            if not call.aborted:
                self.on_finished(call)
        self._next_step()

    def _advance(self, steps: int, step_s: float) -> None:
        """Every decoding request gets a token a step; `_make_room` has seen to the room."""
        self.cache.promise(self.decoding.advance(steps))
        if step_s > self.costs.itl_slo_s:
            self.decoding.slow(max(steps, 1))

    # Admission ---------------------------------------------------------------------------------------------------
    def _fill(self, allow_new: bool) -> tuple[list[tuple[EngineCall, int]], int]:
        """Chunks of the next step, those in prefill first, and how many tokens it fetches from the host."""
        budget = self.costs.chunk_tokens - (len(self.decoding) if self.mixed else 0)
        chunks: list[tuple[EngineCall, int]] = []
        fetched = 0
        for call in self.prefilling:
            if budget <= 0:
                break
            chunks.append((call, min(call.remaining, budget)))
            budget -= chunks[-1][1]
        while allow_new and budget > 0 and len(self.running) < self.costs.max_running:
            admitted = self._admit()
            if admitted is None:
                break
            new, from_host = admitted
            chunks.append((new, min(new.remaining, budget)))
            budget -= chunks[-1][1]
            fetched += from_host
        return chunks, fetched

    def _held_back(self) -> int:
        """Tokens kept free beyond a prompt at admission: those of the next step."""
        return len(self.decoding)

    def _admit(self) -> tuple[EngineCall, int] | None:
        """Match and pin the first of those waiting, with the tokens that the host gives back of its prompt; None if
        there is none or the pool has no room for it."""
        call = self.preempted[-1] if self.preempted else self.waiting.peek()
        if call is None:
            return None
        self._share_head(call.head)
        prompt = context_of(call)  # what was generated before a preemption is computed anew with it
        room = self._acquire(call, prompt)
        while room is None and not self.running and self.pins.drop_latest(self):
            room = self._acquire(call, prompt)
        if room is None:
            return None
        if self.preempted:
            self.preempted.pop()
        else:
            self.waiting.pop()
        self.pins.drop(call.key)
        cached, host, call.extra = room
        found = min(call.head + cached, prompt - 1) if self._head_resident else 0
        call.position, call.remaining = found, prompt - found
        call.stage = Stage.PREFILL
        self.running[call] = None
        self.prefilling.append(call)
        if call.scheduled is None:
            call.scheduled = self.env.now
            call.cached, call.cached_host = found, host
            self.prompt_tokens += call.prompt
            self.cached_tokens += found
            self.on_scheduled(call)
        return call, host

    def _acquire(self, call: EngineCall, prompt: int) -> tuple[int, int, int] | None:
        beyond_head = prompt - call.head
        limit = max((call.limit if prompt == call.prompt else prompt - 1) - call.head, 0)
        self.cache.trim(call.key, limit)  # nobody asks for a continuation that was abandoned
        if self.running and beyond_head + self._held_back() > self.cache.room:
            return None
        return self.cache.acquire(call.key, beyond_head, limit)

    def _limit_reuse(self, call: EngineCall) -> None:
        """The preceding answer is cached, too; a prompt that does not repeat all of it hits only what came before."""
        if not self.prefix_caching:
            call.head = call.limit = 0
        elif call.index and not call.branch:
            t = call.session.trajectory
            if t.new_tokens[call.index] < t.output_tokens[call.index - 1]:
                call.branch = True
                call.limit = call.prompt - t.new_tokens[call.index]

    def _share_head(self, tokens: int) -> None:
        """The shared head takes its place in the pool."""
        if tokens > self.head:
            self.cache.promise(tokens - self.head)
            self.head = tokens

    def _prefilled(self, call: EngineCall) -> None:
        """The whole prompt is computed: its first token is out, and it decodes."""
        self.prefilling.remove(call)
        self.cache.commit(call.key, context_of(call) - call.head, call.extra, call.branch)
        call.extra = 0
        self._head_resident = self.prefix_caching
        first = call.first_token is None
        call.stage = Stage.DECODE
        self.decoding.join(call)
        if first and not call.aborted:
            call.first_token = self.env.now
            self.on_first_token(call)

    # Leaving -----------------------------------------------------------------------------------------------------
    def _leave(self, call: EngineCall) -> None:
        """A decoding request ends or is preempted; what it has computed stays cached."""
        del self.running[call]
        generated = self.decoding.leave(call)
        self.cache.commit(call.key, context_of(call) - call.head, generated, branch=False)
        self._release(call, 0)

    def _release(self, call: EngineCall, promised: int) -> None:
        self.cache.release(call.key, promised)
        if not self.prefix_caching:
            self.cache.drop(call.key)

    def _make_room(self) -> bool:
        """The next step's tokens must fit; the newest requests make way. Whether any did."""
        preempted = False
        while len(self.decoding) > self.cache.room:
            if len(self.running) > 1:
                self._preempt(self._victim())
                preempted = True
            elif not self.pins.drop_latest(self):
                break
        return preempted

    def _victim(self) -> EngineCall:
        return next(reversed(self.running))

    def _preempt(self, call: EngineCall) -> None:
        """Its memory is freed; what is still cached when its turn comes need not be computed anew."""
        self._stop(call)
        call.stage = Stage.RETRACTED
        self.preempted.append(call)
        self.preemptions += 1

    def _stop(self, call: EngineCall) -> None:
        """Take a request out of the batch, with what it needs to go on later."""
        if call.stage is Stage.DECODE:
            self._leave(call)
            call.slow_at_join -= 1  # the pause itself is one slow step
        else:
            del self.running[call]
            self.prefilling.remove(call)
            self._release(call, call.extra)

    def _drop_aborted(self) -> None:
        for call in [call for call in self.running if call.aborted]:
            self._stop(call)

    def _flush(self) -> None:
        self._flush_due = False
        for call in reversed(list(self.running)):
            self._preempt(call)
        while self.pins.drop_latest(self):
            pass
        self.cache.clear()
        self._head_resident = False
