"""The policies of figures and scenarios, built for a gateway from what an operator gives and the engine says."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from artifact.baselines.registry import POLICIES, PolicyContext, make_policy
from artifact.control.capacity import Capacities
from artifact.control.policy import Policy, SessionFacts, Signals
from artifact.control.profile import DeploymentProfile
from artifact.gateway.config import CapacitiesUnknown
from artifact.gateway.session import Session

NEUTRAL = "none"
_PEAK_OVER_FIRST_PROMPT = 2.0
_SMOOTH = 0.02


class SeenPeaks:
    """Predicts that a session reaches the typical peak of those that have ended here; for a gateway without a fitted
    predictor. Before any has ended, twice the first prompt."""

    def __init__(self) -> None:
        self._mean_log: float | None = None

    def ended(self, session: Session) -> None:
        if session.turns > 0 and session.peak_tokens > 0:
            log_peak = math.log(session.peak_tokens)
            self._mean_log = log_peak if self._mean_log is None else (1 - _SMOOTH) * self._mean_log + _SMOOTH * log_peak

    def predict(self, session: SessionFacts) -> float:
        if self._mean_log is None:
            return _PEAK_OVER_FIRST_PROMPT * session.first_prompt_tokens
        return max(math.exp(self._mean_log), session.first_prompt_tokens)


@dataclass
class PolicyMaker:
    """A `PolicyFactory`. `options` of a policy are its parameters in `artifact.baselines.registry`."""

    profile: DeploymentProfile = field(default_factory=DeploymentProfile)
    capacities: Capacities | None = None
    """As configured; None: what the engines' metrics say."""
    predict: Callable[[SessionFacts], float] = field(default_factory=lambda: SeenPeaks().predict)
    prefill_tokens_per_s: float | None = None

    def __call__(self, name: str, options: dict[str, Any], latest: Signals) -> Policy:
        if name == NEUTRAL:
            return Policy()
        if name not in POLICIES:
            raise ValueError(f"no policy {name!r}; there are {NEUTRAL}, {', '.join(POLICIES)}")
        rate = self.prefill_tokens_per_s
        context = PolicyContext(
            parameters=options,
            capacities=self.capacities or _reported(latest),
            profile=self.profile,
            predict=self.predict,
            reload_s=(lambda tokens: tokens / rate) if rate else None,
        )
        try:
            return make_policy(name, context)
        except ValueError as error:
            if context.capacities is None and "needs capacities" in str(error):
                raise CapacitiesUnknown(
                    f"{error}: no metrics of the engine so far, and no --prefill-cache-tokens given"
                ) from error
            raise


def _reported(latest: Signals) -> Capacities | None:
    cache, decode = latest.prefill_cache_capacity_tokens, latest.decode_kv_capacity_tokens
    if cache is None or decode is None:
        return None
    return Capacities(cache, decode, latest.host_cache_capacity_tokens or 0)
