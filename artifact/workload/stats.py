"""What a workload is like, in the figures that the papers publish of theirs (paper A §3.1, Fig. 3)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from artifact.workload.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class WorkloadStats:
    """Statistics over all calls of a workload; tokens unless the name says otherwise.

    Gaps and new tokens exclude each session's first call, which follows nothing. What no session has is NaN: gaps,
    new tokens and repeat shares of a workload where every session is one call.
    """

    sessions: int
    calls: int
    calls_per_session_mean: float
    calls_per_session_p50: float
    prompt_p50: float
    prompt_p90: float
    prompt_mean: float
    output_p50: float
    output_p90: float
    output_mean: float
    gap_p50_s: float
    gap_p90_s: float
    gap_mean_s: float
    new_p50: float
    new_p90: float
    new_mean: float
    peak_p50: float
    peak_p90: float
    peak_max: int
    repeat_share: float
    """Prompt tokens already in the preceding call's prompt or output, over the prompts of calls after a session's
    first. The preceding output counts as resent, as far as the call's new tokens can hold it."""
    repeat_share_with_first: float
    """The same, first calls counted too (all of their prompt is new)."""
    reuse_gain: float
    """Prompt tokens of returning calls over those new since the preceding call (in neither its prompt nor its output):
    how much prefill a full prefix hit saves them at most (paper A §1). Infinite where nothing is new."""


def workload_stats(trajectories: Iterable[Trajectory]) -> WorkloadStats:
    """Statistics of `trajectories`. Raises `ValueError` when there is none."""
    sessions = list(trajectories)
    if not sessions:
        raise ValueError("workload_stats: no trajectories, so there is nothing to describe")
    calls = np.array([t.n_calls for t in sessions])
    prompt = _column(t.prompt_tokens for t in sessions)
    new = _column(t.new_tokens for t in sessions)
    output = _column(t.output_tokens for t in sessions)
    gap_s = np.fromiter(chain.from_iterable(t.gap_before_s for t in sessions), dtype=float)
    starts = np.zeros(len(prompt), dtype=bool)
    starts[np.concatenate([[0], np.cumsum(calls)[:-1]])] = True
    later = ~starts
    preceding_output = np.concatenate([[0], output[:-1]])
    fresh = np.where(starts, prompt, new - np.minimum(new, preceding_output))
    peaks = np.array([t.peak_tokens for t in sessions])
    returning, fresh_returning = int(prompt[later].sum()), int(fresh[later].sum())
    return WorkloadStats(
        sessions=len(sessions),
        calls=len(prompt),
        calls_per_session_mean=float(calls.mean()),
        calls_per_session_p50=float(np.median(calls)),
        prompt_p50=_quantile(prompt, 0.5),
        prompt_p90=_quantile(prompt, 0.9),
        prompt_mean=_mean(prompt),
        output_p50=_quantile(output, 0.5),
        output_p90=_quantile(output, 0.9),
        output_mean=_mean(output),
        gap_p50_s=_quantile(gap_s[later], 0.5),
        gap_p90_s=_quantile(gap_s[later], 0.9),
        gap_mean_s=_mean(gap_s[later]),
        new_p50=_quantile(new[later], 0.5),
        new_p90=_quantile(new[later], 0.9),
        new_mean=_mean(new[later]),
        peak_p50=_quantile(peaks, 0.5),
        peak_p90=_quantile(peaks, 0.9),
        peak_max=int(peaks.max()),
        repeat_share=1 - _ratio(fresh_returning, returning),
        repeat_share_with_first=1 - _ratio(int(fresh.sum()), int(prompt.sum())),
        reuse_gain=_ratio(returning, fresh_returning),
    )


def _column(columns: Iterable[Sequence[int]]) -> np.ndarray:
    return np.fromiter(chain.from_iterable(columns), dtype=np.int64)


def _quantile(values: np.ndarray, q: float) -> float:
    return float(np.quantile(values, q)) if len(values) else float("nan")


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _ratio(part: int, whole: int) -> float:
    if whole:
        return part / whole
    return float("inf") if part else float("nan")


def mean_position(trajectories: Sequence[Trajectory]) -> float:
    """Mean position of a prompt token in its prompt, tokens: where attention of a prefill that hits nothing works."""
    prompts = np.concatenate([t.prompt_tokens for t in trajectories]).astype(float)
    return float((prompts**2).sum() / prompts.sum() / 2)
