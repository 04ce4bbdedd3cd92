"""The policy seam: one pure decision maker for the simulator, the gateway and tests.

A policy is told facts and asked questions. It has no clock and does no I/O: time comes in as `now` (seconds on the
host's clock). The host (simulator or gateway) owns the queues of waiting callers and the engine, and after every
fact it drains `next(now)`.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol


class Action(StrEnum):
    ADMIT = "admit"
    """Let a parked new session's first call through."""
    RESUME = "resume"
    """Let a session that was suspended at a turn boundary issue its waiting call."""
    SHED = "shed"
    """Refuse a parked session for good (HTTP 429 with Retry-After at a gateway)."""


class Decision(NamedTuple):
    action: Action
    session_id: str


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """What is visible when a session's first call arrives. `true_peak_tokens` is known only in oracle experiments."""

    id: str
    arrival_s: float
    first_prompt_tokens: int
    task_text: str = ""
    true_peak_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Signals:
    """One reading of the engine. Counts are summed over instances; tokens are KV tokens.

    A reading that is missing is None: a policy then keeps its last safe value.
    """

    hit_rate: float | None = None
    """Cached over prompt tokens of calls scheduled since the last reading, h; None when there were none."""
    prefill_queue: int | None = None
    """Requests waiting for or in prefill, Q_P."""
    prefill_queue_tokens: int | None = None
    """Uncached prompt tokens those requests still need, at today's cache contents."""
    decode_waiting: int | None = None
    """Requests waiting for decode memory, Q_D."""
    decode_running: int | None = None
    decode_kv_used_tokens: int | None = None
    """Reserved, transferring or running on decode."""
    decode_kv_capacity_tokens: int | None = None
    prefill_cache_capacity_tokens: int | None = None
    """C_G, aggregate over prefill instances."""
    host_cache_capacity_tokens: int | None = None
    """C_H, inclusive of what the GPU also holds; 0 without a host tier."""
    lent_tokens: int | None = None
    """KV tokens held in lent units on decode."""


@dataclass(frozen=True, slots=True)
class PolicyState:
    """What a policy exports to samples, metrics and people. None: the policy has no such notion."""

    resident: int = 0
    parked: int = 0
    suspended: int = 0
    working_set_tokens: float | None = None
    """W = N c̄ (paper A §6.1)."""
    reference_budget_tokens: float | None = None
    """B0."""
    budget_tokens: float | None = None
    """B; infinite while entry is unrestricted."""
    admitting: bool = False
    ordering: bool = False
    lending: bool = False


class PrefillLease(Protocol):
    """What a decode instance asks before a step in which it could also prefill (decode-side elastic prefill)."""

    chunk_charge_s: float
    """Fixed seconds that a step with a prefill chunk costs beyond its decode and its tokens."""

    def prefill_tokens(self, decode_step_s: float, prefill_token_s: float, now: float) -> int:
        """Prefill tokens the next step may carry, given its length without any and the seconds each token adds."""

    def step_done(self, step_s: float, now: float) -> None:
        """A step took `step_s` seconds, prefill chunk and charge included."""


class Policy:
    """The neutral policy: everybody enters at once in arrival order and the engine keeps its own order.

    A system overrides only what makes it itself. Facts are delivered exactly once and in time order; a session is
    announced by `arrive` or `adopt` and closed by one `depart`, whatever the exit.
    """

    interval_s: float = 5.0
    """Seconds until the next `observe` is wanted; may change over time."""

    reserve_after_prefill: bool = False
    """Whether the engine this system comes with reserves decode KV at prefill completion (paper A §6.2) instead of
    before prefill."""

    def __init__(self) -> None:
        self._waiting: dict[str, SessionFacts] = {}
        self._resident: set[str] = set()

    # Facts ---------------------------------------------------------------------------------------------------
    def arrive(self, session: SessionFacts, now: float) -> None:
        """A new session's first call is at the door; it waits until `next` admits or sheds it."""
        self._waiting[session.id] = session

    def adopt(self, session: SessionFacts, context_tokens: int, now: float) -> None:
        """A session that is already inside (warm start, or the policy was switched on late)."""
        self._resident.add(session.id)

    def turn(self, session_id: str, prompt_tokens: int, now: float) -> bool:
        """A resident session is ready for its next call. True: proceed; False: suspended until `next` resumes it."""
        return True

    def started(self, session_id: str, waited_s: float, cached_tokens: int, now: float) -> None:
        """A released call entered prefill after `waited_s`, `cached_tokens` of its prompt found. Hosts may omit it."""

    def call_done(self, session_id: str, context_tokens: int, now: float) -> None:
        """A call ended with `context_tokens` of prompt and output; the session's tools run, or it departs next."""

    def depart(self, session_id: str, now: float) -> None:
        """The session finished, was shed, was abandoned or timed out."""
        self._waiting.pop(session_id, None)
        self._resident.discard(session_id)

    def observe(self, signals: Signals, now: float) -> None:
        """A control interval has passed."""

    # Questions -----------------------------------------------------------------------------------------------
    def next(self, now: float) -> Decision | None:
        """The next thing to do now, or None. A decision counts as carried out once returned."""
        if not self._waiting:
            return None
        session_id = next(iter(self._waiting))
        del self._waiting[session_id]
        self._resident.add(session_id)
        return Decision(Action.ADMIT, session_id)

    def ordering(self) -> bool:
        """Whether the engine's queues are to be sorted by `order_key`."""
        return False

    def order_key(self, session_id: str) -> float:
        """Place in every engine queue, smaller first; ties by the engine's own order."""
        return 0.0

    def lending(self) -> bool:
        """Whether decode instances may adopt finished prompts as lent units."""
        return False

    def pin_s(self, session_id: str, now: float) -> float:
        """Seconds for which the prefill cache must keep this session's prefix after a call (0: no pin)."""
        return 0.0

    def lease(self, instance: int) -> PrefillLease | None:
        """The lease under which this decode instance may prefill, one object an instance; None: it does not."""
        return None

    def state(self) -> PolicyState:
        return PolicyState(resident=len(self._resident), parked=len(self._waiting))

    def explain(self, session_id: str) -> str:
        """One sentence for an operator: why this session waits and what would let it in."""
        if session_id in self._waiting:
            return "at the door; admitted with the next decision"
        return "resident" if session_id in self._resident else "unknown session"
