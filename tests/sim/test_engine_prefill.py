"""Prefill steps, chunks and batches by hand. A chunk holds 64 tokens; a step takes
1 s + tokens / 64 + tokens x mean position / 4096."""

from dataclasses import replace

import pytest
from engine_rig import COSTS, Rig, assert_idle, call, session

from sim.engine.call import EngineCall
from sim.scenario import Deployment

TRANSFER = COSTS.transfer_s


def test_a_prompt_is_computed_in_chunks_that_cost_by_position() -> None:
    rig = Rig()
    rig.submit(call("a", 160))
    rig.run()
    chunks = (1 + 1 + 64 * 32 / 4096, 1 + 1 + 64 * 96 / 4096, 1 + 0.5 + 32 * 144 / 4096)
    assert chunks == (2.5, 3.5, 2.625)
    assert rig.first_token == {"a": sum(chunks) + TRANSFER}
    assert (rig.prefill.busy_s, rig.prefill.computed_tokens) == (sum(chunks), 160)
    assert_idle(rig.engine)


def test_calls_share_a_chunk_and_all_of_them_end_with_their_step() -> None:
    rig = Rig()
    rig.submit(call("a", 160))
    rig.submit(call("b", 16), at_s=1.0)
    rig.submit(call("c", 32), at_s=1.0)
    rig.run()
    third = 2.625 + 16 / 64 + 16 * 8 / 4096 + 16 / 64 + 16 * 8 / 4096  # the rest of a, b, and half of c
    fourth = 1 + 16 / 64 + 16 * 24 / 4096
    end = 2.5 + 3.5 + third
    assert rig.first_token == {"a": end + TRANSFER, "b": end + TRANSFER, "c": end + fourth + TRANSFER}


def test_the_match_is_taken_when_a_call_is_scheduled() -> None:
    """The second call comes while another's prompt pushes its prefix out: what counts is what is left at its turn."""
    rig = Rig(replace(COSTS, cache_tokens=100, chunk_tokens=100))
    a = session("a", 80, 81)
    rig.submit(EngineCall(a, 0, 0.0))
    rig.submit(call("b", 60), at_s=10.0)
    second = rig.submit(EngineCall(a, 1, 10.5), at_s=10.5)
    rig.at(10.25, lambda: _expect(rig.prefill.cache.peek("a"), 40))
    rig.at(20.0, lambda: _expect(second.cached, 40))
    rig.run()
    assert second.scheduled is not None and second.scheduled > 10.5
    assert (rig.prefill.prompt_tokens, rig.prefill.cached_tokens, rig.prefill.computed_tokens) == (221, 40, 181)


def _expect(got: object, wanted: object) -> None:
    assert got == wanted


def test_the_shared_head_is_always_found_and_counts_towards_the_prompt_only() -> None:
    rig = Rig()
    one = rig.submit(call("a", 96, head=64))
    rig.run()
    assert (one.cached, rig.prefill.computed_tokens, rig.prefill.cache.used) == (64, 32, 32)
    assert rig.first_token["a"] == 1 + 0.5 + 32 * 80 / 4096 + TRANSFER


def test_tokens_from_the_host_cost_their_load() -> None:
    rig = Rig(replace(COSTS, cache_tokens=100), Deployment(host_ratio=2.0))
    a = session("a", 64, 80)
    rig.submit(EngineCall(a, 0, 0.0))
    rig.submit(call("b", 90), at_s=20.0)
    rig.submit(EngineCall(a, 1, 40.0), at_s=40.0)
    rig.run()
    load = 54 / 256  # ten tokens were left on the GPU
    assert rig.first_token["a"] == 40 + load + 1 + 16 / 64 + 16 * 72 / 4096 + TRANSFER


@pytest.mark.parametrize("hybrid", [False, True])
def test_after_a_compaction_only_the_repeated_part_is_found(hybrid: bool) -> None:
    """A plain model finds the 20 repeated tokens; a hybrid one has no recurrent state there and computes all."""
    rig = Rig(replace(COSTS, hybrid=hybrid))
    a = session("a", 100, 50, new=(100, 30))
    rig.submit(EngineCall(a, 0, 0.0))
    second = rig.submit(EngineCall(a, 1, 10.0), at_s=10.0)
    rig.run()
    assert second.cached == (0 if hybrid else 20)
    assert rig.prefill.cache.peek("a") == 50


@pytest.mark.parametrize("hybrid", [False, True])
def test_the_head_is_found_even_where_a_prompt_repeats_nothing(hybrid: bool) -> None:
    rig = Rig(replace(COSTS, hybrid=hybrid))
    a = session("a", 100, 90, new=(100, 90), head=64)
    rig.submit(EngineCall(a, 0, 0.0))
    second = rig.submit(EngineCall(a, 1, 10.0), at_s=10.0)
    rig.run()
    assert (second.cached, rig.prefill.computed_tokens) == (64, 36 + 26)
    assert_idle(rig.engine)


def test_a_prompt_without_room_waits_until_one_in_flight_is_let_go() -> None:
    rig = Rig(replace(COSTS, cache_tokens=100, chunk_tokens=100))
    rig.submit(call("a", 80))
    rig.submit(call("b", 60))
    rig.submit(call("c", 10))  # would fit, but queues are served in order
    rig.run()
    a = 1 + 80 / 64 + 80 * 40 / 4096 + TRANSFER
    b = 1 + 60 / 64 + 60 * 30 / 4096 + 10 / 64 + 10 * 5 / 4096 + TRANSFER
    assert rig.first_token == {"a": a, "b": a + b, "c": a + b}


def test_an_order_sorts_those_that_wait() -> None:
    rig = Rig()  # every call of 64 tokens fills a step
    calls = [rig.submit(call(id, 64)) for id in "abcd"]
    rig.at(0.5, rig.engine.reorder, lambda c: {"b": 3.0, "c": 1.0, "d": 1.0}.get(c.session.id, 0.0))
    rig.run()
    assert sorted(rig.first_token, key=rig.first_token.__getitem__) == ["a", "c", "d", "b"]
    assert [c.order for c in calls[1:]] == [3.0, 1.0, 1.0]
