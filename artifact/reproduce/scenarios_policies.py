"""The comparisons of systems in paper A §7 as scenarios by arm, named "<setting>/<policy>".

A setting is what all systems of a comparison are offered. Base loads are shares of the critical rate that `sim.profile`
measures for the deployment and workload, as the paper's are.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from artifact.metrics import Interval
from artifact.reproduce.paths import check_profile, check_source
from artifact.reproduce.scenarios import MINUTE, Arms, Runs, on_hardware, run_arms
from artifact.workload.load import Load, RateChange, Surge

if TYPE_CHECKING:
    from sim.scenario import Deployment, Scenario

POLICIES = ("hicache", "concur", "thunderagent", "continuum", "crossflow", "composition", "basin")
"""The systems of §7.1 by the names of their policies, in the paper's order."""
BASELINES = POLICIES[:-1]
PROTOTYPE = "basin-prior"
"""Basin as it ran on hardware (paper A §7.2): ordered by arrival, admitting by present contexts."""
PROTOTYPE_POLICIES = (*BASELINES, PROTOTYPE)

EVALUATED: Interval = (0.0, 90 * MINUTE)
"""Session metrics are over these arrivals (paper A §7.1)."""
SURGE_S: Interval = (15 * MINUTE, 35 * MINUTE)
SHORT_SURGE_S: Interval = (15 * MINUTE, 25 * MINUTE)
BIN_S = 5 * MINUTE
"""Arrival bins of Figure 13."""
DURATION_S, LONG_DURATION_S = 120 * MINUTE, 150 * MINUTE
"""Of a run, and of one with tool time scaled by 3."""
HOST_RATIO = 2.0
SEEDS = {"smoke": 1, "quick": 1, "full": 5}
"""Seeds of a comparison by profile; five are the paper's (§7.9)."""
SWE_RATE_PER_MIN = 2.6


class Setting(NamedTuple):
    """What systems are compared under. `share` of the profiled critical rate is the base load, unless `rate_per_min`
    says it."""

    title: str
    gpus: tuple[str, int] = ("h200", 3)
    """Calibration and decode instances."""
    host_ratio: float = HOST_RATIO
    tools: float = 1.0
    outputs: float = 1.0
    share: float = 0.5
    factor: float = 5.0
    """Of the surge; 1: none."""
    surge_s: Interval = SURGE_S
    workload: str = "terminal-bench"
    rate_per_min: float | None = None
    prefill: int = 1
    router: Literal["affinity", "cache_aware", "least_loaded"] = "affinity"
    eviction: Literal["lru", "next-call-oracle", "tool-gap-pinning", "largest-first"] = "lru"
    process: Literal["poisson", "bailian-coder", "bailian-a"] = "poisson"
    after: float | None = None
    """Arrivals after the surge, over the base load (paper A §7.8); None: as before it."""
    duration_s: float | None = None
    """None: two hours, two and a half with tool time scaled by 3 (§7.1)."""


class Variant(NamedTuple):
    """A policy with settings of its own, in charge from minute `from_min` on."""

    policy: str
    parameters: Mapping[str, Any] = MappingProxyType({})
    from_min: float = 0.0


H100_1P1D = ("h100", 1)
"""Of 1P1D the paper names the GPU for the hardware runs only; the simulated ones are taken to be the same."""

SIX = {
    "1p3d": Setting("1P3D"),
    "1p3d-tools3": Setting("1P3D\ntools ×3", tools=3),
    "1p3d-gpu": Setting("1P3D\nGPU only", host_ratio=0),
    "1p1d": Setting("1P1D", H100_1P1D),
    "1p1d-tools3": Setting("1P1D\ntools ×3", H100_1P1D, tools=3),
    "1p1d-gpu": Setting("1P1D\nGPU only", H100_1P1D, host_ratio=0),
}
"""The scenarios of Figure 14."""
ON_1P3D, ON_1P1D = tuple(SIX)[:3], tuple(SIX)[3:]

HARDWARE = {
    **{name: SIX[name] for name in ON_1P3D},
    "swe": Setting("1P3D\nSWE-bench Pro", workload="swe-bench-pro", rate_per_min=SWE_RATE_PER_MIN),
    "1p1d": SIX["1p1d"],
}
"""The scenarios that ran on hardware (Figures 12 and 13): four on H200, one on H100."""
ON_H200 = ("1p3d", "1p3d-tools3", "1p3d-gpu", "swe")

OUTPUTS3 = {"out3": Setting("1P3D, outputs ×3", outputs=3, factor=3, surge_s=SHORT_SURGE_S)}
"""Figure 15. Its base load is not published; half the critical rate, as elsewhere."""
OUTPUTS3_POLICIES = ("hicache", "continuum", "crossflow", "basin")

