"""The gateway's own Prometheus metrics. No label ever holds what a client chose, so their number is bounded."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from artifact.control.policy import Signals

if TYPE_CHECKING:
    from artifact.gateway.app import Gateway

_WAITS_S = (0.001, 0.01, 0.1, 1, 5, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200)


class GatewayMetrics(Collector):
    """Waits are observed as they end; everything else is read from the gateway when Prometheus asks."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._wait = Histogram(
            "basin_wait_seconds",
            "Time from a call's arrival until the policy let it through, at a session's entry or between turns.",
            ["kind"],
            buckets=_WAITS_S,
            registry=self.registry,
        )
        self._kinds = {kind: self._wait.labels(kind) for kind in ("entry", "turn")}
        self._gateway: Gateway | None = None

    def attach(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self.registry.register(self)

    def waited(self, kind: str, seconds: float) -> None:
        self._kinds[kind].observe(seconds)

    def page(self) -> bytes:
        return generate_latest(self.registry)

    def describe(self) -> Iterable[Metric]:
        return ()  # so that registering does not collect

    def collect(self) -> Iterable[Metric]:
        if self._gateway is not None:
            yield from _desk(self._gateway)
            yield from _signals(self._gateway)
            yield from _engines(self._gateway)


def cache_capacity(signals: Signals) -> int | None:
    """C = max(C_G, C_H) as far as the engines have said; None before they have."""
    known = (signals.prefill_cache_capacity_tokens, signals.host_cache_capacity_tokens)
    return max((tokens for tokens in known if tokens is not None), default=None)


def _gauge(name: str, text: str, value: float | None) -> Iterable[Metric]:
    if value is not None:
        yield GaugeMetricFamily(f"basin_{name}", text, value=value)


def _labelled(family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[str, float]) -> Metric:
    for label, value in values.items():
        family.add_metric([label], value)
    return family


def _desk(gateway: "Gateway") -> Iterable[Metric]:
    desk, books = gateway.desk, gateway.desk.books
    state = desk.policy.state()
    yield from _gauge("working_set_tokens", "Working set W of the admitted sessions.", state.working_set_tokens)
    yield from _gauge("reference_budget_tokens", "Reference budget B0.", state.reference_budget_tokens)
    yield from _gauge("budget_tokens", "Admission budget B; infinite while entry is free.", state.budget_tokens)
    sessions = {
        "resident": float(sum(s.inside and not s.suspended for s in desk.table)),
        "parked": float(sum(not s.inside for s in desk.table)),
        "suspended": float(sum(s.suspended for s in desk.table)),
    }
    yield _labelled(GaugeMetricFamily("basin_sessions", "Sessions by state.", labels=["state"]), sessions)
    calls = {"waiting": desk.waiting_calls, "before_first_byte": books.before_first_byte, "streaming": books.streaming}
    yield _labelled(GaugeMetricFamily("basin_calls_under_way", "Calls by stage.", labels=["stage"]), calls)
    modes = {"admitting": state.admitting, "ordering": state.ordering, "lending": state.lending}
    yield _labelled(GaugeMetricFamily("basin_control", "Whether a control is engaged.", labels=["control"]), modes)
    decisions = {action: float(desk.decisions[action]) for action in ("admit", "resume", "shed")}
    yield _labelled(CounterMetricFamily("basin_decisions", "Decisions of the policy.", labels=["action"]), decisions)
    outcomes = {outcome: float(desk.outcomes[outcome]) for outcome in ("done", "failed", "left", "refused")}
    yield _labelled(CounterMetricFamily("basin_calls", "Calls by how they ended.", labels=["outcome"]), outcomes)
    yield CounterMetricFamily("basin_prompt_tokens", "Prompt tokens of calls with usage.", value=books.prompt_tokens)
    yield CounterMetricFamily("basin_cached_tokens", "Of those, found cached.", value=books.cached_tokens)
    yield CounterMetricFamily("basin_output_tokens", "Output tokens of calls with usage.", value=books.output_tokens)
    yield CounterMetricFamily("basin_calls_without_usage", "Calls without usage.", value=books.calls_without_usage)
    yield CounterMetricFamily("basin_policy_errors", "Errors raised by the policy.", value=desk.policy_errors)
    yield from _gauge("buffered_bytes", "Request bodies held.", gateway.proxy.buffered_bytes)
    yield from _gauge("draining", "Whether the gateway is shutting down.", float(desk.draining))


def _signals(gateway: "Gateway") -> Iterable[Metric]:
    latest = gateway.telemetry.latest
    capacity, factor = cache_capacity(latest), gateway.config.cliff_over_capacity
    yield from _gauge("cache_capacity_tokens", "Larger of prefill's GPU and host cache, C.", capacity)
    cliff = capacity * factor if capacity and factor else None
    yield from _gauge("cliff_tokens", "Working set at which the hit rate falls off, by the profile.", cliff)
    yield from _gauge("hit_rate", "Cached over prompt tokens in the latest interval, h.", latest.hit_rate)
    yield from _gauge("prefill_queue_calls", "Calls waiting for or in prefill, Q_P.", latest.prefill_queue)
    yield from _gauge("prefill_queue_tokens", "Uncached tokens they need, estimated.", latest.prefill_queue_tokens)
    yield from _gauge("decode_waiting_calls", "Calls waiting for decode memory, Q_D.", latest.decode_waiting)
    yield from _gauge("decode_running_calls", "Calls decoding.", latest.decode_running)
    yield from _gauge("signal_age_seconds", "Age of the oldest engine reading.", gateway.telemetry.age_s())
    own = float(gateway.telemetry.own_accounting)
    yield from _gauge("own_accounting", "Whether signals come from the gateway's own accounting.", own)


def _engines(gateway: "Gateway") -> Iterable[Metric]:
    up = GaugeMetricFamily("basin_engine_up", "Whether the engine's metrics could be read.", labels=["url", "role"])
    for watch in gateway.telemetry.watches:
        up.add_metric([watch.engine.url, watch.engine.role], float(watch.up))
    yield up
    placed = CounterMetricFamily("basin_elastic_calls", "Calls sent to a decode engine alone.", labels=["url"])
    yield _labelled(placed, gateway.placement.counts)
    yield from _gauge("upstream_up", "Whether the upstream could be reached.", float(gateway.upstream.reachable))
    order = gateway.order
    yield CounterMetricFamily("basin_order_telling", "Cases that show whether the engine orders.", value=order.telling)
    yield CounterMetricFamily("basin_order_followed", "Of those, cases in which it did.", value=order.followed)
