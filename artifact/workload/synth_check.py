"""What a workload has of what its spec asks for, measured on the finished trajectories."""

from collections.abc import Sequence
from dataclasses import fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from artifact.control.predictor import cross_fitted, score
from artifact.workload.stats import workload_stats
from artifact.workload.synth_spec import (
    Calls,
    Column,
    FirstFifth,
    Mean,
    PeakSpread,
    Quantile,
    RepeatShare,
    Target,
    WorkloadSpec,
)
from artifact.workload.trajectory import Trajectory

LINE = "{:<36}{:<22}{:>10}{:>10}{:>8}"


class Checked(NamedTuple):
    what: str
    claim: str | None
    wanted: float
    obtained: float

    @property
    def miss(self) -> float:
        """Relative."""
        return self.obtained / self.wanted - 1


def check(spec: WorkloadSpec, trajectories: Sequence[Trajectory]) -> list[Checked]:
    """Every target and what was obtained, the predictor's scores last."""
    rows = [Checked(_named(t), t.claim, t.value, obtained(t, trajectories)) for t in spec.targets]
    scores, text = score(cross_fitted(trajectories), trajectories), spec.task_text
    rank = Checked(
        "rank correlation of predicted peak", text.rank_claim, text.rank_correlation, scores.rank_correlation
    )
    return [*rows, rank, Checked("log-error std", text.std_claim, text.log_error_std, scores.log_error_std)]


def check_table(spec: WorkloadSpec, trajectories: Sequence[Trajectory]) -> str:
    """The same as text."""
    lines = [f"{spec.name}: {len(trajectories)} sessions", LINE.format("target", "claim", "wanted", "obtained", "miss")]
    for row in check(spec, trajectories):
        numbers = (f"{row.wanted:.6g}", f"{row.obtained:.6g}", f"{row.miss:.1%}")
        lines.append(LINE.format(row.what, row.claim or "derived", *numbers))
    return "\n".join(lines)


def obtained(target: Target, trajectories: Sequence[Trajectory]) -> float:
    """A target's statistic."""
    match target:
        case Calls():
            return workload_stats(trajectories).calls
        case RepeatShare():
            return workload_stats(trajectories).repeat_share
        case Quantile(column, q):
            return float(np.quantile(_entries(column, trajectories), q))
        case Mean(column):
            return float(_entries(column, trajectories).mean())
        case FirstFifth():
            early = sum(sum(t.new_tokens[1 : 1 + -(-(t.n_calls - 1) // 5)]) for t in trajectories)
            return early / sum(sum(t.new_tokens[1:]) for t in trajectories)
        case PeakSpread(_, centre):
            return float(np.sqrt(np.mean(np.log(_entries("peak", trajectories) / centre) ** 2)))


def _entries(column: Column, trajectories: Sequence[Trajectory]) -> NDArray[np.float64]:
    if column == "peak":
        return np.array([t.peak_tokens for t in trajectories], dtype=float)
    name, start = {"prompt": ("prompt_tokens", 0), "output": ("output_tokens", 0), "gap_s": ("gap_before_s", 1)}[column]
    return np.concatenate([np.array(getattr(t, name)[start:], dtype=float) for t in trajectories])


def _named(target: Target) -> str:
    """The target's type and what of it is neither value nor claim."""
    rest = [str(getattr(target, field.name)) for field in fields(target) if field.name not in ("value", "claim")]
    return " ".join([type(target).__name__, *rest])
