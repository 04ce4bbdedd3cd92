"""Admission as a transaction: what the policy is told, who waits, and that nothing is left behind at any exit."""

import asyncio

import aiohttp
import pytest
from conftest import Door
from fake_upstream import event, respond, stream, usage

from artifact.control.basin import Basin, Mechanisms
from artifact.control.capacity import Capacities
from artifact.control.profile import DeploymentProfile


async def hold_forever(request, send) -> None:
    """Streams one event and then nothing, until cut off."""
    if request.target in ("/metrics", "/health"):
        await respond(send, b"", 404)
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    await send({"type": "http.response.body", "body": event({"first": True}), "more_body": True})
    await asyncio.Event().wait()


async def never_answer(request, send) -> None:
    if request.target in ("/metrics", "/health"):
        await respond(send, b"", 404)
        return
    await asyncio.Event().wait()


async def leave(task: asyncio.Task) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_the_policy_hears_each_fact_once_and_in_order(stand) -> None:
    s = await stand()
    for final in (None, None, "true"):
        headers = {"x-dynamo-session-id": "a", **({"x-dynamo-session-final": final} if final else {})}
        async with s.client.post(s.url + "/v1/chat/completions", json={}, headers=headers) as response:
            await response.read()
    assert s.door.facts == [
        ("arrive", "a"), ("done", "a"), ("turn", "a"), ("done", "a"), ("turn", "a"), ("done", "a"), ("depart", "a"),
    ]  # fmt: skip
    s.assert_empty()


async def test_a_parked_first_call_reaches_the_engine_only_when_admitted(stand) -> None:
    s = await stand(policy=Door(room=1))
    assert await s.status("a") == 200
    waiting = asyncio.create_task(s.status("b"))
    await s.until(lambda: s.gateway.desk.waiting_calls == 1)
    await asyncio.sleep(0.05)
    assert len(s.engine.seen) == 1 and not waiting.done()
    async with s.client.delete(s.url + "/sessions/a") as response:
        assert response.status == 200
    assert await waiting == 200
    assert [fact for fact in s.door.facts if fact[1] == "b"] == [("arrive", "b"), ("done", "b")]


async def test_the_wait_is_reported_in_a_header_and_a_histogram(stand) -> None:
    s = await stand(policy=Door(room=0))
    task = asyncio.create_task(s.post("a").__aenter__())
    await s.until(lambda: s.gateway.desk.waiting_calls == 1)
    s.pass_time(100.0)
    s.door.room = 1
    s.gateway.desk.settle()
    response = await task
    assert 100 <= float(response.headers["x-basin-wait-s"]) < 160
    text = s.gateway.metrics.page().decode()
    assert 'basin_wait_seconds_bucket{kind="entry",le="60.0"} 0.0' in text
    assert 'basin_wait_seconds_count{kind="entry"} 1.0' in text


async def test_a_suspended_turn_waits_until_it_is_resumed(stand) -> None:
    s = await stand()
    assert await s.status("a") == 200
    s.door.suspend.add("a")
    second = asyncio.create_task(s.status("a"))
    await s.until(lambda: s.gateway.desk.waiting_calls == 1)
    third = asyncio.create_task(s.status("a"))  # joins the wait: the policy is not asked twice about one turn
    await s.until(lambda: s.gateway.desk.waiting_calls == 2)
    assert s.door.facts.count(("turn", "a")) == 1
    s.door.resume("a")
    s.gateway.desk.settle()
    assert (await second, await third) == (200, 200)
    assert s.door.facts.count(("done", "a")) == 2  # the overlapping second and third are one turn


async def test_a_resumed_turn_whose_caller_has_left_is_over_at_once(stand) -> None:
    s = await stand()
    assert await s.status("a") == 200
    s.door.suspend.add("a")
    second = asyncio.create_task(s.status("a"))
    await s.until(lambda: s.gateway.desk.waiting_calls == 1)
    await leave(second)
    await s.until(lambda: s.gateway.desk.waiting_calls == 0)
    s.door.resume("a")
    s.gateway.desk.settle()
    assert s.door.facts[-2:] == [("turn", "a"), ("done", "a")]
    assert await s.status("a") == 200
    assert len(s.engine.seen) == 2


async def test_a_shed_call_gets_429_with_retry_after_and_its_session_is_over(stand) -> None:
    s = await stand(policy=Door(room=0))
    task = asyncio.create_task(s.post("a").__aenter__())
    await s.until(lambda: s.gateway.desk.waiting_calls == 1)
    s.door.shed("a")
    s.gateway.desk.settle()
    response = await task
    assert response.status == 429 and response.headers["x-basin-reason"] == "shed"
    assert 1 <= int(response.headers["retry-after"]) <= 600
    assert s.door.facts == [("arrive", "a"), ("depart", "a")]
    s.assert_empty()


