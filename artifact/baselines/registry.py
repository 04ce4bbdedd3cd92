"""Every policy by the name that figures and scenarios use."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

from artifact.baselines.composition import Composition
from artifact.baselines.concur import Concur
from artifact.baselines.continuum import Continuum
from artifact.baselines.crossflow import Crossflow
from artifact.baselines.hicache import HiCache
from artifact.baselines.thunderagent import ROUTER_PORT, ThunderAgent
from artifact.baselines.turn_boundary import AdaptiveCap, Budgeter, LatencyCap, SessionCap
from artifact.control.basin import Basin, Mechanisms
from artifact.control.capacity import Capacities
from artifact.control.parameters import BasinParameters
from artifact.control.peaks import PerturbedPeak, Predict, Progress, Revise, true_peak
from artifact.control.policy import Policy, SessionFacts
from artifact.control.profile import DeploymentProfile
from artifact.control.suspending import SuspendingBasin


class Growing(Protocol):
    """A predictor that answers at the door and after each call (`artifact.control.growing`)."""

    def __call__(self, session: SessionFacts) -> float: ...
    def revise(self, session: SessionFacts, progress: Progress) -> float: ...


@dataclass(frozen=True)
class PolicyContext:
    """What a policy is built from. `parameters` are the named settings of that policy; a missing part is an error only
    for a policy that needs it."""

    seed: int = 0
    parameters: Mapping[str, Any] = field(default_factory=dict)
    capacities: Capacities | None = None
    profile: DeploymentProfile | None = None
    predict: Predict | None = None
    """Peak context Ŵ in tokens from a session's first call."""
    revise: Revise | None = None
    """Peak context anew after each call, for `basin-revised-peaks`."""
    growing: Growing | None = None
    """The predictor of `basin-blended-peaks`, and renewed after each call of `basin-growing-peaks`."""
    reload_s: Callable[[int], float] | None = None
    """Seconds to prefill a context of that many tokens anew."""


Maker = Callable[[PolicyContext], Policy]

BASINS: Mapping[str, Mechanisms] = {
    "basin": Mechanisms(),
    "basin-prior": Mechanisms(size_aware=False, demand="contexts"),
    "basin-no-lending": Mechanisms(lending=False),
    "basin-no-priority": Mechanisms(engine_order=False),
    "basin-no-admission": Mechanisms(admission="off"),
    "basin-lending-only": Mechanisms(engine_order=False, admission="off"),
    "basin-priority-only": Mechanisms(lending=False, admission="off"),
    "basin-always-on": Mechanisms(admission="always"),
    "basin-cliff-only": Mechanisms(capacity_term=False),
    "basin-no-lent-bound": Mechanisms(lent_under_backlog=False),
}
"""Basin and its ablations (paper A §7.9). "Late" is any of these put in charge of a running engine."""

NEEDS = {
    "capacities": "the deployment's capacities",
    "profile": "`basin profile`",
    "predict": "a fitted PeakPredictor",
    "revise": "as `predict`",
    "growing": "a fitted GrowingPredictor",
}


def make_policy(name: str, context: PolicyContext) -> Policy:
    """Build a policy. Raises `ValueError` listing the names, or naming the parameter or part that is wrong."""
    if name not in POLICIES:
        raise ValueError(f"no policy {name!r}; there are {', '.join(POLICIES)}")
    try:
        return POLICIES[name](context)
    except (TypeError, ValueError) as error:
        raise ValueError(f"policy {name!r}: {error}") from error


def _need(context: PolicyContext, part: str) -> Any:
    value = getattr(context, part)
    if value is None:
        raise ValueError(f"needs {part} in its context ({NEEDS.get(part, 'the engine costs')})")
    return value


def _plain(kind: Callable[..., Policy], *parts: str) -> Maker:
    """A policy whose constructor takes these parts of the context and its own parameters by keyword."""
    return lambda context: kind(**{part: _need(context, part) for part in parts}, **context.parameters)


def _basin(
    mechanisms: Mechanisms,
    peaks: Callable[[PolicyContext, dict[str, Any]], Predict],
    revised: Callable[[PolicyContext], Revise] | None = None,
    kind: type[Basin] = Basin,
) -> Maker:
    """Parameters are the fields of `BasinParameters`, and `cliff_scale`, which multiplies the profiled κ."""

    def make(context: PolicyContext) -> Policy:
        given = dict(context.parameters)
        predict = peaks(context, given)
        profile = _need(context, "profile")
        profile = replace(profile, kappa=profile.kappa * given.pop("cliff_scale", 1.0))
        if unknown := set(given) - {f.name for f in fields(BasinParameters)}:
            raise ValueError(f"unknown parameters {', '.join(sorted(unknown))}")
        if "budget_range" in given:
            given["budget_range"] = tuple(given["budget_range"])  # JSON and YAML have lists
        revise = revised(context) if revised else None
        return kind(predict, profile, _need(context, "capacities"), BasinParameters(**given), mechanisms, revise)

    return make


def _predicted(context: PolicyContext, given: dict[str, Any]) -> Predict:
    predict: Predict = _need(context, "predict")
    return predict


def _blended(context: PolicyContext, given: dict[str, Any]) -> Predict:
    growing: Growing = _need(context, "growing")
    return growing


def _perturbed(context: PolicyContext, given: dict[str, Any]) -> Predict:
    return PerturbedPeak(given.pop("sigma", 1.0), context.seed)


def _admission_only(admit: float = 16) -> SessionCap:
    return SessionCap(admit=admit, park=float("inf"))


POLICIES: Mapping[str, Maker] = {
    "hicache": _plain(HiCache),
    "concur": _plain(Concur),
    "thunderagent": _plain(ThunderAgent, "capacities"),
    "thunderagent-router": lambda context: ThunderAgent(
        _need(context, "capacities"), **{**ROUTER_PORT, **context.parameters}
    ),
    "continuum": _plain(Continuum, "reload_s"),
    "crossflow": _plain(Crossflow),
    "composition": _plain(Composition, "capacities", "reload_s"),
    **{name: _basin(mechanisms, _predicted) for name, mechanisms in BASINS.items()},
    "basin-true-peaks": _basin(Mechanisms(), lambda context, given: true_peak),
    "basin-perturbed-peaks": _basin(Mechanisms(), _perturbed),
    "basin-revised-peaks": _basin(Mechanisms(), _predicted, lambda context: _need(context, "revise")),
    "basin-blended-peaks": _basin(Mechanisms(), _blended),
    "basin-growing-peaks": _basin(Mechanisms(), _blended, lambda context: _need(context, "growing").revise),
    "basin-suspend": _basin(Mechanisms(), _predicted, kind=SuspendingBasin),
    "budgeter": _plain(Budgeter, "capacities"),
    "session-cap": _plain(SessionCap),
    "adaptive-cap": _plain(AdaptiveCap, "capacities"),
    "latency-aimd": _plain(LatencyCap),
    "admission-only": _plain(_admission_only),
}
