"""What an engine shows of itself to samples and policies."""

from typing import NamedTuple


class Occupancy(NamedTuple):
    """The engine at one moment, summed over instances; counters run from the start.

    A colocated engine has one batch and one pool: `prefill_calls` wait for the first time, `decode_waiting` were
    preempted, `decode_running` are the running requests in prefill or decoding; `kv_running` holds the contexts of
    those that decode, `kv_idle` of those in prefill.
    """

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
    preemptions: int | None = None
    """Colocated engines only."""
