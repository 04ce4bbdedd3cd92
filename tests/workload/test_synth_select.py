"""Contributions against hand-computed values and against the statistics they stand for; selection on a tiny pool."""

from dataclasses import replace

import numpy as np
import pytest

from artifact.workload.synth import trajectory
from artifact.workload.synth_check import obtained
from artifact.workload.synth_draw import Pool, draw_pool
from artifact.workload.synth_select import contribution, select
from artifact.workload.synth_spec import (
    TERMINAL_BENCH,
    Calls,
    FirstFifth,
    Mean,
    PeakSpread,
    Quantile,
    RepeatShare,
    Target,
)

SMALL = replace(TERMINAL_BENCH, candidates=40, sessions=40)


def pool_of(n_calls: list[int], append: int = 10) -> Pool:
    """Sessions that begin with 100 tokens, add `append` tool tokens a call and no output, and pause 1 s."""
    rows, width = len(n_calls), max(n_calls)
    tool = np.full((rows, width), append)
    tool[:, 0] = 0
    gap = np.where(np.arange(width) > 0, 1_000_000, 0) * np.ones((rows, 1), dtype=int)
    return Pool(
        n_calls=np.array(n_calls),
        prompt=100 + tool.cumsum(axis=1),
        output=np.zeros((rows, width), dtype=np.int64),
        tool=tool,
        gap_us=gap,
        text_tokens=np.full(rows, 10),
    )


@pytest.mark.parametrize(
    "target",
    [
        Calls(0),
        Quantile("prompt", 0.5, 0),
        Quantile("prompt", 0.9, 0),
        Quantile("gap_s", 0.5, 0),
        Quantile("peak", 0.5, 0),
        Mean("output", 0),
        Mean("gap_s", 0),
        Mean("peak", 0),
        RepeatShare(0),
        FirstFifth(0),
        PeakSpread(0, centre=30_000),
    ],
    ids=str,
)
def test_contributions_sum_to_zero_exactly_when_the_target_is_met(target: Target) -> None:
    """The whole pool taken as the workload: set the target to what it has, then to a little more and less."""
    pool = draw_pool(SMALL, np.random.default_rng(5))
    spec = replace(SMALL, targets=(Calls(int(pool.n_calls.sum())),))
    has = obtained(target, [trajectory(spec, pool, row, "") for row in range(40)])
    apart = 1.01 if isinstance(target, RepeatShare) else 1.05
    met, more, less = (
        contribution(replace(target, value=value), pool, spec).sum() for value in (has, apart * has, has / apart)
    )
    tolerance = 0.03 if isinstance(target, Quantile) else 1e-9  # a share of entries moves in steps
    assert met == pytest.approx(0, abs=tolerance)
    assert min(more, less) < 0 < max(more, less)


def test_quantile_shares_by_hand() -> None:
    """Prompts 100, 110 and 100, 110, 120, 130: three of six at or below 105 would be the median; there are two."""
    spec = replace(TERMINAL_BENCH, sessions=2, targets=(Calls(6),))
    parts = contribution(Quantile("prompt", 0.5, 105), pool_of([2, 4]), spec)
    density = 1 / np.sqrt(2 * np.pi)
    assert parts == pytest.approx([0.0, (1 - 2) / density / 6])


def test_repeat_share_by_hand() -> None:
    """One session of prompts 100, 110, 120: of 230 returning tokens 20 are new."""
    spec = replace(TERMINAL_BENCH, sessions=1, targets=(Calls(3),))
    assert contribution(RepeatShare(1 - 20 / 230), pool_of([3]), spec) == pytest.approx([0])
    assert contribution(RepeatShare(0.9), pool_of([3]), spec)[0] < 0  # 23 are wanted


def test_selection_finds_the_only_pair_that_fits() -> None:
    """Of 3, 5, 11 and 17 calls only 5 and 11 make 16."""
    spec = replace(TERMINAL_BENCH, sessions=2, targets=(Calls(16),))
    for seed in range(10):
        assert select(pool_of([3, 5, 11, 17]), spec, np.random.default_rng(seed)).tolist() == [1, 2]


def test_selection_takes_a_candidate_once_and_beats_chance() -> None:
    spec = replace(TERMINAL_BENCH, candidates=600)
    pool = draw_pool(spec, np.random.default_rng(0))
    rows = select(pool, spec, np.random.default_rng(1))
    assert len(set(rows.tolist())) == spec.sessions
    misses = np.stack([contribution(t, pool, spec) for t in spec.targets], axis=1)

    def cost(rows: np.ndarray) -> float:
        return float((misses[rows].sum(axis=0) ** 2).sum())

    rng = np.random.default_rng(2)
    assert cost(rows) < 0.2 * min(cost(rng.choice(600, spec.sessions, replace=False)) for _ in range(20))


def test_a_drawn_session_ends_before_it_outgrows_the_context() -> None:
    pool = draw_pool(replace(TERMINAL_BENCH, max_context_tokens=30_000), np.random.default_rng(0))
    assert pool.peak.max() <= 30_000
    assert (pool.peak > 25_000).mean() > 0.2
    assert pool.n_calls.min() >= 1
