"""Cost of a fact, for each policy: what a 60,000-call simulation pays for control (`make bench`)."""

import time

import pytest

from artifact.baselines.registry import POLICIES, PolicyContext, make_policy
from artifact.control.capacity import Capacities
from artifact.control.peaks import Progress
from artifact.control.policy import SessionFacts, Signals
from artifact.control.profile import DeploymentProfile


class Constant:
    def __call__(self, session: SessionFacts) -> float:
        return 40_000.0

    def revise(self, session: SessionFacts, progress: Progress) -> float:
        return 40_000.0


CONTEXT = PolicyContext(
    capacities=Capacities(2_200_000, 9_900_000, 4_400_000),
    profile=DeploymentProfile(critical_rate_per_min=18.5),
    predict=lambda session: 40_000.0,
    revise=Constant().revise,
    growing=Constant(),
    reload_s=lambda tokens: tokens / 75_000,
)
CALLS = 20_000


def microseconds_a_fact(name: str) -> float:
    """100 sessions inside make calls in turn while 2,000 wait at the door; three facts and three drains a call."""
    policy = make_policy(name, CONTEXT)
    for i in range(100):
        policy.adopt(SessionFacts(f"in{i}", 0.0, 8_000, true_peak_tokens=40_000), 30_000, 0.0)
    for i in range(2_000):
        policy.arrive(SessionFacts(f"at{i}", i / 100, 8_000, true_peak_tokens=40_000), i / 100)
    reading = Signals(hit_rate=0.9, prefill_queue=3, decode_waiting=0, decode_kv_used_tokens=4_000_000)
    policy.observe(reading, 20.0)
    inside = [f"in{i}" for i in range(100)]
    began = time.process_time()
    for call in range(CALLS):
        now = 21.0 + call * 0.1
        name_of = inside[call % 100]
        if policy.turn(name_of, 30_000, now):
            policy.order_key(name_of)
            policy.started(name_of, 0.1, 29_000, now)
            policy.call_done(name_of, 30_000 + call % 97, now + 0.05)
            policy.pin_s(name_of, now + 0.05)
        policy.next(now)
        policy.next(now)
        if call % 50 == 0:
            policy.observe(reading, now)
            policy.state()
    return (time.process_time() - began) / (3 * CALLS) * 1e6


@pytest.mark.bench
@pytest.mark.parametrize("name", list(POLICIES))
def test_a_fact_costs_less_than_five_microseconds(name: str) -> None:
    cost = min(microseconds_a_fact(name) for _ in range(3))
    print(f"{name}: {cost:.2f} us a fact")
    assert cost < 5
