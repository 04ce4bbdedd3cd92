"""The stub engine and the replay client: real HTTP, the simulator's engine, the plan's sessions."""

import asyncio
import json

import aiohttp
import pytest
from conftest import Door
from fake_upstream import serving
from hypothesis import given
from hypothesis import strategies as st

from artifact.gateway.app import Gateway
from artifact.gateway.config import Engine, GatewayConfig
from artifact.gateway.engines import read_page
from artifact.workload.load import PlannedSession
from artifact.workload.trajectory import Trajectory
from hw_runs import replay
from hw_runs.prompts import SessionPrompts
from hw_runs.replay import Target, _Replay
from hw_runs.stub_engine import StubEngine, common_prefix, prompt_text
from hw_runs.stub_engine_model import SimulatedEngine
from sim.scenario import Deployment


def growing(session_id: str, calls: int = 4, head: int = 700) -> Trajectory:
    """A session whose prompts grow by 300 tokens a call over a shared head."""
    prompts = tuple(1000 + 300 * i for i in range(calls))
    return Trajectory(
        session_id,
        prompts,
        (1000,) + (300,) * (calls - 1),
        (20,) * calls,
        (0.0,) + (1.0,) * (calls - 1),
        "fix it",
        head,
    )


def stub(speed: float = 50.0, head: int = 700, **options: object) -> StubEngine:
    return StubEngine(SimulatedEngine(Deployment(calibration="h100"), head), speed, **options)


# Prompts -------------------------------------------------------------------------------------------------------
@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    head = draw(st.integers(0, 50))
    prompts, new = [draw(st.integers(head + 1, 400))], []
    new.append(prompts[0])
    for _ in range(draw(st.integers(0, 5))):
        repeated = draw(st.integers(head, prompts[-1])) if draw(st.booleans()) else prompts[-1]
        added = draw(st.integers(1, 200))
        prompts.append(repeated + added)
        new.append(added)
    n = len(prompts)
    task = draw(st.text("abc xyz", max_size=120))
    return Trajectory("t", tuple(prompts), tuple(new), (5,) * n, (0.0,) * n, task, min(head, min(prompts)))


@given(trajectories(), st.sampled_from([1, 4]))
def test_prompts_have_the_trajectorys_lengths_and_repeat_what_it_repeats(
    trajectory: Trajectory, bytes_per_token: int
) -> None:
    prompts = SessionPrompts("s", trajectory, bytes_per_token)
    texts = [prompt_text({"messages": prompts.messages(i)}) for i in range(trajectory.n_calls)]
    assert [len(text) for text in texts] == [p * bytes_per_token for p in trajectory.prompt_tokens]
    task = len(trajectory.task_text)
    for i in range(1, trajectory.n_calls):
        repeated = (trajectory.prompt_tokens[i] - trajectory.new_tokens[i]) * bytes_per_token
        found = common_prefix(texts[i - 1], texts[i])
        # two random texts may agree by chance for a few bytes; a cut inside the task text falls before it
        assert repeated - task <= found <= min(len(texts[i - 1]), repeated + task + 8)


def test_two_sessions_share_the_head_and_nothing_else_and_the_task_is_the_users_message() -> None:
    a, b = (SessionPrompts(name, growing(name), 4).messages(1) for name in ("a", "b"))
    assert 700 * 4 <= common_prefix(prompt_text({"messages": a}), prompt_text({"messages": b})) < 700 * 4 + 8
    assert a[1] == {"role": "user", "content": "fix "}  # whole tokens of four bytes


@given(st.text("ab", max_size=30), st.text("ab", max_size=30))
def test_common_prefix_by_bisection(a: str, b: str) -> None:
    expected = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert common_prefix(a, b) == expected


# The stub ------------------------------------------------------------------------------------------------------
async def ask(client: aiohttp.ClientSession, url: str, messages: list, session: str, **extra: object) -> dict:
    body = {"messages": messages, "max_tokens": 20, **extra}
    async with client.post(url + "/v1/chat/completions", json=body, headers={"x-session-id": session}) as response:
        assert response.status == 200
        if not extra.get("stream"):
            return await response.json()
        events = [line[6:] for line in (await response.read()).splitlines() if line.startswith(b"data: {")]
        return json.loads(events[-1])


