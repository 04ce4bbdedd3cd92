"""A scripted engine for tests, a raw ASGI application, and servers run on loopback inside the test's own loop."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn

ASKED_BY_THE_GATEWAY = ("/metrics", "/health", "/server_info", "/get_server_info")


@dataclass
class Seen:
    """A request as the engine got it."""

    method: str
    target: str
    headers: list[tuple[bytes, bytes]]
    body: bytes
    cancelled: bool = False

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Answer = Callable[[Seen, Callable[[dict[str, Any]], Awaitable[None]]], Awaitable[None]]


@dataclass
class FakeEngine:
    """Answers each request by `answer`; notes what it saw and which requests were cut off by their sender."""

    answer: Answer
    seen: list[Seen] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        request = Seen(scope["method"], (scope["raw_path"] + query).decode(), list(scope["headers"]), body)
        if request.target not in ASKED_BY_THE_GATEWAY:
            self.seen.append(request)
        work = asyncio.ensure_future(self.answer(request, send))
        gone = asyncio.ensure_future(receive())
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            request.cancelled = True
            work.cancel()
        gone.cancel()
        await asyncio.gather(work, return_exceptions=True)


def usage(prompt: int, output: int, cached: int = 0) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


async def respond(send: Any, body: bytes, status: int = 200, content_type: bytes = b"application/json") -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", content_type)]})
    await send({"type": "http.response.body", "body": body})


async def stream(send: Any, pieces: list[bytes], between_s: float = 0.0) -> None:
    headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for piece in pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        await asyncio.sleep(between_s)
    await send({"type": "http.response.body", "body": b""})


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


@asynccontextmanager
async def serving(app: Any, lifespan: str = "off", port: int = 0) -> AsyncIterator[str]:
    """Serve an ASGI application on a free loopback port; gives its base URL."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio sets no-delay by this
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(2048)
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        proxy_headers=False,
        lifespan=lifespan,
        log_config=None,
        timeout_graceful_shutdown=1,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup([listener])  # without its main loop, whose ticks would cost every test 0.2 s
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        for running in server.servers:
            running.close()
        for connection in list(server.server_state.connections):
            connection.transport.close()
        listener.close()
        await server.lifespan.shutdown()
