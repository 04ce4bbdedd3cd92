"""The decode batch by hand. Prefill and transfer take no time here, so a call decodes from when it is submitted.
A step takes 0.125 s + 0.125 s a request: 0.25, 0.375, 0.5 s."""

from dataclasses import replace

import pytest
from engine_rig import COSTS, Rig, assert_idle, call

INSTANT = replace(
    COSTS,
    prefill_fixed_s=0.0,
    prefill_token_s=0.0,
    prefill_position_s=0.0,
    transfer_s=0.0,
    chunk_tokens=10**9,
    cache_tokens=10**9,
)


def test_two_requests_that_join_at_different_times() -> None:
    rig = Rig(INSTANT)
    a = rig.submit(call("a", 10, output=101))
    b = rig.submit(call("b", 10, output=49), at_s=5.0)
    rig.run()
    # a alone makes 20 steps by 5 s; both make 48 in 18 s; a makes its last 32 alone.
    assert rig.finished == {"a": 5 + 18 + 8, "b": 5 + 18}
    assert (rig.decode.slow_steps(a), rig.decode.slow_steps(b)) == (48, 48)
    assert_idle(rig.engine)


def test_a_third_request_slows_two_and_one_that_ends_speeds_up_the_rest() -> None:
    rig = Rig(INSTANT)
    rig.submit(call("a", 10, output=41))
    rig.submit(call("b", 10, output=21), at_s=2.5)
    rig.submit(call("c", 10, output=9), at_s=4.0)
    rig.run()
    # a: 10 steps by 2.5; a and b: 4 by 4.0; all: 8 by 8.0; a and b: 8 by 11.0, where b ends; a: 10 more.
    assert rig.finished == {"c": 8.0, "b": 11.0, "a": 13.5}


def test_a_single_token_ends_where_it_begins() -> None:
    rig = Rig(INSTANT)
    rig.submit(call("a", 10, output=1))
    rig.submit(call("b", 10, output=0))
    rig.run()
    assert rig.finished == rig.first_token == {"a": 0.0, "b": 0.0}


def test_the_context_term_counts_every_running_context() -> None:
    """The pace is renewed whenever the batch is looked at: when b joins after a's first step, at 0.75 s, where a alone
    would have ended, and where a does end."""
    rig = Rig(replace(INSTANT, decode_context_s=1 / 1024))
    rig.submit(call("a", 128, output=3))
    rig.submit(call("b", 255, output=3), at_s=0.375)
    rig.run()
    assert 0.25 + 128 / 1024 == 0.375  # a's first step
    half_s = 0.5 * (0.375 + (129 + 255) / 1024), 0.5 * (0.375 + (129.5 + 255.5) / 1024)
    a_ends = 0.375 + sum(half_s)
    assert rig.finished == {"a": a_ends, "b": a_ends + 0.25 + 256 / 1024}


def test_contexts_grow_as_tokens_come() -> None:
    rig = Rig(INSTANT)
    rig.submit(call("a", 100, output=41))
    rig.submit(call("b", 200, output=41))
    seen = []
    for time in (3.75, 7.5):
        rig.at(time, lambda: rig.decode.grant())  # brings the clock to now
        rig.at(time, lambda: seen.append(rig.decode.kv_running))
    rig.run()
    assert seen == [300 + 2 * 10, 300 + 2 * 20]


def test_memory_is_reserved_with_tokens_held_back_for_growth() -> None:
    """600 + 100 held back for its holder leave 300: b's 301 wait, and so does c behind it, though it would fit."""
    rig = Rig(replace(INSTANT, held_back_tokens=100, decode_fixed_s=0.875))
    rig.submit(call("a", 600, output=11))
    b = rig.submit(call("b", 301, output=2), at_s=1.0)
    c = rig.submit(call("c", 10, output=2), at_s=2.0)
    rig.run(until=5.0)
    assert (len(rig.decode.waiting), rig.decode.running) == (2, 1)
    rig.run()
    assert rig.finished["a"] == 10.0
    assert rig.first_token == {"a": 0.0, "b": 10.0, "c": 10.0}
    assert (b.reserve_wait, c.reserve_wait) == (9.0, 8.0)


def test_a_prompt_that_just_fits_does_not_wait() -> None:
    rig = Rig(replace(INSTANT, held_back_tokens=100))
    rig.submit(call("a", 600, output=11))
    rig.submit(call("b", 300, output=2))
    rig.run()
    assert rig.first_token == {"a": 0.0, "b": 0.0}


def test_states_of_a_hybrid_model_limit_the_requests_that_hold_memory() -> None:
    rig = Rig(replace(INSTANT, decode_slots=2))
    for id, output in (("a", 5), ("b", 9), ("c", 2)):
        rig.submit(call(id, 10, output=output))
    rig.run()
    assert rig.first_token == {"a": 0.0, "b": 0.0, "c": 1.5}


def test_growth_beyond_the_memory_retracts_the_youngest_and_longest_until_there_is_room() -> None:
    rig = Rig(replace(INSTANT, kv_tokens=220, held_back_tokens=20))
    a = rig.submit(call("a", 100, output=51))
    b = rig.submit(call("b", 90, output=51))
    rig.run(until=5.625)
    assert rig.decode.retractions == 0
    rig.run(until=6.0)
    # 15 steps of both fill the 220 tokens at 5.625 s; a holds more, so it goes, and b makes its other 35 alone.
    assert (rig.decode.retractions, rig.decode.running, rig.decode.retracted) == (1, 1, [a])
    rig.run()
    assert rig.finished == {"b": 5.625 + 35 * 0.25, "a": 5.625 + 2 * 35 * 0.25}
    assert rig.decode.slow_steps(b) == 15
    assert rig.decode.slow_steps(a) == 15 + 1  # the pause is one long step
    assert_idle(rig.engine)


def test_retracted_requests_resume_before_new_ones_get_memory() -> None:
    rig = Rig(replace(INSTANT, kv_tokens=220, held_back_tokens=20))
    rig.submit(call("a", 100, output=51))
    rig.submit(call("b", 90, output=51))
    rig.submit(call("new", 10, output=2), at_s=6.0)  # would fit beside b, but a waits in host memory
    rig.run()
    assert rig.first_token["new"] == 5.625 + 35 * 0.25


def test_a_retracted_request_keeps_what_it_has_generated() -> None:
    rig = Rig(replace(INSTANT, kv_tokens=220, held_back_tokens=20))
    rig.submit(call("a", 100, output=51))
    rig.submit(call("b", 90, output=51))
    rig.run(until=5.75)
    [a] = rig.decode.retracted
    assert a.left == pytest.approx(35)
