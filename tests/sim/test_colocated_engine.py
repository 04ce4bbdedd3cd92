"""The colocated engine by hand: when steps end, what hits, who makes way."""

from dataclasses import replace

import pytest
from colocated_rig import assert_idle, assert_pool_adds_up, rig, turn, turns

# Steps -------------------------------------------------------------------------------------------------------------


def test_a_lone_call() -> None:
    """Two chunks of 64 at 1.625 s, then two more tokens at 0.625 s."""
    r = rig()
    r.submit(turn("a", 128, output=3))
    r.run()
    assert (r.first_token, r.finished) == ({"a": 3.25}, {"a": 4.5})
    assert_idle(r.engine)


def test_one_token_of_output_ends_with_its_prefill() -> None:
    r = rig()
    r.submit(turn("a", 64, output=1))
    r.run()
    assert r.finished == {"a": 1.625}


def test_prefill_rides_in_the_steps_of_those_that_decode() -> None:
    """a decodes from 1.625 s on; b comes at 2 s and joins with the step at 2.25 s. Its chunk has 63 tokens, a's token
    being the 64th: 0.5 + 2 x 0.125 + 63/64 s. The last token of its prompt takes 0.75 + 1/64 s more."""
    r = rig()
    r.submit(turn("a", 64, output=6))
    r.submit(turn("b", 64, output=1), at_s=2.0)
    r.run(until=3.0)
    assert [call.session.id for call in r.engine.running] == ["a", "b"]
    r.run()
    first, second = 0.75 + 63 / 64, 0.75 + 1 / 64
    assert r.finished["b"] == 2.25 + first + second
    assert r.finished["a"] == 2.25 + first + second + 2 * 0.625, "one token before b, two beside it, two after"


def test_context_and_position_cost_what_they_say() -> None:
    """Prefill of 64 tokens at mean position 32; then a step over 65 tokens of context, at the pace of its middle."""
    r = rig(prefill_position_s=1 / 2048, context_s=1 / 64)
    r.submit(turn("a", 64, output=2))
    r.run()
    assert r.first_token == {"a": 1.625 + 1.0}
    assert r.finished == {"a": 2.625 + 0.625 + 64.5 / 64}


def test_attention_of_prompts_slows_down_beside_contexts_that_decode() -> None:
    """b's only step computes 32 tokens, at mean position 16, beside a's context of 64; beside a's prompt was none."""
    r = rig(prefill_position_context_s=1 / 16384)
    r.submit(turn("a", 64, output=9))
    r.submit(turn("b", 32, output=1), at_s=1.625)
    r.run()
    assert r.first_token["a"] == 1.625
    assert r.finished["b"] == 1.625 + 0.75 + 32 / 64 + 32 * 16 * 64 / 16384


