"""What Figures 7 to 10 show, in words: every number and every judgement is computed from the results."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from artifact.metrics import EndState
from artifact.reproduce.evaluate.recovery import departure_shares, trapped_seeds
from artifact.reproduce.evaluate.vulnerability import smallest_surges, tier_name
from artifact.reproduce.post_surge import BASE_SHARE
from artifact.reproduce.scenarios_maps import Grid, SurgeMap
from artifact.reproduce.scenarios_recovery import PostSurge

Arms = Mapping[str, Sequence[Any]]


def map_findings(runs: Arms) -> str:
    """Figure 7."""
    maps = {"1P1D, GPU-only": runs["map_1p1d"][0], "1P3D, host tier": runs["map_1p3d"][0]}
    return "\n".join(f"- **{name}.** {_map_words(found)}" for name, found in maps.items())


def _map_words(found: SurgeMap) -> str:
    surges = smallest_surges(found)
    words = [f"Without a surge it keeps up to {found.overload_per_min:g} sessions/min, that load excluded."]
    vulnerable = {load: surge for load, surge in surges.items() if np.isfinite(surge)}
    if not vulnerable:
        return f"{words[0]} No surge that was tried traps it below that."
    lowest, highest = min(vulnerable), max(surges)
    words.append(f"A surge of +{vulnerable[lowest]:.0%} traps most seeds from {lowest:g} of that load on.")
    if highest in vulnerable:
        words.append(f"At {highest:g} of it, +{vulnerable[highest]:.0%} is enough.")
    falling = list(surges.values())
    monotone = all(b <= a for a, b in pairwise(falling))
    words.append(
        "The closer the base load is to overload, the smaller the surge it takes."
        if monotone
        else "The smallest trapping surge does not fall throughout as the base load rises."
    )
    return " ".join(words)


def grid_findings(runs: Arms) -> str:
    """Figure 8."""
    lines = [f"- **1P{g.decode}D.** {_grid_words(g)}" for arm in ("grid_1p1d", "grid_1p3d") for g in runs[arm]]
    shares = {f"{t.gpu.upper()} {t.tier}": t.trapped_per_min / t.overload_per_min for t in runs["trap_loads"]}
    listed = ", ".join(f"{name} {share:.2f}" for name, share in shares.items())
    return "\n".join([*lines, f"- **+300% on 1P3D.** First trapped load over steady overload: {listed}."])


def _grid_words(grid: Grid) -> str:
    by_tier = {
        tier: loads[0] for tier, loads in zip(grid.tiers, grid.recoverable, strict=True) if not np.isnan(loads[0])
    }
    cells = [word for row in grid.limits for word in row]
    words = f"The cache is the first limit in {cells.count('cache')} of {len(cells)} cells, decode in "
    words += f"{cells.count('decode')}."
    if len(by_tier) > 1:
        small, large = min(by_tier), max(by_tier)
        words += (
            f" At the default tool time the recoverable load goes from {by_tier[small]:g} ({tier_name(small)}) to "
            f"{by_tier[large]:g} sessions/min ({tier_name(large)})."
        )
    return words


def classification_findings(runs: Arms) -> str:
    """Figure 9b."""
    found = runs["deployments"]
    cache_first = [d for d in found if d.cache_first]
    missed = [d.name for d in cache_first if not d.flagged]
    over = [d.name for d in found if d.flagged and not d.cache_first]
    correct = len(found) - len(missed) - len(over)
    return "\n".join(
        [
            f"Of {len(found)} deployments, the cache limits {len(cache_first)} first in the simulator; the "
            f"model calls {correct} ({correct / len(found):.0%}) as the simulator does.",
            "",
            "|  | flagged | not flagged |",
            "|---|---|---|",
            f"| cache first | {len(cache_first) - len(missed)} | {len(missed)} |",
            f"| decode first | {len(over)} | {len(found) - len(cache_first) - len(over)} |",
            "",
            f"- Missed: {'; '.join(missed) or 'none'}.",
            f"- Flagged all the same: {'; '.join(over) or 'none'}.",
        ]
    )


def recovery_findings(runs: Arms) -> str:
    """Figure 10."""
    tiers = {"GPU-only": runs["post_gpu"][0], "Host tier": runs["post_host"][0]}
    return "\n".join(f"- **{name}.** {_recovery_words(found)}" for name, found in tiers.items())


def _recovery_words(found: PostSurge) -> str:
    total, seeds = len(found.seeds), trapped_seeds(found)
    none = [share for share, n in seeds.items() if n == 0]
    every = [share for share, n in seeds.items() if n == total]
    words = [f"One state, taken at minute 25 after +300%, and {len(seeds)} arrival rates after it:"]
    words.append(
        f"no seed is trapped at {_shares(none)}, all are at {_shares(every)} of {found.reference_per_min:g}/min."
    )
    if shares := departure_shares(found):
        below = "below" if max(shares) < BASE_SHARE else "not always below"
        words.append(
            f"Trapped runs complete {min(shares):.2f}-{max(shares):.2f} of the reference rate, {below} the pre-surge "
            f"rate of {BASE_SHARE:g}."
        )
    healthy = all(b.state == EndState.HEALTHY for share in found.shares for b in found.of("plus100", share))
    words.append(f"After +100% the runs are {'healthy at every rate' if healthy else 'not healthy at every rate'}.")
    return " ".join(words)


def _shares(shares: Sequence[float]) -> str:
    return ", ".join(f"{share:g}" for share in shares) or "no rate tried"
