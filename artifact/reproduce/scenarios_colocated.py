"""Paper B's experiments (Table 1) as scenarios by arm, named "<experiment>/<arm>".

All arms of an experiment and seed share the base arrivals; an arm whose controller is switched on late is the same run
as the uncontrolled one up to then. Every run starts from an empty engine.
"""

import math
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from artifact.metrics import Interval, capacity, turns
from artifact.reproduce.scenarios import MINUTE, run_arms
from artifact.workload.load import Load, RateChange, Shift, Surge

if TYPE_CHECKING:
    from sim.scenario import Deployment, PolicyChoice, Scenario

VLLM_8B, VLLM_32B, SGLANG_8B = "mi300x-qwen3-8b", "mi300x-qwen3-32b", "mi300x-qwen3-8b-sglang"

PAIRED_BURST_S: Interval = (15 * MINUTE, 20 * MINUTE)
PAIRED_RATE, PAIRED_FACTOR = 0.035, 2.5
RECOVERY_RATE = 0.04
RECOVERY_BURST_S: Interval = (10 * MINUTE, 14 * MINUTE)
SMALL_BURST_S: Interval = (10 * MINUTE, 12 * MINUTE)
DRAIN_BURST_S: Interval = (10 * MINUTE, 15 * MINUTE)
TRACE_BURST_S = DRAIN_BURST_S
"""Of the recoveries on 32B only the length is published; the other experiment with trace shapes begins at minute 10."""
LONG_BURST_S: Interval = (15 * MINUTE, 25 * MINUTE)
FLUSH_S = 10 * MINUTE
CONTROL_S, CONTROL_32B_S, OFFLOAD_CONTROL_S = 20 * MINUTE, 25 * MINUTE, 20 * MINUTE
COHORT_S = 20 * MINUTE
"""Users are the sessions that arrive in this long after control begins."""
MIX_SHIFT_S = 30 * MINUTE
IDLE_RATE = 0.002
"""Sessions last about four minutes on an idle engine: they rarely meet."""
NO_CACHE_RATE = 0.0086
NO_CACHE_EXTRA = 16
"""Sessions that the paired burst adds: 1.5 x 0.035/s x 300 s."""
DRAIN_RATES = {"0.006": 1, "0.010": 3, "0.014": 2, "0.018": 1}
"""Arrivals after the collapse, sessions/s, and the published number of seeds."""
DRAIN_CHANGE_S = 20 * MINUTE
THRESHOLDS = {"low": (0.65, 0.85), "high": (0.85, 0.98)}
"""Of the pool, beside the default 0.75 and 0.95."""
MIX_CAPS = (10, 14, 22, 34)
PARK_OVER_ADMIT = 0.95 / 0.75
"""The session cap parks above K_hi = 17 at K = 14, which is the budgeter's band over again; other K_hi are not
published."""
HOST_TOKENS_OVER_POOL = 0.9 / 0.4
"""128 GiB hold 0.9M tokens, the pool 0.4M."""
OUTPUT_BUDGET, UNKNOWN_OUTPUT = 300, 1024
"""What a controller takes a turn's output budget to be: what the driver asks for in every turn of the synthetic
sessions, and where outputs differ, ours."""

RECOVERY_ARMS = ("none", "admission", "aimd", "cap", "budgeter")
TRACE_ARMS = ("none", "admission", "cap", "adaptive", "budgeter")
LONG_ARMS = ("none", "adaptive", "budgeter")
"""Controllers switched on in collapsed runs, on 8B, and on 32B at 0.03/s and 0.025/s."""
TRACES = "paper-b-traces"
LIGHT_RATE = 0.0125
"""Ours: half the load at which the 32B engine stays cache-efficient."""

Make = Callable[[int], "Scenario"]


class Arm(NamedTuple):
    """One arm of an experiment: a scenario a seed, and the published number of runs. An arm about getting out runs only
    the seeds whose uncontrolled run is collapsed at `collapsed_s`, when its control begins."""

    make: Make
    runs: int
    collapsed_s: float | None = None


def engine(calibration: str = VLLM_8B, **options: Any) -> "Deployment":
    """One engine, one pool."""
    from sim.scenario import Deployment

    return Deployment(kind="colocated", calibration=calibration, **options)


def offered(per_s: float, minutes: float, burst_s: Interval | None = None, factor: float = 2.0, **fields: Any) -> Load:
    """Arrivals of `per_s` sessions/s to an empty engine, `factor` times as many within the burst."""
    surges = (Surge(start_s=burst_s[0], end_s=burst_s[1], factor=factor),) if burst_s else ()
    given = {"workload": "paper-b", "warm_sessions": 0, **fields}
    return Load(rate_per_min=60 * per_s, duration_s=minutes * MINUTE, surges=surges, **given)


