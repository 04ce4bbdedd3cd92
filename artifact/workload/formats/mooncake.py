"""Mooncake JSON Lines as extended by AIPerf and Dynamo: one call a line.

`timestamp` (ms), `input_length` (whole prompt; or `text_input`, which is counted), `output_length`, `hash_ids` (one id
a block of the prompt) and, with sessions, `session_id` and `delay` (ms from the preceding response). Without `delay`
a gap is the difference of time stamps, which includes the preceding response's time. A later call's `input_length` is
its whole prompt, as Mooncake and Dynamo mean it, not AIPerf's increment.

Without any `session_id` the sessions are derived: a call continues the call whose whole blocks it begins with, if at
least one, unless the prompts of other calls branch off there (as they do behind a shared system prompt), or unless
it is not longer by at least half of the preceding output (another question about the same document). A call without
such a predecessor starts a session of its own. The block size is not recorded; it is the one that fits most
calls. The shared head is what the first prompts of all sessions have in common.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from artifact.workload.formats.base import Call, Collector, Sample, out_of_order
from artifact.workload.formats.blocks import BlockNames, common_head, repeated_tokens
from artifact.workload.formats.record import Record, TraceError, json_lines, write_json_lines
from artifact.workload.formats.tokens import count_tokens
from artifact.workload.load import PlannedSession
from artifact.workload.trajectory import Trajectory

NAME, SUFFIX, MANY, NESTS = "mooncake", ".jsonl", True, False
BLOCK_TOKENS = 512
BLOCK_SIZES = (BLOCK_TOKENS, 64, 16, 32, 128, 256, 1024)  # the likeliest first
_SESSION_ID = re.compile(r'"session_id"\s*:\s*(?:"([^"]*)"|(\d+))')


def matches(sample: Sample) -> bool:
    return any(("input_length" in line or "text_input" in line) and "chat_id" not in line for line in sample.lines)


@dataclass(slots=True)
class _Row:
    place: Record
    prompt: int = 0
    output: int = 0
    time_s: float | None = None
    delay_s: float | None = None
    ids: Sequence[Any] | None = None
    error: TraceError | None = None


def read(path: Path, out: Collector) -> None:
    sessions: dict[str, list[_Row]] = {}
    loose: list[_Row] = []
    for text, record in json_lines(path):
        session_id, row = _parse(text, record, path)
        if row.error and (not out.skip_bad or session_id is None):
            out.reject(row.error)  # whose session a broken line belongs to may be unknown: the line is counted then
        elif session_id is None:
            loose.append(row)
        else:
            sessions.setdefault(session_id, []).append(row)
    everything = [row for rows in sessions.values() for row in rows if not row.error] + loose
    block_tokens = fitting_block_size((row.prompt, len(row.ids)) for row in everything if row.ids)
    sessions |= _derived_sessions(loose, out, has_ids=bool(sessions))
    head = common_head([rows[0].ids or () for rows in sessions.values() if not rows[0].error]) * block_tokens
    for key, rows in sessions.items():
        with out.session():
            _read_session(key, rows, block_tokens, head, out)


def _parse(text: str, record: Record | TraceError, path: Path) -> tuple[str | None, _Row]:
    if isinstance(record, TraceError):
        found = _SESSION_ID.search(text)
        return found and (found[1] or found[2]), _Row(Record({}, path), error=record)
    session_id = str(record.data["session_id"]) if record.has("session_id") else None
    try:
        return session_id, _Row(
            record,
            prompt=count_tokens(record.text("text_input"))
            if record.has("text_input")
            else record.count("input_length"),
            output=record.count("output_length"),
            time_s=record.number("timestamp", low=0) / 1000 if record.has("timestamp") else None,
            delay_s=record.number("delay", low=0) / 1000 if record.has("delay") else None,
            ids=record.ids("hash_ids") if record.has("hash_ids") else None,
        )
    except TraceError as error:
        return session_id, _Row(record, error=error)


def fitting_block_size(prompts: Iterable[tuple[int, int]]) -> int:
    """The block size (tokens) that explains most of the pairs (prompt tokens, number of ids)."""
    fits: Counter[int] = Counter({BLOCK_TOKENS: 0})
    for prompt, blocks in prompts:
        fits.update(size for size in BLOCK_SIZES if prompt // size <= blocks <= -(-prompt // size))
    return max(BLOCK_SIZES, key=lambda size: fits[size])  # of equals the first


def _read_session(key: str, rows: list[_Row], block_tokens: int, head: int, out: Collector) -> None:
    if error := next((row.error for row in rows if row.error), None):
        raise error
    calls = [Call(rows[0].prompt, rows[0].prompt, rows[0].output, rows[0].delay_s or 0.0)]
    latest_s = rows[0].time_s
    for before, row in pairwise(rows):
        if before.ids is not None and row.ids is not None:
            repeated = repeated_tokens(before.ids, before.prompt, row.ids, row.prompt, block_tokens)
        else:
            repeated = before.prompt if row.prompt >= before.prompt else 0
        if row.time_s is not None:
            if row.time_s < (latest_s or 0.0):
                raise row.place.error(
                    "timestamp", f"{row.place.data['timestamp']} is before the session's earlier calls"
                )
            latest_s = row.time_s
        calls.append(Call(row.prompt, row.prompt - repeated, row.output, _gap_s(before, row, out)))
    head = min(head, *(call.prompt for call in calls))
    out.add(calls, rows[0].place, rows[0].time_s, id=key, shared_head_tokens=head)


def _gap_s(before: _Row, row: _Row, out: Collector) -> float:
    if row.delay_s is not None:
        return row.delay_s
    if row.time_s is None or before.time_s is None:
        out.note("gaps not recorded, taken as 0 s")
        return 0.0
    out.note("gaps derived from time stamps: they include the preceding response's time")
    return row.time_s - before.time_s


def _derived_sessions(rows: list[_Row], out: Collector, has_ids: bool) -> dict[str, list[_Row]]:
    late = out_of_order([row.time_s or 0.0 for row in rows])
    for i in sorted(late):
        out.reject(rows[i].place.error("timestamp", f"{rows[i].place.data.get('timestamp')} is out of order"))
    kept = [row for i, row in enumerate(rows) if i not in late]
    if not kept:
        return {}
    if has_ids:
        out.note("calls without a session id among others that have one: each is a session of its own", len(kept))
        chains = [[row] for row in kept]
    else:
        chains = _lineages(kept)
        out.note(f"calls without session ids: {len(chains)} sessions derived from common prefixes", len(kept))
    return {f"request_{chain[0].place.line}": chain for chain in chains}


def _lineages(rows: list[_Row]) -> list[list[_Row]]:
    """Chains of calls in which each begins with all whole blocks of the one before it (see the module's text)."""
    block_tokens = fitting_block_size((row.prompt, len(row.ids)) for row in rows if row.ids)
    children: dict[tuple[int, Any], int] = {}  # (node, block id) -> node, of the tree of all prompts; 0 is its root
    branches: Counter[int] = Counter()
    paths = []
    for row in rows:
        path = [0]
        for block in (row.ids or ())[: row.prompt // block_tokens]:
            step = (path[-1], block)
            if step not in children:
                branches[path[-1]] += 1
            path.append(children.setdefault(step, len(children) + 1))
        paths.append(path)
    open_at: dict[int, list[_Row]] = {}
    chains: list[list[_Row]] = []
    for row, path in zip(rows, paths, strict=True):
        joint = next((node for node in reversed(path[1:]) if node in open_at and branches[node] <= 1), None)
        chain: list[_Row] = []
        if joint is not None and row.prompt > open_at[joint][-1].prompt + open_at[joint][-1].output // 2:
            chain = open_at.pop(joint)
        else:
            chains.append(chain)
        chain.append(row)
        open_at[path[-1]] = chain
    return chains


def write(
    path: Path, trajectories: Sequence[Trajectory], arrivals_s: Mapping[str, float], block_tokens: int = BLOCK_TOKENS
) -> None:
    """Sessions by arrival (0 where unknown). Ids recur where whole blocks do: reuse is exact to within a block."""
    names = BlockNames(block_tokens)
    order = sorted(trajectories, key=lambda t: arrivals_s.get(t.id, 0.0))
    write_json_lines(
        path, (row for t in order for row in _rows(t.id, t, list(names.prompts(t)), arrivals_s.get(t.id, 0.0)))
    )


def write_plan(path: Path, sessions: Sequence[PlannedSession], block_tokens: int = BLOCK_TOKENS) -> None:
    """Write the concrete sessions of a run, so that another simulator can be driven with the same calls.

    Sessions that replay one trajectory (same id) have the same blocks. A session that joins mid-trajectory starts at
    its first remaining call, once what is left of that call's gap is over.
    """
    names = BlockNames(block_tokens)
    ids: dict[str, list[list[int]]] = {}
    rows: list[Iterator[dict[str, Any]]] = []
    for s in sorted(sessions, key=lambda s: s.arrival_s + s.first_gap_s):
        if s.trajectory.id not in ids:
            ids[s.trajectory.id] = list(names.prompts(s.trajectory))
        rows.append(_rows(s.id, s.trajectory, ids[s.trajectory.id], s.arrival_s + s.first_gap_s, s.first_call))
    write_json_lines(path, (row for session in rows for row in session))


def _rows(
    session_id: str, trajectory: Trajectory, ids: list[list[int]], start_s: float, first_call: int = 0
) -> Iterator[dict[str, Any]]:
    for i in range(first_call, trajectory.n_calls):
        yield {
            "session_id": session_id,
            **({"timestamp": _ms(start_s)} if i == first_call else {"delay": _ms(trajectory.gap_before_s[i])}),
            "input_length": trajectory.prompt_tokens[i],
            "output_length": trajectory.output_tokens[i],
            "hash_ids": ids[i],
        }


def _ms(seconds: float) -> int | float:
    """Milliseconds, to the nanosecond; whole ones as integers, which is all that some readers take."""
    ms = round(seconds * 1000, 6)
    return int(ms) if ms.is_integer() else ms
