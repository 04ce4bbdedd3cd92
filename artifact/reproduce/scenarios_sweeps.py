"""Sweeps over load, arrivals, host tiers, routers and evictions (paper A §7.3-7.6, Figs. 17-20).

Arms are "<setting>/<policy>". What the paper leaves open of a setting stands with it as our reading;
loads that it states are those offered here.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from artifact.reproduce.outcomes import Resources
from artifact.reproduce.scenarios_policies import (
    BASELINES,
    FACTORS,
    OUTPUTS3,
    POLICIES,
    PROTOTYPE,
    SEEDS,
    SIX,
    SIZES,
    Setting,
    Variant,
    deployment,
    seeds_of,
)
from artifact.reproduce.summaries import Cell, Summaries, cells, summary_runs

if TYPE_CHECKING:
    from artifact.reproduce.scenarios_recovery import Profiled

SWEEP_SEEDS = 2
"""Of the sweeps over loads, routers, controls and open choices at the full profile, for which the paper states no
number."""


def at(name: str, rate_per_min: float) -> str:
    """The name of a setting at a load."""
    return f"{name}-{rate_per_min:g}"


# Figure 17 ---------------------------------------------------------------------------------------------------------

STEADY_RATES = (11.6, 13.5, 15.5, 16.8, 18.1, 19.4)
"""Sessions/min. The text names 15.5, 16.8 and 19.4; the others are ours, over the figure's axis."""
STEADY = {at("steady", rate): Setting(f"{rate:g}", tools=3, factor=1, rate_per_min=rate) for rate in STEADY_RATES}
ALWAYS = "basin-always-on"
STEADY_PEAK = at("steady", 16.8)


def steady_cells(profile: str) -> dict[str, Cell]:
    """Every system at every load; at the smoke profile at two."""
    rates = STEADY_RATES[-3::2] if profile == "smoke" else STEADY_RATES
    return cells({name: STEADY[name] for name in (at("steady", rate) for rate in rates)}, POLICIES)


# Figure 18 ---------------------------------------------------------------------------------------------------------

BAILIAN_RATES = (11.4, 14.8, 18.2, 20.4)
"""Sessions/min on 1P3D; the text names the two highest."""
BAILIAN_OUTPUTS3_RATES = (6.2, 7.7, 9.2)
"""With outputs scaled by 3; the text names the highest. The second highest is ours."""
BAILIAN_POLICIES = tuple(policy for policy in POLICIES if policy != "composition")
CODER = {
    at("coder", rate): Setting(f"{rate:g}", factor=1, rate_per_min=rate, process="bailian-coder")
    for rate in BAILIAN_RATES
}
CODER_OUTPUTS3 = {
    at("coder-out3", rate): Setting(f"{rate:g}", outputs=3, factor=1, rate_per_min=rate, process="bailian-coder")
    for rate in BAILIAN_OUTPUTS3_RATES
}
POISSON = {at("poisson", rate): Setting(f"{rate:g}", factor=1, rate_per_min=rate) for rate in BAILIAN_RATES}
TRACE_A = {at("a", rate): CODER[at("coder", rate)]._replace(process="bailian-a") for rate in BAILIAN_RATES[-1:]}


def bailian_cells(profile: str) -> dict[str, Cell]:
    """Coder arrivals at every load, trace A at the highest and HiCache under Poisson arrivals; short of the full
    profile at the two highest loads."""
    coder, outputs3 = CODER, CODER_OUTPUTS3
    if profile != "full":
        coder, outputs3 = dict(list(CODER.items())[-2:]), dict(list(CODER_OUTPUTS3.items())[-2:])
    return {
        **cells(coder, BAILIAN_POLICIES),
        **cells(outputs3, BAILIAN_POLICIES),
        **cells(TRACE_A, ("continuum", "basin")),
        **cells({n: s for n, s in POISSON.items() if n.replace("poisson", "coder") in coder}, ("hicache",)),
    }


# Figure 19 ---------------------------------------------------------------------------------------------------------

