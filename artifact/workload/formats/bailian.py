"""Bailian's anonymised usage traces: JSON Lines, one request a line, in order of time.

`chat_id`, `parent_chat_id` (-1 for a root), `timestamp` (s), `input_length` (whole prompt), `output_length`, `type`,
`turn`, `hash_ids` (16-token blocks). A session follows a root to the first reply to each of its requests; a further
reply to the same request is a session of its own, whose `parent_id` is the session that it branched off. A parent
outside the file (before the recorded window) makes its reply a root. Gaps are differences of arrivals, so they
include the preceding response's time. Writing, on the other hand, takes responses to need no time, and numbers chats
anew: the session ids are lost.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import accumulate, count, pairwise
from pathlib import Path
from typing import Any

from artifact.workload.formats.base import Call, Collector, Sample, out_of_order
from artifact.workload.formats.blocks import BlockNames, common_head, repeated_tokens
from artifact.workload.formats.record import Record, TraceError, json_lines, write_json_lines
from artifact.workload.trajectory import Trajectory

NAME, SUFFIX, MANY, NESTS = "bailian", ".jsonl", True, False
BLOCK_TOKENS = 16
_ROOT = "-1"
_CHAT_ID = re.compile(r'"chat_id"\s*:\s*(\d+)')
_PARENT_ID = re.compile(r'"parent_chat_id"\s*:\s*(-?\d+)')


def matches(sample: Sample) -> bool:
    return any("chat_id" in line and "parent_chat_id" in line for line in sample.lines)


@dataclass(slots=True)
class _Request:
    place: Record
    chat: str
    parent: str
    prompt: int = 0
    output: int = 0
    time_s: float = 0.0
    ids: Sequence[Any] = ()
    error: TraceError | None = None


@dataclass(slots=True)
class _Session:
    parent_id: str | None
    requests: list[_Request] = field(default_factory=list)


def read(path: Path, out: Collector) -> None:
    sessions = _sessions(_requests(path, out), out)
    head = common_head([s.requests[0].ids for s in sessions if not s.requests[0].error]) * BLOCK_TOKENS
    for session in sessions:
        with out.session():
            _read_session(session, head, out)


def _requests(path: Path, out: Collector) -> list[_Request]:
    requests: dict[str, _Request] = {}
    for text, record in json_lines(path):
        request = _parse(text, record, path)
        if request.error and (not out.skip_bad or not request.chat):
            out.reject(request.error)
            continue
        earlier = requests.setdefault(request.chat, request)
        if earlier is not request:
            if earlier.place.data != request.place.data:
                out.reject(request.place.error("chat_id", f"{request.chat} occurs before with other content"))
            else:
                out.skipped.append(f"{path}:{request.place.line}: duplicate of chat {request.chat}; dropped")
    return list(requests.values())


def _parse(text: str, record: Record | TraceError, path: Path) -> _Request:
    if isinstance(record, TraceError):
        found, above = _CHAT_ID.search(text), _PARENT_ID.search(text)
        return _Request(Record({}, path), found[1] if found else "", above[1] if above else _ROOT, error=record)
    chat, parent = (str(record.data.get(key, "")) for key in ("chat_id", "parent_chat_id"))
    try:
        return _Request(
            record,
            record.text("chat_id"),
            record.text("parent_chat_id"),
            record.count("input_length"),
            record.count("output_length"),
            record.number("timestamp", low=0),
            record.ids("hash_ids"),
        )
    except TraceError as error:
        return _Request(record, chat, parent, error=error)


def _sessions(requests: list[_Request], out: Collector) -> list[_Session]:
    sound = [request for request in requests if not request.error]
    for i in out_of_order([request.time_s for request in sound]):
        place = sound[i].place
        error = place.error("timestamp", f"{place.data['timestamp']} is out of order")
        if not out.skip_bad:
            raise error
        sound[i].error = error
    known = {request.chat for request in requests}
    replied: set[str] = set()
    session_of: dict[str, _Session] = {}
    sessions: list[_Session] = []
    for request in requests:
        parent = session_of.get(request.parent)
        out.note("parents outside the file: their replies start sessions", request.parent not in known | {_ROOT})
        if parent and request.parent not in replied:
            replied.add(request.parent)
            session = parent
        else:
            session = _Session(parent.requests[0].chat if parent else None)
            sessions.append(session)
        session.requests.append(request)
        session_of[request.chat] = session
    return sessions


def _read_session(session: _Session, head: int, out: Collector) -> None:
    first = session.requests[0]
    if error := next((request.error for request in session.requests if request.error), None):
        raise error
    calls = [Call(first.prompt, first.prompt, first.output, 0.0)]
    for before, request in pairwise(session.requests):
        repeated = repeated_tokens(before.ids, before.prompt, request.ids, request.prompt, BLOCK_TOKENS)
        out.note("gaps derived from arrivals: they include the preceding response's time")
        calls.append(Call(request.prompt, request.prompt - repeated, request.output, request.time_s - before.time_s))
    head = min(head, *(call.prompt for call in calls))
    out.add(calls, first.place, first.time_s, id=first.chat, parent_id=session.parent_id, shared_head_tokens=head)


def write(path: Path, trajectories: Sequence[Trajectory], arrivals_s: Mapping[str, float]) -> None:
    names, chats = BlockNames(BLOCK_TOKENS), count()
    sessions = [_rows(t, arrivals_s.get(t.id, 0.0), names, chats) for t in trajectories]
    write_json_lines(path, merge(*sessions, key=lambda row: row["timestamp"]))


def _rows(t: Trajectory, arrival_s: float, names: BlockNames, chats: Iterator[int]) -> Iterator[dict[str, Any]]:
    parent = int(_ROOT)
    times = accumulate(t.gap_before_s[1:], initial=arrival_s)
    for i, (time_s, ids) in enumerate(zip(times, names.prompts(t), strict=True)):
        chat = next(chats)
        yield {
            "chat_id": chat,
            "parent_chat_id": parent,
            "timestamp": time_s,
            "input_length": t.prompt_tokens[i],
            "output_length": t.output_tokens[i],
            "type": "text",
            "turn": i + 1,
            "hash_ids": ids,
        }
        parent = chat
