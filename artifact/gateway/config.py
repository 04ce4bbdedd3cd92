"""What an operator decides about a gateway: one frozen object, read by every part."""

from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from artifact.control.policy import Policy, Signals

PolicyFactory = Callable[[str, dict[str, Any], Signals], Policy]
"""Makes a policy from its name, its options and what is known of the engine's capacities. Raises `ValueError` naming
what is wrong, `CapacitiesUnknown` when the engine has not said yet what the policy needs."""

Role = Literal["prefill", "decode", "unified", "router"]
MAX_ID_CHARS = 256


class CapacitiesUnknown(Exception):
    """A policy needs capacities that neither the options nor the engine's metrics have given so far."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Limits(_Frozen):
    """Bounds on what clients may cost. What exceeds one is refused with a reason, never queued silently."""

    body_bytes: int = Field(default=32 << 20, gt=0)
    header_bytes: int = Field(default=64 << 10, gt=0)
    buffered_bytes: int = Field(default=2 << 30, gt=0)
    """Request bodies held at one time, parked calls included."""
    parked_calls: int = Field(default=20_000, gt=0)
    sessions: int = Field(default=100_000, gt=0)
    """Known sessions; beyond it the longest idle one is closed for a new one."""
    connections: int = Field(default=40_000, gt=0)


class Timeouts(_Frozen):
    """Seconds on the gateway's clock."""

    connect_s: float = Field(default=5.0, gt=0)
    first_byte_s: float = Field(default=1800.0, gt=0)
    """Between sending a call upstream and its response's first byte; long, for a trapped engine is slow, not dead."""
    stall_s: float = Field(default=300.0, gt=0)
    """Without a byte from the engine mid-response, or with a client that takes none."""
    body_s: float = Field(default=60.0, gt=0)
    """For a client to send its whole request."""
    idle_s: float = Field(default=3600.0, gt=0)
    """A session without a call for this long has ended."""
    abandon_s: float = Field(default=120.0, gt=0)
    """The same for a session whose latest call was cut off by its client."""
    rejoin_s: float = Field(default=120.0, ge=0)
    """A client that left the parked queue keeps its place in arrival order if it is back within this time."""
    max_park_s: float = Field(default=0.0, ge=0)
    """Refuse a call that has been parked for this long; 0: the client's patience is the limit."""
    drain_s: float = Field(default=120.0, ge=0)
    """For calls in flight to end after a request to stop."""


class EnginePriority(_Frozen):
    """How the policy's order reaches the engine. Without `dialect`, no request carries a priority."""

    dialect: Literal["none", "sglang", "vllm"] = "none"
    low_first: bool | None = None
    """Smaller numbers first? None: the engine's default (SGLang no, vLLM yes)."""
    hints: bool = False
    """Also send `custom_params.basin`, by which `artifact.lending` in SGLang learns what to retain and to pin."""

    @property
    def sign(self) -> int:
        low_first = self.dialect == "vllm" if self.low_first is None else self.low_first
        return 1 if low_first else -1


class Engine(_Frozen):
    """An endpoint whose /metrics are read; `url` may name that page or the server."""

    url: str
    role: Role = "unified"

    @property
    def base(self) -> str:
        return self.url.rstrip("/").removesuffix("/metrics")


class GatewayConfig(_Frozen):
    """Everything a gateway needs to know. `time_scale` is for accelerated tests: gateway seconds a real second."""

    upstream: str
    policy: str = "none"
    policy_options: dict[str, Any] = {}
    cliff_over_capacity: float | None = Field(default=None, gt=0)
    """κ x_k of the deployment's profile, for the pages: the cliff lies at this multiple of the cache's capacity."""
    engines: tuple[Engine, ...] = ()
    scrape_s: float = Field(default=5.0, gt=0)
    stale_s: float = Field(default=30.0, gt=0)
    """Age of the last reading beyond which the gateway's own accounting takes over."""
    identity: tuple[str, ...] | None = None
    """Conventions in order of preference (names in `identity.CONVENTIONS`); None: the default order."""
    lineage: bool = False
    """Recognise sessions without an id by the messages they repeat."""
    priority: EnginePriority = EnginePriority()
    elastic: bool = False
    """Send calls to decode engines alone under policies that lend those engines' compute; needs the extension's
    `elastic` in them."""
    limits: Limits = Limits()
    timeouts: Timeouts = Timeouts()
    admin_token: str | None = Field(default=None, repr=False)
    admin_remote: bool = False
    """Let peers other than loopback use the operator's pages and the admin endpoint (with the token)."""
    tokens_per_byte: float = Field(default=0.25, gt=0)
    """First guess of the tokens in a byte of request body; learned from `usage` afterwards."""
    time_scale: float = Field(default=1.0, gt=0)
