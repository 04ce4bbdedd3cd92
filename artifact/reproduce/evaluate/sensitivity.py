"""Basin with other parameters, and with other estimates of peak contexts (paper A §7.9, Fig. 24).

Arms are "<trigger>/<variant>" of `artifact.reproduce.scenarios_ablation.sensitivity_cells`, one `Summary` a seed. A
variant's value in a trigger is its mean over seeds over the default's, as the figure's bars are over five seeds.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from artifact.reproduce.compare import ratio
from artifact.reproduce.evaluate.policy_simulation import arms
from artifact.reproduce.registry import Noted, evaluates
from artifact.reproduce.scenarios_ablation import (
    CLIFFS,
    FIVE,
    PARAMETERS,
    PERTURBED,
    PLOTTED,
    SCALED,
    SENSITIVE,
    TRUE_PEAKS,
)
from artifact.reproduce.scenarios_policies import PROTOTYPE, arm
from artifact.reproduce.summaries import Summary

CLOSE = 0.03
OF_PAPER = ("interval_s", "margin", "alpha_lend", "alpha_order", "alpha_release", "lend_cap", "shed_after_s")
"""Parameters of §6.6 beside r; the others are implementation settings."""
RATE = "priority_tokens_per_s"
NAMED_SETTINGS = ("budget_range:high", "context_smoothing_s:high", "budget_step:high")
"""Implementation settings that the text names for their cost."""

Change = Callable[[str, str], float]
"""A variant's value in a trigger, over the default's."""
Reading = Callable[[Change], Any]


def mean(seeds: Sequence[Summary], name: str = "goodput") -> float:
    return float(np.mean([getattr(run, name) for run in seeds]))


def changes(runs: Mapping[str, Sequence[Summary]], name: str = "goodput") -> Change:
    """How a field changes, from runs by arm."""
    return lambda variant, trigger: ratio(
        mean(runs[arm(trigger, variant)], name), mean(runs[arm(trigger, "basin")], name)
    )


def _sensitive(
    claim_id: str, variants: Sequence[str], triggers: Sequence[str] = tuple(SENSITIVE), name: str = "goodput"
) -> Callable[[Reading], Reading]:
    """Registers a reading of how these variants change a field in these triggers."""
    needed = arms(triggers, ["basin", *variants])

    def register(reading: Reading) -> Reading:
        @evaluates(claim_id, pooled=True, arms=needed)
        def sensitive(*runs: Sequence[Summary]) -> Any:
            return reading(changes(dict(zip(needed, runs, strict=True)), name))

        return reading

    return register


def _span(found: Sequence[float]) -> list[float]:
    """Lowest and highest: within a range if all are."""
    return [min(found), max(found)]


def _all(change: Change, variants: Sequence[str], triggers: Sequence[str] = tuple(SENSITIVE)) -> list[float]:
    return [change(variant, trigger) for variant in variants for trigger in triggers]


def _moved(found: Sequence[float]) -> list[float]:
    return [abs(value - 1) for value in found]


def sides(field: str) -> list[str]:
    """A parameter's two variants."""
    return [f"{field}:low", f"{field}:high"]


# Figure 24a: parameters ----------------------------------------------------------------------------------------------

EVERY = tuple(PARAMETERS)
ALPHAS = [side for field in OF_PAPER if field.startswith("alpha_") for side in sides(field)]
REST = [name for name in PARAMETERS if name not in NAMED_SETTINGS and name.split(":")[0] not in (*OF_PAPER, RATE)]


@_sensitive("A-sens-3pct", EVERY)
def share_close(change: Change) -> float:
    return float(np.mean(np.array(_moved(_all(change, EVERY))) <= CLOSE))


@_sensitive("A-sens-all", EVERY)
def every_pair(change: Change) -> list[float]:
    return _span(_all(change, EVERY))


@_sensitive("A-sens-median", EVERY)
def median_change(change: Change) -> float:
    return float(np.median(_moved(_all(change, EVERY))))


@_sensitive("A-sens-cliff", tuple(CLIFFS), SCALED)
def cliff(change: Change) -> list[float]:
    return _span(_moved(_all(change, tuple(CLIFFS), SCALED)))


@_sensitive("A-sens-m", sides("margin"))
def margin(change: Change) -> list[float]:
    return _span(_moved(_all(change, sides("margin"))))


@_sensitive("A-sens-alpha", ALPHAS)
def thresholds(change: Change) -> list[float]:
    return _span(_moved(_all(change, ALPHAS)))


@_sensitive("A-sens-delta", sides("interval_s"))
def interval(change: Change) -> dict[str, float]:
    short, long = sides("interval_s")
    return {
        "d15_overload_max": change(short, "overload"),
        "d15_x8_min": change(short, "x8"),
        "d60_min": min(_all(change, [long])),
    }


@_sensitive("A-sens-phi", sides("lend_cap"))
def lending_cap(change: Change) -> list[float]:
    return _span(_all(change, sides("lend_cap")))


@_sensitive("A-sens-phi-wait", ["lend_cap:high"], ["gpu-x5"], "wait_p90_s")
def lending_cap_wait(change: Change) -> float:
    return change("lend_cap:high", "gpu-x5")


@_sensitive("A-sens-ts", sides("shed_after_s"), ["overload"])
def shedding(change: Change) -> dict[str, float]:
    short, long = sides("shed_after_s")
    return {"short": change(short, "overload"), "long": change(long, "overload")}


@_sensitive("A-sens-r", sides(RATE))
def priority_rate(change: Change) -> dict[str, list[float]]:
    low, high = sides(RATE)
    return {"r10": _span(_all(change, [low])), "r100": _span(_all(change, [high]))}


@_sensitive("A-sens-r-wait", sides(RATE)[:1], name="wait_p99_s")
def priority_rate_wait(change: Change) -> list[float]:
    return _span(_all(change, sides(RATE)[:1]))


@_sensitive("A-sens-impl", NAMED_SETTINGS)
def named_settings(change: Change) -> dict[str, float]:
    wide, slow, double = NAMED_SETTINGS
    return {
        "wide_budget_overload": change(wide, "overload"),
        "smoothing_90min_x8": change(slow, "x8"),
        "double_steps_1p1d": change(double, "1p1d-x4"),
    }


@_sensitive("A-sens-impl-rest", REST)
def other_settings(change: Change) -> list[float]:
    return _span(_all(change, REST))


# Figure 24b: estimates -----------------------------------------------------------------------------------------------

WORST = "sigma-1"


@_sensitive("A-sens-peaks", [TRUE_PEAKS, WORST], FIVE)
def peaks(change: Change) -> dict[str, list[float]]:
    return {
        "true": _all(change, [TRUE_PEAKS], PLOTTED),
        "sigma1": _all(change, [WORST], PLOTTED),
        "across": _all(change, [TRUE_PEAKS], FIVE),
    }


@_sensitive("A-sens-prior", [PROTOTYPE], FIVE)
def prior(change: Change) -> dict[str, list[float]]:
    return {"plotted": _all(change, [PROTOTYPE], PLOTTED), "triggers": _all(change, [PROTOTYPE], FIVE)}


@_sensitive("A-sens-est-overload", [TRUE_PEAKS, *PERTURBED, PROTOTYPE], ["overload"])
def estimates_under_overload(change: Change) -> Noted:
    """True and perturbed peaks; the earlier controller, which is no other estimate, stands in the note."""
    note = f"the earlier controller: {change(PROTOTYPE, 'overload'):.2f}"
    return Noted(_all(change, [TRUE_PEAKS, *PERTURBED], ["overload"]), note)
