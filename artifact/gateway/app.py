"""The gateway as an ASGI application: routes, background loops, start and stop."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from artifact.control.policy import Policy, Signals
from artifact.gateway.config import CapacitiesUnknown, GatewayConfig, PolicyFactory
from artifact.gateway.desk import Desk
from artifact.gateway.engine_info import read_flags
from artifact.gateway.metrics import GatewayMetrics
from artifact.gateway.operator import Operator
from artifact.gateway.ordering import EngineOrder
from artifact.gateway.placement import Placement
from artifact.gateway.proxy import CALL_PATHS, Proxy
from artifact.gateway.session import Session
from artifact.gateway.telemetry import Telemetry
from artifact.gateway.upstream import Upstream
from artifact.gateway.wire import Receive, Scope, Send

log = logging.getLogger("basin.gateway")


class Gateway:
    """`app = Gateway(config, make_policy)` is an ASGI application with a lifespan.

    Raises `ValueError` for an unknown policy or identity convention.
    """

    def __init__(
        self,
        config: GatewayConfig,
        make_policy: PolicyFactory,
        on_session_end: Callable[[Session], None] = lambda session: None,
    ) -> None:
        self.config = config
        self._started_s: float | None = None
        self.metrics = GatewayMetrics()
        self._make_policy = make_policy
        self.policy_name, self.policy_options = config.policy, dict(config.policy_options)
        self.policy_pending = ""
        self.desk = Desk(
            self._first_policy(), self.now, config.limits, config.timeouts, self.metrics.waited, on_session_end
        )
        self.desk.books.tokens_per_byte = config.tokens_per_byte
        self.upstream = Upstream(config.upstream, config.timeouts.connect_s)
        self.order = EngineOrder(config.priority, self.desk)
        self.telemetry = Telemetry(config, self.desk, self.upstream)
        self.placement = Placement(config, self.desk, self.telemetry)
        self.proxy = Proxy(config, self.desk, self.upstream, self.order, self.placement)
        self.operator = Operator(self)
        self.metrics.attach(self)
        self._loops: list[asyncio.Task[None]] = []
        self._next_reading_s = self._next_control_s = 0.0
        self._asked: set[str] = set()
        self._new_policy = asyncio.Event()
        self._new_policy.set()

    def now(self) -> float:
        """Seconds since the gateway was first asked, by a monotonic clock: steps of the wall clock do not show."""
        time_s = asyncio.get_running_loop().time()
        if self._started_s is None:
            self._started_s = time_s
        return (time_s - self._started_s) * self.config.time_scale

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if scope["method"] == "POST" and scope["path"] in CALL_PATHS:
                await self.proxy.call(scope, receive, send)
            elif not await self.operator.handle(scope, receive, send):
                await self.proxy.pass_through(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        else:  # refuse a web socket before it opens
            await receive()
            await send({"type": "websocket.close", "code": 1008})

    def set_policy(self, name: str, options: dict[str, Any]) -> None:
        """Put a policy in charge. Where `PolicyFactory` raises, nothing changes."""
        policy = self._make_policy(name, options, self.telemetry.latest)
        self.desk.switch(policy)
        self.policy_name, self.policy_options, self.policy_pending = name, options, ""
        self._next_control_s = 0.0
        self._new_policy.set()
        log.warning("policy in charge", extra={"policy": name})

    def _first_policy(self) -> Policy:
        """The configured policy, or the neutral one until the engine has said how large it is."""
        try:
            return self._make_policy(self.policy_name, self.policy_options, Signals())
        except CapacitiesUnknown as unknown:
            self.policy_pending = str(unknown)
            return Policy()

    async def start(self) -> None:
        """Begin the background loops (the lifespan does it; tests without a server call it themselves)."""
        await self.telemetry.scrape()
        await self._learn_order(at_start=True)
        if self.policy_pending:
            self._try_pending_policy()
        for loop in (self._sweep, self._control):
            self._loops.append(asyncio.create_task(self._forever(loop)))

    async def stop(self) -> None:
        for task in self._loops:
            task.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await self.placement.close()
        await self.upstream.close()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await self.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def _forever(self, step: Callable[[], Awaitable[None]]) -> None:
        """One loop's error is logged and must not end it: a gateway without its sweep or its controller is stuck."""
        while True:
            try:
                await step()
            except Exception:
                log.exception("background loop failed", extra={"loop": step.__name__})
                await asyncio.sleep(1.0)

    async def _sweep(self) -> None:
        await asyncio.sleep(1.0)
        self.desk.sweep()

    async def _control(self) -> None:
        """Read the engines, and let the policy observe what was read when its interval is over; a new one at once."""
        await self._next_reading()
        await self.telemetry.scrape()
        await self._learn_order()
        if self.policy_pending:
            self._try_pending_policy()
        self._new_policy.clear()
        if self._next_reading_s >= self._next_control_s:
            self.desk.observe(self.telemetry.signals())
            self._next_control_s = self._next_reading_s + self.desk.policy.interval_s

    async def _learn_order(self, at_start: bool = False) -> None:
        """Ask engines that have come up since, a restart may have changed their flags, what their queues follow."""
        if self.config.priority.dialect != "sglang":
            return
        engines = {watch.engine.base: watch.up for watch in self.telemetry.watches if watch.engine.role != "router"}
        up = {base for base, is_up in engines.items() if is_up}
        new, self._asked = set(engines) if at_start else up - self._asked, up
        flags = await read_flags(self.upstream.client, sorted(new)) if new else {}
        self.order.learn(flags, self.telemetry.extension_orders())

    async def _next_reading(self) -> None:
        """Wait until a reading is due, or a policy was put in charge."""
        period_s = min(self.config.scrape_s, self.desk.policy.interval_s)
        due_s = max(self._next_reading_s + period_s, self.now())
        with suppress(TimeoutError):
            async with asyncio.timeout((due_s - self.now()) / self.config.time_scale):
                await self._new_policy.wait()
        self._next_reading_s = self.now() if self._new_policy.is_set() else due_s

    def _try_pending_policy(self) -> None:
        self.telemetry.signals()
        try:
            self.set_policy(self.policy_name, self.policy_options)
        except CapacitiesUnknown as unknown:
            log.warning("policy waits and calls pass: %s", unknown)
