"""Which numbers of which calibration are fitted to which claims, and `basin calibrate`, which does it."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console

from artifact.records.schema import Records
from artifact.reproduce.outcomes import Resources, together
from artifact.reproduce.registry import evaluate, evaluators
from artifact.reproduce.scenarios import trap_h100
from artifact.reproduce.scenarios_maps import REFERENCE_STEP_PER_MIN, STEP_PER_MIN, search
from artifact.workload.catalog import workload
from artifact.workload.stats import mean_position, workload_stats
from sim.calibration.model import Calibration, calibration
from sim.fit import Fit, Obtained, Values, comparison, number, run_fit
from sim.run import run
from sim.scenario import Deployment

SATURATED_H100 = 31_000.0
BASE_TTFT_S = 0.2
SEEDS = range(5)
SEEDS_H200 = range(3)
TRAP_CLAIMS = (
    "A-trap-hit-base",
    "A-trap-util-base",
    "A-trap-ttft",
    "A-trap-hit",
    "A-trap-calls",
    "A-trap-goodput-hour",
    "A-trap-goodput-ctrl",
    "A-trap-goodput-drop",
    "A-trap-goodput-run",
    "A-loop-uncached-0",
    "A-loop-kv-full",
    "A-loop-kv-idle",
    "A-loop-decoding",
    "A-loop-resv-wait",
    "A-cliff",
    "A-cliff-shoulder",
    "A-cliff-floor",
    "A-kill-recovers",
    "A-kill-active",
    "A-kill-burst-left",
    "A-kill-ttft",
    "A-kill-stay",
    "A-kill-base-50",
    "A-kill-base-90",
)
"""Every figure of §3 that is one number: at 3.3 sessions/min the engine sits on the edge of its basin, and a fit to a
few of them lands on either side for the others. The words and ranges of §3, and all that follows it, validate."""


def h100_tied(c: Calibration) -> Values:
    """Prefill time a token from the saturated throughput (A-loop-saturation), and the call overhead from the TTFT of an
    undisturbed engine (A-trap-ttft-base), of which prefill of a mean new suffix and the transfer are the rest."""
    p = c.prefill
    position = mean_position(workload("terminal-bench"))
    per_token = 1 / SATURATED_H100 - p.fixed_s.value / p.chunk_tokens.value - position * p.per_token_position_s.value
    stats = workload_stats(workload("terminal-bench"))
    suffix_s = p.fixed_s.value + stats.new_mean * (per_token + stats.prompt_mean * p.per_token_position_s.value)
    return {"prefill.per_token_s": per_token, "call_overhead_s": round(BASE_TTFT_S - suffix_s - c.transfer_s.value, 2)}


def simulate_trap(path: str, workers: int) -> Obtained:
    """The fitted figures of the trap's runs, medians over the seeds."""
    arms = trap_h100(SEEDS, calibration=path)
    with ProcessPoolExecutor(workers) as pool:
        runs: dict[str, Sequence[Records]] = {name: list(pool.map(run, arm)) for name, arm in arms.items()}
    known = evaluators()
    return {claim: float(evaluate(known[claim], runs).obtained) for claim in TRAP_CLAIMS}


H100 = Fit(
    name="h100",
    start={
        "prefill.per_token_position_s": 4.0e-10,
        "decode.fixed_s": 3.66e-3,
        "decode.per_request_s": 3.06e-4,
        "decode.per_context_token_s": 9.55e-9,
    },
    claims=("A-loop-saturation", "A-trap-ttft-base", *TRAP_CLAIMS),
    simulate=simulate_trap,
    tied=h100_tied,
    enough=14.5,
)


PREFILL_SPEEDUP_H200 = 1.45
"""Prefill a token on H200 over H100. The nominal speed-up is published, 1.6-1.75 (paper A §4.2); the real one the paper
calibrates without saying it (§7.10). Chosen with A-sim-gpu, as the largest tried whose prefill queue makes
Continuum lose what it loses there (1.54 and 1.6 fell short). Launching a step takes as long on both."""
MEMORY_H200 = 2.0
"""Published decode memory over H100's (paper A §4.2)."""


def h200_tied(c: Calibration) -> Values:
    """Prefill costs a token from H100's by the speed-up, the launch of a step as on H100, decode memory twice H100's.

    An instance with twice the memory also recovers from twice the load where only decode limits (Fig. 8, largest host
    tiers), so a full batch's step must take about as long as on H100: half the time a context token."""
    h100 = calibration("h100")
    prefill = ("prefill.per_token_s", "prefill.per_token_position_s")
    return {
        "prefill.fixed_s": h100.prefill.fixed_s.value,
        **{name: number(h100, name).value / PREFILL_SPEEDUP_H200 for name in prefill},
        "decode.kv_tokens": MEMORY_H200 * h100.decode.kv_tokens.value,
        "decode.per_context_token_s": h100.decode.per_context_token_s.value / MEMORY_H200,
        "call_overhead_s": h100.call_overhead_s.value,
    }


def simulate_limits(path: str, workers: int) -> Obtained:
    """Reference overload rates of 1P3D, GPU-only and with a host tier twice the GPU cache (paper A §5.2), and how much
    more load recovers from +100% with the largest host tier than with none (Fig. 8b, tool time x1)."""
    gpu, host, largest = (Deployment(calibration=path, prefill=1, decode=3, host_ratio=x) for x in (0.0, 2.0, 40.0))
    searches = {
        "gpu": search(gpu, SEEDS_H200, REFERENCE_STEP_PER_MIN),
        "host": search(host, SEEDS_H200, REFERENCE_STEP_PER_MIN),
        "surge": search(gpu, SEEDS_H200, STEP_PER_MIN[3], surge=1.0),
        "surge largest": search(largest, SEEDS_H200, STEP_PER_MIN[3], surge=1.0),
    }
    found = together(searches, Resources(workers), "limits")
    return {
        "A-lref-gpu": found["gpu"].fails,
        "A-lref-host": found["host"].fails,
        "A-grid-gain": found["surge largest"].holds / found["surge"].holds,
    }


H200 = Fit(
    name="h200",
    start={"prefill.cache_tokens": 1.86e6, "decode.fixed_s": 4e-3, "decode.per_request_s": 2.15e-4},
    claims=("A-lref-gpu", "A-lref-host", "A-grid-gain"),
    simulate=simulate_limits,
    tied=h200_tied,
    steps=16,
    enough=1.3,
)

FITS: Mapping[str, Fit] = {fit.name: fit for fit in (H100, H200)}


def calibrate(
    name: Annotated[str, typer.Argument(help=f"Which calibration: {', '.join(FITS)}.")],
    out: Annotated[Path | None, typer.Option(help="Write the refitted calibration here (YAML).")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
) -> None:
    """Fit a calibration's free numbers to the published claims it names, and compare with the committed ones."""
    console = Console()
    if name not in FITS:
        console.print(f"no fit {name!r}: there are {', '.join(FITS)}", style="red")
        raise typer.Exit(2)
    fitted = run_fit(FITS[name], workers, console)
    console.print(comparison(FITS[name], fitted))
    if out is not None:
        out.write_text(yaml.safe_dump(fitted.model_dump(mode="json"), sort_keys=False))