async def test_a_new_call_in_the_moment_of_shedding_is_a_new_arrival(stand) -> None:
    s = await stand(policy=Door(room=0))
    first = asyncio.create_task(s.status("a"))
    await s.until(lambda: s.gateway.desk.waiting_calls == 1)
    s.door.shed("a")
    s.gateway.desk.settle()  # the refusal is on its way; the id is free again
    s.door.room = 1
    assert await s.status("a") == 200
    assert await first == 429


@pytest.mark.parametrize("stage", ["parked", "suspended", "before the first byte", "mid-stream"])
async def test_a_client_that_leaves_is_rolled_back_at_any_stage(stand, stage: str) -> None:
    answer = hold_forever if stage == "mid-stream" else never_answer
    door = Door(room=0 if stage == "parked" else 1)
    s = await stand(answer, policy=door)
    if stage == "suspended":  # needs a completed call first
        s.engine.answer = lambda request, send: respond(send, b'{"usage": {"prompt_tokens": 1}}')
        assert await s.status("a") == 200
        door.suspend.add("a")
    client = asyncio.create_task(s.status("a", stream=True))
    desk = s.gateway.desk
    reached = {
        "parked": lambda: desk.waiting_calls == 1,
        "suspended": lambda: desk.waiting_calls == 1,
        "before the first byte": lambda: desk.books.before_first_byte == 1 and s.engine.seen,
        "mid-stream": lambda: desk.books.streaming == 1,
    }[stage]
    await s.until(reached, stage)
    await leave(client)
    await s.until(lambda: desk.waiting_calls == 0 and not desk.live_calls)
    if stage == "suspended":
        desk.release("a")
    else:
        assert desk.outcomes["left"] == 1
    s.assert_empty()
    assert door.facts.count(("depart", "a")) == 1
    if stage in ("before the first byte", "mid-stream"):
        await s.until(lambda: s.engine.seen[0].cancelled, "the end of the call on the engine")


async def test_who_leaves_the_queue_and_returns_keeps_its_place_and_who_was_shed_does_not(stand) -> None:
    s = await stand(policy=Door(room=0))
    desk = s.gateway.desk

    async def arrival(leaving: bool) -> float:
        task = asyncio.create_task(s.status("a"))
        await s.until(lambda: desk.waiting_calls == 1)
        arrived = desk.table.get("a").facts.arrival_s
        if leaving:
            await leave(task)
        else:
            s.door.shed("a")
            desk.settle()
            await task
        await s.until(lambda: len(desk.table) == 0)
        return arrived

    first = await arrival(leaving=True)
    assert await arrival(leaving=False) == first
    assert await arrival(leaving=True) > first


async def test_parallel_calls_of_one_session_are_one_turn(stand) -> None:
    gate = asyncio.Event()

    async def answer(request, send):
        if request.target not in ("/metrics", "/health"):
            await gate.wait()
        await respond(send, b'{"usage": {"prompt_tokens": 100, "completion_tokens": 1}}')

    s = await stand(answer)
    calls = [asyncio.create_task(s.status("a", i=i)) for i in range(5)]
    await s.until(lambda: len(s.engine.seen) == 5)
    gate.set()
    assert await asyncio.gather(*calls) == [200] * 5
    assert s.door.facts == [("arrive", "a"), ("done", "a")]
    assert s.door.contexts["a"] == 101  # five calls of one conversation do not multiply its context


async def test_a_retry_while_the_first_is_live_neither_arrives_nor_departs_twice(stand) -> None:
    s = await stand(never_answer)
    first = asyncio.create_task(s.status("a"))
    await s.until(lambda: len(s.engine.seen) == 1)
    retry = asyncio.create_task(s.status("a"))
    await s.until(lambda: len(s.engine.seen) == 2)
    await leave(first)
    await s.until(lambda: len(s.gateway.desk.live_calls) == 1)
    assert ("depart", "a") not in s.door.facts
    await leave(retry)
    await s.until(lambda: len(s.gateway.desk.table) == 0)
    assert s.door.facts == [("arrive", "a"), ("done", "a"), ("depart", "a")]
    s.assert_empty()


