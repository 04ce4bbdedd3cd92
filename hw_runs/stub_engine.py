"""A stub engine: the simulator's engine behind real HTTP, at real or accelerated speed.

    python -m hw_runs.stub_engine --calibration h200 --prefill 1 --decode 3 --speed 30 --port 30000

It answers /v1/chat/completions (event stream or JSON, with usage), and /prefill/metrics and /decode/metrics under
SGLang's names. A prompt's tokens are its text at `bytes_per_token`; what it repeats of the session's preceding prompt
is found in the texts themselves. Every answer has `max_tokens` tokens, sent as one piece at the first token and one at
the end, with comments in between. Beside usage, an object `stub` carries what only an engine knows.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Annotated, Any

import typer
import uvicorn

from artifact.gateway.identity import Identifier
from artifact.gateway.wire import header_map
from artifact.lending.hints import read as read_hint
from hw_runs.stub_engine_model import EngineModel, Pace, SimulatedEngine, StubCall
from sim.scenario import Deployment

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_PROMPTS = 5_000
_ANSWER = {"id": "stub", "created": 0, "model": "stub"}
_SIGN_OF_LIFE_S = 60.0
"""Between the two pieces of a long answer, so that nobody takes the stream for dead."""


class StubEngine:
    """The ASGI application. With `priority_scheduling`, queues follow the request's `priority`, higher first."""

    def __init__(
        self, model: EngineModel, speed: float = 1.0, bytes_per_token: int = 4, priority_scheduling: bool = True
    ) -> None:
        self.model = model
        self.speed = speed
        self.bytes_per_token = bytes_per_token
        self.priority_scheduling = priority_scheduling
        self._pace: Pace | None = None
        self._prompts: OrderedDict[str, str] = OrderedDict()
        self._identifier = Identifier()

    @property
    def pace(self) -> Pace:
        """Begins with the first request, inside the running loop."""
        if self._pace is None:
            self._pace = Pace(self.model, self.speed)
        return self._pace

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"]
        if path.endswith("/metrics"):
            await _respond(
                send, self._metrics("decode" if "decode" in path else "prefill"), b"text/plain; version=0.0.4"
            )
        elif path == "/v1/chat/completions":
            await self._chat(scope, receive, send)
        elif path == "/preload":
            await self._preload(scope, receive, send)
        elif path in ("/health", "/v1/models"):
            await _respond(send, b'{"object": "list", "data": [{"id": "stub", "object": "model"}]}')
        else:
            await _respond(send, _error(f"the stub engine has no {path}"), status=404)

    async def _chat(self, scope: Message, receive: Receive, send: Send) -> None:
        try:
            body = json.loads(await _body(receive))
            session, text, output = self._session(scope, body), prompt_text(body), _output_tokens(body)
            prompt, repeated = self._tokens(text), self._repeated(session, text)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            await _respond(send, _error(f"not a chat completion: {error!r}"), status=400)
            return
        first, done = asyncio.Event(), asyncio.Event()
        hint = read_hint(body.get("custom_params"))
        order = -float(body.get("priority") or 0) if self.priority_scheduling else 0.0
        call = StubCall(session, max(prompt, 1), repeated, max(output, 1), order, first.set, done.set, hint)
        gone = asyncio.ensure_future(_disconnect(receive))
        answer = asyncio.ensure_future(self._answer(call, first, done, bool(body.get("stream")), send))
        try:
            await asyncio.wait((gone, answer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not done.is_set():
                answer.cancel()
                self.pace.abort(call)
        await asyncio.gather(answer, return_exceptions=True)

    async def _answer(
        self, call: StubCall, first: asyncio.Event, done: asyncio.Event, stream: bool, send: Send
    ) -> None:
        await self.pace.sleep(self.model.overhead_s)
        self.pace.submit(call)
        if stream:
            await first.wait()
            await _start(send, b"text/event-stream")
            await _piece(send, _chunk([{"index": 0, "delta": {"role": "assistant", "content": "w"}}]))
            while not done.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(done.wait(), _SIGN_OF_LIFE_S / self.pace.speed)
                    break
                await _piece(send, b": generating\n\n")
        await done.wait()
        usage = {
            "prompt_tokens": call.prompt_tokens,
            "completion_tokens": call.output_tokens,
            "total_tokens": call.prompt_tokens + call.output_tokens,
            "prompt_tokens_details": {"cached_tokens": call.details["cached_tokens"]},
        }
        rest = "w" * (call.output_tokens - 1) * self.bytes_per_token
        if not stream:
            choice = {"index": 0, "message": {"role": "assistant", "content": "w" + rest}, "finish_reason": "length"}
            answer = {**_ANSWER, "object": "chat.completion", "choices": [choice], "usage": usage, "stub": call.details}
            await _respond(send, json.dumps(answer).encode())
            return
        await _piece(send, _chunk([{"index": 0, "delta": {"content": rest}, "finish_reason": "length"}]))
        await _piece(send, _chunk([], usage=usage, stub=call.details) + b"data: [DONE]\n\n")
        await send({"type": "http.response.body", "body": b""})

    async def _preload(self, scope: Message, receive: Receive, send: Send) -> None:
        """Put a prompt (a chat body) in the prefix cache as if its call had just ended."""
        body = json.loads(await _body(receive))
        session, text = self._session(scope, body), prompt_text(body)
        self._repeated(session, text)
        self.model.preload(session, self._tokens(text))
        await _respond(send, b"{}")

    def _session(self, scope: Message, body: MutableMapping[str, Any]) -> str:
        """By the gateway's conventions; a call that names none shares no prefix with another."""
        return self._identifier.identify(header_map(scope["headers"]), body).id

    def _tokens(self, text: str) -> int:
        return len(text) // self.bytes_per_token

    def _repeated(self, session: str, text: str) -> int:
        """Tokens that this prompt has in common with the session's preceding one, which it then replaces."""
        before = self._prompts.pop(session, "")
        self._prompts[session] = text
        if len(self._prompts) > _PROMPTS:
            self._prompts.popitem(last=False)
        return common_prefix(before, text) // self.bytes_per_token

    def _metrics(self, role: str) -> bytes:
        lines = [
            f'{"" if name.startswith("basin_") else "sglang:"}{name}{{engine_type="{role}"}} {value}'
            for name, value in self.model.metrics(role).items()
        ]
        return ("\n".join(lines) + "\n").encode()


def prompt_text(body: MutableMapping[str, Any]) -> str:
    """All messages' texts in their order. Raises `KeyError` or `TypeError` for a body without such messages."""
    return "".join(message["content"] for message in body["messages"])


def common_prefix(a: str, b: str) -> int:
    """Length of the longest common prefix, by bisection."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _output_tokens(body: MutableMapping[str, Any]) -> int:
    return int(body.get("max_completion_tokens", body.get("max_tokens", 16)))


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def _chunk(choices: list[dict[str, Any]], **more: object) -> bytes:
    value = {**_ANSWER, "object": "chat.completion.chunk", "choices": choices, **more}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def _error(text: str) -> bytes:
    return json.dumps({"error": {"message": text, "type": "invalid_request_error", "code": None}}).encode()


async def _start(send: Send, content_type: bytes, status: int = 200) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", content_type)]})


async def _piece(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _respond(send: Send, body: bytes, content_type: bytes = b"application/json", status: int = 200) -> None:
    await _start(send, content_type, status)
    await send({"type": "http.response.body", "body": body})


def main(
    calibration: Annotated[str, typer.Option(help="Calibration of the modelled engines.")] = "h200",
    prefill: Annotated[int, typer.Option(help="Prefill instances.")] = 1,
    decode: Annotated[int, typer.Option(help="Decode instances.")] = 1,
    host_ratio: Annotated[float, typer.Option(help="Host tier over GPU prefix cache.")] = 0.0,
    late_reservation: Annotated[bool, typer.Option(help="Reserve decode memory at prefill completion.")] = False,
    shared_head_tokens: Annotated[int, typer.Option(help="Head that all prompts share.")] = 0,
    bytes_per_token: Annotated[int, typer.Option(help="Bytes of text that make a token.")] = 4,
    priority_scheduling: Annotated[bool, typer.Option(help="Follow the request's priority.")] = True,
    speed: Annotated[float, typer.Option(help="Modelled seconds a real second.")] = 1.0,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1.")] = 30000,
) -> None:
    """Serve a stub engine on loopback."""
    reserve_at = "prefill_end" if late_reservation else "arrival"
    deployment = Deployment.model_validate(
        {"calibration": calibration, "prefill": prefill, "decode": decode, "host_ratio": host_ratio}
        | {"reserve_at": reserve_at}
    )
    stub = StubEngine(SimulatedEngine(deployment, shared_head_tokens), speed, bytes_per_token, priority_scheduling)
    uvicorn.run(stub, host="127.0.0.1", port=port, lifespan="off", access_log=False, log_level="warning", ws="none")


if __name__ == "__main__":
    typer.run(main)
