"""Prefixes pinned over tool gaps, by hand."""

import pytest
from engine_rig import Rig, call, session

from sim.engine.call import EngineCall


def served(rig: Rig, id: str, *prompts: int) -> EngineCall:
    """The first call of a session, finished."""
    first = rig.submit(EngineCall(session(id, *prompts), 0, rig.env.now))
    rig.run()
    return first


def test_a_pinned_prefix_outlives_a_fresher_one() -> None:
    """Cache of 1,000: a (400) and b (400) are cached, c needs 600. Without a pin a goes first, then some of b."""
    rig = Rig()
    a = served(rig, "a", 400)
    served(rig, "b", 400)
    rig.engine.hold(a, arrival_s=0.0, for_s=1000.0)
    rig.submit(call("c", 600))
    rig.run(until=rig.env.now + 200.0)
    assert (rig.prefill.cache.peek("a"), rig.prefill.cache.peek("b"), rig.prefill.cache.peek("c")) == (400, 0, 600)


def test_a_pin_ends_at_its_deadline_unless_the_next_call_already_waits() -> None:
    rig = Rig()
    a, b = served(rig, "a", 100, 120), served(rig, "b", 100)
    now = rig.env.now
    rig.engine.hold(a, 0.0, 5.0)
    rig.engine.hold(b, 0.0, 5.0)
    assert len(rig.engine.pins) == 2
    rig.submit(call("long", 600))  # busy for many steps, so that a's next call waits beyond the deadline
    second = rig.submit(EngineCall(a.session, 1, now), now + 4.0)
    rig.run(until=now + 6.0)
    assert len(rig.engine.pins) == 1
    rig.run()
    assert len(rig.engine.pins) == 0
    assert second.cached == 100


def test_the_end_of_a_session_ends_its_pin() -> None:
    rig = Rig()
    a = served(rig, "a", 100)
    rig.engine.hold(a, 0.0, 1000.0)
    rig.engine.forget(a.session)
    assert len(rig.engine.pins) == 0
    assert rig.prefill.cache.lines["a"].pins == 0


def test_pins_never_block_the_engine_and_the_latest_arrived_goes_first() -> None:
    """All 1,000 tokens are pinned; a prompt of 300 needs one of the two lines."""
    rig = Rig()
    a, b = served(rig, "a", 500), served(rig, "b", 500)
    rig.engine.hold(a, arrival_s=7.0, for_s=1e6)
    rig.engine.hold(b, arrival_s=3.0, for_s=1e6)
    rig.submit(call("c", 300))
    rig.run(until=rig.env.now + 100.0)
    assert "c" in rig.finished
    assert (rig.prefill.cache.peek("a"), rig.prefill.cache.peek("b")) == (200, 500)


def test_nothing_is_pinned_of_a_line_that_is_gone() -> None:
    rig = Rig()
    a = served(rig, "a", 400)
    served(rig, "b", 1000)
    rig.engine.hold(a, 0.0, 10.0)
    assert len(rig.engine.pins) == 0


@pytest.mark.parametrize("for_s", [1.0, 1e6])
def test_pinned_and_unpinned_runs_leave_a_cache_that_adds_up(for_s: float) -> None:
    rig = Rig()
    for id in "abc":
        rig.engine.hold(served(rig, id, 300), 0.0, for_s)
    rig.submit(call("d", 900))
    rig.run(until=rig.env.now + 300.0)
    assert "d" in rig.finished
    assert rig.prefill.cache.used == sum(line.tokens for line in rig.prefill.cache.lines.values()) <= 1000