async def test_sub_agents_under_the_parents_id_add_their_context_and_a_compaction_shrinks_it(stand) -> None:
    async def answer(request, send):
        tokens = request.json["tokens"] if request.body else 0
        await respond(send, b'{"usage": {"prompt_tokens": %d, "completion_tokens": 0}}' % tokens)

    s = await stand(answer)

    async def call(system: str, tokens: int) -> int:
        await s.status("a", messages=[{"role": "system", "content": system}], tokens=tokens)
        return s.door.contexts["a"]

    assert await call("main", 60_000) == 60_000
    assert await call("explorer", 5_000) == 65_000  # the parent's prefix still waits in the cache
    assert await call("explorer", 8_000) == 68_000
    assert await call("main", 9_000) == 17_000  # compacted


async def test_a_turn_is_estimated_by_what_the_sessions_own_bytes_made(stand) -> None:
    """The engine here counts a token a byte, and another language's session has taught the gateway less than half."""
    s = await stand()
    for text in ("x" * 1000, "x" * 2000):
        assert await s.status("a", system="the same conversation", messages=text) == 200
        s.gateway.desk.books.tokens_per_byte = 0.4
    counted = s.door.contexts["a"] - 5  # output tokens
    assert counted > 2000 and s.door.prompts["a"] == counted


async def test_n_choices_leave_one_of_them_in_the_context(stand) -> None:
    async def answer(request, send):
        await respond(send, b'{"usage": {"prompt_tokens": 100, "completion_tokens": 90}}')

    s = await stand(answer)
    await s.status("a", n=3)
    assert s.door.contexts["a"] == 130


async def test_calls_without_an_id_are_sessions_of_their_own(stand) -> None:
    s = await stand()
    for _ in range(3):
        assert await s.status() == 200
    arrived = [session for fact, session in s.door.facts if fact == "arrive"]
    assert len(set(arrived)) == 3
    s.assert_empty()


async def test_a_child_of_a_resident_parent_is_let_in_with_it(stand) -> None:
    s = await stand(policy=Door(room=1))
    assert await s.status("parent") == 200
    headers = {"x-dynamo-session-id": "child", "x-dynamo-parent-session-id": "parent"}
    async with s.client.post(s.url + "/v1/chat/completions", json={}, headers=headers) as response:
        assert response.status == 200
    assert ("adopt", "child") in s.door.facts and ("arrive", "child") not in s.door.facts


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/programs/release", {"program_id": "a"}),
        ("/programs/release", {"job_id": "a"}),
        ("/close_session", {"session_id": "a"}),
    ],
)
async def test_explicit_ends_of_other_systems_are_understood(stand, path: str, body: dict[str, str]) -> None:
    s = await stand()
    await s.status("a")
    async with s.client.post(s.url + path, json=body) as response:
        assert response.status == 200
    s.assert_empty()


async def test_releasing_a_parked_session_refuses_its_call_and_a_live_one_ends_first(stand) -> None:
    s = await stand(hold_forever, policy=Door(room=1))
    live = asyncio.create_task(s.status("a", stream=True))
    await s.until(lambda: s.gateway.desk.books.streaming == 1)
    parked = asyncio.create_task(s.status("b"))
    await s.until(lambda: s.gateway.desk.waiting_calls == 1)
    for session in ("b", "a"):
        async with s.client.delete(f"{s.url}/sessions/{session}") as response:
            assert response.status == 200
    assert await parked == 410
    assert ("depart", "a") not in s.door.facts
    await leave(live)
    await s.until(lambda: len(s.gateway.desk.table) == 0)
    s.assert_empty()


async def test_idle_and_cut_off_sessions_expire_each_after_its_time(stand) -> None:
    s = await stand(timeouts={"idle_s": 3000.0, "abandon_s": 1000.0})
    desk = s.gateway.desk
    await s.status("idle")
    await s.status("cut")
    s.engine.answer = never_answer
    cut = asyncio.create_task(s.status("cut"))
    await s.until(lambda: len(desk.live_calls) == 1)
    await leave(cut)
    await s.until(lambda: not desk.live_calls)
    s.pass_time(1001.0)
    desk.sweep()
    assert (desk.table.get("cut"), desk.table.get("idle") is not None) == (None, True)
    s.pass_time(2000.0)
    desk.sweep()
    s.assert_empty()


async def test_the_queue_and_the_table_are_bounded(stand) -> None:
    s = await stand(policy=Door(room=1), limits={"parked_calls": 2, "sessions": 4})
    desk = s.gateway.desk
    await s.status("a")
    parked = [asyncio.create_task(s.status(name)) for name in ("b", "c")]
    await s.until(lambda: desk.waiting_calls == 2)
    async with s.post("d") as response:
        assert (response.status, response.headers["x-basin-reason"]) == (429, "saturated")
    for task in parked:
        await leave(task)
    await s.until(lambda: desk.waiting_calls == 0)
    s.door.room = 100
    for i in range(50):  # a client that invents ids
        assert await s.status(f"x{i}") == 200
    assert len(desk.table) == 4
    assert s.door.state().resident == 4


