"""ATIF, the Agent Trajectory Interchange Format (1.0 to 1.7): one JSON document a session.

An `agent` step is a call, with `metrics` `prompt_tokens` (whole prompt), `completion_tokens` and `cached_tokens`;
text is counted where they are missing. Steps copied from another trajectory and those without a model call are none.
`subagent_trajectories` are sessions of their own, with `parent_id`. The text of system prompt and tool definitions is
the head that sessions share, unless `extra.shared_head_tokens` says how long it is.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from artifact.workload.formats.base import Collector, Sample
from artifact.workload.formats.record import Record, document_record, iso_time, write_json_document
from artifact.workload.formats.tokens import content_text, count_tokens
from artifact.workload.formats.transcript import Transcript
from artifact.workload.trajectory import Trajectory

NAME, SUFFIX, MANY, NESTS = "atif", ".json", False, True
VERSION = "ATIF-v1.7"


def matches(sample: Sample) -> bool:
    return isinstance(sample.document, dict) and str(sample.document.get("schema_version")).startswith("ATIF")


def read(path: Path, out: Collector) -> None:
    root = document_record(path)
    key = next((root.text(k) for k in ("trajectory_id", "session_id") if root.has(k)), path.stem)
    _read_session(root, key, None, out)


def _read_session(session: Record, key: str, parent: str | None, out: Collector) -> None:
    with out.session():
        transcript = Transcript(out)
        task, system = "", ""
        for step in session.children("steps"):
            source = step.text("source")
            if source == "agent":
                _tell_agent_step(step, transcript)
            else:
                transcript.say(step.data.get("message"), step, "timestamp")
                text = content_text(step.data.get("message"))
                task = task or (text if source == "user" else "")
                system = system or (text if source == "system" else "")
        calls = transcript.calls()
        if not calls:
            raise session.error("steps", "no step of source agent that is a model call")
        head = min(_head_tokens(session, system), *(call.prompt for call in calls))
        out.add(calls, session, id=key, parent_id=parent, task_text=task, shared_head_tokens=head)
    if session.has("subagent_trajectories"):
        for i, agent in enumerate(session.children("subagent_trajectories")):
            _read_session(agent, f"{key}/{agent.data.get('trajectory_id', i)}", key, out)


def _tell_agent_step(step: Record, transcript: Transcript) -> None:
    model_calls = step.count("llm_call_count") if step.has("llm_call_count") else 1
    if model_calls > 1:
        raise step.error("llm_call_count", f"metrics of {model_calls} calls in one step cannot be told apart")
    said = [step.data.get(key) for key in ("reasoning_content", "message")]
    said += map(json.dumps, step.items("tool_calls") if step.has("tool_calls") else ())
    if model_calls and not step.data.get("is_copied_context"):
        metrics = step.child("metrics") if step.has("metrics") else Record({}, step.path)
        keys = {"prompt": "prompt_tokens", "output": "completion_tokens", "cached": "cached_tokens"}
        counts = {name: metrics.count(key) for name, key in keys.items() if metrics.has(key)}
        transcript.call(said, step, "timestamp", **counts)
    else:
        transcript.say(said, step)
    if step.has("observation"):
        transcript.say(step.child("observation").data.get("results"), step)


def _head_tokens(session: Record, system: str) -> int:
    extra = session.child("extra") if session.has("extra") else Record({}, session.path)
    if extra.has("shared_head_tokens"):
        return extra.count("shared_head_tokens")
    tools = session.child("agent").data.get("tool_definitions") if session.has("agent") else None
    return count_tokens(system) + (count_tokens(json.dumps(tools)) if tools else 0)


def write(path: Path, trajectories: Sequence[Trajectory], arrivals_s: Mapping[str, float]) -> None:
    """Write one root session and the sub-agents below it, without text but for the task."""
    root, *agents = trajectories
    write_json_document(path, _document(root, agents, arrivals_s.get(root.id, 0.0)))


def _document(session: Trajectory, agents: Sequence[Trajectory], arrival_s: float) -> dict[str, Any]:
    below = [_document(agent, agents, arrival_s) for agent in agents if agent.parent_id == session.id]
    key = session.id if session.parent_id is None else session.id.removeprefix(f"{session.parent_id}/")
    return {
        "schema_version": VERSION,
        "trajectory_id": key,
        "agent": {"name": "unknown", "version": "unknown"},
        "steps": [{"step_id": i, **step} for i, step in enumerate(_steps(session, arrival_s), 1)],
        "extra": {"shared_head_tokens": session.shared_head_tokens},
        **({"subagent_trajectories": below} if below else {}),
    }


def _steps(t: Trajectory, time_s: float) -> Iterator[dict[str, Any]]:
    yield {"source": "user", "message": t.task_text}
    for i, (prompt, new, output) in enumerate(zip(t.prompt_tokens, t.new_tokens, t.output_tokens, strict=True)):
        time_s += t.gap_before_s[i] if i else 0.0
        metrics = {"prompt_tokens": prompt, "completion_tokens": output, "cached_tokens": prompt - new}
        yield {"source": "agent", "timestamp": iso_time(time_s), "message": "", "metrics": metrics}
