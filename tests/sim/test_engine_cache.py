"""The prefix cache, step by step by hand."""

from typing import Any

import pytest
from engine_rig import assert_adds_up
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.cache import PrefixCache


def cache(capacity: int = 100, host: int = 0, slots: int = 100, end_state: bool = False) -> PrefixCache:
    return PrefixCache(capacity, host, slots, end_state)


def put(cache: PrefixCache, key: str, prompt: int, branch: bool = False, limit: int | None = None) -> tuple[int, int]:
    """One call from match to release: (cached in any tier, of those in the host)."""
    room = cache.acquire(key, prompt, prompt - 1 if limit is None else limit)
    assert room is not None
    cache.commit(key, prompt, room[2], branch)
    cache.release(key)
    return room[0], room[1]


def sizes(cache: PrefixCache) -> dict[Any, tuple[int, int]]:
    return {key: (line.tokens, line.host) for key, line in cache.lines.items()}


def test_a_prefix_is_found_again_but_for_its_last_token() -> None:
    c = cache()
    assert put(c, "a", 40) == (0, 0)
    assert put(c, "a", 60) == (40, 0)
    assert put(c, "a", 60) == (59, 0)  # the last token has to be computed to have an output
    assert (c.used, c.peek("a"), c.peek("b")) == (60, 60, 0)


def test_the_least_recently_used_line_loses_its_tail_first() -> None:
    c = cache()
    put(c, "a", 40)
    put(c, "b", 40)
    put(c, "a", 41)  # a is younger than b now
    put(c, "c", 49)
    assert sizes(c) == {"a": (41, 0), "b": (10, 0), "c": (49, 0)}
    put(c, "d", 20)
    assert sizes(c) == {"a": (31, 0), "c": (49, 0), "d": (20, 0)}


def test_pinned_lines_are_not_evicted_and_a_refusal_changes_nothing() -> None:
    c = cache()
    put(c, "a", 60)
    assert c.acquire("a", 70, 69) == (60, 0, 10)
    assert c.used == 70
    put(c, "b", 20)
    before = (sizes(c), c.used)
    assert c.acquire("new", 31, 30) is None
    assert (sizes(c), c.used) == before
    assert c.acquire("new", 30, 29) == (0, 0, 30)  # b goes, a's pins hold
    assert (c.peek("a"), c.peek("b"), c.used) == (60, 0, 100)
    c.release("new", 30)
    c.release("a", 10)
    assert (sizes(c), c.used) == ({"a": (60, 0)}, 60)


def test_a_promise_is_kept_by_commit_and_given_back_by_release() -> None:
    c = cache()
    assert c.acquire("a", 50, 49) == (0, 0, 50)
    assert (c.used, c.peek("a")) == (50, 0)  # promised, nothing to find yet
    c.release("a", promised=50)
    assert (c.used, sizes(c)) == (0, {})
    room = c.acquire("a", 50, 49)
    assert room is not None
    c.commit("a", 50, room[2], branch=False)
    assert (c.used, c.peek("a")) == (50, 50)


def test_a_branch_replaces_the_continuation_it_abandons() -> None:
    c = cache()
    put(c, "a", 80)
    assert put(c, "a", 30, branch=True, limit=10) == (10, 0)
    assert (sizes(c), c.used) == ({"a": (30, 0)}, 30)


def test_a_branch_gets_the_room_of_its_own_abandoned_tail() -> None:
    c = cache()
    put(c, "a", 80)
    assert put(c, "a", 60, branch=True, limit=10) == (10, 0)  # 80 + 50 would not fit
    assert (sizes(c), c.used) == ({"a": (60, 0)}, 60)


def test_the_host_takes_every_finished_prefix_and_gives_it_back() -> None:
    c = cache(capacity=100, host=150)
    put(c, "a", 60)
    put(c, "b", 80)  # a keeps 20 on the GPU, all 60 in the host
    assert sizes(c) == {"a": (20, 60), "b": (80, 80)}
    assert put(c, "a", 70) == (60, 40)  # 40 tokens come from the host
    assert sizes(c) == {"a": (70, 70), "b": (30, 80)}
    assert c.host_used == 150


