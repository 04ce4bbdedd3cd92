"""How the policy's order and marks reach the engine, and whether the engine heeds them.

The order key becomes the request's integer `priority`. While the policy does not order, a call carries the time at
which it was let through: then a priority queue is a FIFO queue, and calls that wait when ordering begins already
have keys on the same scale (seconds on the gateway's clock).
"""

import json
import logging
import math
import re
from collections.abc import Collection, Mapping
from json.decoder import scanstring  # type: ignore[attr-defined]  # public in CPython, absent from the stubs

from artifact.gateway.config import EnginePriority
from artifact.gateway.desk import Desk
from artifact.gateway.engine_info import PriorityFlags
from artifact.gateway.placement import marks
from artifact.gateway.session import Call
from artifact.gateway.wire import RawHeaders, parse_object

log = logging.getLogger("basin.gateway")
_PER_SECOND = 10.0  # keys in tenths of a second
_LARGEST = 2**53  # what every JSON reader takes for an exact integer
_MARKED_PATHS = frozenset(("/v1/chat/completions", "/v1/completions", "/v1/responses", "/generate"))
_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder(strict=False)


class EngineOrder:
    """Marks calls for the engine, and counts in how many telling cases the engine followed the order.

    Of the calls without an answer, look at the oldest and at the first in order. An answer tells if it goes to the
    first although it was sent `DEPTH` calls or more after the oldest (a FIFO engine would not), or to the oldest
    although the first has seen `DEPTH` others answered since it was sent. Closer cases say nothing: calls that are in
    a batch or in transfer already can no longer change places.
    """

    WATCHED, ENOUGH, DEPTH = 512, 40, 8

    def __init__(self, config: EnginePriority, desk: Desk) -> None:
        self.config, self.desk = config, desk
        self.followed = self.telling = 0
        self._waiting: dict[Call, tuple[float, int, int]] = {}  # in the order sent: key, calls sent, calls answered
        self._sent = self._answers = 0
        self.off_by_flag: tuple[str, ...] = ()
        self.by_extension: frozenset[str] = frozenset()
        self._flags: dict[str, PriorityFlags] = {}
        self._told: dict[str, PriorityFlags] = {}
        self._low_first: bool | None = None

    @property
    def ignored(self) -> bool | None:
        """Whether the engine ignores priorities, by its own word or by what it does; None while too few telling cases
        were seen."""
        if self.off_by_flag:
            return True
        return None if self.telling < self.ENOUGH else self.followed < 0.5 * self.telling

    def learn(self, flags: Mapping[str, PriorityFlags], extension: Mapping[str, bool]) -> None:
        """Take the engines' word, by base URL, for whether they order and for the sign unless that is configured.

        `flags` are of those that were asked just now; `extension` says where the Basin extension sorts the queues,
        smaller first and whatever the engine's own flag, which it excludes.
        """
        self._flags |= flags
        by_extension = frozenset(url for url, orders in extension.items() if orders)
        told = {**self._flags, **dict.fromkeys(by_extension, PriorityFlags(enabled=True, low_first=True))}
        if self.config.dialect != "sglang" or (told, by_extension) == (self._told, self.by_extension):
            return
        self._told, self.by_extension = told, by_extension
        self.off_by_flag = tuple(sorted(url for url, engine in told.items() if not engine.enabled))
        for url in self.off_by_flag:
            log.warning(
                "engine runs without --enable-priority-scheduling or the extension's ordering", extra={"endpoint": url}
            )
        for url in sorted(by_extension):
            log.info("the Basin extension orders the engine's queues", extra={"endpoint": url})
        low_first = {engine.low_first for engine in told.values() if engine.enabled}
        if len(low_first) > 1 or (self.config.low_first is not None and low_first - {self.config.low_first}):
            log.error("engines disagree about which priority values go first; calls may be served last first")
        elif self.config.low_first is None:
            self._low_first = low_first.pop() if low_first else None

    @property
    def sign(self) -> int:
        """As configured, else as the engine says, else the dialect's default."""
        return self.config.sign if self._low_first is None else 1 if self._low_first else -1

    def mark(self, call: Call, path: str, body: bytes, elastic: bool = False) -> tuple[RawHeaders, bytes]:
        """Headers to add to the call, and its body with its marks in front; `elastic`: decode computes all of it."""
        members: dict[str, object] = {}
        headers: RawHeaders = []
        if self.config.dialect != "none":
            members["priority"] = priority = self._priority(call)
            headers.append((b"x-vllm-priority", b"%d" % priority))
        if self.config.hints or elastic:
            members["custom_params"] = {**_own_custom_params(call, body), "basin": self._hint(call, elastic)}
        if elastic:
            members |= marks()
        if members and path in _MARKED_PATHS and call.ask.is_object:
            body = with_members(body, members, replace=bool(call.ask.own_marks & members.keys()))
        return headers, body

    def _priority(self, call: Call) -> int:
        ordering = bool(self.desk.ask(self.desk.policy.ordering))
        key = (self.desk.ask(self.desk.policy.order_key, call.session.id) or 0.0) if ordering else self.desk.now()
        if ordering and len(self._waiting) < self.WATCHED:
            self._sent += 1
            self._waiting[call] = (key, self._sent, self._answers)
        return self.sign * _clamp(key * _PER_SECOND)

    def _hint(self, call: Call, elastic: bool) -> dict[str, object]:
        """As `artifact.lending.hints` reads it. The engine pins at prefill, before the turn is over: it gets the time
        that the policy wanted when the session's preceding turn ended."""
        session = call.session
        retain = bool(self.desk.ask(self.desk.policy.lending))
        hint = {"session": session.id, "retain": retain, "pin_s": session.pin_s, "last": session.final}
        return {**hint, "elastic": True} if elastic else hint

    def answered(self, call: Call) -> None:
        """The engine has begun to answer a call."""
        if call not in self._waiting:
            return
        oldest = next(iter(self._waiting))
        first = min(self._waiting, key=lambda c: self._waiting[c][0])
        (_, oldest_sent, _), (_, first_sent, answers) = self._waiting[oldest], self._waiting[first]
        jumped = call is first and first_sent - oldest_sent >= self.DEPTH
        passed_over = call is oldest is not first and self._answers - answers >= self.DEPTH
        self._answers += 1
        if jumped or passed_over:
            self.telling += 1
            self.followed += jumped
            if self.telling == self.ENOUGH and self.ignored:
                log.warning("the engine ignores priorities; only suspension at turn boundaries orders its work")
        self.forget(call)

    def forget(self, call: Call) -> None:
        self._waiting.pop(call, None)


