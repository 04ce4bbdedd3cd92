"""The sessions of paper B's experiments (§3, Table 1), made by rule: the same ones on every machine.

| name | what |
|---|---|
| `paper-b` | main: 2K shared system prompt, 4K task, 25 turns, contexts 6K to 37K, exponential think time of mean 5 s |
| `paper-b-short` | session-mix shift, before: 12 turns from 3K, think time 15 s |
| `paper-b-long` | session-mix shift, after: 12 turns from 22K, think time 5 s |
| `paper-b-traces` | stand-in for the 200 replayed mini-SWE-agent sessions, cut at 38K tokens (§3, Qwen3-32B) |
| `paper-b-traces-whole` | the same before the cut |

Every turn of the first three generates 300 tokens and appends 1K tokens of tool output. The replayed sessions are not
public as a set: ours are drawn from laws whose published statistics they meet (`FITTED_CLAIMS`).
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from math import exp, log

from artifact.workload.trajectory import Trajectory

FITTED_CLAIMS = ("B-wl-swebench", "B-wl-gap", "B-wl-shapes")
"""Claims that the stand-in for the replayed sessions is made to meet: fitted, never validated."""

HEAD_TOKENS, OUTPUT_TOKENS, TOOL_TOKENS = 2_000, 300, 1_000
TRACE_HEAD_TOKENS = 1_200
"""Instructions common to all replayed sessions: first prompts of public mini-SWE-agent recordings begin at 1.1K."""
CUT_TOKENS = 38_000
SESSIONS = 256
"""Different think times; more than a 90-minute run has arrivals at the main load."""
TRACE_SESSIONS = 200


@dataclass(frozen=True, slots=True)
class Shape:
    """A synthetic session of paper B §3: what its first prompt holds, its turns, and its mean think time."""

    first_tokens: int
    turns: int
    think_s: float


SHAPES: Mapping[str, Shape] = {
    "paper-b": Shape(6_000, 25, 5.0),
    "paper-b-short": Shape(3_000, 12, 15.0),
    "paper-b-long": Shape(22_000, 12, 5.0),
}


def synthetic(name: str, seed: int = 0) -> list[Trajectory]:
    """`SESSIONS` sessions of the shape of that name, which differ in their think times only."""
    shape = SHAPES[name]
    rng = random.Random(f"{name}/{seed}")
    grown = OUTPUT_TOKENS + TOOL_TOKENS
    prompts = tuple(shape.first_tokens + grown * turn for turn in range(shape.turns))
    new = (shape.first_tokens, *[grown] * (shape.turns - 1))
    return [
        Trajectory(
            id=f"{name}-{i:03d}",
            prompt_tokens=prompts,
            new_tokens=new,
            output_tokens=(OUTPUT_TOKENS,) * shape.turns,
            gap_before_s=(0.0, *(round(rng.expovariate(1 / shape.think_s), 6) for _ in range(shape.turns - 1))),
            shared_head_tokens=HEAD_TOKENS,
        )
        for i in range(SESSIONS)
    ]


def replayed(seed: int = 0, cut_tokens: int | None = CUT_TOKENS) -> list[Trajectory]:
    """Stand-ins for the replayed sessions, ended before prompt and output exceed `cut_tokens` (None: never)."""
    rng = random.Random(f"paper-b-traces/{seed}")
    return [_replayed(rng, i, cut_tokens) for i in range(TRACE_SESSIONS)]


def _replayed(rng: random.Random, number: int, cut_tokens: int | None) -> Trajectory:
    """Lognormal laws whose parameters were chosen by trial, for the published medians and shares to come out."""
    turns = max(round(_lognormal(rng, 42, 0.55)), 5)
    effort = _lognormal(rng, 1.0, 0.35)
    first = TRACE_HEAD_TOKENS + round(_lognormal(rng, 1_600, 0.6))
    outputs = [max(round(_lognormal(rng, 130, 0.7)), 10) for _ in range(turns)]
    tools = [max(round(_lognormal(rng, 180 * effort, 1.25)), 5) for _ in range(turns - 1)]
    gaps = [0.0, *(_gap(rng) for _ in range(turns - 1))]
    new = [first, *(output + tool for output, tool in zip(outputs, tools, strict=False))]
    prompts = list(accumulate(new))
    fits = [p + o <= cut_tokens for p, o in zip(prompts, outputs, strict=True)] if cut_tokens else []
    kept = max(fits.index(False), 1) if False in fits else turns
    return Trajectory(
        id=f"paper-b-traces-{number:03d}",
        prompt_tokens=tuple(prompts[:kept]),
        new_tokens=tuple(new[:kept]),
        output_tokens=tuple(outputs[:kept]),
        gap_before_s=tuple(gaps[:kept]),
        shared_head_tokens=TRACE_HEAD_TOKENS,
    )


def _gap(rng: random.Random) -> float:
    """Most tool calls return at once; a few run a test suite (§2: median 0.1-0.2 s, heavy tail)."""
    kind = rng.random()
    seconds = _lognormal(rng, 0.13, 0.5) if kind < 0.85 else _lognormal(rng, 5.0, 1.1)
    return round(min(seconds, 120.0), 6)


def _lognormal(rng: random.Random, median: float, sigma: float) -> float:
    return exp(rng.gauss(log(median), sigma))


WORKLOADS: Mapping[str, Callable[[int], list[Trajectory]]] = {name: partial(synthetic, name) for name in SHAPES} | {
    "paper-b-traces": replayed,
    "paper-b-traces-whole": partial(replayed, cut_tokens=None),
}
"""Every workload of paper B by name, a function of the seed."""