@pytest.mark.parametrize("chunk", [9, 17, 33])
def test_how_much_does_not_depend_on_the_chunk(chunk: int) -> None:
    """b's 32 tokens beside a's context, which grows by one a step: smaller chunks take more steps at their own cost,
    and meet a little more context. A step holds a's token and `chunk` - 1 of b's."""
    r = rig(prefill_position_context_s=1 / 16384)
    r.submit(turn("a", 64, output=90))
    r.submit(turn("b", 32, output=1), at_s=1.625)
    r.run(until=1.0)
    r.engine.costs = replace(r.costs, chunk_tokens=chunk)
    r.run()
    tokens = chunk - 1
    beside = sum(tokens * (i + 0.5) * tokens * (64 + i) for i in range(32 // tokens)) / 16384
    assert r.finished["b"] == 1.625 + 32 // tokens * 0.75 + 32 / 64 + beside


def test_slow_steps_are_counted() -> None:
    """Over the SLO of 0.7 s: the two mixed steps with b (see above), not a's own at 0.625 s."""
    r = rig()
    a = r.submit(turn("a", 64, output=6))
    r.submit(turn("b", 64, output=1), at_s=2.0)
    r.run()
    assert r.engine.slow_steps(a) == 2


def test_first_come_first_served_while_the_first_does_not_fit() -> None:
    """a holds 600 of 1,000 tokens: b with 500 waits, and c behind it though it would fit."""
    r = rig(chunk_tokens=1000)
    for name, prompt in (("a", 600), ("b", 500), ("c", 100)):
        r.submit(turn(name, prompt, output=2))
    r.run(until=10.5)
    assert [call.session.id for call in r.engine.running] == ["a"], "it decodes"
    r.run()
    assert r.first_token["a"] < r.finished["a"] < r.first_token["b"] == r.first_token["c"]


def test_no_more_requests_run_than_allowed() -> None:
    r = rig(max_running=1)
    for name in "ab":
        r.submit(turn(name, 64, output=2))
    r.run()
    assert r.finished == {"a": 2.25, "b": 4.5}


# The cache ---------------------------------------------------------------------------------------------------------


def test_prompt_and_answer_of_the_last_turn_hit() -> None:
    """100 tokens of prompt and two of three of output: the last one's state is not computed."""
    r = rig()
    first, second = turns("a", 100, 160, output=3)
    r.submit(first)
    r.run()
    r.submit(second, at_s=r.env.now)
    r.run()
    assert (first.cached, second.cached) == (0, 102)
    assert (r.engine.prompt_tokens, r.engine.cached_tokens, r.engine.computed_tokens) == (260, 102, 158)


def test_an_answer_that_is_not_resent_does_not_hit() -> None:
    """Ten tokens were generated, the next prompt has but five new ones."""
    r = rig()
    first, second = turns("a", 100, 105, output=10)
    r.submit(first)
    r.run()
    r.submit(second, at_s=r.env.now)
    r.run()
    assert second.cached == 100
    assert_idle(r.engine)


def test_the_shared_head_hits_for_everybody_and_counts_once() -> None:
    r = rig()
    a, b = turn("a", 100, head=40), turn("b", 100, head=40)
    r.submit(a)
    r.run()
    r.submit(b, at_s=r.env.now)
    r.run()
    assert (a.cached, b.cached) == (0, 40)
    assert r.engine.cache.used == 40 + 60 + 60
    assert_idle(r.engine)


def test_the_tail_of_the_least_recently_used_prefix_goes_first() -> None:
    """a and b leave 400 each; c needs 500: 300 of a's go, and its next turn finds the other 100."""
    r = rig(chunk_tokens=1000)
    first, second = turns("a", 400, 410)
    for call in (first, turn("b", 400), turn("c", 500), second):
        r.submit(call, at_s=r.env.now)
        r.run()
    assert second.cached == 100
    assert_idle(r.engine)


def test_without_prefix_caching_nothing_stays() -> None:
    r = rig({"prefix_caching": False})
    first, second = turns("a", 100, 160, output=3, head=40)
    r.submit(first)
    r.run()
    assert r.engine.cache.used == 0
    r.submit(second, at_s=r.env.now)
    r.run()
    assert (second.cached, r.engine.computed_tokens) == (0, 260)


def test_the_host_tier_gives_back_at_its_own_speed() -> None:
    """a's 400 tokens are gone from the pool, not from the host: 400/64 s to fetch them, with the 10 others computed."""
    r = rig({"host_ratio": 2.0}, chunk_tokens=1000)
    first, second = turns("a", 400, 410)
    for call in (first, turn("b", 800)):
        r.submit(call, at_s=r.env.now)
        r.run()
    began = r.env.now
    r.submit(second, at_s=began)
    r.run()
    assert (second.cached, second.cached_host) == (400, 200), "b left 200 of a's in the pool"
    assert r.finished["a"] == began + 0.625 + 200 / 64 + 10 / 64


# Who makes way -----------------------------------------------------------------------------------------------------


def test_the_newest_is_preempted_when_outputs_outgrow_the_pool() -> None:
    """495 and 500 tokens leave 5. Beside two requests that decode it lasts two steps; then b makes way, and is computed
    anew but for what is still cached of it. Nobody is admitted in that step."""
    r = rig(chunk_tokens=1000)
    r.submit(turn("a", 495, output=100))
    b = r.submit(turn("b", 500, output=100))
    r.run(until=20.0)
    assert [call.session.id for call in r.engine.preempted] == ["b"]
    assert (r.engine.preemptions, r.engine.occupancy().decode_waiting) == (1, 1)
    assert_pool_adds_up(r.engine)
    computed = r.engine.computed_tokens
    r.run()
    assert r.finished["a"] < r.finished["b"]
    assert b.first_token < 20.0, "its first token had been out"
    recomputed = r.engine.computed_tokens - computed
    assert 0 < recomputed <= 502, "its prompt and two tokens"
    assert r.engine.prompt_tokens == 995, "a resumed request is no new turn"
    assert_idle(r.engine)


def test_the_last_one_running_is_not_preempted() -> None:
    r = rig(chunk_tokens=1000)
    r.submit(turn("a", 900, output=100))
    r.run()
    assert (r.engine.preemptions, list(r.finished)) == (0, ["a"])


def test_a_flush_preempts_and_forgets() -> None:
    """The flush of 10 s is carried out when the 14th step of decode ends, at 1.625 + 14 x 0.625 s: a's 64 tokens of
    prompt and those 14 are computed again, the shared head included."""
    r = rig()
    a = r.submit(turn("a", 64, output=40, head=32))
    r.at(10.0, r.engine.flush)
    r.run(until=10.5)
    assert r.engine.preemptions == 1
    r.run()
    assert r.engine.computed_tokens == 64 + 64 + 14
    assert (len(r.served), a.cached) == (1, 0)
    assert_idle(r.engine)


def test_an_idle_engine_is_flushed_at_once() -> None:
    r = rig()
    first, second = turns("a", 100, 160)
    r.submit(first)
    r.run()
    r.engine.flush()
    assert r.engine.cache.used == 0
    r.submit(second, at_s=r.env.now)
    r.run()
    assert second.cached == 0


@pytest.mark.parametrize("at_s", [0.5, 1.0, 2.0, 5.0])
def test_an_aborted_call_leaves_nothing(at_s: float) -> None:
    """a is cut short in prefill or decode, c while it waits."""
    r = rig()
    a = r.submit(turn("a", 100, output=50))
    r.submit(turn("b", 100, output=10))
    c = r.submit(turn("c", 900, output=10))
    r.at(at_s, r.engine.abort, a)
    r.at(at_s, r.engine.abort, c)
    r.run()
    assert list(r.finished) == ["b"]
    assert_idle(r.engine)


def test_a_preempted_call_can_be_aborted() -> None:
    r = rig(chunk_tokens=1000)
    r.submit(turn("a", 495, output=100))
    b = r.submit(turn("b", 500, output=100))
    r.at(20.0, r.engine.abort, b)
    r.run()
    assert list(r.finished) == ["a"]
    assert_idle(r.engine)


# What policies ask for ---------------------------------------------------------------------------------------------


def test_the_queue_follows_an_order() -> None:
    r = rig(max_running=1)
    for name in "abc":
        r.submit(turn(name, 64))
    r.at(1.0, r.engine.reorder, lambda call: {"b": 1.0, "c": 0.0}[call.session.id])
    r.run()
    assert sorted(r.finished, key=r.finished.__getitem__) == ["a", "c", "b"]


def test_a_pinned_prefix_outlasts_others_until_nothing_else_makes_room() -> None:
    r = rig(chunk_tokens=1000)
    first, second = turns("a", 300, 310)
    b_first, b_second = turns("b", 300, 310)
    for call in (first, b_first):
        r.submit(call, at_s=r.env.now)
        r.run()
    r.engine.hold(first, 0.0, 1000.0)
    r.submit(turn("c", 600), at_s=r.env.now)
    r.run(until=r.env.now + 100)
    r.submit(b_second, at_s=r.env.now)
    r.run(until=r.env.now + 100)
    assert b_second.cached == 100, "b gave up 200 of 300 for c"
    r.submit(second, at_s=r.env.now)
    r.run(until=r.env.now + 100)
    assert second.cached == 300


# The other scheduler -----------------------------------------------------------------------------------------------


def test_sglang_computes_prompts_in_steps_of_their_own() -> None:
    """b comes at 2 s: from 2.25 s on a waits while b's 64 tokens are computed without it and its context."""
    r = rig(scheduler="sglang", prefill_position_context_s=1.0)
    r.submit(turn("a", 64, output=6))
    r.submit(turn("b", 64, output=1), at_s=2.0)
    r.run()
    assert r.finished == {"b": 2.25 + 1.625, "a": 2.25 + 1.625 + 4 * 0.625}


def test_sglang_refuses_a_flush_while_anything_runs() -> None:
    r = rig(scheduler="sglang")
    first, second = turns("a", 64, 128, output=6)
    r.submit(first)
    r.at(2.0, r.engine.flush)
    r.run()
    assert r.engine.preemptions == 0
    r.submit(second, at_s=r.env.now)
    r.run()
    assert second.cached == 0, "it went through once the engine was idle"


def test_sglang_retracts_who_has_generated_least() -> None:
    """a came first and is ahead; of b and c, which came together, the longer prompt goes."""
    r = rig(scheduler="sglang", chunk_tokens=1000)
    r.submit(turn("a", 300, output=80))
    r.submit(turn("b", 330, output=80), at_s=6.0)
    r.submit(turn("c", 320, output=80), at_s=6.0)
    while not r.engine.preempted:
        r.run(until=r.env.now + 1)
    assert [call.session.id for call in r.engine.preempted] == ["b"]
