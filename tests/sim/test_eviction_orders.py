"""Eviction orders and the transfer charge as options of a deployment."""

import pytest
from engine_rig import Rig, assert_adds_up, call, session
from hypothesis import given, settings
from hypothesis import strategies as st

from artifact.baselines.eviction import EVICTION_ORDERS, eviction_order
from artifact.workload.load import Load, Surge
from sim.engine.cache import PrefixCache
from sim.engine.call import EngineCall
from sim.engine.ranks import Use
from sim.run import run
from sim.scenario import Deployment, Scenario

INF = float("inf")


def three_sessions(order: str) -> Rig:
    """a (300 tokens), b (400) and c (200) in a cache of 1,000, used in this order; b's tool runs, a's call comes at
    second 1,000, b's at 3,000, c's at 2,000. The others wait for a prefill."""
    rig = Rig(deployment=Deployment(eviction=order))  # type: ignore[arg-type]
    for id, tokens in (("a", 300), ("b", 400), ("c", 200)):
        first = rig.submit(EngineCall(session(id, tokens), 0, rig.env.now))
        rig.run()
        rig.engine.note(first.session, {"a": 1000.0, "b": 3000.0, "c": 2000.0}[id], rig.env.now if id == "b" else None)
    return rig


@pytest.mark.parametrize(
    ("order", "kept"),
    [
        ("lru", {"a": 0, "b": 400, "c": 200}),
        ("next-call-oracle", {"a": 300, "b": 100, "c": 200}),
        ("tool-gap-pinning", {"a": 0, "b": 400, "c": 200}),
        ("largest-first", {"a": 300, "b": 100, "c": 200}),
    ],
)
def test_who_makes_room_for_400_tokens(order: str, kept: dict[str, int]) -> None:
    rig = three_sessions(order)
    rig.submit(call("d", 400))
    rig.run()
    assert {id: rig.prefill.cache.peek(id) for id in "abc"} == kept


def test_a_gap_that_began_protects_and_one_that_ended_does_not() -> None:
    rig = three_sessions("tool-gap-pinning")
    rig.engine.note(session("a", 1), 1000.0, rig.env.now)
    rig.engine.note(session("b", 1), 3000.0, None)
    rig.submit(call("d", 400))
    rig.run()
    assert {id: rig.prefill.cache.peek(id) for id in "abc"} == {"a": 300, "b": 300, "c": 0}


def test_a_session_that_is_over_goes_first_under_the_oracle() -> None:
    rig = three_sessions("next-call-oracle")
    rig.engine.forget(session("a", 1))
    rig.submit(call("d", 400))
    rig.run()
    assert rig.prefill.cache.peek("a") == 0
    assert rig.prefill.cache.peek("b") == 400


def test_the_host_keeps_what_the_gpu_still_has() -> None:
    """Host of 700: a and b are in both tiers, c pushes 200 out of the host. The largest, b, has left the GPU."""
    cache = PrefixCache(600, 700, 100, order=eviction_order("largest-first"))
    for key, tokens in (("b", 400), ("a", 200), ("c", 200)):
        got = cache.acquire(key, tokens, tokens)
        assert got is not None
        cache.commit(key, tokens, got[2], branch=False)
        cache.release(key)
    assert {key: cache.lines[key].tokens for key in "abc"} == {"a": 200, "b": 200, "c": 200}
    for key, tokens in (("d", 200), ("e", 200)):
        got = cache.acquire(key, tokens, tokens)
        assert got is not None
        cache.commit(key, tokens, got[2], branch=False)
        cache.release(key)
    on_gpu = {key for key, line in cache.lines.items() if line.tokens}
    assert all(cache.lines[key].host for key in on_gpu)
    assert_adds_up(cache)


@settings(max_examples=30, deadline=None)
@given(
    order=st.sampled_from(sorted(EVICTION_ORDERS)),
    steps=st.lists(st.tuples(st.integers(0, 8), st.integers(1, 60), st.integers(0, 50), st.booleans()), max_size=60),
)
def test_every_order_evicts_the_smallest_key_and_the_cache_adds_up(
    order: str, steps: list[tuple[int, int, int, bool]]
) -> None:
    cache = PrefixCache(120, 200, 100, order=eviction_order(order))
    for now, (key, tokens, next_use, gap) in enumerate(steps):
        line = cache.lines.get(key)
        prompt = max(tokens, line.tokens if line else 0)
        got = cache.acquire(key, prompt, prompt)
        assert got is not None
        cache.commit(key, prompt, got[2], branch=False)
        cache.release(key)
        cache.note(key, Use(float(now), float(next_use), float(now) if gap else None))
        assert_adds_up(cache)
        if cache._ranks is not None:
            rank = {k: cache._ranks._rank[k] for k in cache._lru}
            assert rank[cache._victim()] == min(rank.values())


@pytest.mark.parametrize(("transfer", "delay_s"), [("fixed", 0.5), ("per_token", 64e-6)])
def test_transfer_charge(transfer: str, delay_s: float) -> None:
    """64 tokens over a link of a million a second, or the fixed half second."""
    rig = Rig(deployment=Deployment(transfer=transfer))  # type: ignore[arg-type]
    rig.submit(call("a", 64))
    rig.run()
    assert rig.first_token["a"] == pytest.approx(1.0 + 1.0 + 64 * 32 / 4096 + delay_s)


def test_the_oracle_serves_a_surge_with_more_reuse_than_recency() -> None:
    load = Load(rate_per_min=3, duration_s=1500, surges=(Surge(start_s=60, end_s=600, factor=5),))
    hits = {}
    for order in ("lru", "next-call-oracle"):
        deployment = Deployment(calibration="h100", eviction=order)  # type: ignore[arg-type]
        samples = run(Scenario(deployment=deployment, load=load)).samples.to_pandas().iloc[-1]
        hits[order] = samples["cached_tokens_total"] / samples["prompt_tokens_total"]
    assert hits["next-call-oracle"] > hits["lru"]
