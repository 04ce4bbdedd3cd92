"""Claims about the trace shapes that paper B replays (§2, §3), from the sessions that stand in for them.

| arm                 | content (one "seed")                                        |
|---------------------|-------------------------------------------------------------|
| `trace_shapes`      | the `Trajectory` list that is replayed, cut at 38K tokens   |
| `trace_shapes_whole`| the same sessions before the cut                            |
| `tracelab`          | TraceLab's sessions, empty where they are not at hand       |

TraceLab's sessions have no stand-in, since nothing of them is replayed: who has them names their file in
`BASIN_TRACELAB`.
"""

from collections.abc import Sequence

import numpy as np

from artifact.metrics import NotObserved
from artifact.reproduce.registry import Noted, evaluates
from artifact.workload.paper_b import CUT_TOKENS
from artifact.workload.trajectory import Trajectory

Trajectories = Sequence[Trajectory]
MIDDLE_HALF = (0.25, 0.75)


@evaluates("B-wl-swebench")
def swebench(trace_shapes_whole: Trajectories) -> dict[str, object]:
    """Medians; "reaches 16-40K tokens" is read as the middle half of the sessions' largest contexts."""
    peaks = np.quantile([t.peak_tokens for t in trace_shapes_whole], MIDDLE_HALF)
    return {
        "calls_p50": float(np.median([t.n_calls for t in trace_shapes_whole])),
        "appended_tokens": float(np.median([new for t in trace_shapes_whole for new in t.new_tokens[1:]])),
        "context_tokens": peaks.tolist(),
    }


@evaluates("B-wl-tracelab")
def tracelab(tracelab: Trajectories) -> Noted:
    """Medians over the sessions' first prompts, and over all prompts."""
    if not tracelab:
        raise NotObserved("TraceLab's sessions do not come with the artifact: name their file in BASIN_TRACELAB")
    prompts = [t.prompt_tokens for t in tracelab]
    medians = {
        "first_context": float(np.median([each[0] for each in prompts])),
        "per_call_context": float(np.median(np.concatenate(prompts))),
    }
    return Noted(medians, f"{len(tracelab)} sessions")


@evaluates("B-wl-gap")
def gap(trace_shapes_whole: Trajectories) -> float:
    return float(np.median([gap for t in trace_shapes_whole for gap in t.gap_before_s[1:]]))


@evaluates("B-wl-shapes")
def shapes(trace_shapes_whole: Trajectories, trace_shapes: Trajectories) -> dict[str, float]:
    """Calls and contexts before the cut; what the cut removes is a share of all turns."""
    turns = [sum(t.n_calls for t in sessions) for sessions in (trace_shapes, trace_shapes_whole)]
    return {
        "calls_p50": float(np.median([t.n_calls for t in trace_shapes_whole])),
        "context_p50_tokens": float(np.median([prompt for t in trace_shapes_whole for prompt in t.prompt_tokens])),
        "sessions_over_38k": float(np.mean([t.peak_tokens > CUT_TOKENS for t in trace_shapes_whole])),
        "turns_cut": 1 - turns[0] / turns[1],
    }