HOST_RATIOS = (1, 2, 4, 8)
HOST_STEADY_SHARE = 0.9
"""Ours: the steady load of Fig. 19a over the critical rate is not published."""
HOSTS = {f"host{ratio}": Setting(f"{ratio}×", host_ratio=ratio) for ratio in HOST_RATIOS}
HOSTS_STEADY = {
    f"{name}-steady": setting._replace(factor=1, share=HOST_STEADY_SHARE) for name, setting in HOSTS.items()
}
HOST_POLICIES = ("thunderagent", "composition", "basin")


def host_cells(profile: str) -> dict[str, Cell]:
    """The three systems at every host tier, steady and surged; the earlier controller at the largest. At the quick
    profile one tier only is steady, at the smoke profile the surge with the smallest tier is all."""
    if profile == "smoke":
        return cells({"host1": HOSTS["host1"]}, HOST_POLICIES)
    steady = HOSTS_STEADY if profile == "full" else {"host1-steady": HOSTS_STEADY["host1-steady"]}
    return {
        **cells(HOSTS | steady, HOST_POLICIES),
        **cells({"host8": HOSTS["host8"]}, (PROTOTYPE,)),
    }


# Figure 20 ---------------------------------------------------------------------------------------------------------

ROUTERS = {"cache_aware": "cache-aware", "affinity": "affinity", "least_loaded": "least loaded"}
ROUTER_POLICIES = ("hicache", "thunderagent", "continuum", "crossflow", "composition", "basin")
STEADY_ROUTER_POLICIES = ("hicache", "thunderagent", "basin")
ON_2P6D: dict[str, Any] = {"gpus": ("h200", 6), "prefill": 2}
ROUTED = {name: Setting(title, router=name, **ON_2P6D) for name, title in ROUTERS.items()}  # type: ignore[arg-type]
ROUTED_STEADY = {f"{name}-steady": setting._replace(factor=1, share=1.0) for name, setting in ROUTED.items()}
"""Ours: the steady load is not published. With least-loaded routing Basin completes 1742 good sessions/h, which is the
profiled critical rate, 29 a minute; so the load can be no less."""


def router_cells(profile: str) -> dict[str, Cell]:
    """Every system under every router after the surge, and those of which the text speaks at steady load; at the quick
    profile only these and with least-loaded routing, at the smoke profile steady load only."""
    if profile == "full":
        return {**cells(ROUTED, ROUTER_POLICIES), **cells(ROUTED_STEADY, STEADY_ROUTER_POLICIES)}
    found = cells({"least_loaded-steady": ROUTED_STEADY["least_loaded-steady"]}, STEADY_ROUTER_POLICIES)
    if profile == "quick":
        found |= cells({"least_loaded": ROUTED["least_loaded"]}, STEADY_ROUTER_POLICIES)
    return found


def router_profiles(runs: Mapping[str, object]) -> list["Profiled"]:
    """The profiles of the routers that were run, which their base loads rest on."""
    from artifact.reproduce.scenarios_maps import origin
    from artifact.reproduce.scenarios_recovery import Profiled
    from sim.profile import RAMPS, profile

    engines = {name: deployment(s) for name, s in ROUTED.items() if any(arm.startswith(name) for arm in runs)}
    found = {name: profile(engine) for name, engine in engines.items()}
    return [
        Profiled(name, p.kappa, p.critical_rate_per_min, origin([engines[name]], range(RAMPS)))
        for name, p in found.items()
    ]


# §7.3: controls ----------------------------------------------------------------------------------------------------


