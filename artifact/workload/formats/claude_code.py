"""Claude Code session logs: JSON Lines of `user` and `assistant` entries, other types ignored.

The entries of one `message.id` are one call (one entry a content block, all repeating the call's `usage`), ended by
the last of them. A prompt is `input_tokens` + `cache_creation_input_tokens` + `cache_read_input_tokens`. While no
entry of a message has a `stop_reason`, its `output_tokens` can be a placeholder from the stream's beginning: the
visible text is counted then, and the larger number taken. Sub-agents (`isSidechain`) are sessions of their own, with
`parent_id`, told apart by `agentId` or by their first entry. Error messages of the client (`<synthetic>`) are no calls.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from artifact.workload.formats.base import Collector, Sample
from artifact.workload.formats.record import Record, TraceError, iso_time, json_lines, write_json_lines
from artifact.workload.formats.tokens import content_text, count_tokens
from artifact.workload.formats.transcript import Transcript
from artifact.workload.trajectory import Trajectory

NAME, SUFFIX, MANY, NESTS = "claude-code", ".jsonl", True, False
_SESSION_ID = re.compile(r'"sessionId"\s*:\s*"([^"]*)"')
_PROMPT_PARTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


def matches(sample: Sample) -> bool:
    return any("sessionId" in line and "type" in line for line in sample.lines)


@dataclass(slots=True)
class _Message:
    """What the entries of one message id add up to."""

    entry: Record
    prompt: int = 0
    output: int = 0
    cached: int = 0
    complete: bool = False
    end_s: float | None = None
    content: list[Any] = field(default_factory=list)

    def add(self, entry: Record) -> None:
        message = entry.child("message")
        self.content.append(message.data.get("content"))
        if entry.has("timestamp"):
            self.end_s = max(entry.time_s("timestamp"), self.end_s or 0.0)
        self.complete |= message.has("stop_reason")
        if message.has("usage"):
            usage = message.child("usage")
            parts = {key: usage.count(key) for key in _PROMPT_PARTS if usage.has(key)}
            self.prompt = max(self.prompt, sum(parts.values()))
            self.cached = max(self.cached, parts.get("cache_read_input_tokens", 0))
            self.output = max(self.output, usage.count("output_tokens") if usage.has("output_tokens") else 0)

    def tell(self, transcript: Transcript) -> None:
        output: int | None = self.output or None
        if output and not self.complete:
            output = max(output, count_tokens(content_text(self.content)))
        transcript.call(
            self.content,
            self.entry,
            "timestamp",
            prompt=self.prompt or None,
            output=output,
            cached=self.cached,
            end_s=self.end_s,
        )


@dataclass(slots=True)
class _Session:
    parent_id: str | None
    events: list[Record | _Message] = field(default_factory=list)
    messages: dict[str, _Message] = field(default_factory=dict)
    error: TraceError | None = None

    def add(self, entry: Record) -> None:
        message = entry.child("message")
        if entry.data["type"] == "user":
            self.events.append(entry)
        elif message.data.get("model") != "<synthetic>":
            key = message.text("id") if message.has("id") else f"line {entry.line}"
            if key not in self.messages:
                self.messages[key] = _Message(entry)
                self.events.append(self.messages[key])
            self.messages[key].add(entry)


def read(path: Path, out: Collector) -> None:
    sessions: dict[str, _Session] = {}
    first_of: dict[str, str] = {}  # entry -> first entry of its sub-agent
    for text, entry in json_lines(path):
        if isinstance(entry, TraceError):
            found = _SESSION_ID.search(text)
            if not out.skip_bad or not found:
                out.reject(entry)
            else:
                sessions.setdefault(found[1], _Session(None)).error = entry
            continue
        if entry.data.get("type") not in ("user", "assistant") or "message" not in entry.data:
            continue
        uuid = str(entry.data.get("uuid") or f"line {entry.line}")
        if uuid in first_of:
            out.note("repeated log entries dropped")
            continue
        first = first_of[uuid] = first_of.get(str(entry.data.get("parentUuid")), uuid)
        with out.session():
            key, parent = _identity(entry, first)
            session = sessions.setdefault(key, _Session(parent))
            try:
                session.add(entry)
            except TraceError as error:
                if not out.skip_bad:
                    raise
                session.error = session.error or error
    for key, session in sessions.items():
        with out.session():
            _read_session(key, session, out)


def _identity(entry: Record, first: str) -> tuple[str, str | None]:
    """Session id, and the parent's for a sub-agent."""
    session_id = entry.text("sessionId")
    if not entry.data.get("isSidechain"):
        return session_id, None
    return f"{session_id}/{entry.data.get('agentId') or first}", session_id


def _read_session(key: str, session: _Session, out: Collector) -> None:
    if session.error:
        raise session.error
    if not session.messages:
        out.note("sessions without a call ignored")
        return
    transcript = Transcript(out, parallel_tools=True)
    task = ""
    for event in session.events:
        if isinstance(event, _Message):
            event.tell(transcript)
        else:
            content = event.child("message").data.get("content")
            task = task or ("" if event.data.get("isMeta") else content_text(content))
            transcript.say(content, event, "timestamp")
    place = next(event.entry for event in session.events if isinstance(event, _Message))
    out.add(transcript.calls(), place, id=key, parent_id=session.parent_id, task_text=task)


def write(path: Path, trajectories: Sequence[Trajectory], arrivals_s: Mapping[str, float]) -> None:
    """Entries without text but for the task; a response ends where it begins, since its duration is unknown."""
    write_json_lines(path, (row for t in trajectories for row in _rows(t, arrivals_s.get(t.id, 0.0))))


def _rows(t: Trajectory, time_s: float) -> Iterator[dict[str, Any]]:
    common: dict[str, Any] = {"sessionId": t.id, "isSidechain": False}
    if t.parent_id is not None:
        agent = t.id.removeprefix(f"{t.parent_id}/")
        common = {"sessionId": t.parent_id, "isSidechain": True, "agentId": agent}
    parent = None
    for i, (prompt, new, output) in enumerate(zip(t.prompt_tokens, t.new_tokens, t.output_tokens, strict=True)):
        time_s += t.gap_before_s[i] if i else 0.0
        repeated = prompt - new
        usage = dict(zip(_PROMPT_PARTS, (0, new, repeated), strict=True)) | {"output_tokens": output}
        message = {"id": f"{t.id}:{i}", "role": "assistant", "content": [], "stop_reason": "tool_use", "usage": usage}
        said = {"role": "user", "content": t.task_text if i == 0 else ""}
        for kind, body in (("user", said), ("assistant", message)):
            uuid = f"{t.id}:{i}:{kind}"
            yield (
                {"type": kind, "uuid": uuid, "parentUuid": parent, "timestamp": iso_time(time_s)}
                | common
                | {"message": body}
            )
            parent = uuid
