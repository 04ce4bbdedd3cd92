"""Bytes in, bytes out: what passes through the gateway, and when."""

import asyncio
import json

import pytest
from fake_upstream import event, respond, stream, usage
from yarl import URL


async def test_event_stream_passes_byte_for_byte_in_the_pieces_it_came_in(stand) -> None:
    pieces = [b'data: {"a": 1}\n\n', b": comment\n\ndata: \xc3\xa4", b"\xff\n\n", b"data: [DONE]\n\n"]

    async def answer(request, send):
        await stream(send, pieces, 0.02)

    s = await stand(answer)
    got = []
    async with s.post("a", stream=True) as response:
        async for piece in response.content.iter_any():
            got.append(piece)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert got == pieces


async def test_first_byte_is_not_held_back_until_the_second(stand) -> None:
    release = asyncio.Event()

    async def answer(request, send):
        if not request.body:
            await respond(send, b"", 404)
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        await release.wait()
        await send({"type": "http.response.body", "body": b"data: 2\n\n"})

    s = await stand(answer)
    async with s.post("a", stream=True) as response:
        first = await response.content.readany()
        assert first == b"data: 1\n\n"
        release.set()
        assert await response.content.read() == b"data: 2\n\n"


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/generate"]
)
async def test_request_reaches_the_engine_unaltered(stand, path: str) -> None:
    s = await stand()
    raw = b'{ "model":"m",  "messages":[{"role":"user","content":"\\u00e4 \xc3\xa4"}], "x": 1e400 }'
    headers = {"x-session-id": "a", "authorization": "Bearer k", "content-type": "application/json", "x-other": "1"}
    async with s.client.post(URL(s.url + path + "?a=%2Fb&c", encoded=True), data=raw, headers=headers) as response:
        await response.read()
    seen = s.engine.seen[0]
    assert (seen.body, seen.target) == (raw, path + "?a=%2Fb&c")
    assert {(k.encode(), v.encode()) for k, v in headers.items()} <= set(seen.headers)


async def test_hop_by_hop_and_forged_internal_headers_stop_at_the_gateway(stand) -> None:
    s = await stand()
    forged = {"x-vllm-priority": "-1", "x-basin-admin-token": "t"}
    hop = {"connection": "x-mine", "x-mine": "1", "te": "trailers", "proxy-authorization": "secret"}
    async with s.client.post(s.url + "/v1/completions", json={}, headers={**forged, **hop}) as response:
        await response.read()
    assert not {name.decode() for name, _ in s.engine.seen[0].headers} & (forged.keys() | hop.keys())


async def test_everything_else_is_passed_through(stand) -> None:
    async def answer(request, send):
        await respond(send, f"{request.method} {request.target} {len(request.body)}".encode(), 418, b"text/plain")

    s = await stand(answer)
    async with s.client.put(s.url + "/v1/files/7?x=1", data=b"abc") as response:
        assert (response.status, await response.read()) == (418, b"PUT /v1/files/7?x=1 3")
    async with s.client.post(s.url + "/v1/messages/count_tokens", json={}) as response:
        assert response.status == 418
    assert s.door.facts == []


async def test_an_engines_error_is_passed_on_and_rolls_a_first_call_back(stand) -> None:
    async def answer(request, send):
        await respond(send, b'{"error": "too long"}', 400)

    s = await stand(answer)
    async with s.post("a") as response:
        assert (response.status, await response.read()) == (400, b'{"error": "too long"}')
    await s.until(lambda: ("depart", "a") in s.door.facts)
    s.assert_empty()


async def test_an_unreachable_engine_is_a_503_in_the_clients_dialect(stand) -> None:
    s = await stand(upstream="http://127.0.0.1:9")
    async with s.post("a") as response:
        body = await response.json()
    assert response.status == 503
    assert response.headers["x-basin-reason"] == "upstream_unreachable"
    assert int(response.headers["retry-after"]) >= 1
    assert body["error"]["code"] == "upstream_unreachable"
    async with s.post("b", path="/v1/messages") as response:
        body = await response.json()
    assert body["type"] == "error" and body["error"]["type"] == "overloaded_error"
    async with s.client.get(s.url + "/ready") as response:
        assert (response.status, (await response.json())["reason"]) == (503, "upstream_unreachable")
    s.assert_empty()


