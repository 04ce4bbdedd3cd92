"""Each baseline against decisions worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifact.baselines.composition import Composition
from artifact.baselines.concur import Concur
from artifact.baselines.continuum import PINNED_FIRST_S, Continuum, Progress, ToolDurations
from artifact.baselines.crossflow import Crossflow, Lease
from artifact.baselines.eviction import EVICTION_ORDERS, CachedPrefix, eviction_order
from artifact.baselines.hicache import HiCache
from artifact.baselines.thunderagent import ROUTER_PORT, ThunderAgent
from artifact.control.capacity import Capacities
from artifact.control.policy import Action, Decision, Policy, SessionFacts, Signals

CAPACITIES = Capacities(prefill_cache_tokens=600, decode_kv_tokens=2000, host_cache_tokens=1000)


def facts(name: str, arrival: float = 0.0, prompt: int = 100) -> SessionFacts:
    return SessionFacts(name, arrival, prompt)


def drain(policy: Policy, now: float) -> list[tuple[Action, str]]:
    return [tuple(d) for d in iter(lambda: policy.next(now), None)]


def usage(share: float, hit: float | None = 0.9) -> Signals:
    return Signals(hit_rate=hit, decode_kv_used_tokens=round(share * 1000), decode_kv_capacity_tokens=1000)


# HiCache -------------------------------------------------------------------------------------------------------
def test_hicache_holds_nobody_back() -> None:
    policy = HiCache()
    for i in range(3):
        policy.arrive(facts(f"s{i}"), 0)
    assert [d for _, d in drain(policy, 0)] == ["s0", "s1", "s2"]
    assert policy.turn("s0", 10**9, 1)
    assert not policy.ordering() and not policy.lending() and policy.pin_s("s0", 1) == 0 and policy.lease(0) is None


# CONCUR --------------------------------------------------------------------------------------------------------
def test_concur_window_follows_usage_and_hit_rate() -> None:
    policy = Concur(initial_window=16)
    windows = []
    for signals in [
        usage(0.1),  # + 2
        usage(0.3),  # hold
        usage(0.6, 0.9),  # hold: reuse is good
        usage(0.6, 0.69),  # halve
        usage(0.6, None),  # no call was scheduled: hold
        Signals(),  # no telemetry: hold
        usage(0.5, 0.1),  # hold: not above 0.5
    ]:
        policy.observe(signals, 0)
        windows.append(policy.window)
    assert windows == [18, 18, 18, 9, 9, 9, 9]
    for _ in range(10):
        policy.observe(usage(0.9, 0.1), 0)
    assert policy.window == 2


def test_concur_admits_and_pauses_at_turn_boundaries_in_one_fifo() -> None:
    policy = Concur(initial_window=3)
    for i in range(5):
        policy.arrive(facts(f"s{i}"), 0)
    assert drain(policy, 0) == [(Action.ADMIT, f"s{i}") for i in range(3)]
    policy.window = 2.0
    assert not policy.turn("s1", 100, 1)
    assert policy.turn("s0", 100, 1) and policy.turn("s2", 100, 1)
    assert policy.state().suspended == 1 and policy.state().parked == 2
    policy.depart("s0", 2)
    assert drain(policy, 2) == [(Action.ADMIT, "s3")]  # it waited before s1 did
    policy.depart("s4", 3)  # gives up while parked
    policy.depart("s2", 3)
    assert drain(policy, 3) == [(Action.RESUME, "s1")]
    assert policy.explain("s1") == "active in the window"


def test_concur_counts_who_is_inside_into_the_first_window() -> None:
    policy = Concur(initial_window=4)
    for i in range(40):
        policy.adopt(facts(f"s{i}"), 100, 0)
    assert all(policy.turn(f"s{i}", 100, 1) for i in range(40))
    with pytest.raises(ValueError, match="floor"):
        Concur(floor=0)


# ThunderAgent --------------------------------------------------------------------------------------------------
def agent(**settings) -> ThunderAgent:
    """The router port, unless said otherwise."""
    return ThunderAgent(CAPACITIES, **{"output_estimate_tokens": 0, **ROUTER_PORT, **settings})


def test_thunderagent_bounds_footprints_by_the_larger_tier() -> None:
    policy = agent()
    for name, prompt in [("a", 600), ("b", 500), ("c", 300), ("d", 200)]:
        policy.arrive(facts(name, prompt=prompt), 0)
    # smallest first within the 1,000 of the host tier; "a" does not fit any more
    assert drain(policy, 0) == [(Action.ADMIT, "d"), (Action.ADMIT, "c"), (Action.ADMIT, "b")]
    assert policy.room_tokens == 0
    assert "600 tokens; 0 are free" in policy.explain("a")


def test_thunderagent_takes_new_sessions_in_arrival_order_and_the_head_waits() -> None:
    """As paper A's port does: the head stays parked until it fits, and so does who came after it."""
    policy = ThunderAgent(CAPACITIES, output_estimate_tokens=0)
    for name, prompt in [("a", 600), ("b", 500), ("c", 300)]:
        policy.arrive(facts(name, prompt=prompt), 0)
    assert drain(policy, 0) == [(Action.ADMIT, "a")]
    policy.call_done("a", 450, 1)
    assert drain(policy, 1) == [(Action.ADMIT, "b")]
    assert drain(policy, 1700) == [] and policy.turn("a", 400, 1700)  # nobody is paused, however long idle
    with pytest.raises(ValueError, match="new_order"):
        agent(new_order="largest")


