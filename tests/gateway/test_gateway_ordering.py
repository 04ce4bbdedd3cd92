"""The order on the engine: one priority in the body, all else untouched; an engine that ignores it is noticed."""

import json
from types import SimpleNamespace

import pytest
from conftest import Door
from fake_upstream import respond
from hypothesis import given
from hypothesis import strategies as st

from artifact.gateway.ask import read_ask
from artifact.gateway.config import EnginePriority
from artifact.gateway.desk import Desk
from artifact.gateway.ordering import EngineOrder, with_members
from artifact.gateway.session import Call
from artifact.lending import hints

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
objects = st.dictionaries(st.text() | st.just("priority"), json_values, max_size=5)


@given(objects, st.integers(-(2**40), 2**40), st.sampled_from([None, 2]))
def test_only_the_priority_changes(value: dict, priority: int, indent: int | None) -> None:
    body = json.dumps(value, indent=indent).encode()
    marked = with_members(body, {"priority": priority}, replace="priority" in value)
    pairs = json.loads(marked, object_pairs_hook=list)
    assert [name for name, _ in pairs].count("priority") == 1
    assert json.loads(marked) == {**value, "priority": priority}


def test_bytes_of_the_other_members_stay_and_every_forged_priority_goes() -> None:
    body = b' { "model" : "m",\n "x": [1, {"priority": 9}] , "s":"\\u00e4 \xc3\xa4 ,}" }'
    assert with_members(body, {"priority": -7}, replace=False) == body.replace(b"{", b'{"priority":-7,', 1)
    forged = b'{"priority": 9, "a": 1, "\\u0070riority": 8, "b": {"priority": 7}, "priority":6}'
    assert with_members(forged, {"priority": 1}, replace=True) == b'{"priority":1,"a": 1,"b": {"priority": 7}}'
    assert with_members(b"{ }", {"priority": 1}, replace=False) == b'{"priority":1 }'


class Ordered(Door):
    """Orders by a key given for each session."""

    def __init__(self, keys: dict[str, float]) -> None:
        super().__init__()
        self.keys = keys
        self.on = True

    def ordering(self) -> bool:
        return self.on

    def order_key(self, session_id: str) -> float:
        return self.keys[session_id]

    def lending(self) -> bool:
        return True

    def pin_s(self, session_id: str, now: float) -> float:
        return 2.5


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"dialect": "sglang"}, -120),
        ({"dialect": "sglang", "low_first": True}, 120),
        ({"dialect": "vllm"}, 120),
        ({"dialect": "vllm", "low_first": False}, -120),
    ],
)
async def test_the_key_reaches_the_engine_with_its_sign(stand, config: dict, expected: int) -> None:
    s = await stand(policy=Ordered({"a": 12.0}), priority=config)
    assert await s.status("a", priority=99) == 200
    seen = s.engine.seen[0]
    assert seen.json["priority"] == expected
    headers = dict(seen.headers)
    assert headers[b"x-vllm-priority"] == str(expected).encode()
    assert "custom_params" not in seen.json  # hints are for engines that have the extension


async def test_hints_reach_the_extension_in_the_form_it_reads_and_cannot_be_forged(stand) -> None:
    s = await stand(policy=Ordered({"a": 1.0}), priority={"hints": True})
    forged = {"mine": 1, "basin": {"pin_s": 1e9}}
    await s.status("a", custom_params=forged)
    headers = {"x-session-id": "a", "x-basin-session-id": "a", "x-basin-session-final": "true"}
    async with s.client.post(s.url + "/v1/completions", json={}, headers=headers):
        pass
    first, second = (seen.json["custom_params"] for seen in s.engine.seen)
    assert hints.read(first) == hints.Hint("a", retain=True, pin_s=0.0, last=False)
    assert first["mine"] == 1
    assert hints.read(second) == hints.Hint("a", retain=True, pin_s=2.5, last=True)  # as wanted when the first ended
    assert "priority" not in s.engine.seen[0].json


async def test_without_ordering_the_priority_is_the_time_so_the_queue_is_fifo(stand) -> None:
    policy = Ordered({"a": 0.0, "b": 0.0})
    policy.on = False
    s = await stand(policy=policy, priority={"dialect": "vllm"})
    first = s.gateway.now()
    await s.status("a")
    priorities = [seen.json["priority"] for seen in s.engine.seen]
    assert abs(priorities[0] - 10 * first) <= 10


async def test_no_priority_is_sent_unless_configured(stand) -> None:
    s = await stand(policy=Ordered({"a": 1.0}))
    await s.status("a", priority=99)
    assert s.engine.seen[0].json["priority"] == 99
    assert b"x-vllm-priority" not in dict(s.engine.seen[0].headers)
    async with s.client.get(s.url + "/sessions") as response:
        assert "suspension at turn boundaries is the lever" in (await response.json())["engine_order"]


