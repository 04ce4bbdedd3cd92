"""Capacities of a deployment and the bounds that follow from them (paper A §6.1, Algorithm 1 lines 3 to 6)."""

from dataclasses import dataclass, replace

from artifact.control.policy import Signals
from artifact.control.profile import DeploymentProfile


@dataclass(frozen=True, slots=True)
class Capacities:
    """KV tokens, aggregated over instances."""

    prefill_cache_tokens: int
    """C_G."""
    decode_kv_tokens: int
    host_cache_tokens: int = 0
    """C_H, inclusive of what the GPU also holds; 0 without a host tier."""

    @property
    def cache_tokens(self) -> int:
        """C = max(C_G, C_H), the larger prefill tier."""
        return max(self.prefill_cache_tokens, self.host_cache_tokens)

    def updated(self, signals: Signals) -> "Capacities":
        """These capacities with what a reading reports; what it lacks keeps its last value."""
        reported = {
            "prefill_cache_tokens": signals.prefill_cache_capacity_tokens,
            "decode_kv_tokens": signals.decode_kv_capacity_tokens,
            "host_cache_tokens": signals.host_cache_capacity_tokens,
        }
        changes = {name: value for name, value in reported.items() if value is not None}
        return replace(self, **changes) if changes else self


def effective_capacity(capacities: Capacities, lent_tokens: float, lend_cap: float) -> float:
    """C_eff = max(C, C_G + L), with L the tokens held in lent units, at most φ of decode memory."""
    lent = min(lent_tokens, lend_cap * capacities.decode_kv_tokens)
    return max(capacities.cache_tokens, capacities.prefill_cache_tokens + lent)


def reference_budget(capacity_tokens: float, profile: DeploymentProfile, margin: float) -> float:
    """B0 = min(m W_c, C_eff), with the cliff W_c = κ x_k C_eff."""
    return min(cliff_bound(capacity_tokens, profile, margin), capacity_tokens)


def cliff_bound(capacity_tokens: float, profile: DeploymentProfile, margin: float) -> float:
    """m W_c alone, the ablation without the capacity term (paper A §7.9)."""
    return margin * profile.kappa * profile.knee * capacity_tokens