async def test_the_stub_counts_tokens_finds_what_is_repeated_and_exports_sglang_metrics() -> None:
    prompts = SessionPrompts("s", growing("s"), 4)
    async with serving(stub()) as url, aiohttp.ClientSession() as client:
        first = await ask(client, url, prompts.messages(0), "s")
        second = await ask(client, url, prompts.messages(1), "s", stream=True)
        other = await ask(client, url, SessionPrompts("o", growing("o"), 4).messages(0), "o")
        assert (first["usage"]["prompt_tokens"], first["usage"]["completion_tokens"]) == (1000, 20)
        assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 700  # the shared head
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 1000
        assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 700
        async with client.get(url + "/prefill/metrics") as response:
            prefill = read_page(await response.text(), "prefill")
        async with client.get(url + "/decode/metrics") as response:
            decode = read_page(await response.text(), "decode")
    assert (prefill.prompt_tokens, prefill.cached_tokens, prefill.waiting) == (3300, 2400, 0)
    assert (decode.kv_used_tokens, decode.running, decode.decode_waiting) == (0, 0, 0)
    assert prefill.kv_capacity_tokens > 1e5 and decode.kv_capacity_tokens > 1e5


async def test_higher_priority_overtakes_in_the_stubs_queue() -> None:
    finished: list[str] = []

    async def call(client: aiohttp.ClientSession, url: str, name: str, priority: int) -> None:
        messages = [{"role": "user", "content": name * 200_000}]
        await ask(client, url, messages, name, priority=priority)
        finished.append(name)

    engine = stub(speed=20.0, bytes_per_token=4)
    async with serving(engine) as url, aiohttp.ClientSession() as client:
        calls = [asyncio.create_task(call(client, url, name, 0)) for name in "abcdef"]
        async with asyncio.timeout(60):  # a call that failed never comes to be counted
            while engine.model.engine.occupancy().prefill_calls + len(finished) < 6:
                await asyncio.sleep(0.01)
        calls.append(asyncio.create_task(call(client, url, "u", 9)))
        await asyncio.gather(*calls)
    assert finished[-1] != "u", finished  # first come, first served would end with it


async def test_a_cancelled_call_leaves_the_stub_empty() -> None:
    engine = stub(speed=10.0)
    async with serving(engine) as url, aiohttp.ClientSession() as client:
        messages = [{"role": "user", "content": "x" * 400_000}]
        tasks = [asyncio.create_task(ask(client, url, messages, str(i), stream=True)) for i in range(5)]
        await asyncio.sleep(0.1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _ in range(200):
            await asyncio.sleep(0.02)
            engine.pace._catch_up()
            now = engine.model.engine.occupancy()
            if not (now.prefill_calls or now.decode_waiting or now.decode_running or now.kv_idle or now.kv_running):
                break
        else:
            raise AssertionError(f"still inside: {now}")


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"messages": 3}', b'{"messages": [{"content": null}]}'])
async def test_the_stub_refuses_what_is_no_chat(body: bytes) -> None:
    async with serving(stub()) as url, aiohttp.ClientSession() as client:
        async with client.post(url + "/v1/chat/completions", data=body) as response:
            assert response.status == 400 and "error" in await response.json()
        async with client.get(url + "/nothing") as response:
            assert response.status == 404


# Replay through the gateway ------------------------------------------------------------------------------------
async def replayed(
    plans: list[PlannedSession], duration_s: float, speed: float = 60.0, door: Door | None = None, **target
):
    policy = door or Door()
    async with serving(stub(speed)) as base:
        engines = (Engine(url=base + "/prefill", role="prefill"), Engine(url=base + "/decode", role="decode"))
        config = GatewayConfig(upstream=base, engines=engines, time_scale=speed, admin_token="t")
        gateway = Gateway(config, lambda name, options, latest: policy)
        async with serving(gateway, "on") as url:
            run = _Replay(plans, Target(url, speed=speed, **target), duration_s, lambda p: 10.0, target.get("end"), 5.0)
            return await run.run({"source": "stub"}), gateway, policy, base


