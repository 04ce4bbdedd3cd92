"""Basin taken apart: switched on late, under post-surge arrivals, without each mechanism, with other parameters.

Paper A §7.7-7.9, Figs. 21-24. Arms are "<setting>/<policy or variant>".
"""

from collections.abc import Iterable
from dataclasses import asdict

from artifact.control.parameters import BasinParameters, sensitivity_variants
from artifact.reproduce.outcomes import MINUTE, Resources
from artifact.reproduce.paths import check_profile, check_source
from artifact.reproduce.scenarios import Runs, recorded, run_arms
from artifact.reproduce.scenarios_maps import H200_1P3D, deployment, overload, plan
from artifact.reproduce.scenarios_policies import (
    POLICIES,
    PROTOTYPE,
    SIX,
    Setting,
    Variant,
    arm,
    base_rates_per_min,
    scenario,
    seeds_of,
)
from artifact.reproduce.scenarios_sweeps import ALWAYS, STEADY, STEADY_PEAK
from artifact.reproduce.summaries import Cell, Summaries, cells, summary_runs

# Figure 21 ---------------------------------------------------------------------------------------------------------

LATE_MIN = 45.0
LATE_DURATION_S = 180 * MINUTE
"""Draining takes 103-128 minutes from minute 45 on (§7.7)."""
FROM_START = {"1p3d": SIX["1p3d"]}
LATE = {"late": SIX["1p3d"]._replace(title="late", duration_s=LATE_DURATION_S)}
SWITCHED_POLICIES = tuple(policy for policy in POLICIES if policy != "concur")


def late(policy: str) -> Variant:
    """A policy switched on when HiCache alone is trapped."""
    return Variant(policy, from_min=LATE_MIN)


def switch_runs(
    source: str,
    profile: str,
    seeds: Iterable[int] | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
) -> Runs:
    """Records of the default surge under every system, in charge from the start (arms "1p3d/<policy>") and switched on
    at minute 45 ("late/<policy>"). Raises `ValueError` for an unknown profile or source."""
    variants = {name: Variant(name) for name in SWITCHED_POLICIES}
    parts = {**cells(FROM_START, variants), **cells(LATE, {name: late(name) for name in variants})}
    if source == "hw":
        return recorded("policies", list(parts), seeds)
    check_source(source)
    [rate] = base_rates_per_min([SIX["1p3d"]], workers, scheduler)
    return run_arms(
        {name: [scenario(*cell, rate, seed) for seed in seeds_of(profile, seeds)] for name, cell in parts.items()},
        workers,
        scheduler,
        "controls switched on",
    )


# Figure 22 ---------------------------------------------------------------------------------------------------------

SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Post-surge rates over the reference overload rate: the ticks of Fig. 22."""
AFTER_SEEDS = 3
"""Of Fig. 22 (§7.8)."""
BASE_SHARE = 0.5
AFTER_TIERS = {"gpu": 0.0, "host": 2.0}
AFTER_SURGES = {"plus300": (4.0, (15 * MINUTE, 25 * MINUTE)), "x6": (6.0, (15 * MINUTE, 35 * MINUTE))}
PRIORITY_ONLY = "basin-priority-only"
AFTER_POLICIES = {
    "gpu": (*SWITCHED_POLICIES, PRIORITY_ONLY),
    "host": ("thunderagent", "continuum", "basin", PRIORITY_ONLY),
}
"""Fig. 22 draws the GPU-only deployment; the text compares these four with the host tier, too."""


def after(tier: str, surge: str, share: float) -> str:
    """The name of a setting of Fig. 22."""
    return f"{tier}-{surge}-{share:g}"


def after_runs(
    source: str,
    profile: str,
    seeds: Iterable[int] | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
) -> Summaries:
    """Summaries of arms "<tier>-<surge>-<share>/<policy>". Base loads are half the reference overload rate, measured as
    for Fig. 10; within a seed and surge all runs of a policy are the same until arrivals change at its end."""
    shares = {"smoke": SHARES[:1], "quick": SHARES[::4], "full": SHARES}[check_profile(profile)]
    tiers = AFTER_TIERS if profile == "full" else {"gpu": AFTER_TIERS["gpu"]}
    resources = Resources(workers, scheduler)
    engines = {tier: deployment(H200_1P3D, ratio) for tier, ratio in tiers.items()}
    limits = overload(list(engines.values()), plan(profile), resources) if source == "sim" else {}
    arms: dict[str, Cell] = {}
    for tier, ratio in tiers.items():
        rate = BASE_SHARE * limits.get(engines[tier], 1.0)
        for surge, (factor, interval) in AFTER_SURGES.items():
            settings = {
                after(tier, surge, share): Setting(
                    f"{share:g}",
                    host_ratio=ratio,
                    rate_per_min=rate,
                    factor=factor,
                    surge_s=interval,
                    after=share / BASE_SHARE,
                )
                for share in shares
            }
            arms |= cells(settings, AFTER_POLICIES[tier])
    count = seeds_of(profile, seeds, AFTER_SEEDS)
    return summary_runs(source, arms, count, resources, "post-surge arrivals")


# Figures 23 and 24: triggers ----------------------------------------------------------------------------------------

LONG_SURGE_S = (15 * MINUTE, 55 * MINUTE)
OVERLOAD_S = (15 * MINUTE, 75 * MINUTE)
OVERLOAD_FACTOR = 4.0
"""Ours: an hour at twice the critical rate, from half of it; the paper does not say. Chosen, by medians of five seeds,
with the 852 sessions that it finds active without admission, the 82 that it sheds with it, and the third of goodput
that a stronger preference for small footprints gains at most."""
OVERLOAD_CLAIMS = ("A-abl-overload", "A-abl-overload-shed", "A-sens-r")
"""What that factor is chosen with."""
OVERLOAD_DURATION_S = 130 * MINUTE
"""The shortest run with an end state (paper A §7.1)."""
DEFAULT, GPU = SIX["1p3d"], SIX["1p3d-gpu"]
HOST_SURGES = {
    "x5": DEFAULT._replace(title="×5"),
    "x8": DEFAULT._replace(title="×8", factor=8),
    "x6-40m": DEFAULT._replace(title="×6\n40m", factor=6, surge_s=LONG_SURGE_S),
}
GPU_SURGES = {"gpu-x5": GPU._replace(title="GPU\n×5"), "gpu-x8": GPU._replace(title="GPU\n×8", factor=8)}
LATES = {"late": LATE["late"], "gpu-late": GPU._replace(title="GPU\nlate", duration_s=LATE_DURATION_S)}
ONE_TO_ONE = {"1p1d-x4": SIX["1p1d"]._replace(title="1P1D\n×4", factor=4)}
OVERLOADS = {
    "overload": DEFAULT._replace(
        title="over-\nload", factor=OVERLOAD_FACTOR, surge_s=OVERLOAD_S, duration_s=OVERLOAD_DURATION_S
    ),
    "gpu-overload": GPU._replace(
        title="GPU\nover-\nload", factor=OVERLOAD_FACTOR, surge_s=OVERLOAD_S, duration_s=OVERLOAD_DURATION_S
    ),
}
TRIGGERS = HOST_SURGES | {"late": LATES["late"]} | GPU_SURGES | {"gpu-late": LATES["gpu-late"]} | ONE_TO_ONE
"""The eight of Fig. 23."""
LARGEST = ("x8", "x6-40m")
"""The two finite surges that bring most sessions."""

FIVE = ("x5", "x8", "gpu-x5", "1p1d-x4", "late")
"""Ours: the "five ablation triggers". The text places the three plotted ones, ×8 and, by the range of the earlier
controller across triggers (up to 0.95, its value during recovery), a late one among them."""
PLOTTED = ("x5", "gpu-x5", "1p1d-x4")
SENSITIVE = {name: (TRIGGERS | OVERLOADS)[name] for name in (*FIVE, "overload")}
SHORT = ("x5", "overload")
"""The default surge and overload, for small profiles."""

BASIN = {"basin": Variant("basin")}
NO_ADMISSION = "basin-no-admission"
REMOVED = {
    name: Variant(name)
    for name in ("basin-no-priority", "basin-no-lending", NO_ADMISSION, "basin-lending-only", PROTOTYPE)
}
CLIFF_ONLY, NO_LENT_BOUND = "basin-cliff-only", "basin-no-lent-bound"


def _cells(settings: dict[str, Setting], variants: dict[str, Variant]) -> dict[str, Cell]:
    """As `cells`; settings switched on late are late under every variant."""
    found = cells(settings, variants)
    return {
        name: Cell(cell.setting, cell.variant._replace(from_min=LATE_MIN)) if cell.setting in LATES.values() else cell
        for name, cell in found.items()
    }


def ablation_cells(profile: str) -> dict[str, Cell]:
    """Basin and its ablations in every trigger and in overload, and each other form of admission where the paper
    reports it; fewer triggers and the ablations only at the quick profile, two at the smoke profile."""
    if profile != "full":
        names = SHORT if profile == "smoke" else tuple(SENSITIVE)
        return _cells({name: SENSITIVE[name] for name in names}, BASIN | REMOVED)
    always = {name: (HOST_SURGES | OVERLOADS | STEADY)[name] for name in (*LARGEST, "overload", STEADY_PEAK)}
    return {
        **_cells(TRIGGERS | {"overload": OVERLOADS["overload"]}, BASIN | REMOVED),
        **_cells(OVERLOADS, BASIN | {NO_ADMISSION: Variant(NO_ADMISSION)}),
        **_cells(HOST_SURGES, {CLIFF_ONLY: Variant(CLIFF_ONLY)}),
        **_cells(GPU_SURGES, {NO_LENT_BOUND: Variant(NO_LENT_BOUND)}),
        **_cells(always, BASIN | {ALWAYS: Variant(ALWAYS)}),
    }


# Figure 24 ---------------------------------------------------------------------------------------------------------

PARAMETERS = {
    name: Variant(
        "basin", {field: value for field, value in asdict(p).items() if value != getattr(BasinParameters(), field)}
    )
    for name, p in sensitivity_variants(BasinParameters())
}
"""The 34 variants of Fig. 24a."""
CLIFFS = {f"cliff-{scale:g}": Variant("basin", {"cliff_scale": scale}) for scale in (0.5, 2.0)}
SCALED = (*PLOTTED, "overload")
"""Ours: where the cliff is scaled, for which the paper names no scenarios."""
SIGMAS = (1.0, 0.7, 0.5)
PERTURBED = {f"sigma-{sigma:g}": Variant("basin-perturbed-peaks", {"sigma": sigma}) for sigma in SIGMAS}
TRUE_PEAKS = "basin-true-peaks"
ESTIMATES = {**PERTURBED, TRUE_PEAKS: Variant(TRUE_PEAKS)}


def parameter_cells(profile: str) -> dict[str, Cell]:
    """Every parameter lower and higher, and the cliff scaled; in the default surge only at the quick profile, and only
    two parameters, there and in overload, at the smoke profile."""
    few = {name: v for name, v in PARAMETERS.items() if name.split(":")[0] in ("interval_s", "shed_after_s")}
    short = _cells({name: SENSITIVE[name] for name in SHORT}, BASIN | few)
    if profile == "smoke":
        return short
    triggers = SENSITIVE if profile == "full" else {"x5": SENSITIVE["x5"]}
    scaled = {name: setting for name, setting in triggers.items() if name in SCALED}
    return short | _cells(triggers, BASIN | PARAMETERS) | _cells(scaled, CLIFFS)


def estimate_cells(profile: str) -> dict[str, Cell]:
    """The predictor, true and perturbed peaks, and the earlier controller; in the triggers plotted and in overload at
    the quick profile, in two at the smoke profile."""
    names = {"smoke": SHORT, "quick": (*PLOTTED, "overload"), "full": tuple(SENSITIVE)}[profile]
    return _cells({name: SENSITIVE[name] for name in names}, BASIN | {PROTOTYPE: Variant(PROTOTYPE)} | ESTIMATES)


def sensitivity_cells(profile: str) -> dict[str, Cell]:
    """Both panels of Fig. 24."""
    return parameter_cells(profile) | estimate_cells(profile)


TAKEN_APART = {"ablation": ablation_cells, "sensitivity": sensitivity_cells}


def taken_apart(
    name: str,
    source: str,
    profile: str,
    seeds: Iterable[int] | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
) -> Summaries:
    """The summaries of "ablation" (Fig. 23) or "sensitivity" (Fig. 24), five seeds at the full profile."""
    resources = Resources(workers, scheduler)
    return summary_runs(source, TAKEN_APART[name](profile), seeds_of(profile, seeds), resources, name)


def pairs(settings: Iterable[str], variants: Iterable[str]) -> list[str]:
    """Arms, setting by setting."""
    names = list(variants)
    return [arm(setting, variant) for setting in settings for variant in names]
