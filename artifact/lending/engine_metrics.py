"""Prometheus metrics of the extension, exported by the engine's own `/metrics`."""

from typing import Any

COUNTERS = {
    "adopted_units": ("Prompts retained on decode as lent units", ()),
    "adopted_tokens": ("Their KV tokens", ()),
    "refused_units": ("Marked prompts that decode did not retain", ("cause",)),
    "reclaimed_units": ("Units given back", ("cause",)),
    "reclaimed_tokens": ("Their KV tokens", ("cause",)),
    "fetches": ("Fetches of lent units begun by prefill", ()),
    "fetched_tokens": ("KV tokens that arrived from lent units", ()),
    "fetched_bytes": ("Bytes that arrived from lent units", ()),
    "fetch_seconds": ("Seconds from a fetch's request to its last byte", ()),
    "wait_seconds": ("Seconds that layers waited for their pages", ()),
    "fallbacks": ("Fetches given up, their prefix recomputed", ("cause",)),
    "order_switches": ("Times that ordering was switched on or off", ()),
    "reordered_queues": ("Times that sorting moved somebody", ("queue",)),
    "retractions_while_lent": ("Running requests retracted although a unit was held; must stay 0", ()),
    "late_reservations": ("Requests whose decode memory was reserved after their prefill", ()),
    "pins_ended": ("TTL pins released", ("cause",)),
    "elastic_requests": ("Calls whose prompt decode computes itself", ()),
    "elastic_tokens": ("Their prompt tokens that decode computed", ()),
    "elastic_chunks": ("Steps in which it did", ()),
    "lease_revocations": ("Times that a token came later than the SLO and elastic prefill had to pause", ()),
}
GAUGES = {
    "lent_tokens": "KV tokens held in lent units (upper bound: common heads count once a unit)",
    "lent_units": "Lent units held",
    "pinned_tokens": "KV tokens pinned on prefill's cache",
    "lease_tokens": "Size of the next elastic prefill chunk; 0 while the lease is revoked or nothing fits the SLO",
    "quarantined_tokens": "KV tokens that an abandoned fetch may still write to",
    "hooks_expected": "Hooks the extension asked for",
    "hooks_applied": "Hooks that the engine applied",
    "ordering": "1 while queues are sorted by priority",
    "lending": "1 while units may be adopted",
}


class Metrics:
    """Made in the scheduler process after the engine has chosen its metrics folder."""

    def __init__(self) -> None:
        from prometheus_client import Counter, Gauge

        self._counters = {n: Counter(f"basin_{n}", text, labels) for n, (text, labels) in COUNTERS.items()}
        self._gauges = {n: Gauge(f"basin_{n}", text, multiprocess_mode="mostrecent") for n, text in GAUGES.items()}

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        counter: Any = self._counters[name]
        (counter.labels(**labels) if labels else counter).inc(amount)

    def gauge(self, name: str, value: float) -> None:
        self._gauges[name].set(value)
