"""SWE-agent `.traj`: one JSON document a session, a step of `trajectory` a call.

Tokens are counted: the prompt from the step's `query` (the messages sent), or from `history` where a step has none
(before version 1.1), the output from `response` and `action`. Tool definitions and the model's chat template are in
neither. `extra_info` of a step may give `prompt_tokens`, `new_tokens` and `completion_tokens` instead. A gap is the
preceding step's `execution_time`. The system messages that begin the first prompt are the shared head.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from artifact.workload.formats.base import Call, Collector, Sample
from artifact.workload.formats.blocks import leading_equal
from artifact.workload.formats.record import Record, document_record, write_json_document
from artifact.workload.formats.tokens import VOCABULARY, content_text, count_tokens
from artifact.workload.trajectory import Trajectory

NAME, SUFFIX, MANY, NESTS = "swe-agent", ".traj", False, False
_Prompt = list[tuple[str, str]]  # role and text of each message


def matches(sample: Sample) -> bool:
    return isinstance(sample.document, dict) and isinstance(sample.document.get("trajectory"), list)


def read(path: Path, out: Collector) -> None:
    document = document_record(path)
    info = document.child("info") if document.has("info") else Record({}, path)
    with out.session():
        key = info.text("instance_id") if info.has("instance_id") else path.name.removesuffix(SUFFIX)
        _read_session(document, key, out)


def _read_session(document: Record, key: str, out: Collector) -> None:
    tally = lru_cache(maxsize=None)(count_tokens)  # prompts repeat their messages
    from_history = _history_prompts(document)
    calls: list[Call] = []
    prompts: list[_Prompt] = [[]]
    gap_s = 0.0
    answer: _Prompt = []
    for step in document.children("trajectory"):
        response = _response(step)
        answered = prompts[-1] + answer  # for want of a query, since the history can lack responses that were retried
        prompt = _messages(step.children("query")) if step.has("query") else next(from_history, answered)
        if recorded := _recorded(step):
            calls.append(Call(*recorded, gap_s))
        elif any(text for _, text in prompt):
            sizes = [tally(text) for _, text in prompt]
            repeated = sum(sizes[: leading_equal(prompts[-1], prompt)])
            calls.append(Call(sum(sizes), sum(sizes) - repeated, tally(response), gap_s))
            out.note(f"calls counted from the visible text ({VOCABULARY})")
        elif step.data.get("response"):
            raise step.error("query", "missing, and no history to count the prompt from")
        else:
            continue  # a submission forced by the end of a budget is no call
        prompts.append(prompt)
        answer = [("assistant", response), ("user", content_text(step.data.get("observation")))]
        out.note("tool times not recorded, taken as 0 s", not step.has("execution_time"))
        gap_s = step.number("execution_time", low=0) if step.has("execution_time") else 0.0
    if not calls:
        raise document.error("trajectory", "no step with a model call")
    first = prompts[1]
    system = takewhile(lambda message: message[0] == "system", first)
    head = min(sum(tally(text) for _, text in system), *(call.prompt for call in calls))
    task = next((text for role, text in first if role == "user"), "")
    out.add(calls, document, id=key, task_text=task, shared_head_tokens=head)


def _messages(messages: Sequence[Record]) -> _Prompt:
    return [(str(m.data.get("role")), content_text([m.data.get("content"), *_tool_calls(m)])) for m in messages]


def _tool_calls(message: Record) -> list[str]:
    calls = message.children("tool_calls") if message.has("tool_calls") else ()
    return [json.dumps(call.data.get("function", call.data)) for call in calls]


def _history_prompts(document: Record) -> Iterator[_Prompt]:
    """The messages before each response of the assistant; demonstrations are messages, but no responses."""
    prompt: _Prompt = []
    for message in document.children("history") if document.has("history") else ():
        if message.data.get("role") == "assistant" and not message.data.get("is_demo"):
            yield list(prompt)
        prompt += _messages([message])


def _response(step: Record) -> str:
    response, action = (content_text(step.data.get(key)) for key in ("response", "action"))
    said = response if action.strip() in response else f"{response}\n{action}"
    return "\n".join([said.strip(), *_tool_calls(step)]).strip()


def _recorded(step: Record) -> tuple[int, int, int] | None:
    """Prompt, new and output tokens from `extra_info`, where they are."""
    extra = step.child("extra_info") if step.has("extra_info") else Record({}, step.path)
    if not extra.has("prompt_tokens"):
        return None
    return extra.count("prompt_tokens"), extra.count("new_tokens"), extra.count("completion_tokens")


def write(path: Path, trajectories: Sequence[Trajectory], arrivals_s: Mapping[str, float]) -> None:
    """Write one session, without text but for the task; the tokens go into `extra_info`."""
    (session,) = trajectories
    info = {"instance_id": session.id, "model_stats": {"api_calls": session.n_calls}}
    write_json_document(path, {"trajectory": list(_steps(session)), "history": [], "info": info})


def _steps(t: Trajectory) -> Iterator[dict[str, Any]]:
    after_s = (*t.gap_before_s[1:], 0.0)
    for i, (prompt, new, output) in enumerate(zip(t.prompt_tokens, t.new_tokens, t.output_tokens, strict=True)):
        yield {
            "query": [{"role": "user", "content": t.task_text}] if i == 0 else [],
            "response": "",
            "action": "",
            "observation": "",
            "execution_time": after_s[i],
            "extra_info": {"prompt_tokens": prompt, "new_tokens": new, "completion_tokens": output},
        }
