"""weka traces: one JSON document a session.

Each of `requests` has `t` (s), `in`, `out`, `hash_ids` (whole blocks of `block_size` tokens), and mostly `think_time`
(s before the request) and `api_time` (s to its response). A gap is `think_time`, or else what `t` leaves beside the
preceding `api_time`, or else the whole difference of `t`. A request of type `subagent` nests a session of its own,
loaded with `parent_id`. System prompt and tool definitions (`system_tokens`, `tool_tokens`) are taken as the head that
sessions share.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from artifact.workload.formats.base import Call, Collector, Sample
from artifact.workload.formats.blocks import BlockNames, repeated_tokens
from artifact.workload.formats.record import Record, document_record, write_json_document
from artifact.workload.trajectory import Trajectory

NAME, SUFFIX, MANY, NESTS = "weka", ".json", False, True
BLOCK_TOKENS = 64
_SUBAGENT = "subagent"


def matches(sample: Sample) -> bool:
    return isinstance(sample.document, dict) and isinstance(sample.document.get("requests"), list)


def read(path: Path, out: Collector) -> None:
    root = document_record(path)
    block_tokens = root.count("block_size", low=1) if root.has("block_size") else BLOCK_TOKENS
    _read_session(root, root.text("id") if root.has("id") else path.stem, None, block_tokens, out)


def _read_session(session: Record, key: str, parent: str | None, block_tokens: int, out: Collector) -> None:
    with out.session():
        own = [request for request in session.children("requests") if request.data.get("type") != _SUBAGENT]
        if not own:
            raise session.error("requests", "no request of the session's own")
        calls = [Call(own[0].count("in"), own[0].count("in"), own[0].count("out"), 0.0)]
        for before, request in pairwise(own):
            prompt = request.count("in")
            new = prompt - _repeated(before, request, block_tokens)
            calls.append(Call(prompt, new, request.count("out"), _gap_s(before, request, out)))
        heads = [session.count(part) for part in ("tool_tokens", "system_tokens") if session.has(part)]
        head = min(sum(heads), *(call.prompt for call in calls))
        out.add(calls, session, id=key, parent_id=parent, shared_head_tokens=head)
    requests = session.data.get("requests")
    for i, request in enumerate(requests if isinstance(requests, list) else ()):  # apart from the session's own calls
        if isinstance(request, dict) and request.get("type") == _SUBAGENT:
            agent = Record(request, session.path, prefix=f"{session.prefix}requests[{i}].")
            _read_session(agent, f"{key}/{request.get('agent_id', i)}", key, block_tokens, out)


def _repeated(before: Record, request: Record, block_tokens: int) -> int:
    if not (before.has("hash_ids") and request.has("hash_ids")):
        return before.count("in") if request.count("in") >= before.count("in") else 0
    ids = before.ids("hash_ids"), request.ids("hash_ids")
    return repeated_tokens(ids[0], before.count("in"), ids[1], request.count("in"), block_tokens)


def _gap_s(before: Record, request: Record, out: Collector) -> float:
    apart = request.number("t", low=0) - before.number("t", low=0)
    if apart < 0:
        raise request.error("t", f"{request.data['t']} is before the preceding request's {before.data['t']}")
    if request.has("think_time"):
        return request.number("think_time", low=0)
    if before.has("api_time"):
        return max(apart - before.number("api_time", low=0), 0.0)
    out.note("gaps derived from time stamps: they include the preceding response's time")
    return apart


def write(path: Path, trajectories: Sequence[Trajectory], arrivals_s: Mapping[str, float]) -> None:
    """Write one root session and the sub-agents below it."""
    root, *agents = trajectories
    document = _document(root, agents, BlockNames(BLOCK_TOKENS, first=1))
    write_json_document(path, {"id": root.id, "block_size": BLOCK_TOKENS, "hash_id_scope": "local"} | document)


def _document(session: Trajectory, agents: Sequence[Trajectory], names: BlockNames) -> dict[str, Any]:
    requests = list(_requests(session, names))
    for agent in agents:
        if agent.parent_id == session.id:
            marker = {"t": 0.0, "type": _SUBAGENT, "agent_id": agent.id.removeprefix(f"{session.id}/")}
            requests.append(marker | _document(agent, agents, names))
    return {"tool_tokens": 0, "system_tokens": session.shared_head_tokens, "requests": requests}


def _requests(t: Trajectory, names: BlockNames) -> Iterator[dict[str, Any]]:
    time_s = 0.0
    for i, ids in enumerate(names.prompts(t, partial=False)):
        gap_s = t.gap_before_s[i] if i else 0.0
        time_s += gap_s
        yield {
            "t": time_s,
            "type": "n",
            "in": t.prompt_tokens[i],
            "out": t.output_tokens[i],
            "hash_ids": ids,
            "think_time": gap_s,
        }