def test_thunderagent_lets_turns_of_admitted_sessions_pass_beyond_the_bound() -> None:
    policy = agent()
    policy.arrive(facts("a", prompt=900), 0)
    drain(policy, 0)
    policy.call_done("a", 950, 5)
    assert policy.turn("a", 1400, 6)
    assert policy.room_tokens == -400


def test_thunderagent_makes_room_by_pausing_the_longest_idle_beyond_its_lease() -> None:
    policy = agent()
    for name in ("a", "b"):
        policy.arrive(facts(name, prompt=500), 0)
    drain(policy, 0)
    policy.call_done("a", 500, 10)
    policy.call_done("b", 500, 11)
    policy.arrive(facts("new", prompt=400), 20)
    assert drain(policy, 40) == []  # idle for 30 s: the lease holds
    assert drain(policy, 40.5) == [(Action.ADMIT, "new")]
    assert policy.explain("a") == "paused while idle" and policy.explain("b") == "admitted"
    assert not policy.turn("a", 520, 41)
    policy.arrive(facts("newer", prompt=50), 41)
    # paused goes before new, but it does not fit (520 > 100) and does not block the smaller one
    assert drain(policy, 41) == [(Action.ADMIT, "newer")]
    policy.depart("new", 42)
    policy.depart("b", 42)
    assert drain(policy, 42) == [(Action.RESUME, "a")]


def test_thunderagent_paused_before_new_and_oldest_of_equals() -> None:
    policy = agent()
    policy.adopt(facts("in"), 400, 0)
    policy.adopt(facts("p"), 600, 0)
    policy.call_done("p", 600, 0)
    policy.arrive(facts("x", prompt=600), 100)
    assert drain(policy, 100) == [(Action.ADMIT, "x")]  # p, idle, makes room
    assert not policy.turn("p", 600, 101)
    policy.arrive(facts("small", prompt=100), 102)
    policy.arrive(facts("y", prompt=600), 103)
    policy.arrive(facts("z", prompt=600), 104)
    policy.depart("x", 105)
    assert drain(policy, 105) == [(Action.RESUME, "p")]
    policy.depart("in", 106)
    policy.depart("p", 106)
    assert drain(policy, 106) == [(Action.ADMIT, "small"), (Action.ADMIT, "y")]


