"""The fluid model of session dynamics (paper A §5.1, Eq. 1): how fast a population of N sessions departs.

    dN/dt = lambda(t) - D(N),   D(N) = X(N)/K

X(N), the call throughput, is the smooth minimum of three bounds: closed-loop demand, prefill work and decode memory.
N is counted in sessions, time in seconds, sizes in tokens. Every number of a deployment may be an array: fields and
populations broadcast as numpy does, so one call evaluates a whole sweep.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from pydantic import BaseModel, ConfigDict, Field, model_validator

from sim.fluid.hits import Array, HitCurve, NonNegative, Positive


class FluidDeployment(BaseModel):
    """What Eq. 1 needs to know of an engine and of its sessions. Capacities and rates are sums over instances."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)
    name: str = "deployment"
    cache_tokens: Positive
    """C, the larger of the prefill GPU caches and an inclusive host tier (§6.1)."""
    decode_kv_tokens: Positive
    """D_KV."""
    prefill_tokens_per_s: Positive
    """mu_p, saturated prefill throughput."""
    context_tokens: Positive
    """c̄, mean context over active sessions."""
    prompt_tokens: Positive
    """P, mean prompt of a call."""
    new_tokens: Positive
    """n_new, mean tokens of a prompt that no earlier call sent."""
    calls_per_session: Positive
    """K."""
    gap_s: NonNegative
    """g, mean tool gap."""
    unloaded_latency_s: Positive
    """L0, mean latency of a call on an idle engine."""
    latency_s_per_request: NonNegative = 0.0
    """Seconds that every further request in service adds to a call's latency (decode steps grow with the batch).
    With 0 the closed loop is the paper's N/(g + L0) at any population, otherwise at small ones."""
    hits: HitCurve = Field(default_factory=HitCurve)
    sharpness: Positive = 8.0
    """p of the smooth minimum (sum of bounds^-p)^(-1/p); ours, the paper gives no form. Two bounds that are equal
    give 0.92 of either. With 8 the calibrated H200 1P3D peaks near the rates from which the simulator is overloaded
    (Fig. 10: 14.7 and 13.0 sessions/min with GPU-only caching, 17.6 and 18.0 with a host tier of twice that)."""

    @model_validator(mode="after")
    def _consistent(self) -> "FluidDeployment":
        if np.any(np.asarray(self.new_tokens) > self.prompt_tokens):
            raise ValueError(f"new_tokens {self.new_tokens} exceed prompt_tokens {self.prompt_tokens}")
        return self

    # Scales --------------------------------------------------------------------------------------------------
    def replace(self, **changes: Any) -> "FluidDeployment":
        """The same deployment with other numbers, validated again."""
        return type(self)(**{**{name: getattr(self, name) for name in type(self).model_fields}, **changes})

    def scaled(self, cache: Any = 1.0, tool_time: Any = 1.0, output: Any = 1.0) -> "FluidDeployment":
        """The same deployment with cache, tool gaps and output lengths multiplied; recorded prompts stay."""
        return self.replace(
            cache_tokens=self.cache_tokens * cache,
            gap_s=self.gap_s * tool_time,
            unloaded_latency_s=self.unloaded_latency_s * output,
            latency_s_per_request=self.latency_s_per_request * output,
        )

    def column(self) -> "FluidDeployment":
        """The same deployment with a last axis of length one, to broadcast against a grid of populations."""
        fields = {n: v for n in type(self).model_fields if isinstance(v := getattr(self, n), np.ndarray)}
        hits = {n: v for n in HitCurve.model_fields if isinstance(v := getattr(self.hits, n), np.ndarray)}
        curve = self.hits.model_copy(update={n: v[..., None] for n, v in hits.items()})
        return self.model_copy(update={"hits": curve} | {n: v[..., None] for n, v in fields.items()})

    @property
    def memory_limit(self) -> Any:
        """Requests whose KV fits in decode memory, D_KV/c̄."""
        return self.decode_kv_tokens / self.context_tokens

    @property
    def cliff_sessions(self) -> Any:
        """N_c = kappa x_k C/c̄, the population at the cache cliff (§5.1)."""
        return self.hits.cliff * self.cache_tokens / self.context_tokens

    @property
    def memory_sessions(self) -> Any:
        """N_d = D_KV/(f c̄), the population that fills decode memory (§5.1), f being the fraction then in service."""
        return self.memory_limit + self.decode_bound * self.gap_s

    # Bounds on call throughput, calls/s ----------------------------------------------------------------------
    def in_service(self, n: ArrayLike) -> Array:
        """Sessions of `n` that are in a call (not in a tool) when only the closed loop limits them.

        Solves in_service + g X = n with X = in_service/(L0 + s in_service), s = `latency_s_per_request`.
        """
        n = np.asarray(n, float)
        latency, per_request = self.unloaded_latency_s, self.latency_s_per_request
        b = n * per_request - latency - self.gap_s
        root = np.sqrt(b * b + 4 * per_request * n * latency)
        with np.errstate(divide="ignore", invalid="ignore"):  # either form of the solution cancels where b has its sign
            return np.where(b > 0, (b + root) / (2 * per_request), 2 * n * latency / (root - b))

    def closed_loop(self, n: ArrayLike) -> Array:
        """Calls/s that `n` sessions ask for: N/(g + L0) at small N (§5.1), less as calls slow one another down."""
        busy = self.in_service(n)
        return busy / (self.unloaded_latency_s + self.latency_s_per_request * busy)

    def working_set_ratio(self, n: ArrayLike) -> Array:
        """W/C with W = N c̄."""
        return np.asarray(n, float) * self.context_tokens / self.cache_tokens

    def uncached(self, n: ArrayLike) -> Array:
        """u(N) = max(n_new, (1 - h(W/C)) P), prefill tokens a call (§5.1)."""
        return np.maximum(self.new_tokens, (1 - self.hits(self.working_set_ratio(n))) * self.prompt_tokens)

    def prefill_bound(self, n: ArrayLike) -> Array:
        """mu_p/u(N), calls/s (§5.1)."""
        return self.prefill_tokens_per_s / self.uncached(n)

    @property
    def decode_bound(self) -> Any:
        """Requests whose KV fits in decode memory over their service time with memory full, calls/s (§5.1)."""
        return self.memory_limit / (self.unloaded_latency_s + self.latency_s_per_request * self.memory_limit)

    # Departures ----------------------------------------------------------------------------------------------
    def smooth_min(self, *bounds: Any) -> Array:
        """(sum of bounds^-p)^(-1/p): at most each bound, and within 8% of the least of two at p = 8."""
        least = np.minimum.reduce(np.broadcast_arrays(*bounds))
        with np.errstate(divide="ignore", invalid="ignore"):  # N = 0 asks for nothing: the minimum is 0
            total = sum((np.asarray(bound) / least) ** -self.sharpness for bound in bounds)
            return np.where(least > 0, least * total ** (-1 / self.sharpness), 0.0)

    def throughput(self, n: ArrayLike) -> Array:
        """X(N), calls/s."""
        return self.smooth_min(self.closed_loop(n), self.prefill_bound(n), self.decode_bound)

    def departures(self, n: ArrayLike) -> Array:
        """D(N) = X(N)/K, sessions/s (Eq. 1)."""
        return self.throughput(n) / self.calls_per_session

    @property
    def collapsed_bounds(self) -> tuple[Array, Array]:
        """Closed-loop and prefill bound, calls/s, of a population without end, whose prompts only hit at the floor."""
        with np.errstate(divide="ignore"):
            closed_loop = np.divide(1.0, self.latency_s_per_request)
        misses = np.maximum(self.new_tokens, (1 - self.hits.floor) * self.prompt_tokens)
        return closed_loop, self.prefill_tokens_per_s / misses

    @property
    def low_reuse_departures(self) -> Array:
        """What D(N) tends to once nothing but the floor is found in the cache, sessions/s."""
        return self.smooth_min(*self.collapsed_bounds, self.decode_bound) / self.calls_per_session
