"""Which calls a decode instance computes from the prompt on (decode-side elastic prefill, paper A §7.1).

The rule is the simulator's: a call goes to a decode instance alone while the policy lends that instance's compute, its
lease grants a chunk, its memory holds the prompt, and fewer placed calls wait there than calls wait for prefill. All
others go to the router. What runs between two decode steps is decided by the lease in the engine
(`artifact.lending.engine_elastic`); what is read here of it is seconds old, so it only says where not to add work.
"""

import random
from collections import Counter
from collections.abc import Mapping

from artifact.gateway.config import GatewayConfig
from artifact.gateway.desk import Desk
from artifact.gateway.session import Call
from artifact.gateway.telemetry import EngineWatch, Telemetry
from artifact.gateway.upstream import Upstream

PATHS = frozenset(("/v1/chat/completions", "/v1/completions"))
"""Whose bodies carry both the mark and the room in SGLang's OpenAI server."""
LEASE = "basin_lease_tokens"
_ROOM_BITS = 62
_NUMBERS = random.Random()


class Placement:
    """Inert unless configured with `elastic` and decode engines."""

    def __init__(self, config: GatewayConfig, desk: Desk, telemetry: Telemetry) -> None:
        self.desk = desk
        watches = telemetry.watches if config.elastic else []
        self._decodes = [watch for watch in watches if watch.engine.role == "decode"]
        self._prefills = max(1, sum(watch.engine.role == "prefill" for watch in watches))
        self._upstreams = {
            watch.engine.base: Upstream(watch.engine.base, config.timeouts.connect_s) for watch in self._decodes
        }
        self._placed: dict[Call, str] = {}
        self._elsewhere: set[Call] = set()
        self.counts: Counter[str] = Counter(dict.fromkeys(self._upstreams, 0))
        """Calls placed so far, by the decode engine's base URL."""

    def place(self, call: Call, path: str) -> Upstream | None:
        """The decode engine that takes the call, or None for the router."""
        if not self._decodes:
            return None
        chosen = self._choose(call) if path in PATHS and call.ask.is_object else None
        if chosen is None:
            self._elsewhere.add(call)
            return None
        self._placed[call] = chosen
        self.counts[chosen] += 1
        return self._upstreams[chosen]

    def over(self, call: Call) -> None:
        """The engine has begun to answer the call, or it has ended without an answer."""
        self._placed.pop(call, None)
        self._elsewhere.discard(call)

    async def close(self) -> None:
        for upstream in self._upstreams.values():
            await upstream.close()

    def _choose(self, call: Call) -> str | None:
        """The decode engine with the fewest placed calls of those that can take this one."""
        most = len(self._elsewhere) / self._prefills
        waiting = {base: self._waiting(base) for base in self._upstreams}
        able = [
            watch.engine.base
            for number, watch in enumerate(self._decodes)
            if waiting[watch.engine.base] < most
            and self.desk.ask(self.desk.policy.lease, number) is not None
            and self._open(watch)
            and self._room(watch) >= call.prompt_tokens
        ]
        return min(able, key=lambda base: waiting[base], default=None)

    def _waiting(self, base: str) -> int:
        return sum(where == base for where in self._placed.values())

    def _open(self, watch: EngineWatch) -> bool:
        """The lease is asked only while something is placed: of an engine with nothing, an old answer tells nothing."""
        if not watch.up or watch.reading is None:
            return False
        return not self._waiting(watch.engine.base) or watch.reading.samples.get(LEASE, 1.0) > 0

    def _room(self, watch: EngineWatch) -> float:
        """Free KV tokens, less what was placed there since and has not been computed."""
        reading = watch.reading
        if reading is None or reading.kv_capacity_tokens is None:
            return 0.0
        promised = sum(call.prompt_tokens for call, base in self._placed.items() if base == watch.engine.base)
        return reading.kv_capacity_tokens - (reading.kv_used_tokens or 0.0) - promised


def marks() -> Mapping[str, object]:
    """What an engine wants of a call that comes to decode alone: any room, since it refuses calls without one."""
    return {"bootstrap_room": _NUMBERS.getrandbits(_ROOM_BITS)}
