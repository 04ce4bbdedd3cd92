"""The two ends of the gateway benchmark, as light as asyncio allows: a mock engine and keep-alive clients.

`python gateway_load.py PORT` serves the mock: 32 events a streamed answer, one small JSON object otherwise.
"""

import asyncio
import json
import socket
import sys
import time

import uvloop

EVENTS = 32
_EVENT = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'
_USAGE = b'{"prompt_tokens":1000,"completion_tokens":32,"prompt_tokens_details":{"cached_tokens":900}}'
_LAST = b'data: {"id":"c","choices":[],"usage":' + _USAGE + b"}\n\ndata: [DONE]\n\n"
_PLAIN = (
    b'{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"word"}}],"usage":'
    + _USAGE
    + b"}"
)
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class MockEngine(asyncio.Protocol):
    """HTTP/1.1 just as far as the benchmark needs it: POST with content-length, and 200 to any GET."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.buffer = b""
        self.task: asyncio.Task[None] | None = None

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self.buffer) < end + 4 + length:
                return
            body, self.buffer = self.buffer[end + 4 : end + 4 + length], self.buffer[end + 4 + length :]
            if b'"stream":true' in body or b'"stream": true' in body:
                self.task = asyncio.ensure_future(self._stream())
            else:
                answer = _PLAIN if head.startswith(b"post") else _models(head)
                kind = b"text/plain" if b"/metrics" in head[:30] else b"application/json"
                self.transport.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (kind, len(answer), answer)
                )

    async def _stream(self) -> None:
        """Each event in a write of its own with the loop in between, so that gateways see 32 pieces, not one."""
        self.transport.write(_STREAM_HEAD + _chunk(_EVENT))
        for _ in range(EVENTS - 1):
            await asyncio.sleep(0.0005)
            self.transport.write(_chunk(_EVENT))
        self.transport.write(_chunk(_LAST) + b"0\r\n\r\n")


def _models(head: bytes) -> bytes:
    if b"/metrics" in head[:30]:
        return b"# TYPE sglang:num_running_reqs gauge\nsglang:num_running_reqs 0.0\n"
    return json.dumps(
        {"object": "list", "data": [{"id": "m", "object": "model"}], "status": "ok", "model_path": "m"}
    ).encode()


def request(host: str, path: str, stream: bool, prompt_bytes: int, session: str) -> bytes:
    """One chat completion of a session, as it goes over the wire."""
    body = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "x" * prompt_bytes}], "stream": stream},
        separators=(",", ":"),
    ).encode()
    return (
        f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\nauthorization: Bearer k\r\n"
        f"x-session-id: {session}\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body


class Connection:
    """A blocking keep-alive connection for first-byte times."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def first_byte_s(self, message: bytes) -> float:
        """Seconds from sending a streamed request to its first event; reads the answer to its end."""
        began = time.perf_counter()
        self.socket.sendall(message)
        data = b""
        while b"data:" not in data:
            data += self._more()
        first = time.perf_counter() - began
        while not data.endswith(b"0\r\n\r\n"):
            data += self._more()
        if not data.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(data[:300].decode("latin-1"))
        return first

    def _more(self) -> bytes:
        # acknowledge at once: a peer that leaves Nagle's algorithm on would otherwise wait 40 ms for it
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        data = self.socket.recv(1 << 16)
        if not data:
            raise RuntimeError("connection closed")
        return data


async def load(port: int, messages: list[bytes], count: int) -> float:
    """Send `count` requests over one connection for each of `messages`; seconds until all are answered.

    Raises `RuntimeError` at the first answer that is not 200.
    """
    left = count

    async def client(message: bytes) -> None:
        nonlocal left
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while left > 0:
            left -= 1
            writer.write(message)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError((head + await reader.read(300)).decode("latin-1"))
            low = head.lower()
            if b"transfer-encoding: chunked" in low:
                await _to_last_chunk(reader)
            else:
                await reader.readexactly(int(low.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0]))
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(client(message) for message in messages))
    return time.perf_counter() - began


async def _to_last_chunk(reader: asyncio.StreamReader) -> None:
    tail = b""
    while not tail.endswith(b"0\r\n\r\n"):
        tail = (tail + await reader.read(1 << 16))[-16:]


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(MockEngine, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