def served(rule: str) -> EngineOrder:
    """An `EngineOrder` after an engine has served ten bursts of forty calls by `rule` ("fifo", "priority")."""
    keys: dict[str, float] = {}
    desk = Desk(Ordered(keys), lambda: 0.0)
    order = EngineOrder(EnginePriority(dialect="sglang"), desk)
    for burst in range(10):
        waiting = []
        for i in range(40):
            name = f"s{burst}-{i}"
            keys[name] = float((i * 7919) % 101)
            waiting.append(Call(SimpleNamespace(id=name), read_ask({}, 2), 1, 0.0))  # type: ignore[arg-type]
            order.mark(waiting[-1], "/v1/completions", b"{}")
        while waiting:
            first = waiting[0] if rule == "fifo" else min(waiting, key=lambda c: keys[c.session.id])
            waiting.remove(first)
            order.answered(first)
    return order


def test_an_engine_that_ignores_priorities_is_told_from_one_that_heeds_them() -> None:
    assert served("fifo").ignored is True
    assert served("priority").ignored is False
    assert EngineOrder(EnginePriority(dialect="vllm"), Desk(Door(), lambda: 0.0)).ignored is None


def engine_that_says(path: str, **info: bool):
    async def answer(request, send) -> None:
        known = request.target == path
        await respond(send, json.dumps(info).encode() if known else b"{}", 200 if known or request.body else 404)

    return answer


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
async def test_the_engine_is_asked_at_start_for_its_sign(stand, path: str) -> None:
    low_first = {"enable_priority_scheduling": True, "schedule_low_priority_values_first": True}
    s = await stand(engine_that_says(path, **low_first), policy=Ordered({"a": 12.0}), priority={"dialect": "sglang"})
    await s.status("a")
    assert s.engine.seen[-1].json["priority"] == 120  # SGLang's default would be -120
    assert s.gateway.order.ignored is None


async def test_an_engine_started_without_priorities_is_named(stand, caplog) -> None:
    off = {"enable_priority_scheduling": False, "schedule_low_priority_values_first": False}
    s = await stand(engine_that_says("/server_info", **off), priority={"dialect": "sglang"})
    assert s.gateway.order.ignored is True
    assert "without --enable-priority-scheduling" in caplog.text
    async with s.client.get(s.url + "/sessions") as response:
        assert "no --enable-priority-scheduling on http" in (await response.json())["engine_order"]


def sglang_with_extension(ordering: int):
    """SGLang with the extension's feature `order`, which excludes the engine's own flag."""
    off = {"enable_priority_scheduling": False, "schedule_low_priority_values_first": False}

    async def answer(request, send) -> None:
        if request.target == "/metrics":
            page = f"sglang:num_queue_reqs 0.0\nbasin_ordering {ordering}.0\n"
            await respond(send, page.encode(), content_type=b"text/plain")
        else:
            await respond(send, json.dumps(off).encode())

    return answer


async def test_the_extension_orders_although_the_engines_own_flag_is_off(stand, caplog) -> None:
    caplog.set_level("INFO", "basin.gateway")
    s = await stand(sglang_with_extension(1), policy=Ordered({"a": 12.0}), priority={"dialect": "sglang"})
    await s.status("a")
    assert s.engine.seen[-1].json["priority"] == 120  # the extension serves smaller first, SGLang's default is -120
    assert s.gateway.order.ignored is None and s.gateway.order.off_by_flag == ()
    assert "the Basin extension orders" in caplog.text and "without --enable" not in caplog.text
    async with s.client.get(s.url + "/sessions") as response:
        assert (await response.json())["engine_order"].startswith("sglang, by the Basin extension, 0 of 0")


async def test_the_extension_switched_off_or_on_at_run_time_is_noticed(stand) -> None:
    s = await stand(
        sglang_with_extension(0), policy=Ordered({"a": 12.0}), priority={"dialect": "sglang"}, scrape_s=0.05
    )
    assert s.gateway.order.ignored is True
    s.engine.answer = sglang_with_extension(1)
    await s.until(lambda: s.gateway.order.ignored is None, "ordering noticed")
    assert s.gateway.order.sign == 1
    s.engine.answer = sglang_with_extension(0)
    await s.until(lambda: s.gateway.order.ignored is True, "its end noticed")


async def test_an_engine_that_comes_up_after_the_gateway_is_asked_then(stand) -> None:
    low_first = {"enable_priority_scheduling": True, "schedule_low_priority_values_first": True}

    async def starting(request, send) -> None:
        await respond(send, b"", 503)

    async def up(request, send) -> None:
        page = b"sglang:num_queue_reqs 0.0\n" if request.target == "/metrics" else json.dumps(low_first).encode()
        await respond(send, page)

    s = await stand(starting, policy=Ordered({"a": 12.0}), priority={"dialect": "sglang"}, scrape_s=0.05)
    assert s.gateway.order.sign == -1
    s.engine.answer = up
    await s.until(lambda: s.gateway.order.sign == 1, "the engine's sign")


async def test_engines_of_opposite_sign_are_an_error_and_the_configured_sign_stays(stand, caplog) -> None:
    low_first = {"enable_priority_scheduling": True, "schedule_low_priority_values_first": True}
    priority = {"dialect": "sglang", "low_first": False}
    s = await stand(engine_that_says("/server_info", **low_first), policy=Ordered({"a": 12.0}), priority=priority)
    await s.status("a")
    assert s.engine.seen[-1].json["priority"] == -120
    assert "disagree" in caplog.text
