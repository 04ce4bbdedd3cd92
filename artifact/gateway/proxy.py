"""One call's way through the gateway: read, name, admit, order, forward byte for byte, close the books."""

import asyncio
import logging

import aiohttp

from artifact.gateway.ask import read_ask
from artifact.gateway.config import GatewayConfig
from artifact.gateway.desk import Desk
from artifact.gateway.identity import Identifier, Identity
from artifact.gateway.lineage import ChurnDetector, Lineage, message_hashes
from artifact.gateway.ordering import EngineOrder
from artifact.gateway.placement import Placement
from artifact.gateway.session import Call, Outcome, Stage
from artifact.gateway.upstream import Upstream
from artifact.gateway.usage import UsageReader
from artifact.gateway.wire import (
    ADMIN_TOKEN,
    INTERNAL,
    WAIT,
    ClientGone,
    RawHeaders,
    Receive,
    Refused,
    Scope,
    Send,
    end_to_end,
    error_event,
    header_map,
    parse_object,
    read_body,
    send_refusal,
)

log = logging.getLogger("basin.gateway")
CALL_PATHS = frozenset(("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/generate"))
_DROP_REQUEST = INTERNAL | {b"host", b"content-length", b"accept-encoding", b"expect", ADMIN_TOKEN}
_DROP_RESPONSE = frozenset((b"date", b"server"))


