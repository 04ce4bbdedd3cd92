"""One decode instance: KV memory, the queue for it, and a batch that advances analytically between events.

All running requests advance together, one token a step, so the batch keeps ONE virtual clock (tokens decoded since
the start) and each request an end on it; a heap of ends replaces per-token events.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from mypy_extensions import mypyc_attr
from simpy import Environment, Event

from artifact.control.lending import DecodeMemory
from sim.engine.call import CallQueue, EngineCall, Stage
from sim.engine.costs import Costs
from sim.engine.lent import LentTier

_EPS = 1e-6
"""Tokens; absorbs rounding of the virtual clock."""


@mypyc_attr(allow_interpreted_subclasses=True)
class DecodeInstance:
    """Memory in tokens: `kv_running` (contexts of running requests) + `kv_idle` (promised, not decoding yet) + `lent`
    (finished prompts kept for prefill; they make way for the others) <= D_KV.

    `on_reserved(call)` when a waiting call gets its memory, `on_done(call)` when its last token is out.
    """

    def __init__(
        self,
        env: Environment,
        number: int,
        costs: Costs,
        tier: LentTier,
        on_reserved: Callable[[EngineCall], None],
        on_done: Callable[[EngineCall], None],
    ) -> None:
        self.env = env
        self.number = number
        self.costs = costs
        self.tier = tier
        self.on_reserved = on_reserved
        self.on_done = on_done
        self.waiting = CallQueue()
        self.retracted: list[EngineCall] = []
        self.running = 0
        self.reserved = 0
        self.kv_running = 0.0
        self.kv_idle = 0
        self.lent = 0
        self.waiting_tokens = 0
        """Prompts of the calls that wait for memory."""
        self.retractions = 0
        self._ends: list[tuple[float, int, EngineCall]] = []
        self._seq = 0
        self._clock = 0.0
        self._slow_clock = 0.0
        self._step_s = costs.decode_fixed_s
        self._stretch_s = 0.0
        self._at = 0.0
        self._timer = float("inf")

    @property
    def load(self) -> int:
        """Requests waiting, promised or running."""
        return len(self.waiting) + self.reserved + self.running + len(self.retracted)

    # Memory ----------------------------------------------------------------------------------------------------
    def reserve(self, call: EngineCall) -> None:
        """Ask for the prompt's memory; `on_reserved` follows, at once if there is room and nobody waits."""
        call.stage = Stage.AWAITS_MEMORY
        call.reserve_since = self.env.now
        self.waiting.push(call)
        self.waiting_tokens += call.prompt
        self.grant()

    def withdraw(self, call: EngineCall) -> None:
        """Take back a call that waits for memory; those behind it may fit."""
        self.waiting.remove(call)
        self.waiting_tokens -= call.prompt
        self.grant()

    def memory(self) -> DecodeMemory:
        """As the rules of lending see it, growth held back as for a reservation."""
        growth = self.costs.held_back_tokens * (self.running + self.reserved)
        away = sum(int(self._held(call)) for call in self.retracted)
        active = int(self.kv_running) + self.kv_idle + growth
        return DecodeMemory(self.costs.kv_tokens, active, self.waiting_tokens + away, self.lent)

    def grant(self) -> None:
        """Hand memory to those waiting, in queue order, while it lasts; retracted requests come first."""
        self._advance()
        if self.lent:
            self.tier.restore_margin(self)
        if self.retracted:
            self._resume_retracted()
        c = self.costs
        while self.waiting and not self.retracted:
            call = self.waiting.peek()
            if call is None:
                return
            holders = self.running + self.reserved
            free = c.kv_tokens - self.kv_running - self.kv_idle - self.lent - c.held_back_tokens * holders
            # A prompt larger than what is left of an empty instance still has to run.
            if (call.prompt > free or holders >= c.decode_slots) and holders:
                return
            self.waiting.pop()
            self.waiting_tokens -= call.prompt
            self._promise(call)
            call.reserve_wait = self.env.now - call.reserve_since
            self.on_reserved(call)

    def take(self, call: EngineCall) -> bool:
        """The prompt's memory at once or not at all: only if nobody waits for it and it fits."""
        self._advance()
        growth = self.costs.held_back_tokens * (self.running + self.reserved)
        free = self.costs.kv_tokens - self.kv_running - self.kv_idle - self.lent - growth
        if (
            self.waiting
            or self.retracted
            or call.prompt > free
            or self.running + self.reserved >= self.costs.decode_slots
        ):
            return False
        self._promise(call)
        return True

    def _promise(self, call: EngineCall) -> None:
        """Set the prompt's memory aside. The batch may now outgrow the rest before the timer that is set."""
        self.reserved += 1
        self.kv_idle += call.prompt
        if self.running:
            self._wake_after(max(self._room_steps(), 1.0))

    def cancel_reservation(self, call: EngineCall) -> None:
        self.reserved -= 1
        self.kv_idle -= call.prompt
        self.grant()

    # Batch -----------------------------------------------------------------------------------------------------
    def join(self, call: EngineCall) -> None:
        """The prompt has arrived: its first token is out and the rest is decoded."""
        self._advance()
        self.reserved -= 1
        self.kv_idle -= call.prompt
        call.stage = Stage.DECODE
        call.slow_at_join = self._slow_clock
        self._enter(call, max(call.output - 1, 0))
        self._reschedule()

    def abort(self, call: EngineCall) -> None:
        """Stop a running or retracted request."""
        if call.stage is Stage.RETRACTED:
            self.retracted.remove(call)
            return
        self._advance()
        self._leave(call)
        self._ends = [end for end in self._ends if end[2] is not call]
        heapify(self._ends)
        self._reschedule()
        self.grant()

    def plain_step_s(self) -> float:
        """Length of a decode step now, without prefill."""
        c = self.costs
        return c.decode_fixed_s + c.decode_request_s * self.running + c.decode_context_s * self.kv_running

    def stretch(self, seconds: float) -> None:
        """Steps take so much longer from now on, for a prefill chunk in them."""
        self._advance()
        self._stretch_s = seconds
        self._reschedule()

    def slow_steps(self, call: EngineCall) -> int:
        """Steps over the ITL SLO among those of a call that ends now."""
        return round(self._slow_clock - call.slow_at_join)

    def _enter(self, call: EngineCall, steps: float) -> None:
        self.running += 1
        self.kv_running += call.prompt + max(call.output - 1, 0) - steps
        call.v_end = self._clock + steps
        self._seq += 1
        heappush(self._ends, (call.v_end, self._seq, call))

    def _leave(self, call: EngineCall) -> None:
        """Give back a running request's context."""
        self.running -= 1
        self.kv_running -= call.prompt + max(call.output - 1, 0) - (call.v_end - self._clock)
        if not self.running:
            self.kv_running = 0.0

    def _advance(self) -> None:
        """Bring the virtual clock and the contexts to now, at the pace of the last change."""
        now = self.env.now
        if now > self._at:
            if self.running:
                steps = (now - self._at) / self._step_s
                self._clock += steps
                self.kv_running += self.running * steps
                if self._step_s > self.costs.itl_slo_s:
                    self._slow_clock += steps
            self._at = now

    def _reschedule(self) -> None:
        """New pace; a timer is set only if the next end or overflow comes before the one already set."""
        if not self.running:
            return
        self._step_s = self.plain_step_s() + self._stretch_s
        steps = self._ends[0][0] - self._clock
        room = self._room_steps()
        if room < steps:
            steps = max(room, 1.0)
        self._wake_after(max(steps, 0.0))

    def _room_steps(self) -> float:
        """Steps until the running contexts reach the memory's end."""
        return (self.costs.kv_tokens - self.kv_running - self.kv_idle - self.lent) / self.running

    def _wake_after(self, steps: float) -> None:
        at = self.env.now + steps * self._step_s
        if at < self._timer:
            self._timer = at
            self.env.timeout(at - self.env.now, at).callbacks.append(self._tick)

    def _tick(self, event: Event) -> None:
        if event._value != self._timer:
            return  # an earlier timer took its place
        self._timer = float("inf")
        self._advance()
        done: list[EngineCall] = []
        ends = self._ends
        while ends and ends[0][0] <= self._clock + _EPS:
            call = heappop(ends)[2]
            self._leave(call)
            call.stage = Stage.DONE
            done.append(call)
            if self.tier.adopting:
                self.tier.adopt(self, call)
        if self.lent:
            self.tier.restore_margin(self)
        overflow = self.kv_running + self.kv_idle - self.costs.kv_tokens
        if overflow >= 0 and (self.running > 1 or self.kv_idle):
            self._retract(overflow)
        self._reschedule()
        for call in done:
            self.on_done(call)
        self.grant()

    # Retraction ------------------------------------------------------------------------------------------------
    def _retract(self, overflow: float) -> None:
        """Push out the requests with the fewest tokens generated, then the longest prompt, until 20 steps fit.

        Their state waits in host memory, as SGLang's decode does it, and resumes before any new reservation. The last
        one stays unless what is promised to others leaves it no room.
        """
        by_progress = sorted(self._ends, key=lambda end: (self._generated(end[2]), -end[2].prompt))
        gone: set[int] = set()
        for _, seq, call in by_progress if self.kv_idle else by_progress[:-1]:
            if overflow < 0:
                break
            held = call.prompt + self._generated(call)
            self._leave(call)
            call.stage = Stage.RETRACTED
            call.slow_at_join -= self._slow_clock + 1  # the pause itself is one slow step
            call.left = call.v_end - self._clock
            self.retracted.append(call)
            self.retractions += 1
            gone.add(seq)
            overflow -= held - 20 * self.running
        self._ends = [end for end in self._ends if end[1] not in gone]
        heapify(self._ends)

    def _generated(self, call: EngineCall) -> float:
        return max(call.output - 1, 0) - (call.v_end - self._clock)

    def _held(self, call: EngineCall) -> float:
        """Context of a retracted request."""
        return call.prompt + max(call.output - 1, 0) - call.left

    def _resume_retracted(self) -> None:
        c = self.costs
        resumed = False
        while self.retracted:
            call = self.retracted[0]
            held = self._held(call)
            free = c.kv_tokens - self.kv_running - self.kv_idle - self.lent
            holders = self.running + self.reserved
            if held + c.held_back_tokens * (holders + 1) > free and holders:
                break
            del self.retracted[0]
            call.stage = Stage.DECODE
            call.slow_at_join += self._slow_clock
            self._enter(call, call.left)
            resumed = True
        if resumed:
            self._reschedule()
