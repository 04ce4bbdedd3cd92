"""Synthesised workloads: trajectories that meet the published statistics of the papers' own, which are not public.

A wide pool of candidate sessions is drawn from laws of the right shape, then a subset is chosen that meets all targets
together (independent marginals miss the joint ones by 4-9%).
"""

import numpy as np

from artifact.workload.synth_draw import Pool, draw_pool
from artifact.workload.synth_select import select
from artifact.workload.synth_spec import SPECS, WorkloadSpec
from artifact.workload.trajectory import Trajectory

FITTED_CLAIMS: tuple[str, ...] = tuple(
    claim
    for spec in SPECS.values()
    for claim in [target.claim for target in spec.targets if target.claim] + list(spec.text_claims)
)
"""Ids of the claims that the synthesised workloads are made to meet: fitted, never validated."""


def synthesise(spec: WorkloadSpec, seed: int = 0) -> list[Trajectory]:
    """`spec.sessions` trajectories in a random order; the same spec and seed give the same ones."""
    draw, choose = (np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(2))
    pool = draw_pool(spec, draw)
    chosen = pool.take(choose.permutation(select(pool, spec, choose)))
    return [_trajectory(spec, chosen, row) for row in range(spec.sessions)]


def _trajectory(spec: WorkloadSpec, pool: Pool, row: int) -> Trajectory:
    n = int(pool.n_calls[row])
    return Trajectory(
        id=f"{spec.name}-{row:03d}",
        prompt_tokens=tuple(pool.prompt[row, :n].tolist()),
        new_tokens=tuple(pool.new[row, :n].tolist()),
        output_tokens=tuple(pool.output[row, :n].tolist()),
        gap_before_s=tuple((pool.gap_ms[row, :n] / 1000).tolist()),
        shared_head_tokens=spec.shared_head_tokens,
    )
