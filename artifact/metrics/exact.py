"""Exact tests and intervals for counts of runs, as paper B reports them."""

from collections.abc import Sequence
from typing import NamedTuple

from scipy.stats import binomtest


class Discordant(NamedTuple):
    """How pairs fall, and the two-sided p of the sign test over the discordant ones (`first_only` + `second_only`);
    p is 1 where there are none."""

    first_only: int
    second_only: int
    both: int
    neither: int
    p: float


def paired_test(first: Sequence[bool], second: Sequence[bool]) -> Discordant:
    """The exact sign test on pairs of outcomes, which is McNemar's exact test (paper B: §3 for twins, §6 for two
    controllers on the same seeds). Raises `ValueError` for sequences of unequal length or none."""
    pairs = list(zip(first, second, strict=True))
    if not pairs:
        raise ValueError("paired test: no pairs")
    one, other = pairs.count((True, False)), pairs.count((False, True))
    p = float(binomtest(one, one + other).pvalue) if one + other else 1.0
    return Discordant(one, other, pairs.count((True, True)), pairs.count((False, False)), p)


def share_interval(count: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact (Clopper-Pearson) interval of a share of runs."""
    low, high = binomtest(count, total).proportion_ci(confidence, "exact")
    return float(low), float(high)
