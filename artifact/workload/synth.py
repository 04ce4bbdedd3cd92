"""Synthesised workloads: trajectories that meet the published statistics of the papers' own, which are not public.

A wide pool of candidate sessions is drawn from laws of the right shape, then a subset is chosen that meets all targets
together (independent marginals miss the joint ones by 4-9%).

The sets of seed 0 are shipped, so that every machine replays the same bytes whatever its versions of NumPy.
`python -m artifact.workload.synth --write` regenerates them and `--check` compares what is shipped with the targets.
"""

import argparse
import random

import numpy as np
from numpy.typing import NDArray

from artifact.workload import arrivals
from artifact.workload.catalog import shipped
from artifact.workload.synth_draw import Pool, draw_pool
from artifact.workload.synth_select import select
from artifact.workload.synth_spec import SPECS, WorkloadSpec
from artifact.workload.tasktext import task_text
from artifact.workload.trajectory import Trajectory

FITTED_CLAIMS: tuple[str, ...] = (
    *(target.claim for spec in SPECS.values() for target in spec.targets if target.claim),
    *(claim for spec in SPECS.values() for claim in (spec.task_text.rank_claim, spec.task_text.std_claim)),
    *(claim for spec in SPECS.values() for claim in spec.claims),
    arrivals.FITTED_CLAIM,
)
"""Ids of the claims that the synthesised workloads and arrivals are made to meet: fitted, never validated."""


def synthesise(spec: WorkloadSpec, seed: int = 0) -> list[Trajectory]:
    """`spec.sessions` trajectories in a random order; the same spec and seed give the same ones."""
    draw, choose, write = np.random.SeedSequence(seed).spawn(3)
    pool = draw_pool(spec, np.random.default_rng(draw))
    rng = np.random.default_rng(choose)
    chosen = pool.take(rng.permutation(select(pool, spec, rng)))
    texts = _texts(spec, chosen, np.random.default_rng(write))
    return [trajectory(spec, chosen, row, text) for row, text in enumerate(texts)]


def _texts(spec: WorkloadSpec, pool: Pool, rng: np.random.Generator) -> list[str]:
    """A text for each session, all different, whose signals correlate with the log peaks by `spec.task_text.signal`."""
    hardness = _standardised(np.log(pool.peak))
    noise = rng.standard_normal(len(hardness))
    noise = _standardised(noise - hardness * (noise @ hardness) / len(hardness))  # correlation exact in this sample
    known = spec.task_text.signal
    signals = known * hardness + np.sqrt(1 - known**2) * noise
    words = random.Random(int(rng.integers(2**63)))
    texts: dict[str, None] = {}
    for signal, tokens in zip(signals.tolist(), pool.text_tokens.tolist(), strict=True):
        text = task_text(spec.name, signal, tokens, words)
        while text in texts:
            text = task_text(spec.name, signal, tokens, words)
        texts[text] = None
    return list(texts)


def _standardised(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray((values - values.mean()) / values.std())


def trajectory(spec: WorkloadSpec, pool: Pool, row: int, text: str) -> Trajectory:
    """A row of the pool as a finished session."""
    n = int(pool.n_calls[row])
    return Trajectory(
        id=f"{spec.name}-{row:03d}",
        prompt_tokens=tuple(pool.prompt[row, :n].tolist()),
        new_tokens=tuple(pool.new[row, :n].tolist()),
        output_tokens=tuple(pool.output[row, :n].tolist()),
        gap_before_s=tuple((pool.gap_us[row, :n] / 1e6).tolist()),
        task_text=text,
        shared_head_tokens=spec.shared_head_tokens,
    )


def main() -> None:
    """Write the shipped sets, or check them."""
    from artifact.workload.formats import load, save
    from artifact.workload.synth_check import check_table  # imports scikit-learn, which synthesis does without

    parser = argparse.ArgumentParser(description="Synthesised workloads, against the statistics they are made to meet.")
    parser.add_argument("--write", action="store_true", help="synthesise the shipped sets again")
    parser.add_argument("--check", action="store_true", help="print targets and what the shipped sets have")
    asked = parser.parse_args()
    if not (asked.write or asked.check):
        parser.error("nothing to do: give --write, --check or both")
    for spec in SPECS.values():
        if asked.write:
            save(shipped(spec), synthesise(spec), "native")
        if asked.check:
            print(check_table(spec, load(shipped(spec)).trajectories), end="\n\n")


if __name__ == "__main__":
    main()
