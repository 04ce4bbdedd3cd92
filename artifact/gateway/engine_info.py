"""What an SGLang engine says of its own start: whether its queues follow priorities, and which end goes first."""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

import aiohttp

from artifact.gateway.wire import parse_object

log = logging.getLogger("basin.gateway")
_TIMEOUT = aiohttp.ClientTimeout(total=10.0)
_PATHS = ("/server_info", "/get_server_info")
"""The latter on engines before 0.5.6 and on routers."""


@dataclass(frozen=True, slots=True)
class PriorityFlags:
    """`--enable-priority-scheduling` and `--schedule-low-priority-values-first` as the engine was started."""

    enabled: bool
    low_first: bool


async def read_flags(client: aiohttp.ClientSession, bases: Iterable[str]) -> dict[str, PriorityFlags]:
    """By base URL, of the engines that tell; the others (vLLM, stubs, the dead) are left out."""
    asked = list(bases)
    found = await asyncio.gather(*(_read_one(client, base) for base in asked))
    return {base: flags for base, flags in zip(asked, found, strict=True) if flags is not None}


async def _read_one(client: aiohttp.ClientSession, base: str) -> PriorityFlags | None:
    for path in _PATHS:
        try:
            async with client.get(base + path, timeout=_TIMEOUT) as response:
                info = parse_object(await response.read()) if response.status == 200 else None
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None
        if info is not None and isinstance(enabled := info.get("enable_priority_scheduling"), bool):
            return PriorityFlags(enabled, bool(info.get("schedule_low_priority_values_first")))
    return None
