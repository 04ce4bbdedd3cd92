"""What the simulator gives a policy to be built from: capacities, predictions, engine costs, a deployment profile."""

import math
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import TYPE_CHECKING

from artifact.baselines.registry import PolicyContext, make_policy
from artifact.control.basin import Basin
from artifact.control.parameters import BasinParameters
from artifact.control.peaks import Progress
from artifact.control.policy import Policy, SessionFacts
from artifact.control.predictor import CrossFittedPeaks, score
from artifact.control.profile import DeploymentProfile
from artifact.workload.catalog import workload
from artifact.workload.trajectory import Trajectory
from sim.engine.kinds import capacities_of, costs_of
from sim.scenario import Scenario

if TYPE_CHECKING:
    from artifact.control.growing import GrowingPeaks


def scenario_policy(scenario: Scenario) -> Policy:
    """The policy that a scenario names. Raises `ValueError` naming what in it is wrong."""
    choice, load = scenario.policy, scenario.load
    later = load.shift.workload if load.shift else None
    peaks = Peaks(load.workload, load.output_scale, later)
    context = PolicyContext(
        seed=scenario.seed,
        parameters=choice.parameters,
        capacities=capacities_of(scenario.deployment),
        profile=_profile(scenario) if choice.name.startswith("basin") else None,
        predict=peaks,
        revise=peaks.revise,
        growing=Grown(load.workload, load.output_scale, later),
        reload_s=costs_of(scenario.deployment).prefill_s,
    )
    return make_policy(choice.name, context)


def lending_rules(policy: Policy) -> BasinParameters:
    """The rules under which decode lends memory: Basin's own parameters."""
    return policy.parameters if isinstance(policy, Basin) else BasinParameters()


@dataclass(frozen=True)
class Peaks:
    """Cross-fitted peaks of a workload's sessions, and of one that they shift to `later`; fitted when first asked for,
    once a process."""

    workload: str
    output_scale: float
    later: str | None = None

    def __call__(self, session: SessionFacts) -> float:
        return self._fitted()[0](session)

    def revise(self, session: SessionFacts, progress: Progress) -> float:
        """Median of the lognormal around the prediction, with the predictor's own error, given that the peak is no
        less than the context reached."""
        context_tokens = progress.context_tokens
        peaks, error = self._fitted()
        normal = NormalDist(math.log(peaks(session)), error)
        reached = normal.cdf(math.log(context_tokens))
        # Far beyond the prediction the rest of the distribution is out of a float's reach: the context is the peak.
        return (
            max(math.exp(normal.inv_cdf((1 + reached) / 2)), context_tokens) if reached < 1 - 1e-9 else context_tokens
        )

    def _fitted(self) -> tuple[CrossFittedPeaks, float]:
        return _cross_fitted(self.workload, self.output_scale, self.later)


@dataclass(frozen=True)
class Grown:
    """As `Peaks`, by the predictor that follows a session as it grows."""

    workload: str
    output_scale: float
    later: str | None = None

    def __call__(self, session: SessionFacts) -> float:
        return _growing(self.workload, self.output_scale, self.later)(session)

    def revise(self, session: SessionFacts, progress: Progress) -> float:
        return _growing(self.workload, self.output_scale, self.later).revise(session, progress)


@cache
def _growing(name: str, output_scale: float, later: str | None) -> "GrowingPeaks":
    from artifact.control.growing import GrowingPeaks  # its trees take long to import, and few runs need them

    return GrowingPeaks(_scaled(name, output_scale, later))


def _scaled(name: str, output_scale: float, later: str | None) -> list[Trajectory]:
    return [t.scaled(output=output_scale) for t in workload(name) + (workload(later) if later else [])]


@cache
def _cross_fitted(name: str, output_scale: float, later: str | None) -> tuple[CrossFittedPeaks, float]:
    trajectories = _scaled(name, output_scale, later)
    peaks = CrossFittedPeaks(trajectories)
    facts = [SessionFacts(t.id, 0.0, t.prompt_tokens[0], t.task_text) for t in trajectories]
    return peaks, score([peaks(f) for f in facts], trajectories).log_error_std


def _profile(scenario: Scenario) -> DeploymentProfile:
    from sim.profile import profile  # the ramp runs on the simulator, which builds its policies here

    load = scenario.load
    return profile(scenario.deployment, load.workload, load.tool_time_scale, load.output_scale)
