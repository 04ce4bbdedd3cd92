"""What the gateway reads from a request: how long it is, where its conversation begins, what the task says."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TASK_CHARS = 4096
MARKS = frozenset(("priority", "custom_params", "bootstrap_room"))


@dataclass(frozen=True, slots=True)
class Ask:
    """One call as its body describes it. `head` tells apart the conversations that run under one id."""

    body_bytes: int
    head: int = 0
    n: int = 1
    task_text: str = ""
    is_object: bool = False
    own_marks: frozenset[str] = frozenset()
    """Members that the client set and the gateway may have to replace."""


def read_ask(body: Mapping[str, Any] | None, body_bytes: int) -> Ask:
    """Reads chat, completions, responses and Anthropic bodies; whatever else stands in them is left to the engine.

    `head` hashes the system prompt (or, without one, the opening message): a sub-agent that reuses its parent's id
    has a head of its own, while a compacted conversation keeps its.
    """
    if body is None:
        return Ask(body_bytes)
    messages = body.get("messages", body.get("input", body.get("prompt")))
    opening = body.get("system", body.get("instructions"))
    if isinstance(messages, str):
        turns, task = [], messages[:TASK_CHARS]
        opening = task if opening is None else opening
    else:
        turns = [m for m in messages if isinstance(m, dict)] if isinstance(messages, list) else []
        task = _task(turns)
        opening = turns[0].get("content") if opening is None and turns else opening
    head = hash(opening) if isinstance(opening, str) else hash(repr(opening))
    n = body.get("n")
    return Ask(body_bytes, head, n if isinstance(n, int) and n > 1 else 1, task, True, MARKS & body.keys())


def _task(turns: list[dict[str, Any]]) -> str:
    """The user's words before the first answer, as far as the predictor reads them."""
    said: list[str] = []
    for turn in turns:
        if turn.get("role") in ("assistant", "tool"):
            break
        if turn.get("role", "user") == "user":
            content = turn.get("content")
            parts = content if isinstance(content, list) else [content]
            said += [p if isinstance(p, str) else str(p.get("text", "")) for p in parts if isinstance(p, str | dict)]
    return "\n".join(said)[:TASK_CHARS]