async def test_an_engine_that_breaks_off_is_told_to_the_client_and_the_stream_is_not_ended_cleanly(stand) -> None:
    async def answer(request, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})

    s = await stand(answer)
    got = b""
    with pytest.raises(Exception, match="payload"):
        async with s.post("a", stream=True) as response:
            async for piece in response.content.iter_any():
                got += piece
    assert got.startswith(b"data: 1\n\n") and b"upstream_broke_off" in got
    await s.until(lambda: not s.gateway.desk.live_calls)
    s.assert_empty()


async def test_an_engine_that_never_answers_is_a_504(stand) -> None:
    async def answer(request, send):
        if request.body:
            await asyncio.Event().wait()

    s = await stand(answer, timeouts={"first_byte_s": 0.2})
    async with s.post("a") as response:
        assert (response.status, response.headers["x-basin-reason"]) == (504, "upstream_timeout")
    await s.until(lambda: s.engine.seen[0].cancelled, "the call's end on the engine")
    s.assert_empty()


async def test_limits_are_refused_with_a_reason(stand) -> None:
    s = await stand(limits={"body_bytes": 1000, "header_bytes": 2000})
    for kwargs, status, reason in (
        ({"data": b"x" * 1001}, 413, "body_too_large"),
        ({"data": b"{}", "headers": {"x-a": "b" * 2000}}, 431, "headers_too_large"),
    ):
        async with s.client.post(s.url + "/v1/completions", **kwargs) as response:
            assert (response.status, response.headers["x-basin-reason"]) == (status, reason)
    s.assert_empty()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", json.dumps({"usage": usage(100, 20, 60)}).encode()),
        (
            "/v1/responses",
            b'{"usage":{"input_tokens":100,"output_tokens":20,"input_tokens_details":{"cached_tokens":60}}}',
        ),
        (
            "/v1/messages",
            b'{"usage":{"input_tokens":30,"cache_creation_input_tokens":10,"cache_read_input_tokens":60,"output_tokens":20}}',
        ),
        ("/generate", b'{"meta_info":{"prompt_tokens":100,"completion_tokens":20,"cached_tokens":60}}'),
    ],
)
async def test_usage_of_every_dialect_sets_the_context(stand, path: str, body: bytes) -> None:
    async def answer(request, send):
        await respond(send, body)

    s = await stand(answer)
    async with s.post("a", path=path) as response:
        await response.read()
    await s.until(lambda: "a" in s.door.contexts)
    assert s.door.contexts["a"] == 120
    assert (s.gateway.desk.books.prompt_tokens, s.gateway.desk.books.cached_tokens) == (100, 60)


async def test_usage_in_an_anthropic_stream_and_at_the_end_of_a_long_one(stand) -> None:
    start = {
        "type": "message_start",
        "message": {"usage": {"input_tokens": 40, "cache_read_input_tokens": 60, "output_tokens": 1}},
    }
    filler = [event({"type": "content_block_delta", "delta": {"text": 'x "usage": {"input_tokens": 9} ' * 40}})] * 100
    end = {"type": "message_delta", "usage": {"output_tokens": 25}}

    async def answer(request, send):
        await stream(send, [event(start), *filler, event(end)])

    s = await stand(answer)
    async with s.post("a", path="/v1/messages", stream=True) as response:
        await response.read()
    await s.until(lambda: "a" in s.door.contexts)
    assert s.door.contexts["a"] == 125


async def test_a_stream_without_usage_is_estimated_from_its_length(stand) -> None:
    async def answer(request, send):
        await stream(send, [event({"i": i}) for i in range(10)])

    s = await stand(answer)
    async with s.post("a", stream=True, filler="x" * 4000) as response:
        await response.read()
    await s.until(lambda: "a" in s.door.contexts)
    assert 1000 < s.door.contexts["a"] < 1100  # about 4,100 bytes at 0.25 tokens a byte, and 10 events
    assert s.gateway.desk.books.calls_without_usage == 1


async def test_usage_in_sglangs_own_stream_is_its_last_events(stand) -> None:
    events = [{"meta_info": {"prompt_tokens": 100, "completion_tokens": i, "cached_tokens": 60}} for i in range(1, 21)]

    async def answer(request, send):
        if request.body:
            await stream(send, [*(event(e) for e in events), b"data: [DONE]\n\n"])
        else:
            await respond(send, b"", 404)

    s = await stand(answer)
    async with s.post("a", path="/generate", stream=True) as response:
        await response.read()
    await s.until(lambda: "a" in s.door.contexts)
    assert s.door.contexts["a"] == 120
    assert s.gateway.desk.books.cached_tokens == 60
