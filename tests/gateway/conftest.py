"""Gateways and clients for tests: everything over real loopback HTTP."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack

import aiohttp
import pytest_asyncio
from fake_upstream import ASKED_BY_THE_GATEWAY, FakeEngine, Seen, event, respond, serving, stream, usage

from artifact.control.policy import Action, Decision, Policy, SessionFacts
from artifact.gateway.app import Gateway
from artifact.gateway.config import GatewayConfig

PATIENCE_S = 60.0
"""For what takes milliseconds on an idle machine."""


class Door(Policy):
    """A policy for tests: lets `room` sessions in, sheds and suspends on command, and notes every fact."""

    def __init__(self, room: float = float("inf")) -> None:
        super().__init__()
        self.room = room
        self.orders: deque[Decision] = deque()
        self.suspend: set[str] = set()
        self.facts: list[tuple[str, str]] = []
        self.contexts: dict[str, int] = {}
        self.prompts: dict[str, int] = {}

    def arrive(self, session: SessionFacts, now: float) -> None:
        super().arrive(session, now)
        self.facts.append(("arrive", session.id))

    def adopt(self, session: SessionFacts, context_tokens: int, now: float) -> None:
        super().adopt(session, context_tokens, now)
        self.facts.append(("adopt", session.id))

    def turn(self, session_id: str, prompt_tokens: int, now: float) -> bool:
        self.facts.append(("turn", session_id))
        self.prompts[session_id] = prompt_tokens
        return session_id not in self.suspend

    def call_done(self, session_id: str, context_tokens: int, now: float) -> None:
        self.facts.append(("done", session_id))
        self.contexts[session_id] = context_tokens

    def depart(self, session_id: str, now: float) -> None:
        super().depart(session_id, now)
        self.facts.append(("depart", session_id))

    def next(self, now: float) -> Decision | None:
        if self.orders:
            decision = self.orders.popleft()
            self._waiting.pop(decision.session_id, None)
            return decision
        return super().next(now) if len(self._resident) < self.room else None

    def shed(self, session_id: str) -> None:
        self.orders.append(Decision(Action.SHED, session_id))

    def resume(self, session_id: str) -> None:
        self.suspend.discard(session_id)
        self.orders.append(Decision(Action.RESUME, session_id))


async def default_answer(request: Seen, send: object) -> None:
    """Streams or answers at once, with usage: one prompt token a byte of body, five output tokens."""
    if request.target in ASKED_BY_THE_GATEWAY:
        await respond(send, b"", 404)
    elif not request.body:
        await respond(send, b"{}")
    elif request.json.get("stream"):
        pieces = [event({"choices": [{"delta": {"content": str(i)}}]}) for i in range(5)]
        await stream(send, [*pieces, event({"choices": [], "usage": usage(len(request.body), 5)}), b"data: [DONE]\n\n"])
    else:
        await respond(send, str({"usage": usage(len(request.body), 5)}).replace("'", '"').encode())


class Stand:
    """A gateway under test: `gateway`, its `door` (policy), the `engine` behind it and a client session before it."""

    def __init__(self, gateway: Gateway, door: Policy, engine: FakeEngine, url: str, client: aiohttp.ClientSession):
        self.gateway, self.engine, self.url, self.client = gateway, engine, url, client
        self.door: Door = door  # type: ignore[assignment]

    def post(self, session: str | None = None, path: str = "/v1/chat/completions", **body: object) -> object:
        headers = {"x-session-id": session} if session else {}
        body = {"messages": [{"role": "user", "content": "hi"}], **body}
        return self.client.post(self.url + path, json=body, headers=headers)

    async def status(self, session: str | None = None, **body: object) -> int:
        async with self.post(session, **body) as response:  # type: ignore[attr-defined]
            await response.read()
            return response.status

    async def until(self, condition: Callable[[], bool], what: str = "condition") -> None:
        for _ in range(round(PATIENCE_S / 0.005)):
            if condition():
                return
            await asyncio.sleep(0.005)
        raise AssertionError(f"{what} did not come true within {PATIENCE_S:g} s")

    def pass_time(self, seconds: float) -> None:
        """Let the gateway's clock, and nothing else, run ahead."""
        self.gateway._started_s -= seconds  # type: ignore[operator]

    def assert_empty(self) -> None:
        """Nobody resident, parked, suspended or under way, on either side of the policy's seam."""
        desk, state = self.gateway.desk, self.gateway.desk.policy.state()
        assert (state.resident, state.parked, state.suspended) == (0, 0, 0)
        assert len(desk.table) == 0
        assert desk.waiting_calls == 0 and not desk.live_calls
        books = desk.books
        assert (books.before_first_byte, books.before_first_byte_tokens, books.streaming) == (0, 0, 0)
        assert self.gateway.proxy.buffered_bytes == 0


@pytest_asyncio.fixture
async def stand() -> object:
    """`await stand(answer=…, policy=…, **config)` starts engine and gateway; all are stopped after the test."""
    async with AsyncExitStack() as stack:

        async def start(answer=default_answer, policy: Policy | None = None, **config: object) -> Stand:
            engine = FakeEngine(answer)
            door = policy or Door()
            base = await stack.enter_async_context(serving(engine))
            settings = GatewayConfig(**{"upstream": base, **config})
            gateway = Gateway(settings, lambda name, options, latest: door)
            url = await stack.enter_async_context(serving(gateway, "on"))
            timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
            client = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout))
            return Stand(gateway, door, engine, url, client)

        yield start
