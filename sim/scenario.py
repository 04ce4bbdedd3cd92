"""What determines a run: deployment, load, policy, interventions, seed. All of it is data."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from artifact.workload.load import Group, Load


class Deployment(BaseModel):
    """Engines of one calibration. Capacities of a tier are those of the calibration times the instances."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    calibration: str = "h200"
    prefill: int = Field(default=1, ge=1)
    decode: int = Field(default=1, ge=1)
    host_ratio: float = Field(default=0.0, ge=0)
    """Host tier over GPU prefix cache; 0: GPU only."""
    router: Literal["affinity", "cache_aware", "least_loaded"] = "affinity"
    eviction: Literal["lru", "next-call-oracle", "tool-gap-pinning", "largest-first"] = "lru"
    """Which unused prefix the GPU gives up first (paper A §7.5)."""
    transfer: Literal["fixed", "per_token"] = "fixed"
    """How a prefill-to-decode transfer is charged: its fixed time, or the prompt over the link's rate (§7.10)."""
    reserve_at: Literal["arrival", "prefill_end"] | None = None
    """When a call takes its decode memory: before prefill (SGLang) or at prefill completion (paper A §6.6). None: as
    the engine of the policy does (`Policy.reserve_after_prefill`)."""


class EndGroup(BaseModel):
    """Ends every live session of a group at a time (paper A §3.3: the burst's sessions at minute 25)."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    at_s: float = Field(ge=0)
    group: Group = "burst"


class PolicyChoice(BaseModel):
    """A policy by name, with parameters, in force from `from_s` on (before that nothing controls the engine)."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str = "hicache"
    parameters: dict[str, Any] = Field(default_factory=dict)
    from_s: float = Field(default=0.0, ge=0)


class Scenario(BaseModel):
    """One run. The same scenario gives the same bytes on any machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    deployment: Deployment
    load: Load
    policy: PolicyChoice = PolicyChoice()
    end_group: EndGroup | None = None
    seed: int = Field(default=0, ge=0)
    sample_s: float = Field(default=5.0, gt=0)
