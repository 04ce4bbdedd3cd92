"""Paper B's controllers against decisions worked out by hand (capacity 1,000, no output budget)."""

import pytest

from artifact.baselines.turn_boundary import AdaptiveCap, Budgeter, LatencyCap, SessionCap, TurnBoundary
from artifact.control.capacity import Capacities
from artifact.control.policy import Action, SessionFacts, Signals

CAPACITIES = Capacities(prefill_cache_tokens=1000, decode_kv_tokens=1000)


def fill(policy: TurnBoundary, sizes: list[int]) -> None:
    for i, size in enumerate(sizes):
        policy.adopt(SessionFacts(f"s{i}", 0.0, size), size, 0.0)


def arrive(policy: TurnBoundary, name: str, size: int) -> None:
    policy.arrive(SessionFacts(name, 0.0, size), 0.0)


def drain(policy: TurnBoundary, now: float = 0.0) -> list[tuple[Action, str]]:
    return [tuple(d) for d in iter(lambda: policy.next(now), None)]


def test_budgeter_holds_demand_in_its_band() -> None:
    policy = Budgeter(CAPACITIES, output_tokens=0)
    fill(policy, [300, 300])
    arrive(policy, "fits", 150)
    arrive(policy, "not", 1)
    assert drain(policy) == [(Action.ADMIT, "fits")]  # 750 = 0.75 C
    assert policy.turn("s0", 500, 1)  # 950 = 0.95 C is still inside the band
    assert not policy.turn("s1", 301, 1)  # 951 parks the session at its boundary
    assert policy.demand == 650
    assert drain(policy) == []  # 650 + 301 > 750, and "not" may not pass the parked one
    policy.call_done("s0", 400, 2)
    assert drain(policy) == []
    policy.depart("fits", 3)
    assert drain(policy) == [(Action.RESUME, "s1"), (Action.ADMIT, "not")]


def test_one_session_always_runs() -> None:
    policy = Budgeter(CAPACITIES, output_tokens=0)
    arrive(policy, "huge", 5000)
    assert drain(policy) == [(Action.ADMIT, "huge")]
    assert policy.turn("huge", 6000, 1)


def test_session_cap_and_admission_only() -> None:
    policy = SessionCap(admit=2, park=3)
    fill(policy, [10] * 4)
    assert not policy.turn("s0", 10, 1)
    assert policy.turn("s1", 10, 1)
    assert drain(policy) == []
    policy.depart("s1", 2)
    policy.depart("s2", 2)
    assert drain(policy) == [(Action.RESUME, "s0")]
    never = SessionCap(admit=2, park=float("inf"))
    fill(never, [10] * 9)
    assert all(never.turn(f"s{i}", 10, 1) for i in range(9))


def test_adaptive_cap_follows_demand_per_session() -> None:
    policy = AdaptiveCap(CAPACITIES, alpha=0.5, output_tokens=0)
    fill(policy, [100] * 3)
    policy.turn("s0", 100, 1)
    assert (policy.admit, policy.park) == (7, 9)
    policy.turn("s1", 200, 1)
    assert (policy.admit, policy.park) == (5, 6)  # d̂ = 150
    policy.turn("s2", 10**6, 1)
    assert (policy.admit, policy.park) == (1, 1)


def test_latency_cap_halves_above_its_target_and_adds_one_otherwise() -> None:
    policy = LatencyCap(initial=32)
    fill(policy, [10] * 3)
    caps = []
    for latencies in ([1, 20, 30], [1, 2, 30], []):
        for i, latency in enumerate(latencies):
            policy.turn(f"s{i}", 10, 0.0)
            policy.call_done(f"s{i}", 10, float(latency))
        policy.observe(Signals(), 30)
        caps.append(policy.admit)
    assert caps == [16, 17, 17]
    assert policy.interval_s == 10


def test_the_actuator_alone_has_no_limit() -> None:
    with pytest.raises(NotImplementedError):
        TurnBoundary().must_park()
