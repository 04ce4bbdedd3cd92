"""Elastic prefill's placement: which calls go to a decode engine alone, and what that engine is told."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from conftest import Door, default_answer
from fake_upstream import FakeEngine, respond, serving

from artifact.baselines.crossflow import Lease
from artifact.lending import hints

CAPACITY, USED = 4000, 100


class Lends(Door):
    """Lends the compute of the decode instances in `lent`."""

    def __init__(self, lent=(0, 1)):
        super().__init__()
        self.lent = lent

    def lease(self, instance):
        return Lease() if instance in self.lent else None


class DecodeEngine:
    """Answers at once, or with `held` when that is set; exports the size of its next chunk."""

    def __init__(self):
        self.chunk, self.up = 64.0, True
        self.held = asyncio.Event()
        self.held.set()
        self.engine = FakeEngine(self.answer)

    async def answer(self, request, send):
        if request.target == "/metrics":
            page = f"sglang:max_total_num_tokens {CAPACITY}.0\nsglang:kv_used_tokens {USED}.0\n"
            await respond(send, f"{page}basin_lease_tokens {self.chunk}\n".encode(), 200 if self.up else 500)
            return
        await self.held.wait()
        await default_answer(request, send)

    @property
    def bodies(self):
        return [seen.json for seen in self.engine.seen]


class Scene:
    """A gateway before a router, whose first call is held as one that waits for prefill, and decode engines."""

    def __init__(self, stand, decodes, prefill_free):
        self.stand, self.decodes, self.prefill_free = stand, decodes, prefill_free
        self.tasks = []

    def call(self, session, **body):
        task = asyncio.ensure_future(self.stand.status(session, **body))
        self.tasks.append(task)
        return task

    def went(self):
        """How many calls each engine has got: the router, then the decode engines."""
        return [len(self.stand.engine.seen), *(len(decode.engine.seen) for decode in self.decodes)]

    async def reaches(self, *numbers):
        await self.stand.until(lambda: self.went() == list(numbers), f"{self.went()} to become {numbers}")

    async def over(self):
        self.prefill_free.set()
        for decode in self.decodes:
            decode.held.set()
        assert set(await asyncio.gather(*self.tasks)) <= {200}
        placement = self.stand.gateway.placement
        assert not placement._placed and not placement._elsewhere, "every call is over"


@pytest.fixture
async def scene(stand):
    async with AsyncExitStack() as stack:

        async def start(decodes=1, waiting=1, policy=None, elastic=True):
            prefill_free = asyncio.Event()

            async def prefill(request, send):
                if request.target.startswith("/v1/"):
                    await prefill_free.wait()
                await default_answer(request, send)

            engines = [DecodeEngine() for _ in range(decodes)]
            urls = [await stack.enter_async_context(serving(decode.engine)) for decode in engines]
            listed = [{"url": url, "role": "decode"} for url in urls]
            policy = policy or Lends()
            made = await stand(answer=prefill, policy=policy, engines=listed, elastic=elastic, scrape_s=0.05)
            found = Scene(made, engines, prefill_free)
            for number in range(waiting):
                found.call(f"waits-{number}", path="/v1/responses")  # of a kind that no decode engine takes alone
            await found.reaches(waiting, *[0] * decodes)
            return found

        yield start


async def test_a_call_goes_to_decode_while_more_wait_for_prefill_and_says_so(scene):
    s = await scene()
    s.call("a", priority=3, bootstrap_room="mine", custom_params={"own": 1, "basin": {"retain": True}})
    await s.reaches(1, 1)
    (body,) = s.decodes[0].bodies
    assert hints.read(body["custom_params"]) == hints.Hint("a", elastic=True) and body["custom_params"]["own"] == 1
    assert isinstance(body["bootstrap_room"], int) and 0 <= body["bootstrap_room"] < 2**62
    assert "bootstrap_room" not in s.stand.engine.seen[0].json
    assert "custom_params" not in s.stand.engine.seen[0].json
    page = s.stand.gateway.metrics.page().decode()
    assert 'basin_elastic_calls_total{url="' in page and page.split("basin_elastic_calls_total{")[1].split()[1] == "1.0"
    await s.over()


async def test_nobody_waits_for_prefill_then_the_router_has_it(scene):
    s = await scene(waiting=0)
    s.call("a")
    await s.reaches(1, 0)
    await s.over()


async def test_as_many_wait_at_decode_as_for_prefill_then_the_router_has_it(scene):
    s = await scene(waiting=2)
    s.decodes[0].held.clear()
    for session in "ab":
        s.call(session)
    await s.reaches(2, 2)
    s.call("c")
    await s.reaches(3, 2)
    await s.over()


async def test_decode_engines_fill_evenly(scene):
    s = await scene(decodes=2, waiting=2)
    for decode in s.decodes:
        decode.held.clear()
    for session in "abcd":
        before = sum(s.went())
        s.call(session)
        await s.stand.until(lambda n=before: sum(s.went()) == n + 1)
    assert s.went() == [2, 2, 2]
    await s.over()


@pytest.mark.parametrize(
    ("given", "body"),
    [
        ({"policy": Door()}, {}),
        ({"policy": Lends(lent=(1,))}, {}),
        ({"elastic": False}, {}),
        ({}, {"messages": "x" * 5 * CAPACITY}),
    ],
    ids=["a policy that lends nothing", "only another instance's compute", "not configured", "no memory for it"],
)
async def test_otherwise_the_router_has_it(scene, given, body):
    s = await scene(**given)
    s.call("a", **body)
    await s.reaches(2, 0)
    await s.over()


async def test_a_lease_without_a_chunk_is_heeded_while_a_call_waits_for_one(scene):
    s = await scene(waiting=3)
    decode = s.decodes[0]
    decode.chunk = 0.0
    decode.held.clear()
    await s.stand.until(lambda: s.stand.gateway.placement._decodes[0].reading.samples["basin_lease_tokens"] == 0)
    s.call("a")  # an engine to which nothing was sent has had nothing to grant
    await s.reaches(3, 1)
    s.call("b")
    await s.reaches(4, 1)
    decode.chunk = 64.0
    await s.stand.until(lambda: s.stand.gateway.placement._decodes[0].reading.samples["basin_lease_tokens"] > 0)
    s.call("c")
    await s.reaches(4, 2)
    await s.over()


async def test_an_engine_whose_page_fails_gets_nothing(scene):
    s = await scene()
    s.decodes[0].up = False
    await s.stand.until(lambda: not s.stand.gateway.telemetry.watches[0].up)
    s.call("a")
    await s.reaches(2, 0)
    await s.over()


async def test_what_was_placed_counts_against_memory_until_it_is_answered(scene):
    s = await scene(waiting=4)
    s.decodes[0].held.clear()
    large = {"messages": "x" * round(4 * 0.7 * (CAPACITY - USED))}
    s.call("a", **large)
    await s.reaches(4, 1)
    s.call("b", **large)
    await s.reaches(5, 1)
    s.decodes[0].held.set()
    await s.stand.until(lambda: s.stand.gateway.desk.outcomes["done"] == 1)
    s.stand.gateway.desk.books.tokens_per_byte = 0.25  # what the answer's usage has taught is of another engine
    s.call("c", **large)
    await s.reaches(5, 2)
    await s.over()
