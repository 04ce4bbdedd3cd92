"""HTTP details that every part shares: bodies, headers, and errors in the dialect the client speaks."""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
RawHeaders = list[tuple[bytes, bytes]]

HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade http2-settings".split()
)
INTERNAL = frozenset((b"x-vllm-priority",))
"""Headers by which the gateway speaks to engines; a client's own are dropped."""
REASON = b"x-basin-reason"
WAIT = b"x-basin-wait-s"
ADMIN_TOKEN = b"x-basin-admin-token"


@dataclass(eq=False)
class Refused(Exception):
    """A call the gateway answers itself."""

    status: int
    reason: str
    message: str
    retry_after_s: float | None = None


class ClientGone(Exception):
    """The client closed its connection before it had sent its whole request."""


async def read_body(receive: Receive, limit: int) -> bytes:
    """The whole request body. Raises `Refused` (413) beyond `limit` bytes, `ClientGone` when the client leaves."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise Refused(413, "body_too_large", f"request body exceeds the gateway's limit of {limit} bytes")
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def parse_object(body: bytes) -> dict[str, Any] | None:
    """The JSON object a body holds; None for anything else, which then is the engine's to refuse."""
    try:
        value = from_json(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def end_to_end(headers: Iterable[tuple[bytes, bytes]], drop: frozenset[bytes] = frozenset()) -> RawHeaders:
    """Headers without those that concern one connection (RFC 9110, 7.6.1, those named by `Connection` included)."""
    raw = [(name.lower(), name, value) for name, value in headers]
    named = {t.strip().lower() for low, _, value in raw if low == b"connection" for t in value.split(b",")}
    gone = HOP_BY_HOP | drop | named if named else HOP_BY_HOP | drop
    return [(name, value) for low, name, value in raw if low not in gone]


def error_body(path: str, status: int, code: str, message: str) -> bytes:
    """An error as OpenAI's or, under /v1/messages, as Anthropic's clients expect it."""
    if path.startswith("/v1/messages"):
        kind = {400: "invalid_request_error", 413: "request_too_large", 429: "rate_limit_error"}.get(
            status, "overloaded_error" if status == 503 else "api_error"
        )
        return json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode()
    kind = {429: "rate_limit_error", 503: "service_unavailable"}.get(
        status, "invalid_request_error" if status < 500 else "server_error"
    )
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()


def error_event(path: str, code: str, message: str) -> bytes:
    """The same inside an event stream that has already begun."""
    name = b"event: error\n" if path.startswith("/v1/messages") else b""
    return b"\n\n" + name + b"data: " + error_body(path, 502, code, message) + b"\n\n"


async def send_refusal(send: Send, path: str, refused: Refused) -> None:
    headers = [(REASON, refused.reason.encode())]
    if refused.retry_after_s is not None:
        headers.append((b"retry-after", str(max(1, round(refused.retry_after_s))).encode()))
    body = error_body(path, refused.status, refused.reason, refused.message)
    await send_bytes(send, refused.status, body, b"application/json", headers)


async def send_json(send: Send, value: object, status: int = 200) -> None:
    await send_bytes(send, status, json.dumps(value).encode(), b"application/json")


async def send_bytes(
    send: Send, status: int, body: bytes, content_type: bytes, headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    base = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*base, *headers]})
    await send({"type": "http.response.body", "body": body})


def header_map(headers: Iterable[tuple[bytes, bytes]]) -> Mapping[bytes, bytes]:
    """First value of each header; ASGI gives names in lower case."""
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        found.setdefault(name, value)
    return found
