"""The project's own format: JSON Lines, one session a line, its calls as columns (the fields of `Trajectory`).

`session_id`, `prompt_tokens`, `new_tokens` and `output_tokens` are required; `gap_before_s` (null for the first call,
and where unknown), `task_text`, `shared_head_tokens`, `parent_id` and `arrival_s` are optional; other keys are
ignored.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from artifact.workload.formats.base import Collector, Sample
from artifact.workload.formats.record import Record, TraceError, json_lines, write_json_lines
from artifact.workload.trajectory import Trajectory

NAME, SUFFIX, MANY, NESTS = "native", ".jsonl", True, False
COLUMNS = ("prompt_tokens", "new_tokens", "output_tokens")


def matches(sample: Sample) -> bool:
    return any("session_id" in line and isinstance(line.get("prompt_tokens"), list) for line in sample.lines)


def read(path: Path, out: Collector) -> None:
    for _, record in json_lines(path):
        with out.session():
            if isinstance(record, TraceError):
                raise record
            _read_session(record, out)


def _read_session(record: Record, out: Collector) -> None:
    columns: dict[str, Any] = {key: _column(record, key) for key in COLUMNS}
    columns["gap_before_s"] = _gaps(record, len(columns["prompt_tokens"]), out)
    if record.has("shared_head_tokens"):
        columns["shared_head_tokens"] = record.count("shared_head_tokens")
    for key in ("task_text", "parent_id"):
        if record.has(key):
            columns[key] = record.text(key)
    arrival_s = record.number("arrival_s", low=0) if record.has("arrival_s") else None
    out.add_columns(record, arrival_s, id=record.text("session_id"), **columns)


def _column(record: Record, key: str) -> tuple[int, ...]:
    values = record.items(key)
    if all(type(value) is int for value in values):
        return tuple(values)
    cells = Record({f"{key}[{i}]": value for i, value in enumerate(values)}, record.path, record.line)
    return tuple(cells.count(cell) for cell in cells.data)


def _gaps(record: Record, calls: int, out: Collector) -> tuple[float, ...]:
    if not record.has("gap_before_s"):
        out.note("gaps not recorded, taken as 0 s", max(calls - 1, 0))
        return (0.0,) * calls
    values = record.items("gap_before_s")
    out.note("gaps not recorded, taken as 0 s", sum(value is None for value in values[1:]))
    cells = Record({f"gap_before_s[{i}]": value for i, value in enumerate(values)}, record.path, record.line)
    return tuple(cells.number(cell, low=0) if value is not None else 0.0 for cell, value in cells.data.items())


def write(path: Path, trajectories: Sequence[Trajectory], arrivals_s: Mapping[str, float]) -> None:
    write_json_lines(path, (_row(t, arrivals_s.get(t.id)) for t in trajectories))


def _row(trajectory: Trajectory, arrival_s: float | None) -> dict[str, Any]:
    row: dict[str, Any] = {"session_id": trajectory.id} | {key: getattr(trajectory, key) for key in COLUMNS}
    row["gap_before_s"] = [trajectory.gap_before_s[0] or None, *trajectory.gap_before_s[1:]]
    optional = {
        "task_text": trajectory.task_text or None,
        "shared_head_tokens": trajectory.shared_head_tokens or None,
        "parent_id": trajectory.parent_id,
        "arrival_s": arrival_s,
    }
    return row | {key: value for key, value in optional.items() if value is not None}