def test_the_host_evicts_by_its_own_recency_and_forgets_empty_lines() -> None:
    c = cache(capacity=100, host=150)
    put(c, "a", 60)
    put(c, "b", 80)
    put(c, "a", 61)
    put(c, "c", 90)  # the host drops b's tail: 61 + 80 + 90 is 81 too much
    assert sizes(c) == {"a": (10, 60), "c": (90, 90)}
    assert put(c, "b", 20) == (0, 0)


def test_a_hybrid_line_is_usable_only_at_its_end() -> None:
    c = cache(end_state=True)
    put(c, "a", 40)
    assert put(c, "a", 60, branch=True, limit=30) == (0, 0)
    assert put(c, "a", 70) == (60, 0)
    assert put(c, "a", 70) == (0, 0)  # the same prompt again: its state is one token too far


def test_a_hybrid_line_is_evicted_whole_where_a_plain_one_loses_its_tail() -> None:
    plain, hybrid = cache(host=200), cache(host=200, end_state=True)
    for c in (plain, hybrid):
        put(c, "a", 60)
        put(c, "b", 50)
    assert sizes(plain) == {"a": (50, 60), "b": (50, 50)}
    assert sizes(hybrid) == {"a": (0, 60), "b": (50, 50)}
    assert put(plain, "a", 70) == (60, 10)
    assert put(hybrid, "a", 70) == (60, 60)


def test_recurrent_states_limit_the_number_of_lines() -> None:
    c = cache(slots=2)
    for key in "abc":
        put(c, key, 10)
    assert sizes(c) == {"b": (10, 0), "c": (10, 0)}


@pytest.mark.parametrize(("tokens", "kept"), [(70, 70), (130, 0)])
def test_preloading_places_a_prefix_if_there_is_room(tokens: int, kept: int) -> None:
    c = cache()
    c.preload("a", tokens)
    assert (c.peek("a"), c.used) == (kept, kept)


STEPS = st.lists(
    st.tuples(st.sampled_from("abcde"), st.integers(1, 60), st.booleans(), st.booleans()), min_size=1, max_size=60
)


@given(STEPS, st.sampled_from([0, 80, 300]), st.booleans(), st.integers(1, 6))
def test_occupancy_adds_up_after_every_step(
    steps: list[tuple[str, int, bool, bool]], host: int, end_state: bool, slots: int
) -> None:
    """Calls of five conversations in any order, also overlapping, finishing, given up and branching."""
    c = cache(capacity=100, host=host, slots=slots, end_state=end_state)
    open_calls: dict[str, tuple[int, int, bool]] = {}
    for key, size, finish, shrink in steps:
        if key in open_calls:
            prompt, promised, branch = open_calls.pop(key)
            if finish:
                c.commit(key, prompt, promised, branch)
                c.release(key)
            else:
                c.release(key, promised)
        else:
            held = c.peek(key)
            branch = shrink and held > 1
            prompt = min(held // 2 + size if branch else held + size, 100)
            limit = min(held // 2, prompt - 1) if branch else prompt - 1
            if (room := c.acquire(key, prompt, limit)) is not None:
                assert 0 <= room[1] <= room[0] <= limit
                assert room[0] - room[1] + room[2] == prompt
                open_calls[key] = (prompt, room[2], branch)
        assert_adds_up(c)
        promises = sum(promised for _, promised, _ in open_calls.values())
        assert c.used == promises + sum(line.tokens for line in c.lines.values())
    for key, (_, promised, _) in open_calls.items():
        c.release(key, promised)
    assert c.used == sum(line.tokens for line in c.lines.values())
    assert c.acquire("new", 100, 99) is not None  # whatever happened, everything can be evicted
