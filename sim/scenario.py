"""What determines a run: deployment, load, policy, interventions, seed. All of it is data."""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from artifact.workload.load import Group, Load


class Deployment(BaseModel):
    """Engines of one calibration. Capacities of a tier are those of the calibration times the instances.

    `colocated` is one engine that prefills and decodes in one batch over one pool (paper B); `prefill`, `decode`,
    `router`, `transfer` and `reserve_at` mean nothing to it and keep their defaults.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: Literal["pd", "colocated"] = "pd"
    calibration: str = "h200"
    prefill: int = Field(default=1, ge=1)
    decode: int = Field(default=1, ge=1)
    host_ratio: float = Field(default=0.0, ge=0)
    """Host tier over GPU prefix cache (colocated: over the pool); 0: GPU only."""
    prefix_caching: bool = True
    """Off only for a colocated engine: every call computes its whole prompt (paper B's control, §3)."""
    router: Literal["affinity", "cache_aware", "least_loaded"] = "affinity"
    eviction: Literal["lru", "next-call-oracle", "tool-gap-pinning", "largest-first"] = "lru"
    """Which unused prefix the GPU gives up first (paper A §7.5)."""
    transfer: Literal["fixed", "per_token"] = "fixed"
    """How a prefill-to-decode transfer is charged: its fixed time, or the prompt over the link's rate (§7.10)."""
    reserve_at: Literal["arrival", "prefill_end"] | None = None
    """When a call takes its decode memory: before prefill (SGLang) or at prefill completion (paper A §6.6). None: as
    the engine of the policy does (`Policy.reserve_after_prefill`)."""

    @model_validator(mode="after")
    def _of_its_kind(self) -> Self:
        if self.kind == "pd" and not self.prefix_caching:
            raise ValueError("prefix_caching=False: only a colocated engine can do without; set kind='colocated'")
        if self.kind == "colocated":
            for name in ("prefill", "decode", "router", "transfer", "reserve_at"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(
                        f"{name}={getattr(self, name)!r}: a colocated engine has no such choice; leave it out"
                    )
            if self.host_ratio and not self.prefix_caching:
                raise ValueError(
                    f"host_ratio={self.host_ratio:g}: an engine without prefix caching keeps nothing there"
                )
        return self


class EndGroup(BaseModel):
    """Ends every live session of a group at a time (paper A §3.3: the burst's sessions at minute 25)."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    at_s: float = Field(ge=0)
    group: Group = "burst"


class Flush(BaseModel):
    """Empties the cache of a colocated engine and preempts what runs, as a weight update does (paper B §3)."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    at_s: float = Field(ge=0)


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
    flush: Flush | None = None
    seed: int = Field(default=0, ge=0)
    sample_s: float = Field(default=5.0, gt=0)

    @model_validator(mode="after")
    def _only_a_colocated_engine_is_flushed(self) -> Self:
        if self.flush is not None and self.deployment.kind != "colocated":
            raise ValueError("flush: only a colocated engine can be flushed; set deployment.kind='colocated'")
        return self