def test_thunderagent_promotes_the_starved_and_holds_back_the_rest() -> None:
    policy = agent()
    policy.adopt(facts("in"), 600, 0)
    policy.arrive(facts("large", prompt=800), 0)
    policy.arrive(facts("small", prompt=100), 1700)
    assert drain(policy, 1700) == [(Action.ADMIT, "small")]
    policy.arrive(facts("tiny", prompt=10), 1801)
    assert drain(policy, 1801) == []
    policy.depart("in", 1900)
    assert drain(policy, 1900) == [(Action.ADMIT, "large"), (Action.ADMIT, "tiny")]


def test_thunderagent_progress_with_a_session_larger_than_the_bound() -> None:
    policy = agent()
    policy.arrive(facts("huge", prompt=5000), 0)
    policy.arrive(facts("small", prompt=100), 0)
    assert drain(policy, 0) == [(Action.ADMIT, "small")]
    policy.depart("small", 1)
    assert drain(policy, 1) == [(Action.ADMIT, "huge")]


def test_thunderagent_defect_disconnect_before_usage() -> None:
    """Known defect: a client gone before its usage arrived stayed "reasoning" for ever. Here departure releases all."""
    policy = agent()
    policy.arrive(facts("a", prompt=900), 0)
    drain(policy, 0)  # in flight, no call_done ever
    policy.depart("a", 5)
    assert policy.room_tokens == 1000
    assert policy.state().resident == 0


def test_thunderagent_defect_shared_prefix_counted_per_sibling() -> None:
    """Known defect: five siblings on one 180-token head hold 5 x 20 + 180 tokens, not 1,000."""
    policy = agent(shared_head_tokens=180)
    for i in range(5):
        policy.arrive(facts(f"s{i}", prompt=200), 0)
    drain(policy, 0)
    assert policy.room_tokens == 1000 - 180 - 5 * 20
    assert agent().room_tokens == 1000


def test_thunderagent_defect_flapping() -> None:
    """Known defect: resume before pause without hysteresis. Here a session with gaps below the lease is never paused,
    however many wait; once all are idle for longer, room is made."""
    policy = agent()
    for name in ("a", "b", "c"):
        policy.adopt(facts(name), 300, 0)
    for step in range(100):
        now = 10.0 * step
        policy.arrive(facts(f"n{step}", prompt=400), now)
        for name in ("a", "b", "c"):
            assert policy.turn(name, 300, now)
            assert drain(policy, now) == []
            policy.call_done(name, 300, now + 1)
    assert drain(policy, 990 + 32) == [(Action.ADMIT, "n0"), (Action.ADMIT, "n1")]


def test_thunderagent_a_shrunk_prompt_lowers_the_footprint() -> None:
    policy = agent()
    policy.adopt(facts("a"), 900, 0)
    policy.turn("a", 200, 1)
    assert policy.room_tokens == 100  # the larger of last total and estimate, while in flight
    policy.call_done("a", 220, 2)
    assert policy.room_tokens == 780


# Continuum -----------------------------------------------------------------------------------------------------
@given(st.lists(st.floats(0, 100), min_size=5, max_size=60), st.floats(0.01, 500))
def test_time_to_live_is_the_argmax_of_the_published_rule(durations: list[float], benefit: float) -> None:
    known = ToolDurations(window=100, cold_samples=1, prior_mean_s=1)
    for duration in durations:
        known.add(duration)

    def worth(tau: float) -> float:
        return sum(d <= tau for d in durations) / len(durations) * benefit - tau

    best = max([worth(d) for d in durations] + [worth(0.0)])
    assert worth(known.best_ttl(benefit)) == pytest.approx(best, abs=1e-6)


def test_time_to_live_by_hand() -> None:
    known = ToolDurations(window=100, cold_samples=4, prior_mean_s=1)
    assert known.best_ttl(math.e) == pytest.approx(1.0)  # cold: μ ln(B/μ)
    assert known.best_ttl(0.9) == 0
    for duration in (1, 2, 3, 40):
        known.add(duration)
    # each of the first three costs 1 s and saves a quarter of B; the last costs 37 s
    assert [known.best_ttl(b) for b in (3.9, 4.1, 147, 149)] == [0, 3, 3, 40]
    assert known.best_ttl(4.0) == 0  # a tie goes to the smaller