def _calm(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    return {f"{name}-calm": setting._replace(factor=1) for name, setting in settings.items()}


CONTROLS = {
    **_calm(SIX),
    **_calm({"1p3d-55": SIZES["1p3d-x3"], "1p3d-tools3-66": SIZES["1p3d-tools3-x3"]}),
    **_calm(OUTPUTS3),
    **_calm({name: HOSTS[name] for name in ("host1", "host4", "host8")}),
    at("steady", STEADY_RATES[0]): STEADY[at("steady", STEADY_RATES[0])],
    at("coder", BAILIAN_RATES[0]): CODER[at("coder", BAILIAN_RATES[0])],
    at("coder-out3", BAILIAN_OUTPUTS3_RATES[0]): CODER_OUTPUTS3[at("coder-out3", BAILIAN_OUTPUTS3_RATES[0])],
}
"""Ours: the paper does not list its 15 healthy controls. These are what its figures disturb, undisturbed: the base
loads of Figures 14, 15, 16 and 19 without their surges, and the lightest loads of Figures 17 and 18."""


def control_cells(profile: str) -> dict[str, Cell]:
    """Every system in every control; at the quick profile in the first three, at the smoke profile in one."""
    count = {"smoke": 1, "quick": 3, "full": len(CONTROLS)}[profile]
    return cells(dict(list(CONTROLS.items())[:count]), POLICIES)


# §7.5: eviction and borrowing ---------------------------------------------------------------------------------------

EVICTIONS = {"oracle": "next-call-oracle", "pinning": "tool-gap-pinning", "largest": "largest-first"}
LRU_SURGES = {f"1p3d-x{factor}": SIZES[f"1p3d-x{factor}"] for factor in FACTORS}
EVICTION_CALM = {"1p3d-55-calm": CONTROLS["1p3d-55-calm"]}
CHARGED = Variant("crossflow", {"chunk_charge_s": 0.02})
"""A fixed charge a prefill chunk."""
CHARGE_SETTINGS = {
    "out3": OUTPUTS3["out3"],
    "1p3d-x3": SIZES["1p3d-x3"],
    at("steady", STEADY_RATES[-1]): STEADY[at("steady", STEADY_RATES[-1])],
}
"""The ×3 surge may be that of Fig. 15 or of Fig. 16; the "high-load tool-time-scaled case" is read as the highest load
of Fig. 17."""


def evicting(setting: str, eviction: str) -> str:
    """The name of a setting with another eviction order."""
    return f"{setting}-{eviction}"


def source_cells(profile: str) -> dict[str, Cell]:
    """HiCache under every eviction order, and Crossflow with and without a charge a chunk."""
    surges = {"1p3d-x3": LRU_SURGES["1p3d-x3"]} if profile == "smoke" else LRU_SURGES
    charged = {"out3": CHARGE_SETTINGS["out3"]} if profile == "smoke" else CHARGE_SETTINGS
    other = {
        evicting(name, short): setting._replace(eviction=order)  # type: ignore[arg-type]
        for name, setting in (surges | EVICTION_CALM).items()
        for short, order in EVICTIONS.items()
    }
    return {
        **cells(surges, ("hicache", "basin")),
        **cells(EVICTION_CALM | other, ("hicache",)),
        **cells(charged, {"crossflow": Variant("crossflow"), "crossflow-charged": CHARGED, "basin": Variant("basin")}),
    }


# What a source leaves open ------------------------------------------------------------------------------------------

OPEN_SETTINGS = {"1p3d": SIX["1p3d"], "1p1d": SIX["1p1d"]}


def open_label(baseline: str, words: str) -> str:
    """The name of a variant in arms: slashes and blanks would end it."""
    return f"{baseline}:{words}"


def open_cells(profile: str) -> dict[str, Cell]:
    """Every system, and each baseline with each of its open choices made otherwise; on 1P1D, too, at the full
    profile. At the smoke profile those of one baseline."""
    from artifact.baselines.open_choices import open_variants

    swept = ("crossflow",) if profile == "smoke" else BASELINES
    variants = {
        open_label(name, words): Variant(name, parameters)
        for name in swept
        for words, parameters in open_variants(name)
    }
    settings = OPEN_SETTINGS if profile == "full" else {"1p3d": OPEN_SETTINGS["1p3d"]}
    return cells(settings, {name: Variant(name) for name in POLICIES} | variants)


SWEEPS = {
    "steady": (steady_cells, SWEEP_SEEDS),
    "bailian": (bailian_cells, SWEEP_SEEDS),
    "host": (host_cells, SEEDS["full"]),
    "routers": (router_cells, SWEEP_SEEDS),
    "controls": (control_cells, SWEEP_SEEDS),
    "sources": (source_cells, SEEDS["full"]),
    "open": (open_cells, SWEEP_SEEDS),
}
"""Cells and full-profile seeds of each sweep."""


def sweep(
    name: str,
    source: str,
    profile: str,
    seeds: Iterable[int] | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
) -> Summaries:
    """The summaries of a sweep's arms. Raises `ValueError` for an unknown profile or source."""
    plan, full = SWEEPS[name]
    count = seeds_of(profile, seeds, full)
    return summary_runs(source, plan(profile), count, Resources(workers, scheduler), f"sweep: {name}")
