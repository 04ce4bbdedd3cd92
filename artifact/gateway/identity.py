"""Which session a call belongs to: the conventions seen in the wild, in a documented order.

The first convention that yields an id names the session. `user` and Anthropic's plain `metadata.user_id` are not in
the default order: they name a person, whose parallel sessions would be merged into one. A call that no convention
names is a session of its own, never part of one shared anonymous program.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from artifact.gateway.config import MAX_ID_CHARS

Headers = Mapping[bytes, bytes]
Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Identity:
    """A call's session. `source` is the convention that named it, "lineage", or "none" for a session of one call."""

    id: str
    source: str
    parent: str | None = None
    final: bool = False


@dataclass(frozen=True, slots=True)
class Convention:
    """Where one client or gateway puts a session's id, and (headers) its parent's id and the mark of its last call."""

    read: Callable[[Headers, Body], str | None]
    parent_header: bytes = b""
    final_header: bytes = b""


def _header(name: str) -> Callable[[Headers, Body], str | None]:
    key = name.encode()
    return lambda headers, body: headers[key].decode("latin-1") if key in headers else None


def _field(*path: str) -> Callable[[Headers, Body], str | None]:
    def read(headers: Headers, body: Body) -> str | None:
        value: Any = body
        for key in path:
            value = value.get(key) if isinstance(value, dict) or value is body else None
        return value if isinstance(value, str) else str(value) if type(value) is int else None

    return read


def _rid(headers: Headers, body: Body) -> str | None:
    """SMG's request id ends in turn and retry: `agent7_t3_r1` is session `agent7`; without either it names none."""
    rid = body.get("rid")
    named = re.fullmatch(r"(.+?)(?:_t\d+)(?:_r\d+)?|(.+?)_r\d+", rid) if isinstance(rid, str) else None
    return (named[1] or named[2]) if named else None


def _claude_metadata(headers: Headers, body: Body) -> str | None:
    """Claude Code packs its session into `metadata.user_id`, as `user_…_session_<id>` or as JSON with `session_id`."""
    user = _field("metadata", "user_id")(headers, body) or ""
    if "_session_" in user:
        return user.rpartition("_session_")[2]
    if user.startswith("{"):
        try:
            return _field("session_id")({}, json.loads(user))
        except (ValueError, RecursionError):
            return None
    return None


CONVENTIONS: Mapping[str, Convention] = {
    "basin": Convention(_header("x-basin-session-id"), b"x-basin-parent-session-id", b"x-basin-session-final"),
    "dynamo": Convention(_header("x-dynamo-session-id"), b"x-dynamo-parent-session-id", b"x-dynamo-session-final"),
    "claude-code": Convention(_header("x-claude-code-session-id")),
    "litellm-header": Convention(_header("x-litellm-session-id")),
    "envoy": Convention(_header("agent-session-id")),
    "affinity": Convention(_header("x-session-affinity")),
    "x-session-id": Convention(_header("x-session-id")),
    "session-id": Convention(_header("session-id")),
    "session_id-header": Convention(_header("session_id")),
    "smg-routing-key": Convention(_header("x-smg-routing-key")),
    "program_id": Convention(_field("program_id")),
    "session_id": Convention(_field("session_id")),
    "session_params": Convention(_field("session_params", "id")),
    "routing_key": Convention(_field("routing_key")),
    "job_id": Convention(_field("job_id")),
    "litellm": Convention(_field("litellm_session_id")),
    "rid": Convention(_rid),
    "claude-metadata": Convention(_claude_metadata),
    "prompt_cache_key": Convention(_field("prompt_cache_key")),
    "aiperf": Convention(_header("x-correlation-id")),
    "aiperf_": Convention(_header("x_correlation_id")),
    "metadata.user_id": Convention(_field("metadata", "user_id")),
    "user": Convention(_field("user")),
}
NOT_BY_DEFAULT = ("metadata.user_id", "user")
DEFAULT_ORDER = tuple(name for name in CONVENTIONS if name not in NOT_BY_DEFAULT)


def clean_id(raw: str) -> str:
    """An id fit for tables, logs and pages: a long or unprintable one is replaced by its hash."""
    text = raw.strip()
    if len(text) <= MAX_ID_CHARS and text.isprintable():
        return text
    return "sha256-" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class Identifier:
    """Names the session of each call. Conventions found to change with every request can be distrusted at run time.

    Raises `ValueError` for an unknown convention, naming the known ones.
    """

    def __init__(self, order: tuple[str, ...] | None = None) -> None:
        self.order = DEFAULT_ORDER if order is None else order
        unknown = [name for name in self.order if name not in CONVENTIONS]
        if unknown:
            raise ValueError(f"identity: unknown convention {unknown[0]!r}; known: {', '.join(CONVENTIONS)}")
        self.distrusted: set[str] = set()
        self._anonymous = count(1)

    def identify(self, headers: Headers, body: Body) -> Identity:
        """The session of a call with these headers (lower-case names) and this parsed JSON body."""
        for name in self.order:
            convention = CONVENTIONS[name]
            raw = convention.read(headers, body)
            if raw and name not in self.distrusted and (session_id := clean_id(raw)):
                parent = headers.get(convention.parent_header)
                return Identity(
                    session_id,
                    name,
                    clean_id(parent.decode("latin-1")) or None if parent else None,
                    headers.get(convention.final_header, b"").strip().lower() in (b"true", b"1"),
                )
        return Identity(f"call-{next(self._anonymous)}", "none")
