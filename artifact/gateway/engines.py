"""What SGLang and vLLM export about themselves, in the terms of `Signals`: one table an engine."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from artifact.gateway.config import Role

Samples = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Dialect:
    """Metric names of one engine. Several names for one thing are tried in order; what is absent is None."""

    prefix: str
    prompt_tokens: tuple[str, ...]
    cached_tokens: tuple[str, ...]
    waiting: str
    running: str
    decode_waiting: tuple[str, ...] = ()
    """Summed: the queues in which a call waits for decode memory."""
    kv_capacity: Callable[[Samples], float | None] = lambda samples: None
    kv_used: Callable[[Samples], float | None] = lambda samples: None
    host_capacity: str = ""
    lent: str = ""
    extension_orders: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """One endpoint's page: token counters since its start, gauges now. None: not exported."""

    dialect: str
    prompt_tokens: float | None = None
    cached_tokens: float | None = None
    waiting: float | None = None
    running: float | None = None
    decode_waiting: float | None = None
    kv_used_tokens: float | None = None
    kv_capacity_tokens: float | None = None
    host_capacity_tokens: float | None = None
    lent_tokens: float | None = None
    extension_orders: float | None = None
    samples: Samples = field(default_factory=dict, repr=False)


def _first(*names: str) -> Callable[[Samples], float | None]:
    return lambda samples: next((samples[name] for name in names if name in samples), None)


def _vllm_used(samples: Samples) -> float | None:
    """Running requests only: vLLM counts cached blocks as free, so this says nothing about the prefix cache."""
    share, capacity = samples.get("vllm:kv_cache_usage_perc"), samples.get("vllm:kv_capacity_tokens")
    return share * capacity if share is not None and capacity is not None else None


SGLANG = Dialect(
    prefix="sglang:",
    prompt_tokens=("sglang:prompt_tokens_total",),
    cached_tokens=("sglang:cached_tokens_total",),
    waiting="sglang:num_queue_reqs",
    running="sglang:num_running_reqs",
    decode_waiting=("sglang:num_decode_prealloc_queue_reqs", "sglang:num_retracted_reqs"),
    kv_capacity=_first("sglang:max_total_num_tokens"),
    kv_used=_first("sglang:kv_used_tokens", "sglang:num_used_tokens"),
    host_capacity="sglang:hicache_host_total_tokens",
    lent="basin_lent_tokens",
    extension_orders="basin_ordering",
)
VLLM = Dialect(
    prefix="vllm:",
    prompt_tokens=("vllm:prefix_cache_queries_total", "vllm:prompt_tokens_total"),
    cached_tokens=("vllm:prefix_cache_hits_total", "vllm:prompt_tokens_cached_total"),
    waiting="vllm:num_requests_waiting",
    running="vllm:num_requests_running",
    kv_capacity=_first("vllm:kv_capacity_tokens"),
    kv_used=_vllm_used,
)
EXTENSION_PREFIX = "basin_"
"""Metrics of `artifact.lending` on an engine's own page."""
ROUTER_PREFIXES = ("smg_", "sgl_router_")
_PER_RANK = ("tp_rank", "pp_rank", "moe_ep_rank")


def read_page(text: str, role: Role) -> Reading:
    """One endpoint's page. Raises `ValueError` when it holds no metrics of a known engine, or is no such page."""
    for dialect in (SGLANG, VLLM):
        samples = _samples(text, dialect.prefix)
        if any(name.startswith(dialect.prefix) for name in samples):
            return _reading(dialect, samples, role)
    for prefix in ROUTER_PREFIXES:
        if role == "router" and (samples := _samples(text, prefix)):
            return Reading("router", samples=samples)
    raise ValueError("no metrics of SGLang or vLLM on the page; was the engine started with its metrics enabled?")


def _reading(dialect: Dialect, samples: Samples, role: Role) -> Reading:
    pairs = zip(dialect.prompt_tokens, dialect.cached_tokens, strict=True)
    prompt, cached = next(((p, c) for p, c in pairs if p in samples), ("", ""))
    queues = [samples[name] for name in dialect.decode_waiting if name in samples]
    return Reading(
        dialect.prefix.rstrip(":"),
        prompt_tokens=samples.get(prompt),
        # a labelled counter appears with its first increment: none yet means zero
        cached_tokens=samples.get(cached, 0.0) if prompt else None,
        waiting=samples.get(dialect.waiting),
        running=samples.get(dialect.running),
        decode_waiting=(sum(queues) if queues else None) if role == "decode" else 0.0,
        kv_used_tokens=dialect.kv_used(samples),
        kv_capacity_tokens=dialect.kv_capacity(samples),
        host_capacity_tokens=samples.get(dialect.host_capacity),
        lent_tokens=samples.get(dialect.lent),
        extension_orders=samples.get(dialect.extension_orders),
        samples=samples,
    )


def _samples(text: str, prefix: str) -> dict[str, float]:
    """Values by name, summed over labels (models, data-parallel ranks), of ranks that repeat each other the largest.

    Only lines of this engine are parsed, and of those no histogram, which make up most of a page.
    """
    lines = [
        line
        for line in text.splitlines()
        if line.startswith((prefix, EXTENSION_PREFIX)) and "_bucket{" not in line and "_created" not in line
    ]
    by_rank: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            if sample.name == "vllm:cache_config_info":
                _add_vllm_capacity(by_rank, sample.labels)
                continue
            labels = frozenset((k, v) for k, v in sample.labels.items() if k not in _PER_RANK)
            key = (sample.name, labels)
            by_rank[key] = max(by_rank.get(key, float("-inf")), sample.value)
    summed: dict[str, float] = {}
    for (name, _), value in by_rank.items():
        summed[name] = summed.get(name, 0.0) + value
    return summed


def _add_vllm_capacity(into: dict[tuple[str, frozenset[tuple[str, str]]], float], labels: Mapping[str, str]) -> None:
    try:
        tokens = float(labels["num_gpu_blocks"]) * float(labels["block_size"])
    except (KeyError, ValueError):  # an engine that is still starting says "None"
        return
    into["vllm:kv_capacity_tokens", frozenset({("engine", labels.get("engine", "0"))})] = tokens
