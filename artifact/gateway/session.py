"""A session and its calls as the gateway sees them."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from artifact.control.policy import SessionFacts
from artifact.gateway.ask import Ask

_BRANCHES = 8
UNKNOWN_HEAD = -1
"""Conversation of a session whose calls the gateway has not seen; its first call takes the place."""


class Stage(StrEnum):
    """Where a call is. A call passes each stage at most once, in this order, and always ends in CLOSED."""

    WAITING = "waiting"  # parked with a new session, or suspended at a turn boundary
    PASSED = "passed"  # let through, on its way to the engine
    STREAMING = "streaming"
    CLOSED = "closed"


class Outcome(StrEnum):
    """How a call ended."""

    DONE = "done"
    FAILED = "failed"  # the engine refused, broke off or could not be reached
    LEFT = "left"  # the client vanished
    REFUSED = "refused"  # the gateway answered itself


class AdoptedSession(BaseModel):
    """A session that is inside already when the gateway hears of it; other fields of a listing are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    id: str = Field(min_length=1)
    context_tokens: int = Field(ge=0)
    first_prompt_tokens: int | None = Field(default=None, ge=0)
    task_text: str = ""


@dataclass(slots=True, eq=False)
class Session:
    """`inside`: the policy counts it as resident. Its context is the sum of its conversations' latest contexts,
    for sub-agents that reuse the id each keep a prefix of their own; a compacted conversation's context shrinks."""

    facts: SessionFacts
    source: str
    parent: str | None = None
    inside: bool = False
    suspended: bool = False
    one_call: bool = False
    final: bool = False
    cut_off: bool = False
    turn_open: bool = False
    turns: int = 0
    peak_tokens: int = 0
    tokens_per_byte: float | None = None
    """Of the latest prompt that the engine has counted: code, prose and other languages differ by far more than a
    session's prompts do."""
    pin_s: float = 0.0
    """What the policy wanted when the latest turn ended."""
    admitted_s: float | None = None
    resting_since_s: float = 0.0
    live: int = 0
    waiting: list["Call"] = field(default_factory=list)
    _contexts: OrderedDict[int, int] = field(default_factory=OrderedDict)

    @property
    def id(self) -> str:
        return self.facts.id

    @property
    def context_tokens(self) -> int:
        return sum(self._contexts.values())

    def context_of(self, head: int) -> int:
        return self._contexts.get(head, 0)

    def counted(self, prompt_tokens: int, body_bytes: int) -> None:
        """The engine's own count of a prompt whose body was this long; a count of zero says nothing."""
        if prompt_tokens and body_bytes:
            self.tokens_per_byte = prompt_tokens / body_bytes

    def set_context(self, head: int, tokens: int) -> None:
        """Of one conversation; the session's peak follows."""
        self._contexts.pop(UNKNOWN_HEAD, None)
        self._contexts[head] = tokens
        self._contexts.move_to_end(head)
        if len(self._contexts) > _BRANCHES:
            self._contexts.popitem(last=False)
        self.peak_tokens = max(self.peak_tokens, self.context_tokens)


@dataclass(slots=True, eq=False)
class Call:
    """One request. `gate` is what it waits at, if it has to; `stuck_since_s` is when it last made progress."""

    session: Session
    ask: Ask
    prompt_tokens: int
    """Estimated from the body's length until the engine has said."""
    opened_s: float
    gate: asyncio.Future[None] | None = None
    stage: Stage = Stage.WAITING
    passed_s: float | None = None
    first_byte_s: float | None = None
    stuck_since_s: float = 0.0
    task: asyncio.Task[None] | None = None
    timed_out: bool = False

    @property
    def waited_s(self) -> float:
        return 0.0 if self.passed_s is None else self.passed_s - self.opened_s