def test_only_the_last_durations_count() -> None:
    known = ToolDurations(window=20, cold_samples=1, prior_mean_s=1)
    for duration in [100.0] * 20 + [1.0] * 20:
        known.add(duration)
    assert known.mean_s == pytest.approx(1.0)
    assert known.best_ttl(50) == 1.0


def test_progress_is_minus_the_correlation_of_index_and_remaining_turns() -> None:
    progress = Progress()
    progress.add(5)
    assert progress.eta == pytest.approx(1.0)  # one length: index tells the end exactly
    progress = Progress()
    for turns in (1, 3):
        progress.add(turns)
    # pairs (1,0) (1,2) (2,1) (3,0): covariance -0.3125, variances 0.6875 and 0.6875
    assert progress.eta == pytest.approx(0.3125 / 0.6875)
    progress.add(0)
    assert progress.eta == pytest.approx(0.3125 / 0.6875)


def test_continuum_orders_pinned_first_then_by_arrival() -> None:
    policy = Continuum(lambda tokens: 10.0)  # cold start: pin ln 10 = 2.3 s
    for name, arrival in (("old", 0.0), ("young", 50.0)):
        policy.adopt(facts(name, arrival), 1000, 100)
    assert policy.ordering() and policy.order_key("old") == 0 and policy.order_key("young") == 50
    policy.call_done("young", 1000, 200)
    assert policy.pin_s("young", 200) == pytest.approx(math.log(10))
    assert policy.pin_s("young", 210) == 0
    policy.turn("young", 1100, 202)
    assert policy.order_key("young") == 50 - PINNED_FIRST_S  # back in time: pinned, also while it waits
    policy.call_done("young", 1100, 300)
    policy.turn("young", 1200, 303)
    assert policy.order_key("young") == 50  # too late
    policy.depart("young", 400)
    assert policy.pin_s("young", 400) == 0


def test_continuum_waits_of_evicted_calls_lengthen_the_pin() -> None:
    policy = Continuum(lambda tokens: 2.0, wait_weight=0.5)
    policy.adopt(facts("a"), 1000, 0)
    policy.started("a", 60, 950, 1)  # found: does not count
    policy.call_done("a", 1000, 2)
    assert policy.pin_s("a", 2) == pytest.approx(math.log(2))
    policy.started("a", 60, 100, 3)
    policy.call_done("a", 1000, 4)
    assert policy.pin_s("a", 4) == pytest.approx(math.log(32))


def test_continuum_as_released_pins_two_seconds_for_short_tools() -> None:
    policy = Continuum(lambda tokens: 99.0, ttl="fixed")
    policy.adopt(facts("a"), 1000, 0)
    policy.call_done("a", 1000, 0)
    assert policy.pin_s("a", 0) == 2.0  # an unknown tool counts as 0 s
    policy.turn("a", 1000, 5)
    policy.call_done("a", 1000, 6)
    assert policy.pin_s("a", 6) == 0.0  # mean 5 s
    with pytest.raises(ValueError, match="ttl"):
        Continuum(lambda tokens: 1.0, ttl="none")  # type: ignore[arg-type]


# Crossflow -----------------------------------------------------------------------------------------------------
def test_lease_takes_what_fits_the_slo() -> None:
    lease = Lease(itl_slo_s=0.5)  # binary fractions, so that the division is exact
    assert lease.prefill_tokens(0.25, 2**-12, 0) == 1024
    assert lease.prefill_tokens(0.25, 2**-16, 0) == 8192
    assert lease.prefill_tokens(0.75, 2**-12, 0) == 0
    assert Lease(itl_slo_s=0.5, chunk_charge_s=0.125).prefill_tokens(0.25, 2**-12, 0) == 512


