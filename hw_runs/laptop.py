"""Agent sessions small enough for an engine on one CPU core, drawn to the shape of the papers' ones.

Contexts are an eighth of Terminal-Bench's and lives a twentieth, so that minutes of a real engine hold as many session
lives as the papers' hours.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from artifact.reproduce.paths import repository_root
from artifact.workload.catalog import workload
from artifact.workload.formats import save
from artifact.workload.trajectory import Trajectory

SESSIONS = 200


@dataclass(frozen=True, slots=True)
class Shape:
    """Ranges are uniform, both ends included; gaps are exponential with this mean."""

    head_tokens: int
    task_tokens: tuple[int, int]
    calls: tuple[int, int]
    tool_tokens: tuple[int, int]
    output_tokens: int
    gap_mean_s: float


SHAPES: Mapping[str, Shape] = {
    "laptop": Shape(512, (1024, 2048), (12, 20), (128, 256), 8, 2.0),
    "laptop-long": Shape(512, (4096, 5632), (7, 9), (96, 192), 8, 2.0),
    "laptop-small": Shape(128, (256, 512), (6, 10), (48, 96), 8, 1.5),
}


def laptop_sessions(name: str = "laptop", seed: int = 0, count: int = SESSIONS) -> list[Trajectory]:
    """Sessions of a shape. A call adds the preceding answer and a tool's result to the prompt."""
    rng, shape = np.random.default_rng(seed), SHAPES[name]
    return [_session(f"{name}-{number:04d}", shape, rng) for number in range(count)]


def trajectories(name: str) -> list[Trajectory]:
    """The sessions of a laptop shape, or of a workload as `artifact.workload.catalog` knows it."""
    return laptop_sessions(name) if name in SHAPES else workload(name)


def workload_file(name: str) -> str:
    """The same for the simulator, which knows no laptop shapes: those become a trace file below `build/traces`."""
    if name not in SHAPES:
        return name
    path: Path = repository_root() / "build" / "traces" / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    save(draft, laptop_sessions(name), "native")
    draft.replace(path)
    return str(path)


def _session(id: str, shape: Shape, rng: np.random.Generator) -> Trajectory:
    calls = int(rng.integers(shape.calls[0], shape.calls[1], endpoint=True))
    first = shape.head_tokens + int(rng.integers(*shape.task_tokens, endpoint=True))
    tools = rng.integers(*shape.tool_tokens, size=calls - 1, endpoint=True) + shape.output_tokens
    new = (first, *tools.tolist())
    gaps = (0.0, *rng.exponential(shape.gap_mean_s, calls - 1).round(3).tolist())
    return Trajectory(
        id=id,
        prompt_tokens=tuple(np.cumsum(new).tolist()),
        new_tokens=new,
        output_tokens=(shape.output_tokens,) * calls,
        gap_before_s=gaps,
        task_text=f"task {id}",
        shared_head_tokens=shape.head_tokens,
    )
