"""Basin without each of its mechanisms, over Basin (paper A §7.9, Fig. 23).

Arms are "<trigger>/<variant>" of `artifact.reproduce.scenarios_ablation.ablation_cells`, one `Summary` a seed.
"""

from collections.abc import Sequence

from artifact.reproduce.compare import ratio
from artifact.reproduce.evaluate.policy_simulation import arms
from artifact.reproduce.registry import evaluates
from artifact.reproduce.scenarios_ablation import (
    CLIFF_ONLY,
    GPU_SURGES,
    HOST_SURGES,
    LARGEST,
    LATES,
    NO_LENT_BOUND,
    TRIGGERS,
)
from artifact.reproduce.scenarios_policies import PROTOTYPE
from artifact.reproduce.scenarios_sweeps import ALWAYS, STEADY_PEAK
from artifact.reproduce.summaries import Summary

ON_1P1D = "1p1d-x4"
GPU_AND_LATE = (*GPU_SURGES, *LATES)


def kept_shares(runs: Sequence[Summary]) -> list[float]:
    """Goodput of the first of each pair of runs over that of the second."""
    return [ratio(one.goodput, full.goodput) for one, full in zip(runs[::2], runs[1::2], strict=True)]


def _retained(claim_id: str, variant: str, settings: Sequence[str]) -> None:
    """Goodput of a variant over Basin's: every one of the settings must lie in the published range."""

    @evaluates(claim_id, arms=arms(settings, [variant, "basin"]))
    def retained(*runs: Summary) -> list[float]:
        return kept_shares(runs)


def _retained_by(claim_id: str, variant: str, groups: dict[str, Sequence[str]]) -> None:
    """The same by group of settings."""
    settings = [setting for group in groups.values() for setting in group]

    @evaluates(claim_id, arms=arms(settings, [variant, "basin"]))
    def retained_by(*runs: Summary) -> dict[str, list[float]]:
        found = dict(zip(settings, kept_shares(runs), strict=True))
        return {name: [found[setting] for setting in group] for name, group in groups.items()}


_retained_by(
    "A-abl-prior", PROTOTYPE, {"large_1p3d": [*HOST_SURGES, *GPU_SURGES], "1p1d": [ON_1P1D], "late": list(LATES)}
)
_retained_by(
    "A-abl-order",
    "basin-no-priority",
    {"host": list(HOST_SURGES), "gpu": list(GPU_SURGES), "late": list(LATES), "overload": ["overload"]},
)
_retained_by("A-abl-lend", "basin-no-lending", {"host": list(HOST_SURGES), "gpu_late": GPU_AND_LATE})
_retained("A-abl-lend-only", "basin-lending-only", list(TRIGGERS))
_retained_by(
    "A-abl-admit",
    "basin-no-admission",
    {"host": list(HOST_SURGES), "1p1d": [ON_1P1D], "gpu_late": GPU_AND_LATE},
)
_retained("A-abl-cliff-bound", CLIFF_ONLY, list(HOST_SURGES))
_retained("A-abl-nolent-bound", NO_LENT_BOUND, list(GPU_SURGES))
_retained_by("A-abl-always", ALWAYS, {"two_largest": LARGEST, "steady_overload": ["overload", STEADY_PEAK]})


@evaluates("A-abl-overload", arms=arms(["overload"], ["basin-no-admission", "basin"]))
def overload_population(without: Summary, basin: Summary) -> dict[str, float]:
    return {
        "active_without": without.active,
        "active_with": basin.active,
        "queue_without": without.queue,
        "queue_with": basin.queue,
    }


@evaluates("A-abl-overload-gain", arms=arms(["overload", "gpu-overload"], ["basin", "basin-no-admission"]))
def overload_gain(*runs: Summary) -> dict[str, float]:
    host, gpu = kept_shares(runs)
    return {"host": host, "gpu": gpu}


@evaluates("A-abl-overload-shed", arms=["overload/basin"])
def overload_shed(basin: Summary) -> float:
    return float(basin.shed_sessions)
