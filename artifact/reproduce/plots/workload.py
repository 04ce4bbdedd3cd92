"""Paper A, Figure 3: what the sessions are like."""

from collections.abc import Sequence
from itertools import chain

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from artifact.reproduce.claims import load_claims
from artifact.reproduce.figures import BLUE, VERMILION, cdf, log_axis, panels, under
from artifact.workload.trajectory import Trajectory

GAP_TICKS_S = (0.01, 0.1, 1, 10, 100)


def figure_3(trajectories: Sequence[Trajectory]) -> tuple[Figure, pd.DataFrame]:
    """Distributions over all calls of the prompt length and of the gap before the call; circles: published quantiles.

    A session's first call follows no response and has no gap."""
    fig, (left, right) = panels(1)
    prompts = [tokens / 1000 for t in trajectories for tokens in t.prompt_tokens]
    gaps = list(chain.from_iterable(t.gap_before_s[1:] for t in trajectories))
    drawn = [
        cdf(left, prompts, color=BLUE).assign(panel="a", series="prompt_k_tokens"),
        cdf(right, gaps, color=BLUE).assign(panel="b", series="gap_s"),
    ]
    _published(left, {"A-wl-prompt-p50": 0.5, "A-wl-prompt-p90": 0.9}, scale=1e-3)
    _published(right, {"A-wl-gap-p50": 0.5})
    left.set(xlim=(0, None), ylabel="CDF")
    log_axis(right, "x", GAP_TICKS_S)
    right.set(xlim=(GAP_TICKS_S[0], max(gaps)), ylabel="CDF")
    under(left, "a", "Prompt length per call", "Prompt (K tokens)")
    under(right, "b", "Gap between calls", "Gap between calls (s)")
    left.legend(loc="lower right")
    return fig, pd.concat(drawn).rename(columns={"value": "x", "share": "y"})[["panel", "series", "x", "y"]]


def _published(ax: Axes, quantiles: dict[str, float], scale: float = 1.0) -> None:
    """Mark the figures of claims that are quantiles of what is drawn."""
    at = [load_claims()[claim_id].expect * scale for claim_id in quantiles]
    ax.plot(at, list(quantiles.values()), "o", mfc="none", mec=VERMILION, clip_on=False, label="published", zorder=5)
