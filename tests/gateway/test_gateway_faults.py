"""What goes wrong in a machine room: engines that die and return, slow clients, clocks that step, broken bodies."""

import asyncio
import json
import time
from contextlib import AsyncExitStack
from types import SimpleNamespace

import aiohttp
import pytest
from conftest import PATIENCE_S, Door, default_answer
from fake_upstream import FakeEngine, event, respond, serving, stream
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from leaping_clock import LeapingLoop

from artifact.gateway import upstream
from artifact.gateway.app import Gateway
from artifact.gateway.config import GatewayConfig


async def test_an_engine_killed_mid_stream_and_restarted_loses_no_session(stand) -> None:
    s = await stand()
    started = asyncio.Event()

    async def hang(request, send):
        if request.target in ("/metrics", "/health"):
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": event({"i": 0}), "more_body": True})
        started.set()
        await asyncio.Event().wait()

    async with serving(FakeEngine(default_answer)) as base:
        port = int(base.rpartition(":")[2])
        s.gateway.upstream.base_url = base
        assert await s.status("steady") == 200
    async with serving(FakeEngine(hang), port=port):
        cut = [asyncio.create_task(s.post(name, stream=True).__aenter__()) for name in ("steady", "new")]
        responses = await asyncio.gather(*cut)
        await started.wait()
    for response in responses:  # the engine is gone now
        with pytest.raises(Exception, match="payload"):
            await response.read()
    assert await s.status("steady") == 503
    await s.until(lambda: not s.gateway.desk.live_calls)
    assert {session.id for session in s.gateway.desk.table} == {"steady"}  # it waits for its next call
    async with serving(FakeEngine(default_answer), port=port):
        assert await s.status("steady") == 200
        assert await s.status("new") == 200
    for name in ("steady", "new"):
        s.gateway.desk.release(name)
    s.assert_empty()


async def test_a_connection_that_cannot_be_made_is_retried_and_a_call_that_was_sent_is_not(stand, monkeypatch) -> None:
    s = await stand()
    async with serving(FakeEngine(default_answer)) as base:
        port = int(base.rpartition(":")[2])
    s.gateway.upstream.base_url = base
    failed, back = asyncio.Event(), asyncio.Event()

    async def between_tries(seconds: float) -> None:
        failed.set()
        await back.wait()

    monkeypatch.setattr(upstream, "asyncio", SimpleNamespace(sleep=between_tries))
    call = asyncio.create_task(s.status("a"))
    await failed.wait()
    async with serving(FakeEngine(default_answer), port=port):
        back.set()
        assert await call == 200

    dropped = 0

    async def drop(reader, writer) -> None:
        nonlocal dropped
        dropped += bool(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    server = await asyncio.start_server(drop, "127.0.0.1", 0)
    s.gateway.upstream.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with s.post("b") as response:
        assert (response.status, response.headers["x-basin-reason"]) == (502, "upstream_broke_off")
    assert dropped == 1
    server.close()


async def test_a_client_that_takes_nothing_is_cut_off_and_its_call_cancelled(stand) -> None:
    async def flood(request, send):
        if request.target in ("/metrics", "/health"):
            await respond(send, b"", 404)
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        while True:
            await send({"type": "http.response.body", "body": event("x" * 100_000), "more_body": True})
            await asyncio.sleep(0)

    s = await stand(flood, timeouts={"stall_s": 0.3})
    reader, writer = await asyncio.open_connection("127.0.0.1", int(s.url.rpartition(":")[2]), limit=1024)
    writer.write(b'POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 15\r\n\r\n{"stream":true}')
    await reader.readexactly(15)  # the status line, and then no more
    await s.until(lambda: len(s.gateway.desk.table) == 0, "the end of the call")
    s.assert_empty()
    await s.until(lambda: s.engine.seen[0].cancelled)
    writer.close()


async def test_a_slow_sender_is_refused(stand) -> None:
    s = await stand(timeouts={"body_s": 0.2})
    reader, writer = await asyncio.open_connection("127.0.0.1", int(s.url.rpartition(":")[2]))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    assert (await reader.readline()).startswith(b"HTTP/1.1 408")
    writer.close()
    s.assert_empty()


async def test_a_step_of_the_wall_clock_changes_nothing(stand, monkeypatch) -> None:
    s = await stand(policy=Door(room=1), timeouts={"idle_s": 50.0})
    await s.status("a")
    parked = asyncio.create_task(s.status("b"))
    await s.until(lambda: s.gateway.desk.waiting_calls == 1)
    real = time.time
    for step in (86_400, -86_400):
        monkeypatch.setattr(time, "time", lambda step=step: real() + step)
        s.gateway.desk.sweep()
        s.gateway.desk.settle()
        assert s.gateway.desk.table.get("a") is not None and not parked.done()
    s.gateway.desk.release("a")
    assert await parked == 200


async def test_a_background_loop_that_fails_goes_on(stand, monkeypatch) -> None:
    s = await stand(timeouts={"idle_s": 0.1})
    failures = 0
    sweep = s.gateway.desk.sweep

    def broken() -> None:
        nonlocal failures
        failures += 1
        if failures == 1:
            raise RuntimeError("bug")
        sweep()

    monkeypatch.setattr(s.gateway.desk, "sweep", broken)
    await s.status("a")
    await s.until(lambda: failures >= 2 and len(s.gateway.desk.table) == 0)


# Broken bodies ------------------------------------------------------------------------------------------------
_PATIENCE = aiohttp.ClientTimeout(total=PATIENCE_S)
_text = st.text(max_size=20)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_text, inner, max_size=4),
    max_leaves=8,
)
_message = st.fixed_dictionaries({}, optional={"role": _json | st.sampled_from(["user", "tool"]), "content": _json})
_body = st.fixed_dictionaries(
    {},
    optional={
        "messages": st.lists(_message, max_size=4) | _json,
        "prompt": _json,
        "input": _json,
        "system": _json,
        "n": _json,
        "stream": _json,
        "priority": _json,
        "session_id": _json,
        "program_id": _json,
        "rid": _json,
        "metadata": st.dictionaries(st.sampled_from(["user_id"]), _json) | _json,
    },
)
_bodies = (
    _body.map(lambda body: json.dumps(body).encode())
    | st.binary(max_size=200)
    | _json.map(lambda v: json.dumps(v).encode())
)
_headers = st.dictionaries(
    st.sampled_from(["x-session-id", "x-dynamo-session-id", "x-dynamo-parent-session-id", "x-dynamo-session-final"]),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=30),
    max_size=3,
)
_paths = st.sampled_from(["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/generate"])
_answers = st.binary(max_size=200) | _json.map(lambda v: json.dumps({"usage": v}).encode())
Case = tuple[str, bytes, dict[str, str], bytes, bool]
"""Path, body and headers of a call; the engine's answer, and whether it is streamed."""


