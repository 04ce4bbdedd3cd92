"""The way to the engine: pooled connections, nothing altered, retries only where nothing was sent.

aiohttp's client is used because it costs less than a third of httpx's CPU a streamed request (tests/bench measures
both).
"""

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from yarl import URL

from artifact.gateway.wire import RawHeaders, Refused

_CONNECT_TRIES = 3
_AUTO = frozenset(("Accept", "Accept-Encoding", "User-Agent", "Content-Type"))
_NOTHING_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
_LARGE = 1 << 20


class Upstream:
    """One base URL. `reachable` is what the latest attempt has shown."""

    def __init__(self, base_url: str, connect_s: float = 5.0) -> None:
        self.base_url = base_url.rstrip("/")
        self.reachable = True
        self._connect_s = connect_s
        self._client: aiohttp.ClientSession | None = None

    @property
    def client(self) -> aiohttp.ClientSession:
        """Made on first use, inside the running loop."""
        if self._client is None:
            # Servers close idle connections after 5 s at the earliest (uvicorn); we are quicker, so that a call is
            # never sent into a connection that is just being closed.
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._connect_s)
            self._client = aiohttp.ClientSession(
                connector=connector,
                timeout=timeout,
                auto_decompress=False,
                skip_auto_headers=_AUTO,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    @asynccontextmanager
    async def request(
        self, method: str, target: str, headers: RawHeaders, body: bytes
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The engine's response, its body unread. Leaving the context early closes the connection, which cancels the
        call on the engine. Raises `Refused`: 503 when it cannot be reached, 502 when it broke off before answering.
        """
        try:
            response = await self._send(method, target, headers, body)
        except _NOTHING_SENT as error:
            self.reachable = False
            raise Refused(503, "upstream_unreachable", "the engine cannot be reached", 5.0) from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise Refused(502, "upstream_broke_off", "the engine closed the connection without an answer") from error
        self.reachable = True
        try:
            yield response
        finally:
            response.close() if not response.content.at_eof() else response.release()

    async def _send(self, method: str, target: str, headers: RawHeaders, body: bytes) -> aiohttp.ClientResponse:
        url = URL(self.base_url + target, encoded=True)
        named = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
        for attempt in range(_CONNECT_TRIES):
            data = io.BytesIO(body) if len(body) > _LARGE else body or None
            try:
                return await self.client.request(method, url, headers=named, data=data, allow_redirects=False)
            except _NOTHING_SENT:
                if attempt + 1 == _CONNECT_TRIES:
                    raise
                await asyncio.sleep(0.1 * 3**attempt)
        raise AssertionError("unreachable")