def with_members(body: bytes, members: Mapping[str, object], replace: bool) -> bytes:
    """A JSON object with these members in front of its others, all of which keep their bytes.

    With `replace`, the client's members of these names are cut out first, so that it cannot put itself ahead.
    """
    text = body.decode()
    if replace:
        text = _without(text, members.keys())
    start = text.index("{") + 1
    empty = text[_skip(text, start)] == "}"
    added = json.dumps(members, separators=(",", ":"))[1:-1]
    return (text[:start] + added + ("" if empty else ",") + text[start:]).encode()


def _without(text: str, names: Collection[str]) -> str:
    """The object's text without its top-level members of these names and the comma of each."""
    kept: list[str] = []
    at = _skip(text, text.index("{") + 1)
    while text[at] != "}":
        start = at
        name, at = scanstring(text, at + 1, False)
        at = _skip(text, _skip(text, at) + 1)  # over the colon
        at = _DECODER.raw_decode(text, at)[1]
        if name not in names:
            kept.append(text[start:at])
        at = _skip(text, at)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return "{" + ",".join(kept) + "}"


def _own_custom_params(call: Call, body: bytes) -> dict[str, object]:
    if "custom_params" not in call.ask.own_marks:
        return {}
    own = (parse_object(body) or {}).get("custom_params")
    return own if isinstance(own, dict) else {}


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _clamp(key: float) -> int:
    if math.isnan(key):
        return _LARGEST
    return round(max(-_LARGEST, min(_LARGEST, key)))