class Fuzzed:
    """A gateway before an engine that answers each call as its case says, on one loop for all examples."""

    async def start(self, stack: AsyncExitStack) -> None:
        self.answers: list[tuple[bytes, bool]] = []
        base = await stack.enter_async_context(serving(FakeEngine(self.answer)))
        config = GatewayConfig(upstream=base, priority={"dialect": "sglang"}, lineage=True)
        self.gateway = Gateway(config, lambda name, options, latest: Door())
        self.url = await stack.enter_async_context(serving(self.gateway, "on"))
        self.client = await stack.enter_async_context(aiohttp.ClientSession(timeout=_PATIENCE))

    async def answer(self, request, send) -> None:
        case = dict(request.headers).get(b"x-case")
        reply, streamed = self.answers[int(case)] if case else (b"", False)
        if streamed:
            await stream(send, [b"data: " + reply, b"\n\n"])
        else:
            await respond(send, reply)

    async def send(self, cases: list[Case]) -> None:
        """All get the engine's answer, and nothing is left of them."""
        for path, body, headers, reply, streamed in cases:
            marked = {**headers, "x-case": str(len(self.answers))}
            self.answers.append((reply, streamed))
            async with self.client.post(self.url + path, data=body, headers=marked) as response:
                got = await response.read()
            assert response.status == 200
            assert got == (b"data: " + reply + b"\n\n" if streamed else reply)
        desk = self.gateway.desk
        assert desk.policy_errors == 0
        assert not desk.live_calls and desk.waiting_calls == 0 and self.gateway.proxy.buffered_bytes == 0
        for session in list(desk.table):
            desk.release(session.id)
        assert len(desk.table) == 0 and desk.policy.state().resident == 0


def fuzz(examples: int) -> int:
    """Send the cases of so many examples; how many there were."""
    fuzzed = Fuzzed()
    phases = (Phase.explicit, Phase.reuse, Phase.generate)  # shrinking calls over HTTP would take minutes

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), phases=phases)
    @given(st.lists(st.tuples(_paths, _bodies, _headers, _answers, st.booleans()), min_size=10, max_size=10))
    def example(cases: list[Case]) -> None:
        runner.run(fuzzed.send(cases))

    # Examples are drawn while the loop stands still: on a real clock idle connections would time out meanwhile.
    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        stack = AsyncExitStack()
        runner.run(fuzzed.start(stack))
        try:
            example()
        finally:
            runner.run(stack.aclose())
    return len(fuzzed.answers)


def test_any_body_is_the_engines_to_judge() -> None:
    assert fuzz(20) >= 200


@pytest.mark.slow
def test_ten_thousand_bodies_are_the_engines_to_judge() -> None:
    assert fuzz(1000) >= 10_000
