"""Claims about workloads (paper A §3.1, §4.1, §7.1), from what the runs are fed with.

| arm               | content (one "seed")                                                          |
|-------------------|-------------------------------------------------------------------------------|
| `terminal_bench`  | the workload's `Trajectory` list                                              |
| `swe_bench_pro`   | the same                                                                      |
| `bailian_coder`   | arrival times in seconds, sorted, thinned to one deployment's rate            |
| `bailian_a`       | the same                                                                      |

`bailian_*` may hold one array a seed; trajectory sets are fixed.
"""

from collections.abc import Sequence

import numpy as np

from artifact.metrics import NotObserved
from artifact.reproduce.registry import Noted, evaluates
from artifact.workload.stats import workload_stats
from artifact.workload.trajectory import Trajectory

Trajectories = Sequence[Trajectory]
WINDOW_S = 600.0


@evaluates("A-wl-sessions")
def sessions(terminal_bench: Trajectories) -> float:
    return len(terminal_bench)


@evaluates("A-wl-calls")
def calls(terminal_bench: Trajectories) -> float:
    return workload_stats(terminal_bench).calls


@evaluates("A-wl-prompt-p50")
def prompt_p50(terminal_bench: Trajectories) -> float:
    return workload_stats(terminal_bench).prompt_p50


@evaluates("A-wl-prompt-p90")
def prompt_p90(terminal_bench: Trajectories) -> float:
    return workload_stats(terminal_bench).prompt_p90


@evaluates("A-wl-repeat")
def repeat(terminal_bench: Trajectories) -> Noted:
    stats = workload_stats(terminal_bench)
    return Noted(stats.repeat_share, f"with first calls counted: {stats.repeat_share_with_first:.4f}")


@evaluates("A-wl-output-p50")
def output_p50(terminal_bench: Trajectories) -> float:
    return workload_stats(terminal_bench).output_p50


@evaluates("A-wl-gap-p50")
def gap_p50(terminal_bench: Trajectories) -> float:
    return workload_stats(terminal_bench).gap_p50_s


@evaluates("A-wl-peak-p50")
def peak_p50(terminal_bench: Trajectories) -> float:
    return workload_stats(terminal_bench).peak_p50


@evaluates("A-wl-reuse-gain")
def reuse_gain(terminal_bench: Trajectories) -> float:
    return workload_stats(terminal_bench).reuse_gain


@evaluates("A-wl-swe-sessions")
def swe_sessions(swe_bench_pro: Trajectories) -> float:
    return len(swe_bench_pro)


@evaluates("A-wl-swe-prompt-p50")
def swe_prompt_p50(swe_bench_pro: Trajectories) -> float:
    return workload_stats(swe_bench_pro).prompt_p50


@evaluates("A-wl-swe-peak-p50")
def swe_peak_p50(swe_bench_pro: Trajectories) -> float:
    return workload_stats(swe_bench_pro).peak_p50


@evaluates("A-wl-swe-gap-p50")
def swe_gap_p50(swe_bench_pro: Trajectories) -> float:
    return workload_stats(swe_bench_pro).gap_p50_s


@evaluates("A-wl-bailian-burst")
def bailian_burst(bailian_coder: np.ndarray, bailian_a: np.ndarray) -> list[float]:
    return [burst(bailian_coder), burst(bailian_a)]


def burst(arrivals_s: np.ndarray) -> float:
    """How far the busiest of the ten-minute windows (side by side, from the first arrival on) exceeds the mean window.

    The mean is that of the whole windows counted: over the traces' two hours the mean is the hourly one."""
    arrivals = np.sort(np.asarray(arrivals_s, dtype=float))
    whole = int((arrivals[-1] - arrivals[0]) // WINDOW_S) if len(arrivals) else 0
    if whole < 2:
        raise NotObserved(f"arrivals: {len(arrivals)} of them do not span two windows of ten minutes")
    counts, _ = np.histogram(arrivals - arrivals[0], WINDOW_S * np.arange(whole + 1))
    return float(counts.max() / counts.mean() - 1)
