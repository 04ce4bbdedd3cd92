"""mini-SWE-agent `.traj.json`: one JSON document a session, its chat messages under `messages` (or, before version 1,
the bare list of them).

A message of the assistant is a call. Tokens come from the `usage` of the response under `extra` (chat completions or
responses API), or else are counted; times from `extra.timestamp`, which a response gets at its end and a tool's
result when the tool is done. The id is `instance_id`, or else the file's name. The system message is the shared head.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from artifact.workload.formats.base import Collector, Sample
from artifact.workload.formats.record import Record, TraceError, json_document, write_json_document
from artifact.workload.formats.tokens import content_text, count_tokens
from artifact.workload.formats.transcript import Transcript
from artifact.workload.trajectory import Trajectory

NAME, SUFFIX, MANY, NESTS = "mini-swe-agent", ".traj.json", False, False
VERSION = "mini-swe-agent-1.1"
_EMPTY: dict[str, Any] = {}


def matches(sample: Sample) -> bool:
    document = sample.document
    if isinstance(document, dict):
        return str(document.get("trajectory_format")).startswith("mini-swe-agent") or {"messages", "info"} <= set(
            document
        )
    return isinstance(document, list) and bool(document) and isinstance(document[0], dict) and "role" in document[0]


def read(path: Path, out: Collector) -> None:
    data = json_document(path)
    document = Record({"messages": data} if isinstance(data, list) else data, path)
    if not isinstance(document.data, dict):
        raise TraceError(path, "not a JSON object")
    key = document.text("instance_id") if document.has("instance_id") else path.name.removesuffix(SUFFIX)
    with out.session():
        _read_session(document, key, out)


def _read_session(document: Record, key: str, out: Collector) -> None:
    transcript = Transcript(out)
    texts: dict[str, str] = {}  # first of each role
    for message in document.children("messages"):
        extra = message.child("extra") if message.has("extra") else Record(_EMPTY, message.path)
        role = str(message.data.get("role"))
        usage = _usage(message, extra)
        if role == "assistant" or message.data.get("object") == "response":
            transcript.call(_said(message), extra, "timestamp", **usage)
            continue
        if usage:  # a response that did not parse is logged with the complaint about it, not as a message of its own
            transcript.call("", extra, "timestamp", **usage)
        texts.setdefault(role, content_text(message.data.get("content")))
        transcript.say(message.data.get("content") or message.data.get("output"), extra, "timestamp")
    calls = transcript.calls()
    if not calls:
        raise document.error("messages", "no message of role assistant")
    head = min(count_tokens(texts.get("system", "")), *(call.prompt for call in calls))
    out.add(calls, document, id=key, task_text=texts.get("user", ""), shared_head_tokens=head)


def _usage(message: Record, extra: Record) -> dict[str, int]:
    """Recorded tokens of the response: prompt, output, cached, as far as there are any."""
    response = message
    if isinstance(extra.data.get("response"), dict):
        response = extra.child("response")
    if not isinstance(response.data.get("usage"), dict):
        return {}
    usage = response.child("usage")
    chat = usage.has("prompt_tokens")
    names = {"prompt": "prompt_tokens", "output": "completion_tokens"}
    if not chat:
        names = {"prompt": "input_tokens", "output": "output_tokens"}
    counts = {name: usage.count(key) for name, key in names.items() if usage.has(key)}
    details = "prompt_tokens_details" if chat else "input_tokens_details"
    if usage.has(details) and usage.child(details).has("cached_tokens"):
        counts["cached"] = usage.child(details).count("cached_tokens")
    return counts


def _said(message: Record) -> list[Any]:
    tools = message.children("tool_calls") if message.has("tool_calls") else ()
    calls = [json.dumps(call.data.get("function", call.data)) for call in tools]
    return [message.data.get("reasoning_content"), message.data.get("content"), message.data.get("output"), *calls]


def write(path: Path, trajectories: Sequence[Trajectory], arrivals_s: Mapping[str, float]) -> None:
    """Write one session, without text but for the task."""
    (session,) = trajectories
    messages = [
        {"role": "system", "content": ""},
        {"role": "user", "content": session.task_text},
        *_messages(session, arrivals_s.get(session.id, 0.0)),
    ]
    info = {"model_stats": {"api_calls": session.n_calls}}
    write_json_document(
        path, {"info": info, "messages": messages, "trajectory_format": VERSION, "instance_id": session.id}
    )


def _messages(t: Trajectory, time_s: float) -> Iterator[dict[str, Any]]:
    for i, (prompt, new, output) in enumerate(zip(t.prompt_tokens, t.new_tokens, t.output_tokens, strict=True)):
        if i:
            time_s += t.gap_before_s[i]
            yield {"role": "user", "content": "", "extra": {"timestamp": time_s}}
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "prompt_tokens_details": {"cached_tokens": prompt - new},
        }
        yield {"role": "assistant", "content": "", "extra": {"timestamp": time_s, "response": {"usage": usage}}}
