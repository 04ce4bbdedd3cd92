"""Readings of the engines every few seconds: last safe values, their age, and a fallback that never hangs."""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

import aiohttp

from artifact.control.policy import Signals
from artifact.gateway.config import Engine, GatewayConfig
from artifact.gateway.desk import Desk
from artifact.gateway.engines import Reading, read_page
from artifact.gateway.upstream import Upstream

log = logging.getLogger("basin.gateway")
_PAGE_TIMEOUT = aiohttp.ClientTimeout(total=4.0)
_PAGE_BYTES = 16 << 20


@dataclass(slots=True)
class EngineWatch:
    """One endpoint: its latest reading, when it came, and the tokens counted since the policy last looked."""

    engine: Engine
    reading: Reading | None = None
    read_s: float | None = None
    up: bool = False
    error: str = ""
    new_prompt_tokens: float = 0.0
    new_cached_tokens: float = 0.0

    def take(self, reading: Reading, now: float) -> None:
        """A counter that fell was reset by a restart: all it shows is new. The first reading is only a base line."""
        before = self.reading
        if before is not None and self.engine.role in ("prefill", "unified"):
            # decode relays prefill's cached tokens: counting them again would say nothing new
            self.new_prompt_tokens += _grown(before.prompt_tokens, reading.prompt_tokens)
            self.new_cached_tokens += _grown(before.cached_tokens, reading.cached_tokens)
        self.reading, self.read_s, self.up, self.error = reading, now, True, ""


class Telemetry:
    """Scrapes; answers `signals()` for the policy. Without configured engines it tries the upstream itself."""

    def __init__(self, config: GatewayConfig, desk: Desk, upstream: Upstream) -> None:
        self.config, self.desk, self.upstream = config, desk, upstream
        self.watches = [EngineWatch(engine) for engine in config.engines or (Engine(url=config.upstream),)]
        self.latest = Signals()
        self.own_accounting = True

    def age_s(self) -> float | None:
        """Seconds since the oldest of the engines was last read; None before all have been."""
        read = [watch.read_s for watch in self.watches if watch.engine.role != "router"]
        if not read or any(time_s is None for time_s in read):
            return None
        return self.desk.now() - min(time_s for time_s in read if time_s is not None)

    def token_totals(self) -> tuple[int, int]:
        """(prompt, cached) tokens of all calls so far: the engines' counters, else the gateway's own."""
        readings = [
            w.reading for w in self.watches if w.engine.role in ("prefill", "unified") and w.reading is not None
        ]
        if self.own_accounting or not readings:
            return self.desk.books.prompt_tokens, self.desk.books.cached_tokens
        return round(sum(r.prompt_tokens or 0 for r in readings)), round(sum(r.cached_tokens or 0 for r in readings))

    async def scrape(self) -> None:
        """Read every endpoint once, at the same time; an endpoint that fails keeps its last reading."""
        await asyncio.gather(*(self._scrape_one(watch) for watch in self.watches))

    def extension_orders(self) -> dict[str, bool]:
        """By base URL, of the engines that carry the Basin extension: whether it sorts their queues now."""
        return {
            watch.engine.base: bool(watch.reading.extension_orders)
            for watch in self.watches
            if watch.reading is not None and watch.reading.extension_orders is not None
        }

    def signals(self) -> Signals:
        """The reading for one control interval. Beyond `stale_s` without the engines, the gateway's own accounting.

        Hit rate and token counts are consumed: the next reading covers what comes after.
        """
        age_s = self.age_s()
        stale = age_s is None or age_s > self.config.stale_s
        if stale != self.own_accounting:
            log.warning("signals from own accounting" if stale else "signals from the engines", extra={"age_s": age_s})
        self.own_accounting = stale
        self.latest = self.desk.books.signals(self.latest) if stale else self._from_engines()
        return self.latest

    def _from_engines(self) -> Signals:
        prompt = sum(watch.new_prompt_tokens for watch in self.watches)
        cached = sum(watch.new_cached_tokens for watch in self.watches)
        for watch in self.watches:
            watch.new_prompt_tokens = watch.new_cached_tokens = 0.0
        prefill = [w.reading for w in self.watches if w.reading and w.engine.role in ("prefill", "unified")]
        decode = [w.reading for w in self.watches if w.reading and w.engine.role in ("decode", "unified")]
        unified = [w.reading for w in self.watches if w.reading and w.engine.role == "unified"]
        hit_rate = min(1.0, cached / prompt) if prompt > 0 else None
        in_prefill = [r.waiting for r in prefill] + [r.running for r in prefill if r not in unified]
        books = self.desk.books
        return Signals(
            hit_rate=hit_rate,
            prefill_queue=_total(in_prefill),
            prefill_queue_tokens=books.outstanding_prefill_tokens(hit_rate if prompt > 0 else self.latest.hit_rate),
            decode_waiting=_total(r.decode_waiting for r in decode),
            decode_running=_total(r.running for r in decode),
            decode_kv_used_tokens=_total(r.kv_used_tokens for r in decode),
            decode_kv_capacity_tokens=_total(r.kv_capacity_tokens for r in decode),
            prefill_cache_capacity_tokens=_total(r.kv_capacity_tokens for r in prefill),
            host_cache_capacity_tokens=_total(r.host_capacity_tokens for r in prefill),
            lent_tokens=_total(r.lent_tokens for r in decode),
        )

    async def _scrape_one(self, watch: EngineWatch) -> None:
        url = watch.engine.base + "/metrics"
        try:
            async with self.upstream.client.get(url, timeout=_PAGE_TIMEOUT) as response:
                if response.status != 200:
                    raise ValueError(f"status {response.status}")
                text = await _page(response)
            # a page of a thousand lines takes milliseconds to parse: not on the loop that carries the tokens
            reading = await asyncio.to_thread(read_page, text, watch.engine.role)
            watch.take(reading, self.desk.now())
        except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
            if watch.up or not watch.error:
                log.warning("metrics endpoint failed", extra={"endpoint": url, "error": repr(error)})
            watch.up, watch.error = False, repr(error)


async def _page(response: aiohttp.ClientResponse) -> str:
    page = bytearray()
    while piece := await response.content.readany():
        page += piece
        if len(page) > _PAGE_BYTES:
            raise ValueError(f"page of more than {_PAGE_BYTES} bytes")
    return page.decode("utf-8", "replace")


def _grown(before: float | None, after: float | None) -> float:
    if before is None or after is None:
        return 0.0
    return after - before if after >= before else after


def _total(values: Iterable[float | None]) -> int | None:
    """Sum of what is known; None when nothing is."""
    known = [value for value in values if value is not None]
    return round(sum(known)) if known else None