def test_lease_halves_and_is_revoked_on_a_violation_and_recovers() -> None:
    lease = Lease(most_tokens=1000, least_tokens=64, raise_tokens=100, revoke_s=0.5)
    lease.step_done(0.051, 10.0)
    assert lease.budget_tokens == 500 and not lease.valid(10.4)
    assert lease.prefill_tokens(0, 1e-5, 10.4) == 0
    lease.step_done(0.050, 10.5)  # at the SLO is within it
    assert lease.prefill_tokens(0, 1e-6, 10.5) == 600
    for _ in range(20):
        lease.step_done(0.1, 11)
    assert lease.budget_tokens == 64
    for _ in range(20):
        lease.step_done(0.01, 12)
    assert lease.budget_tokens == 1000
    with pytest.raises(ValueError, match="least_tokens"):
        Lease(least_tokens=0)


@given(st.lists(st.floats(0, 0.2), max_size=50), st.floats(0, 0.1), st.floats(1e-6, 1e-3))
def test_a_granted_chunk_never_breaks_the_slo_of_the_step_model(
    steps: list[float], decode_s: float, token_s: float
) -> None:
    lease = Lease(chunk_charge_s=0.005)
    for i, step in enumerate(steps):
        lease.step_done(step, float(i))
    granted = lease.prefill_tokens(decode_s, token_s, len(steps) + 1.0)
    assert granted == 0 or decode_s + 0.005 + granted * token_s <= 0.05 + 1e-9


def test_crossflow_keeps_one_lease_an_instance() -> None:
    policy = Crossflow(chunk_charge_s=0.02)
    assert policy.lease(0) is policy.lease(0) and policy.lease(0) is not policy.lease(1)
    assert policy.lease(1).chunk_charge_s == 0.02
    with pytest.raises(TypeError):
        Crossflow(nonsense=1.0)


# Composition ---------------------------------------------------------------------------------------------------
def test_composition_is_the_three_together() -> None:
    policy = Composition(
        CAPACITIES, lambda tokens: 10.0, thunderagent={"output_estimate_tokens": 0, "new_order": "smallest"}
    )
    for name, prompt in (("a", 700), ("b", 600)):
        policy.arrive(facts(name, arrival=3, prompt=prompt), 3)
    assert drain(policy, 3) == [(Action.ADMIT, "b")]
    policy.call_done("b", 650, 10)
    assert policy.pin_s("b", 10) == pytest.approx(math.log(10))
    assert policy.turn("b", 660, 11)
    assert policy.ordering() and policy.order_key("b") == 3 - PINNED_FIRST_S
    assert policy.lease(0).itl_slo_s == 0.05
    policy.depart("b", 12)
    assert drain(policy, 12) == [(Action.ADMIT, "a")]
    with pytest.raises(KeyError):
        policy.order_key("b")  # none of the three remembers it


# Eviction ------------------------------------------------------------------------------------------------------
def test_eviction_orders_by_hand() -> None:
    prefixes = {
        "recent": CachedPrefix(100, last_used_s=9, next_use_s=50, gap_since_s=None),
        "old-in-gap": CachedPrefix(200, last_used_s=1, next_use_s=20, gap_since_s=1),
        "large": CachedPrefix(900, last_used_s=5, next_use_s=30, gap_since_s=None),
        "ended": CachedPrefix(50, last_used_s=8, next_use_s=math.inf, gap_since_s=None),
    }
    order = {name: sorted(prefixes, key=lambda p: key(prefixes[p])) for name, key in EVICTION_ORDERS.items()}
    assert order == {
        "lru": ["old-in-gap", "large", "ended", "recent"],
        "next-call-oracle": ["ended", "recent", "large", "old-in-gap"],
        "tool-gap-pinning": ["large", "ended", "recent", "old-in-gap"],
        "largest-first": ["large", "old-in-gap", "recent", "ended"],
    }
    with pytest.raises(ValueError, match="lru, next-call-oracle"):
        eviction_order("mru")


def test_decisions_are_plain_tuples() -> None:
    assert Decision(Action.ADMIT, "a") == (Action.ADMIT, "a")
