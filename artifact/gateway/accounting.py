"""The gateway's own books: tokens from `usage`, and readings for the policy when the engine's are gone."""

from collections import deque
from dataclasses import dataclass, field

from artifact.control.policy import Signals
from artifact.gateway.ask import Ask
from artifact.gateway.usage import Usage

_SMOOTH = 0.05


class EntryRate:
    """How fast sessions have been let in lately."""

    def __init__(self) -> None:
        self._times_s: deque[float] = deque(maxlen=64)

    def entered(self, now: float) -> None:
        self._times_s.append(now)

    def wait_s(self, ahead: int, now: float) -> float:
        """Expected wait behind so many, within 1 to 600 s; 30 s while too little is known."""
        if len(self._times_s) < 2:
            return 30.0
        spacing_s = (now - self._times_s[0]) / len(self._times_s)
        return min(600.0, max(1.0, (ahead + 1) * spacing_s))


@dataclass(slots=True)
class Books:
    """Counts over all calls, and how many tokens a byte of request body makes (learned from `usage`)."""

    tokens_per_byte: float = 0.25
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    calls_done: int = 0
    calls_without_usage: int = 0
    before_first_byte: int = 0
    """Calls sent to the engine that have not answered yet: an upper bound on Q_P + Q_D."""
    before_first_byte_tokens: int = 0
    streaming: int = 0
    _seen: tuple[int, int] = field(default=(0, 0))
    hit_rate: float | None = None

    def sent(self, prompt_tokens: int) -> None:
        """A call is on its way to the engine."""
        self.before_first_byte += 1
        self.before_first_byte_tokens += prompt_tokens

    def answered(self, prompt_tokens: int) -> None:
        """It has begun to answer."""
        self.before_first_byte -= 1
        self.before_first_byte_tokens -= prompt_tokens
        self.streaming += 1

    def ended(self, prompt_tokens: int, answered: bool) -> None:
        """It is over, with or without an answer."""
        if not answered:
            self.answered(prompt_tokens)
        self.streaming -= 1

    def estimate_tokens(self, ask: Ask, tokens_per_byte: float | None = None) -> int:
        """From the body's length, by the session's own ratio where it is known."""
        return max(1, round(ask.body_bytes * (tokens_per_byte or self.tokens_per_byte)))

    def enter(self, usage: Usage, ask: Ask) -> None:
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens or 0
        self.output_tokens += usage.output_tokens
        if ask.body_bytes and usage.prompt_tokens:
            ratio = usage.prompt_tokens / ask.body_bytes
            self.tokens_per_byte += _SMOOTH * (ratio - self.tokens_per_byte)

    def outstanding_prefill_tokens(self, hit_rate: float | None) -> int:
        """Uncached prompt tokens of the calls that have not answered yet, at the present hit rate."""
        return round(self.before_first_byte_tokens * (1.0 - (hit_rate or 0.0)))

    def signals(self, last: Signals) -> Signals:
        """A reading without the engine: the hit rate since the last one, own counts, and the capacities last known.

        Decode's occupancy stays unknown, since only the engine sees it.
        """
        prompt, cached = self.prompt_tokens - self._seen[0], self.cached_tokens - self._seen[1]
        self._seen = (self.prompt_tokens, self.cached_tokens)
        if prompt > 0:
            self.hit_rate = min(1.0, cached / prompt)
        return Signals(
            hit_rate=self.hit_rate if prompt > 0 and self.cached_tokens > 0 else None,
            prefill_queue=self.before_first_byte,
            prefill_queue_tokens=self.outstanding_prefill_tokens(self.hit_rate),
            decode_running=self.streaming,
            decode_kv_capacity_tokens=last.decode_kv_capacity_tokens,
            prefill_cache_capacity_tokens=last.prefill_cache_capacity_tokens,
            host_cache_capacity_tokens=last.host_cache_capacity_tokens,
        )