async def test_a_replay_writes_the_records_of_its_sessions() -> None:
    plans = [PlannedSession(f"s{i}", 2.0 * i, growing(f"t{i}"), "base" if i else "surge") for i in range(3)]
    records, _, policy, _ = await replayed(plans, 300.0)  # several times what an idle machine needs
    calls, sessions, samples = (t.to_pandas() for t in (records.calls, records.sessions, records.samples))
    assert list(sessions["outcome"]) == ["completed"] * 3
    assert list(sessions["calls_done"]) == [4] * 3
    assert sorted(calls["prompt_tokens"]) == sorted([1000, 1300, 1600, 1900] * 3)
    first = calls[calls["call_index"] == 0]
    assert set(first["cached_tokens"]) == {700}
    assert set(calls[calls["call_index"] == 3]["cached_tokens"]) == {1600}
    assert (calls["released_s"] <= calls["scheduled_s"] + 0.5).all()
    assert (calls["first_token_s"] <= calls["finished_s"]).all()
    for i, plan in enumerate(plans):
        mine = calls[calls["session_id"] == plan.id].sort_values("call_index")
        assert mine["released_s"].iloc[0] >= 2.0 * i
        gaps = mine["released_s"].values[1:] - mine["finished_s"].values[:-1]
        assert (gaps >= 0.99).all()  # the tool gap
    assert set(sessions["unloaded_s"]) == {10.0} and set(sessions["slow_steps"]) == {0}
    assert samples["calls_done_total"].iloc[-1] == 12
    assert samples["active_sessions"].max() <= 3 and samples["active_extra_sessions"].max() <= 1
    assert records.meta["capacity"]["prefill_cache_tokens"] > 0
    assert sorted(fact for fact in policy.facts if fact[0] == "depart") == [("depart", f"s{i}") for i in range(3)]


@pytest.mark.parametrize(("cached", "found"), [(True, [1300, 1600]), (False, [700, 1600])])
async def test_warm_sessions_are_inside_and_if_cached_in_the_cache_from_the_start(
    cached: bool, found: list[int]
) -> None:
    plan = PlannedSession("w", 0.0, growing("t"), "warm", first_call=2, first_gap_s=3.0, cached=cached)
    policy = Door(room=0)
    async with serving(stub(60.0)) as base:
        gateway = Gateway(GatewayConfig(upstream=base, admin_token="t", time_scale=60.0), lambda *made_of: policy)
        async with serving(gateway, "on") as url:
            target = Target(url, speed=60.0, admin_token="t", preload_url=base)
            records = await _Replay([plan], target, 240.0, None, None, 5.0).run({"source": "stub"})
    calls = records.calls.to_pandas()
    assert policy.facts[0] == ("adopt", "w") and ("arrive", "w") not in policy.facts
    assert list(calls["call_index"]) == [2, 3]
    assert list(calls["cached_tokens"]) == found
    assert records.sessions.to_pandas()["calls_planned"].iloc[0] == 2


async def test_a_gateway_that_never_reads_its_engine_ends_the_run_with_the_reason(monkeypatch) -> None:
    """After warm calls the clock starts once the engine has been read again: seconds later, which here is too late."""
    monkeypatch.setattr(replay, "_SETTLE_S", 0.2)
    plan = PlannedSession("w", 0.0, growing("t"), "warm", first_call=2, first_gap_s=3.0, cached=True)
    async with serving(stub(60.0)) as base:
        gateway = Gateway(GatewayConfig(upstream=base, admin_token="t"), lambda *made_of: Door())
        async with serving(gateway, "on") as url:
            run = _Replay([plan], Target(url, admin_token="t", warm_calls=True), 1.0, None, None, 5.0)
            with pytest.raises(RuntimeError, match=r"has not read its engines' metrics for 0\.2 s"):
                await run.run({"source": "stub"})


async def test_shed_sessions_and_an_ended_group_are_told_apart() -> None:
    class Strict(Door):
        def arrive(self, session, now) -> None:
            super().arrive(session, now)
            if session.id == "shed":
                self.shed("shed")

    plans = [
        PlannedSession("shed", 0.0, growing("t"), "base"),
        PlannedSession("stopped", 0.0, growing("t", calls=400), "burst"),
        PlannedSession("unfinished", 0.0, growing("t", calls=400), "base"),
    ]
    policy = Strict()
    async with serving(stub(60.0)) as base:
        gateway = Gateway(GatewayConfig(upstream=base, time_scale=60.0), lambda *made_of: policy)
        async with serving(gateway, "on") as url:
            run = _Replay(plans, Target(url, speed=60.0), 90.0, None, (60.0, "burst"), 5.0)
            records = await run.run({"source": "stub"})
    outcomes = dict(
        zip(records.sessions["session_id"].to_pylist(), records.sessions["outcome"].to_pylist(), strict=True)
    )
    assert outcomes == {"shed": "shed", "stopped": "ended", "unfinished": "unfinished"}
