"""A call's way through the engine: reservation before or after prefill, aborts at every stage, routers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from engine_rig import COSTS, Rig, Session, assert_idle, call, session

from sim.engine.call import EngineCall, Stage
from sim.scenario import Deployment

STAGES = (Stage.AWAITS_MEMORY, Stage.PREFILL_QUEUE, Stage.PREFILL, Stage.TRANSFER, Stage.DECODE, Stage.RETRACTED)
SHORT_S = 1 + 1 + 64 * 32 / 4096  # prefill of a prompt of 64 tokens


def engine(reserve_at: str, **costs: Any) -> Rig:
    return Rig(replace(COSTS, **costs), Deployment.model_validate({"reserve_at": reserve_at}))


def test_early_reservation_holds_memory_through_queue_and_prefill() -> None:
    rig = engine("arrival", kv_tokens=100)
    rig.submit(call("a", 64, output=2))
    b = rig.submit(call("b", 64, output=2))
    rig.run(until=0.5)
    assert (rig.engine.occupancy().kv_idle, b.stage) == (64, Stage.AWAITS_MEMORY)
    rig.run()
    end = SHORT_S + 0.5 + 0.25
    assert rig.finished == {"a": end, "b": 2 * end}  # b's prefill begins when a's memory is free
    assert b.reserve_wait == end


def test_late_reservation_overlaps_prefill_with_the_wait_for_memory() -> None:
    rig = engine("prefill_end", kv_tokens=100)
    rig.submit(call("a", 64, output=17))
    b = rig.submit(call("b", 64, output=2))
    rig.run(until=0.5)
    assert (rig.engine.occupancy().kv_idle, b.stage) == (0, Stage.PREFILL_QUEUE)
    rig.run(until=6)
    assert b.stage is Stage.AWAITS_MEMORY
    a_ends = SHORT_S + 0.5 + 16 * 0.25
    rig.run()
    assert rig.finished == {"a": a_ends, "b": a_ends + 0.5 + 0.25}
    assert b.reserve_wait == a_ends - 2 * SHORT_S
    assert_idle(rig.engine)


def test_a_request_alone_makes_room_for_what_is_promised_to_another() -> None:
    """10 tokens beside a's prompt and b's reservation: a decodes 10 steps, waits until b is done and goes on."""
    rig = engine("arrival", kv_tokens=200, held_back_tokens=1)
    a = rig.submit(call("a", 64, output=101))
    rig.submit(call("b", 126, output=5), at_s=3.0)
    rig.run(until=3.0 + 10 * 0.25 + 0.125)
    assert (a.stage, rig.decode.kv_running, rig.decode.kv_idle) == (Stage.RETRACTED, 0, 126)
    rig.run()
    b_prefill_s = 2.5 + 1 + 62 / 64 + 62 * 95 / 4096
    b_ends = 3 + b_prefill_s + 0.5 + 4 * 0.25
    assert rig.finished == {"b": b_ends, "a": b_ends + 90 * 0.25}
    assert_idle(rig.engine)


@pytest.mark.parametrize("reserve_at", ["arrival", "prefill_end"])
@pytest.mark.parametrize("stage", STAGES)
def test_an_abort_at_any_stage_gives_everything_back(stage: Stage, reserve_at: str) -> None:
    """Memory for one of two at the time, so that every stage occurs; the other call is served in full."""
    rig = engine(reserve_at, kv_tokens=160, held_back_tokens=4)
    calls = [rig.submit(call("a", 64, output=40)), rig.submit(call("b", 64, output=40))]
    if stage is Stage.AWAITS_MEMORY:
        calls += [rig.submit(call("c", 64, output=40))]
    victim = _advance_until(rig, lambda: next((c for c in calls if c.stage is stage), None))
    assert victim is not None, f"no call is ever seen in {stage.name}"
    rig.engine.abort(victim)
    rig.run()
    assert set(rig.finished) == {c.session.id for c in calls if c is not victim}
    assert_idle(rig.engine)


def _advance_until(rig: Rig, found: Callable[[], EngineCall | None]) -> EngineCall | None:
    while (call := found()) is None and rig.env.peek() != float("inf"):
        rig.env.step()
    return call


def test_what_an_aborted_call_held_is_free_at_once() -> None:
    """b waits for more memory than a leaves, and c behind it would fit."""
    rig = engine("arrival", kv_tokens=200)
    rig.submit(call("a", 64, output=40))
    b = rig.submit(call("b", 140))
    c = rig.submit(call("c", 16))
    rig.run(until=4.0)
    assert (b.stage, c.stage) == (Stage.AWAITS_MEMORY, Stage.AWAITS_MEMORY)
    rig.engine.abort(b)
    assert c.stage is Stage.PREFILL
    rig.run()
    assert_idle(rig.engine)


def test_an_aborted_prefill_leaves_its_prompt_in_the_cache() -> None:
    rig = engine("arrival")
    a = rig.submit(call("a", 160))
    rig.at(1.0, rig.engine.abort, a)
    rig.run()
    assert rig.finished == rig.first_token == {}
    assert rig.prefill.cache.peek("a") == 160
    assert_idle(rig.engine)


def wide(router: str) -> Rig:
    return Rig(COSTS, Deployment.model_validate({"prefill": 3, "decode": 2, "router": router}))


def placed(rig: Rig, session: Session, index: int = 0) -> int:
    call = rig.submit(EngineCall(session, index, rig.env.now))
    return call.prefill.number


def test_least_loaded_counts_calls_and_prefers_low_numbers() -> None:
    rig = wide("least_loaded")
    assert [placed(rig, session(id, 64)) for id in "abcd"] == [0, 1, 2, 0]


def test_affinity_keeps_a_session_at_home_whatever_the_load() -> None:
    rig = wide("affinity")
    a = session("a", 64, 80)
    assert [placed(rig, s) for s in (a, session("b", 64), session("c", 64), session("d", 64))] == [0, 1, 2, 0]
    assert placed(rig, a, 1) == 0
    assert [p.homes for p in rig.engine.prefills] == [2, 1, 1]


def test_cache_aware_follows_a_prefix_that_covers_half_the_prompt() -> None:
    rig = wide("cache_aware")
    placed(rig, session("x", 64))
    a = session("a", 100, 200, 450)
    assert placed(rig, a) == 1
    rig.run()
    assert placed(rig, a, 1) == 1  # 100 of 200 tokens are there
    rig.run()
    assert placed(rig, a, 2) == 0  # 200 of 450 are not enough: to the least loaded
    rig.run()


@pytest.mark.parametrize(("others", "instance"), [(32, 0), (33, 1)])
def test_cache_aware_forgets_the_cache_while_loads_differ_too_much(others: int, instance: int) -> None:
    rig = wide("cache_aware")
    a = session("a", 64, 100)
    assert placed(rig, a) == 0
    rig.run()
    for i in range(others):
        rig.engine.prefills[0].submit(_elsewhere(rig, f"x{i}"))
    assert placed(rig, a, 1) == instance


def _elsewhere(rig: Rig, id: str) -> EngineCall:
    """A call that has its memory and is about to be queued for prefill at instance 0."""
    one = call(id, 64)
    one.prefill, one.decode = rig.engine.prefills[0], rig.engine.decodes[0]
    return one


def test_decode_goes_where_fewest_wait_then_where_least_is_used() -> None:
    rig = wide("least_loaded")
    calls = [rig.submit(call(id, size)) for id, size in (("a", 300), ("b", 200), ("c", 50), ("d", 100), ("e", 10))]
    assert [c.decode.number for c in calls] == [0, 1, 1, 1, 0]