async def test_a_call_parked_for_too_long_is_refused(stand) -> None:
    s = await stand(policy=Door(room=0), timeouts={"max_park_s": 0.1})
    async with s.post("a") as response:
        assert (response.status, response.headers["x-basin-reason"]) == (429, "park_timeout")
    s.assert_empty()


async def test_draining_refuses_the_parked_and_the_new_and_lets_the_live_end(stand) -> None:
    end = asyncio.Event()

    async def answer(request, send):
        if request.body:
            await stream(send, [event({"usage": usage(5, 1)})])
            return
        await respond(send, b"", 404)

    async def slow(request, send):
        if request.body:
            await end.wait()
        await answer(request, send)

    s = await stand(slow, policy=Door(room=1))
    live = asyncio.create_task(s.status("a", stream=True))
    await s.until(lambda: len(s.engine.seen) == 1)
    parked = asyncio.create_task(s.status("b"))
    await s.until(lambda: s.gateway.desk.waiting_calls == 1)
    s.gateway.desk.drain()
    assert await parked == 503
    assert await s.status("c") == 503
    async with s.client.get(s.url + "/ready") as response:
        assert response.status == 503
    end.set()
    assert await live == 200


async def test_a_policy_that_raises_lets_everybody_through_and_says_so(stand) -> None:
    class Broken(Door):
        def next(self, now: float) -> None:
            raise RuntimeError("bug")

    s = await stand(policy=Broken())
    assert await s.status("a") == 200
    assert await s.status("a") == 200
    assert s.gateway.desk.policy_errors == 1
    assert "basin_policy_errors_total 1.0" in s.gateway.metrics.page().decode()


async def test_switching_policies_carries_over_who_is_inside_suspended_and_parked(stand) -> None:
    s = await stand(policy=Door(room=2))
    await s.status("inside")
    await s.status("suspended")
    s.door.suspend.add("suspended")
    waiting = [asyncio.create_task(s.status(name)) for name in ("suspended", "parked")]
    await s.until(lambda: s.gateway.desk.waiting_calls == 2)
    new = Door(room=2)
    s.gateway.desk.switch(new)
    assert new.facts == [("adopt", "inside"), ("adopt", "suspended"), ("turn", "suspended"), ("arrive", "parked")]
    assert await waiting[0] == 200
    assert not waiting[1].done()
    new.room = 3
    s.gateway.desk.settle()
    assert await waiting[1] == 200


async def test_a_thousand_clients_that_vanish_at_once_leave_nothing(stand) -> None:
    s = await stand(hold_forever, policy=Door(room=300))
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as clients:
        s.client, keep = clients, s.client
        tasks = [asyncio.create_task(s.status(f"c{i}", stream=True)) for i in range(1000)]
        desk = s.gateway.desk
        await s.until(lambda: desk.waiting_calls == 700 and desk.books.streaming == 300, "700 parked, 300 streaming")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    s.client = keep
    await s.until(lambda: len(desk.table) == 0, "an empty table")
    s.assert_empty()
    await s.until(lambda: all(seen.cancelled for seen in s.engine.seen), "the end of all calls on the engine")


async def test_a_session_larger_than_the_budget_goes_alone_and_everybody_gets_a_turn(stand) -> None:
    """Basin's rule of progress over real calls: no call is refused for its size, none waits for ever."""
    policy = Basin(
        lambda session: 4.0 * session.first_prompt_tokens,
        DeploymentProfile(),
        Capacities(prefill_cache_tokens=1000, decode_kv_tokens=1000),
        mechanisms=Mechanisms(admission="always"),
    )
    s = await stand(policy=policy)
    large = {"messages": [{"role": "user", "content": "x" * 20_000}]}  # five times all capacity
    assert await s.status("large", **large) == 200
    assert (policy.state().resident, policy.state().budget_tokens < 1500) == (1, True)
    others = [asyncio.create_task(s.status(name, **large)) for name in ("b", "c")]
    await s.until(lambda: s.gateway.desk.waiting_calls == 2, "two parked calls")
    assert "budget" in policy.explain("b")
    assert await s.status("large", **large) == 200  # the resident's next turn is not held up
    for left in ("large", "b", "c"):
        async with s.client.delete(f"{s.url}/sessions/{left}") as response:
            assert response.status == 200
        if left != "c":
            await s.until(lambda left=left: policy.state().parked == (1 if left == "large" else 0), "the next to enter")
            await s.until(lambda: not s.gateway.desk.live_calls, "its call's end")
    assert [await other for other in others] == [200, 200]
    s.assert_empty()