def controller(arm: str, from_s: float = 0.0, output_tokens: int = OUTPUT_BUDGET) -> "PolicyChoice":
    """The policy that an arm's name stands for."""
    from sim.scenario import PolicyChoice

    name, parameters = CONTROLLERS[arm]
    budget = {} if name in ("hicache", "admission-only") else {"output_tokens": output_tokens}
    return PolicyChoice(name=name, parameters={**parameters, **budget}, from_s=from_s)


def _cap(admit: int) -> tuple[str, dict[str, Any]]:
    return "session-cap", {"admit": admit, "park": math.floor(admit * PARK_OVER_ADMIT)}


CONTROLLERS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "none": ("hicache", {}),
    "admission": ("admission-only", {"admit": 16}),
    "aimd": ("latency-aimd", {}),
    "cap": _cap(14),
    "adaptive": ("adaptive-cap", {}),
    "budgeter": ("budgeter", {}),
    **{f"cap{admit}": _cap(admit) for admit in MIX_CAPS},
    **{name: ("budgeter", {"admit": admit, "park": park}) for name, (admit, park) in THRESHOLDS.items()},
}
"""Policy and parameters by the name of an arm (paper B §5)."""


@cache
def experiments() -> Mapping[str, Arm]:
    """Every arm by name."""
    return {
        **_pairs(),
        **_controls(),
        **_second_engine(),
        **_drains(),
        **_recovery(),
        **_traces(),
        **_mix(),
        **_offload(),
    }


# Table 1, row by row -----------------------------------------------------------------------------------------------


def _arm(runs: int, load: Load, deployment: "Deployment", policy: "PolicyChoice | None" = None, **fields: Any) -> Arm:
    from sim.scenario import Scenario

    given = {"deployment": deployment, "load": load, "policy": policy or controller("none"), **fields}
    return Arm(lambda seed: Scenario(seed=seed, **given), runs)


def _late(runs: int, load: Load, deployment: "Deployment", name: str, from_s: float, **options: Any) -> Arm:
    """A controller switched on in a collapsed run."""
    if name == "none":
        return _arm(runs, load, deployment)
    policy = controller(name, from_s, **options)
    return _arm(runs, load, deployment, policy)._replace(collapsed_s=from_s)


def _pairs() -> dict[str, Arm]:
    burst = offered(PAIRED_RATE, 90, PAIRED_BURST_S, PAIRED_FACTOR)
    return {
        "pairs/none": _arm(12, offered(PAIRED_RATE, 90), engine()),
        "pairs/burst": _arm(12, burst, engine()),
        "cap/burst": _arm(10, burst, engine(), controller("cap")),
        "quiet/none": _arm(10, offered(RECOVERY_RATE, 30), engine()),
    }


def _controls() -> dict[str, Arm]:
    from sim.scenario import Flush

    cold, quiet = engine(prefix_caching=False), offered(NO_CACHE_RATE, 90)
    length = PAIRED_BURST_S[1] - PAIRED_BURST_S[0]
    same = offered(NO_CACHE_RATE, 90, PAIRED_BURST_S, 1 + NO_CACHE_EXTRA / (NO_CACHE_RATE * length))
    idle = offered(IDLE_RATE, 60)
    small, flushed = offered(RECOVERY_RATE, 60, SMALL_BURST_S), offered(RECOVERY_RATE, 60)
    flush = Flush(at_s=FLUSH_S)
    return {
        "idle/cached": _arm(1, idle, engine()),
        "idle/no-cache": _arm(1, idle, cold),
        "nocache/none": _arm(4, quiet, cold),
        "nocache/small": _arm(4, offered(NO_CACHE_RATE, 90, PAIRED_BURST_S, PAIRED_FACTOR), cold),
        "nocache/burst": _arm(4, same, cold),
        "nocache/loaded": _arm(2, offered(PAIRED_RATE, 90, PAIRED_BURST_S, PAIRED_FACTOR), cold),
        "small/none": _arm(10, small, engine()),
        "small/budgeter": _arm(5, small, engine(), controller("budgeter")),
        "flush/none": _arm(5, flushed, engine(), flush=flush),
        "flush/budgeter": _arm(3, flushed, engine(), controller("budgeter"), flush=flush),
    }


