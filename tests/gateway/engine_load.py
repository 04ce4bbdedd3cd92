"""What the tests before real engines share: a tap on the way to the engine, and bursts of calls in a given order."""

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable

import aiohttp
import httptools
from conftest import Door
from fake_upstream import serving

from artifact.gateway.app import Gateway
from artifact.gateway.config import GatewayConfig

PATIENCE_S = float(os.environ.get("BASIN_ENGINE_START_S", "1200"))
"""For an engine to come up, and for anything it is asked. One that dies is noticed at once, so that this only bounds
how slow a machine may be."""
LIMIT = aiohttp.ClientTimeout(total=PATIENCE_S)


async def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come true within {PATIENCE_S:g} s (BASIN_ENGINE_START_S)")
        await asyncio.sleep(0.1)


class Tap:
    """Relays TCP to an upstream and keeps what that answered, with transfer coding taken off."""

    def __init__(self, url: str) -> None:
        self.port = int(url.rpartition(":")[2])
        self.body = bytearray()

    def on_body(self, piece: bytes) -> None:
        self.body += piece

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = httptools.HttpResponseParser(self)
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.port)

        async def forward() -> None:
            while piece := await reader.read(65536):
                up_writer.write(piece)
            up_writer.close()

        task = asyncio.create_task(forward())
        while piece := await up_reader.read(65536):
            parser.feed_data(piece)
            writer.write(piece)
        writer.close()
        task.cancel()


class Keyed(Door):
    """Orders sessions by the number in their ids, whatever came first."""

    def ordering(self) -> bool:
        return True

    def order_key(self, session_id: str) -> float:
        return float(session_id.rpartition("-")[2])


Send = Callable[[aiohttp.ClientSession, str, int, str], Awaitable[object]]
"""`send(client, gateway_url, key, session_id)` makes one call and returns when it is over."""


async def burst(config: GatewayConfig, send: Send, sessions: int, seed: int) -> tuple[Gateway, list[int]]:
    """One call each of sessions with keys in random order; the gateway, and the keys as they finished."""
    gateway = Gateway(config, lambda *made_of: Keyed())
    keys = list(range(sessions))
    random.Random(seed).shuffle(keys)
    finished: list[int] = []
    connector = aiohttp.TCPConnector(limit=0)
    async with serving(gateway, "on") as url, aiohttp.ClientSession(connector=connector, timeout=LIMIT) as client:

        async def call(key: int) -> None:
            await send(client, url, key, f"k-{key}")
            finished.append(key)

        tasks = []
        for key in keys:
            tasks.append(asyncio.create_task(call(key)))
            await asyncio.sleep(0.005)
        await asyncio.gather(*tasks)
    return gateway, finished


async def queued(
    config: GatewayConfig, send: Send, plug: Callable[[aiohttp.ClientSession], Awaitable[object]], sessions: int
) -> tuple[Gateway, list[int]]:
    """As `burst`, before an engine with one slot, which `plug`, a call past the gateway, holds until all others wait.

    They are sent the last key first: an engine that orders finishes them in one order, one that does not in its
    opposite, and there is nothing in between but neighbours whose answers arrive together.
    """
    gateway = Gateway(config, lambda *made_of: Keyed())
    finished: list[int] = []

    def engine_has(running: int, waiting: int) -> bool:
        reading = gateway.telemetry.watches[0].reading
        return reading is not None and (reading.running, reading.waiting) == (running, waiting)

    connector = aiohttp.TCPConnector(limit=0)
    async with serving(gateway, "on") as url, aiohttp.ClientSession(connector=connector, timeout=LIMIT) as client:

        async def call(key: int) -> None:
            await send(client, url, key, f"k-{key}")
            finished.append(key)

        holding = asyncio.create_task(plug(client))
        await until(lambda: engine_has(1, 0), "the call that holds the slot")
        tasks = []
        for key in reversed(range(sessions)):
            tasks.append(asyncio.create_task(call(key)))
            await asyncio.sleep(0.005)
        await until(lambda: engine_has(1, sessions), f"{sessions} calls waiting in the engine")
        assert not holding.done() and not finished
        holding.cancel()
        await asyncio.gather(*tasks)
    return gateway, finished


def concordant(order: list[int]) -> float:
    """Share of pairs that finished in the order of their keys: 1/2 without any order."""
    pairs = [(a, b) for i, a in enumerate(order) for b in order[i + 1 :]]
    return sum(a < b for a, b in pairs) / len(pairs)