FACTORS = (3, 4, 5, 6)
SIZES = {
    **{f"1p3d-x{factor}": Setting(f"×{factor}", share=0.55, factor=factor) for factor in FACTORS},
    **{f"1p3d-tools3-x{factor}": Setting(f"×{factor}", tools=3, share=0.66, factor=factor) for factor in FACTORS},
}
"""Surges of Figure 16."""
SIZES_POLICIES = tuple(policy for policy in POLICIES if policy != "concur")


def arm(setting: str, policy: str) -> str:
    """The name of a setting's runs under a policy."""
    return f"{setting}/{policy}"


def seeds_of(profile: str, seeds: Iterable[int] | None = None, full: int = SEEDS["full"]) -> tuple[int, ...]:
    """The seeds asked for, or else the profile's, of which the full profile has `full`."""
    count = min(SEEDS[check_profile(profile)], full)
    return tuple(range(count)) if seeds is None else tuple(seeds)


def deployment(setting: Setting) -> "Deployment":
    """The engines of a setting."""
    from sim.scenario import Deployment

    calibration, decode = setting.gpus
    return Deployment(
        calibration=calibration,
        prefill=setting.prefill,
        decode=decode,
        host_ratio=setting.host_ratio,
        router=setting.router,
        eviction=setting.eviction,
    )


def base_rate_per_min(setting: Setting) -> float:
    """The load before and after the surge, sessions/min; measures the deployment's profile where there is none yet.

    What the GPU evicts first is compared at the loads of LRU."""
    from sim.profile import profile

    if setting.rate_per_min is not None:
        return setting.rate_per_min
    engines = deployment(setting._replace(eviction="lru"))
    measured = profile(engines, setting.workload, setting.tools, setting.outputs)
    return round(setting.share * measured.critical_rate_per_min, 2)


def base_rates_per_min(
    settings: Sequence[Setting], workers: int | None = None, scheduler: str | None = None
) -> list[float]:
    """The base loads of several settings; their profiles, which take longer than a run, are measured side by side."""
    from sim.sweep import open_executor

    profiles = {
        (deployment(s._replace(eviction="lru")), s.workload, s.tools, s.outputs): s
        for s in settings
        if s.rate_per_min is None
    }
    if profiles:
        with open_executor(workers, scheduler) as executor:
            list(executor.map(base_rate_per_min, profiles.values()))
    return [base_rate_per_min(setting) for setting in settings]


def load(setting: Setting, rate_per_min: float) -> Load:
    """What arrives in a setting from a base load; on hardware as it is, in the simulator `replayed`."""
    start, end = setting.surge_s
    usual_s = LONG_DURATION_S if setting.tools == 3 else DURATION_S
    return Load(
        workload=setting.workload,
        rate_per_min=rate_per_min,
        duration_s=setting.duration_s or usual_s,
        process=setting.process,
        surges=(Surge(start_s=start, end_s=end, factor=setting.factor),) if setting.factor > 1 else (),
        rate_change=None if setting.after is None else RateChange(at_s=end, factor=setting.after),
        warm_start="cold",
        tool_time_scale=setting.tools,
        output_scale=setting.outputs,
    )


def scenario(setting: Setting, variant: Variant, rate_per_min: float, seed: int) -> "Scenario":
    """One run of a policy in a setting; all policies see the same arrivals."""
    from sim.scenario import PolicyChoice, Scenario
    from sim.steady import replayed

    name, parameters, from_min = variant
    choice = PolicyChoice(name=name, parameters=dict(parameters), from_s=from_min * MINUTE)
    engines = deployment(setting)
    offered = replayed(engines, load(setting, rate_per_min))
    return Scenario(deployment=engines, load=offered, policy=choice, seed=seed)


def compared(
    settings: Mapping[str, Setting], policies: Sequence[str], seeds: Sequence[int], rates_per_min: Sequence[float]
) -> Arms:
    """Every setting, from its base load, under every policy, one scenario a seed."""
    return {
        arm(name, policy): [scenario(setting, Variant(policy), rate, seed) for seed in seeds]
        for (name, setting), rate in zip(settings.items(), rates_per_min, strict=True)
        for policy in policies
    }


def comparison_runs(
    source: str,
    settings: Mapping[str, Setting],
    policies: Sequence[str],
    profile: str,
    seeds: Iterable[int] | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
) -> Runs:
    """The runs of a comparison: simulated (source "sim"), or recorded on hardware ("hw": arm "<setting>/<policy>" in
    `hw_runs/results/policies/<setting>/<policy>/seed<k>/`). Raises `ValueError` for another source."""
    if source == "sim":
        rates = base_rates_per_min(list(settings.values()), workers, scheduler)
        arms = compared(settings, policies, seeds_of(profile, seeds), rates)
        return run_arms(arms, workers, scheduler, "compared systems")
    check_source(source)
    return on_hardware("policies", [arm(name, policy) for name in settings for policy in policies], seeds)