def _second_engine() -> dict[str, Arm]:
    from sim.scenario import Flush

    sglang, large = engine(SGLANG_8B), PAIRED_FACTOR
    return {
        "sglang/small": _arm(4, offered(RECOVERY_RATE, 60, SMALL_BURST_S), sglang),
        "sglang/five": _arm(3, offered(RECOVERY_RATE, 60, PAIRED_BURST_S, large), sglang),
        "sglang/ten": _arm(3, offered(RECOVERY_RATE, 60, LONG_BURST_S, large), sglang),
        "sglang/flush": _arm(3, offered(RECOVERY_RATE, 60), sglang, flush=Flush(at_s=FLUSH_S)),
        "sglang/none": _arm(4, offered(RECOVERY_RATE, 90), sglang),
        "sglang/burst": _arm(4, offered(RECOVERY_RATE, 90, PAIRED_BURST_S, large), sglang),
    }


def _drains() -> dict[str, Arm]:
    return {
        f"drain/{rate}": _arm(
            runs,
            offered(
                RECOVERY_RATE,
                120,
                DRAIN_BURST_S,
                PAIRED_FACTOR,
                rate_change=RateChange(at_s=DRAIN_CHANGE_S, factor=float(rate) / RECOVERY_RATE),
            ),
            engine(),
        )
        for rate, runs in DRAIN_RATES.items()
    }


def _recovery() -> dict[str, Arm]:
    load = offered(RECOVERY_RATE, 60, RECOVERY_BURST_S)
    seeds = {**dict.fromkeys(RECOVERY_ARMS, 16), **dict.fromkeys(THRESHOLDS, 6)}
    return {f"recovery/{arm}": _late(n, load, engine(), arm, CONTROL_S) for arm, n in seeds.items()}


def _traces() -> dict[str, Arm]:
    e, arriving = engine(VLLM_32B), partial(offered, workload=TRACES)
    short = arriving(0.025, 40, RECOVERY_BURST_S)
    at_03 = arriving(0.03, 90, TRACE_BURST_S, PAIRED_FACTOR)
    at_025 = arriving(0.025, 100, TRACE_BURST_S, 3.0)
    late = partial(_late, deployment=e, from_s=CONTROL_32B_S, output_tokens=UNKNOWN_OUTPUT)
    arms = {
        "traces/none": _arm(4, arriving(0.025, 40), e),
        "traces/burst": _arm(4, short, e),
        "traces/budgeter": _arm(4, short, e, controller("budgeter", output_tokens=UNKNOWN_OUTPUT)),
        "light/none": _arm(1, arriving(LIGHT_RATE, 40), e),
        "32b03/quiet": _arm(4, arriving(0.03, 90), e),
        **{f"32b03/{arm}": late(4, at_03, name=arm) for arm in TRACE_ARMS if arm != "cap"},
        **{f"32b025/{arm}": late(3, at_025, name=arm) for arm in LONG_ARMS},
    }
    capped = Arm(lambda seed: _with_light_cap(arms["32b03/none"].make(seed)), 4, CONTROL_32B_S)
    return {**arms, "32b03/cap": capped}


def _with_light_cap(scenario: "Scenario") -> "Scenario":
    """The scenario under the session cap of a lighter load, from minute 25 on."""
    from sim.scenario import PolicyChoice

    name, parameters = _cap(light_cap())
    policy = PolicyChoice(name=name, parameters=parameters, from_s=CONTROL_32B_S)
    return scenario.model_copy(update={"policy": policy})


@cache
def light_cap() -> int:
    """K = 0.75 C over the per-session demand of `light/none`: the mean over its sessions of the mean demand of their
    turns, context plus output budget (paper B §6: "a session cap set from a lighter load"; neither is published)."""
    (run,) = run_arms({"light/none": [experiments()["light/none"].make(0)]}, workers=1)["light/none"]
    demand = turns(run).groupby("session_id")["prompt_tokens"].mean().mean() + UNKNOWN_OUTPUT
    return math.floor(0.75 * capacity(run, "prefill_cache_tokens") / demand)


def _mix() -> dict[str, Arm]:
    load = offered(0.075, 80, workload="paper-b-short", shift=Shift(at_s=MIX_SHIFT_S, workload="paper-b-long"))
    arms = ("none", *(f"cap{k}" for k in MIX_CAPS), "adaptive", "budgeter")
    return {f"mix/{arm}": _arm(2, load, engine(), controller(arm)) for arm in arms}


def _offload() -> dict[str, Arm]:
    host = engine(host_ratio=HOST_TOKENS_OVER_POOL)
    late = offered(RECOVERY_RATE, 60, RECOVERY_BURST_S)
    return {
        "offload/none": _arm(6, offered(PAIRED_RATE, 90), host),
        "offload/burst": _arm(6, offered(PAIRED_RATE, 90, PAIRED_BURST_S, PAIRED_FACTOR), host),
        "offload_late/none": _arm(3, late, host),
        "offload_late/budgeter": _arm(3, late, host, controller("budgeter", OFFLOAD_CONTROL_S)),
    }
