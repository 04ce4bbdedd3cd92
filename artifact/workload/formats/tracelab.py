"""TraceLab's replay CSV: one row a call, `round_idx` counting a session's calls from 0.

Columns `session_id` (or `id`), `round_idx`, `prefix_len` (context kept from earlier), `input_len` (appended),
`output_len`, `tool_wait_after_ms`, and optionally `arrival_time` (ms). The kept context may hold the preceding output;
what of it goes beyond the preceding prompt counts as new here. The prefix of a session's first call can only come
from other sessions, so it is read as the shared head. The wait after a session's last call is no gap and is ignored.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from artifact.workload.formats.base import Call, Collector, Sample
from artifact.workload.formats.record import Record, TraceError
from artifact.workload.trajectory import Trajectory

NAME, SUFFIX, MANY, NESTS = "tracelab", ".csv", True, False
COLUMNS = ("session_id", "arrival_time", "round_idx", "prefix_len", "input_len", "output_len", "tool_wait_after_ms")
REQUIRED = ("round_idx", "prefix_len", "input_len", "output_len", "tool_wait_after_ms")


def matches(sample: Sample) -> bool:
    header = {cell.strip() for cell in sample.head.partition("\n")[0].split(",")}
    return {"round_idx", "prefix_len", "input_len"} <= header


def read(path: Path, out: Collector) -> None:
    sessions: dict[str, list[Record]] = {}
    for row in _rows(path):
        key = row.data.get("session_id")
        if key:
            sessions.setdefault(key, []).append(row)
        else:
            out.reject(row.error("session_id", "missing"))
    for key, rows in sessions.items():
        with out.session():
            _read_session(key, rows, out)


def _rows(path: Path) -> Iterator[Record]:
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        reader = csv.reader(file)
        header = ["session_id" if cell.strip() == "id" else cell.strip() for cell in next(reader, [])]
        for column in ("session_id", *REQUIRED):
            if column not in header:
                raise TraceError(path, f"no such column among {header}", line=1, field=column, advice="add it")
        for cells in reader:
            if cells:
                yield Record(dict(zip(header, cells, strict=False)), path, reader.line_num)


def _read_session(key: str, rows: list[Record], out: Collector) -> None:
    rows = sorted(rows, key=lambda row: row.count("round_idx"))
    calls: list[Call] = []
    gap_s = 0.0
    for i, row in enumerate(rows):
        if row.count("round_idx") != i:
            raise row.error("round_idx", f"{row.data['round_idx']} where session {key!r} should have round {i}")
        prefix = row.count("prefix_len")
        prompt = prefix + row.count("input_len")
        new = prompt - min(prefix, calls[-1].prompt) if calls else prompt
        calls.append(Call(prompt, new, row.count("output_len"), gap_s))
        gap_s = row.number("tool_wait_after_ms", low=0) / 1000
    arrival_s = rows[0].number("arrival_time", low=0) / 1000 if rows[0].data.get("arrival_time") else None
    head = min(rows[0].count("prefix_len"), *(call.prompt for call in calls))
    out.add(calls, rows[0], arrival_s, id=key, shared_head_tokens=head)


def write(path: Path, trajectories: Sequence[Trajectory], arrivals_s: Mapping[str, float]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for trajectory in trajectories:
            writer.writerows(_write_rows(trajectory, arrivals_s.get(trajectory.id, 0.0)))


def _write_rows(t: Trajectory, arrival_s: float) -> Iterator[dict[str, Any]]:
    waits_s = (*t.gap_before_s[1:], 0.0)
    before, output_before = 0, 0
    for i, (prompt, new, output) in enumerate(zip(t.prompt_tokens, t.new_tokens, t.output_tokens, strict=True)):
        kept = prompt - new if i else t.shared_head_tokens
        if i and kept == before:  # the output lies right behind the preceding prompt, so it is kept along with it
            kept += min(output_before, new)
        yield {
            "session_id": t.id,
            "arrival_time": arrival_s * 1000,
            "round_idx": i,
            "prefix_len": kept,
            "input_len": prompt - kept,
            "output_len": output,
            "tool_wait_after_ms": waits_s[i] * 1000,
        }
        before, output_before = prompt, output