class Proxy:
    """Serves model calls (`call`) and everything else that belongs to the engine (`pass_through`)."""

    def __init__(
        self, config: GatewayConfig, desk: Desk, upstream: Upstream, order: EngineOrder, placement: Placement
    ) -> None:
        self.config, self.desk, self.upstream, self.order, self.placement = config, desk, upstream, order, placement
        self.identifier = Identifier(config.identity)
        self.lineage = Lineage() if config.lineage else None
        self.churn = ChurnDetector()
        self.buffered_bytes = 0

    async def call(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A model call: whatever happens, it is closed exactly once and its bytes are no longer counted as held."""
        body = b""
        try:
            body = await self._read(scope, receive)
            await self._serve(scope, receive, send, body)
        except ClientGone:
            return
        except Refused as refused:
            await send_refusal(send, scope["path"], refused)
        finally:
            self.buffered_bytes -= len(body)

    async def pass_through(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A request that starts no model call: forwarded as it is."""
        try:
            body = await read_body(receive, self.config.limits.body_bytes)
            headers = end_to_end(scope["headers"], _DROP_REQUEST)
            async with self.upstream.request(scope["method"], _target(scope), headers, body) as response:
                await _start(send, response, ())
                while piece := await response.content.readany():
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        except ClientGone:
            return
        except Refused as refused:
            await send_refusal(send, scope["path"], refused)

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        limits = self.config.limits
        if sum(len(name) + len(value) for name, value in scope["headers"]) > limits.header_bytes:
            raise Refused(431, "headers_too_large", f"request headers exceed {limits.header_bytes} bytes")
        if self.buffered_bytes >= limits.buffered_bytes:
            raise Refused(503, "buffers_full", "the gateway holds too many bytes of waiting calls", 5.0)
        try:
            async with asyncio.timeout(self.config.timeouts.body_s):
                body = await read_body(receive, limits.body_bytes)
        except TimeoutError as error:
            raise Refused(408, "body_timeout", "the request body did not arrive in time") from error
        self.buffered_bytes += len(body)
        return body

    async def _serve(self, scope: Scope, receive: Receive, send: Send, body: bytes) -> None:
        call = self._open(scope, body)
        exchange = _Exchange(self, scope, send, call)
        call.task = asyncio.current_task()
        watch = asyncio.ensure_future(_cancel_when_gone(receive, exchange))
        try:
            await self.desk.passed(call)
            await exchange.forward(body)
        except asyncio.CancelledError:
            await exchange.cancelled()
        finally:
            watch.cancel()
            exchange.close()

    def _open(self, scope: Scope, body: bytes) -> Call:
        parsed = parse_object(body)
        named = self.identifier.identify(header_map(scope["headers"]), parsed or {})
        return self.desk.open(self._identify(named, parsed or {}), read_ask(parsed, len(body)))

    def _identify(self, identity: Identity, parsed: dict[str, object]) -> Identity:
        """Apply what the messages tell: the lineage of a call without an id, a convention that must not be trusted."""
        if identity.source == "none":
            if self.lineage is None:
                return identity
            hashes = message_hashes(parsed)
            identity = Identity(self.lineage.find(hashes) or identity.id, "lineage")
            self.lineage.learn(hashes, identity.id)
        elif self.desk.table.get(identity.id) is None and self.churn.first_call(identity.source, identity.id, parsed):
            self.identifier.distrusted.add(identity.source)
            log.warning("session id changes with every request", extra={"convention": identity.source})
        return identity


class _Exchange:
    """One call's forwarding and what is known of how it ended."""

    def __init__(self, proxy: Proxy, scope: Scope, send: Send, call: Call) -> None:
        self.proxy, self.scope, self.send, self.call = proxy, scope, send, call
        self.client_gone = False
        self.started = False
        self.outcome = Outcome.FAILED
        self.reader: UsageReader | None = None

    async def forward(self, body: bytes) -> None:
        call, desk = self.call, self.proxy.desk
        decode = self.proxy.placement.place(call, self.scope["path"])
        marks, body = self.proxy.order.mark(call, self.scope["path"], body, elastic=decode is not None)
        headers = end_to_end(self.scope["headers"], _DROP_REQUEST) + marks
        upstream = decode or self.proxy.upstream
        async with upstream.request("POST", _target(self.scope), headers, body) as response:
            event_stream = response.content_type == "text/event-stream"
            if "Content-Encoding" not in response.headers:
                self.reader = UsageReader(event_stream)
            self.started = True
            waited = ((WAIT, b"%.3f" % call.waited_s),) if call.gate is not None else ()
            await _start(self.send, response, waited)
            try:
                while piece := await response.content.readany():
                    if call.stage is Stage.PASSED:
                        desk.first_byte(call)
                        self.proxy.order.answered(call)
                        self.proxy.placement.over(call)
                    call.stuck_since_s = desk.now()
                    if self.reader is not None:
                        self.reader.feed(piece)
                    await self.send({"type": "http.response.body", "body": piece, "more_body": True})
            except (aiohttp.ClientError, ConnectionError):
                log.warning("the engine broke off mid-response", extra={"session": call.session.id})
                if event_stream:
                    event = error_event(self.scope["path"], "upstream_broke_off", "the engine broke off mid-response")
                    await self.send({"type": "http.response.body", "body": event, "more_body": True})
                return  # without an end the server closes the connection: the client sees that it was cut
            if response.status < 400:
                self.outcome = Outcome.DONE
        await self.send({"type": "http.response.body", "body": b""})

    async def cancelled(self) -> None:
        """The task was cancelled: by the client's leaving, by the sweep, or from outside (then it stays cancelled)."""
        task = asyncio.current_task()
        if self.client_gone:
            self.outcome = Outcome.LEFT
        elif not self.call.timed_out:
            raise asyncio.CancelledError
        if task is not None:
            task.uncancel()
        if self.call.timed_out and not self.client_gone and not self.started:
            raise Refused(504, "upstream_timeout", "the engine did not answer in time", 5.0)

    def close(self) -> None:
        usage = self.reader.result() if self.reader is not None and self.outcome is not Outcome.FAILED else None
        self.proxy.order.forget(self.call)
        self.proxy.placement.over(self.call)
        self.proxy.desk.close(self.call, self.outcome, usage, self.reader.events if self.reader is not None else 0)


async def _cancel_when_gone(receive: Receive, exchange: _Exchange) -> None:
    task = exchange.call.task
    while (await receive())["type"] != "http.disconnect":
        pass
    exchange.client_gone = True
    if task is not None:
        task.cancel()


def _target(scope: Scope) -> str:
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope["query_string"]
    return (path + b"?" + query if query else path).decode("latin-1")


async def _start(send: Send, response: aiohttp.ClientResponse, extra: tuple[tuple[bytes, bytes], ...]) -> None:
    headers: RawHeaders = [*end_to_end(response.raw_headers, _DROP_RESPONSE), *extra]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
