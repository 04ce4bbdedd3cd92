"""Choosing, out of a pool, the sessions that meet all targets together.

Every target is written as an amount each session contributes, such that the chosen sessions' sum is zero exactly when
the target is met. Amounts are integers, in millionths of a relative miss, so that the same pool gives the same choice
on any machine.
"""

from functools import singledispatch
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from artifact.workload.synth_draw import Ints, Pool
from artifact.workload.synth_spec import (
    Calls,
    FirstFifth,
    Mean,
    PeakSpread,
    Quantile,
    RepeatShare,
    WorkloadSpec,
)

UNIT = 1_000_000
MAX_ROUNDS = 40


def select(pool: Pool, spec: WorkloadSpec, rng: np.random.Generator) -> Ints:
    """Rows of `pool`, `spec.sessions` of them, ascending.

    Coordinate descent: from a random subset, each place in turn takes the candidate that leaves the smallest sum of
    squared misses, until a whole round changes nothing.
    """
    misses = _misses(pool, spec)
    chosen = rng.choice(len(misses), spec.sessions, replace=False)
    total = misses[chosen].sum(axis=0)
    for _ in range(MAX_ROUNDS):
        changed = False
        for place in range(spec.sessions):
            rest = total - misses[chosen[place]]
            cost = ((rest + misses) ** 2).sum(axis=1)
            taken = np.delete(chosen, place)
            cost[taken] = np.iinfo(np.int64).max
            best = int(cost.argmin())
            if cost[best] < cost[chosen[place]]:
                chosen[place], total, changed = best, rest + misses[best], True
        if not changed:
            break
    return np.sort(chosen)


def _misses(pool: Pool, spec: WorkloadSpec) -> Ints:
    """Shape (candidates, targets)."""
    columns = [np.asarray(contribution(target, pool, spec)) for target in spec.targets]
    return np.rint(np.stack(columns, axis=1) * UNIT).astype(np.int64)


@singledispatch
def contribution(target: object, pool: Pool, spec: WorkloadSpec) -> NDArray[np.float64]:
    """Each candidate's share of the relative miss of a target, shape (candidates,)."""
    raise TypeError(f"no rule for a target of type {type(target).__name__}")


@contribution.register
def _(target: Calls, pool: Pool, spec: WorkloadSpec) -> NDArray[np.float64]:
    return 10 * (pool.n_calls / target.value - 1 / spec.sessions)  # a count can be met nearly exactly


@contribution.register
def _(target: Quantile, pool: Pool, spec: WorkloadSpec) -> NDArray[np.float64]:
    values, counts = pool.column(target.column)
    surplus = ((values <= target.value) & counts).sum(axis=1) - target.q * counts.sum(axis=1)
    normal = NormalDist()
    density = normal.pdf(normal.inv_cdf(target.q))  # turns a share missed into a miss of the value, in deviations
    return surplus / density / _entries(target.column, spec)


@contribution.register
def _(target: Mean, pool: Pool, spec: WorkloadSpec) -> NDArray[np.float64]:
    values, counts = pool.column(target.column)
    surplus = np.where(counts, values - target.value, 0).sum(axis=1)
    return surplus / target.value / _entries(target.column, spec)


@contribution.register
def _(target: RepeatShare, pool: Pool, spec: WorkloadSpec) -> NDArray[np.float64]:
    tool = np.where(pool.returning, pool.tool, 0).sum(axis=1)
    prompt = np.where(pool.returning, pool.prompt, 0).sum(axis=1)
    share = 1 - target.value
    return (tool - share * prompt) / (share * prompt.mean() * spec.sessions)


@contribution.register
def _(target: FirstFifth, pool: Pool, spec: WorkloadSpec) -> NDArray[np.float64]:
    order = np.arange(pool.prompt.shape[1])
    early = pool.returning & (order <= np.ceil((pool.n_calls - 1) / 5)[:, None])
    first = np.where(early, pool.new, 0).sum(axis=1)
    appended = np.where(pool.returning, pool.new, 0).sum(axis=1)
    return (first - target.value * appended) / (target.value * appended.mean() * spec.sessions)


@contribution.register
def _(target: PeakSpread, pool: Pool, spec: WorkloadSpec) -> NDArray[np.float64]:
    return (np.log(pool.peak / target.centre) ** 2 / target.value**2 - 1) / spec.sessions


def _entries(column: str, spec: WorkloadSpec) -> int:
    """How many entries of a column the whole workload has."""
    calls = next(target.value for target in spec.targets if isinstance(target, Calls))
    return {"peak": spec.sessions, "prompt": calls, "output": calls}.get(column, calls - spec.sessions)
