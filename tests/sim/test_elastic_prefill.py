"""Elastic prefill on decode by hand: a lease of 16 tokens a step on an engine of round numbers."""

from dataclasses import dataclass

import numpy as np
import pytest
from engine_rig import Rig, assert_idle, call, session

from artifact.control.policy import PrefillLease
from artifact.metrics import column
from artifact.workload.load import Load, Surge
from sim.engine.call import EngineCall
from sim.run import run
from sim.scenario import Deployment, EndGroup, PolicyChoice, Scenario


@dataclass
class Fixed(PrefillLease):
    """Grants so many tokens from `from_s` on and writes down the steps."""

    tokens: int = 16
    chunk_charge_s: float = 0.0
    from_s: float = 0.0

    def __post_init__(self) -> None:
        self.steps: list[float] = []

    def prefill_tokens(self, decode_step_s: float, prefill_token_s: float, now: float) -> int:
        return self.tokens if now >= self.from_s else 0

    def step_done(self, step_s: float, now: float) -> None:
        self.steps.append(step_s)


def leasing(lease: Fixed) -> Rig:
    rig = Rig()
    rig.engine.lend_compute(lambda instance: lease)
    rig.submit(call("busy", 640))  # keeps prefill busy, so that the next call is placed on decode
    return rig


@pytest.mark.parametrize("charge", [0.0, 0.25])
def test_a_call_placed_on_decode_is_computed_in_mixed_steps(charge: float) -> None:
    """32 tokens after the prefix's transfer of 0.5 s, in two steps: fixed 0.125 s, the charge, 16 tokens at 1/64 s,
    and 16 x 8 and 16 x 24 positions at 1/4096 s."""
    lease = Fixed(chunk_charge_s=charge)
    rig = leasing(lease)
    a = rig.submit(call("a", 32))
    rig.run(until=5.0)
    first, second = 0.125 + charge + 0.25 + 128 / 4096, 0.125 + charge + 0.25 + 384 / 4096
    assert lease.steps == [first, second]
    assert rig.first_token["a"] == 0.5 + first + second
    assert (a.elastic, a.cached, a.scheduled) == (True, 0, 0.5)
    assert rig.prefill.cache.peek("a") == 0, "what decode computed, prefill does not have"


def test_the_chunk_slows_the_requests_that_decode() -> None:
    """b decodes 9 steps of 0.25 s alone; with two mixed steps among them it ends later by what the chunks add."""
    alone, mixed = Rig(), Rig()
    lease = Fixed()
    mixed.engine.lend_compute(lambda instance: lease)
    for rig in (alone, mixed):
        rig.submit(call("b", 16, output=10))
        rig.run(until=2.0)
        rig.submit(call("busy", 640))
        rig.submit(call("a", 32))
        rig.run(until=8.0)
    added = 2 * 0.25 + (128 + 384) / 4096
    assert len(lease.steps) == 2
    assert mixed.finished["b"] - alone.finished["b"] == pytest.approx(added)


def test_the_prefix_that_prefill_holds_is_read_not_computed() -> None:
    rig = Rig()
    a = session("a", 64, 80)
    rig.submit(EngineCall(a, 0, 0.0))
    rig.run()
    lease = Fixed()
    rig.engine.lend_compute(lambda instance: lease)
    rig.submit(call("busy", 640))
    second = rig.submit(EngineCall(a, 1, rig.env.now))
    rig.run()
    assert (second.elastic, second.cached, len(lease.steps)) == (True, 64, 1)
    assert rig.engine.occupancy().cached_tokens == 64


def test_a_lease_that_grants_nothing_leaves_calls_to_prefill_and_resumes_those_it_has() -> None:
    closed = leasing(Fixed(from_s=1e9))
    a = closed.submit(call("a", 32))
    closed.run()
    assert not a.elastic
    lease = Fixed()
    rig = leasing(lease)
    b = rig.submit(call("b", 32))
    lease.from_s = 3.0
    rig.run()
    assert b.elastic
    assert 3.0 < rig.first_token["b"] < 3.0 + 0.1 + 2.0


def test_closing_the_leases_finishes_what_was_placed() -> None:
    rig = leasing(Fixed())
    a = rig.submit(call("a", 32))
    rig.engine.lend_compute(lambda instance: None)
    b = rig.submit(call("b", 32))
    rig.run()
    assert (a.elastic, b.elastic) == (True, False)
    assert rig.finished.keys() == {"busy", "a", "b"}
    assert_idle(rig.engine)


@pytest.mark.parametrize("at_s", [0.2, 0.6, 1.0])
def test_an_aborted_call_gives_everything_back(at_s: float) -> None:
    """While its prefix moves, while it waits behind another, and in a mixed step."""
    rig = leasing(Fixed())
    a, b = rig.submit(call("a", 64)), rig.submit(call("b", 32))
    rig.submit(call("busy2", 64))
    rig.at(at_s, rig.engine.abort, a)
    rig.at(at_s, rig.engine.abort, b)
    rig.run()
    assert not {"a", "b"} & rig.finished.keys()
    assert_idle(rig.engine)


def test_a_run_under_crossflow_conserves_calls_and_ends_its_bursts_cleanly() -> None:
    load = Load(rate_per_min=2, duration_s=900, surges=(Surge(start_s=60, end_s=400, factor=8),))
    scenario = Scenario(
        deployment=Deployment(calibration="h100"),
        load=load,
        policy=PolicyChoice(name="crossflow"),
        end_group=EndGroup(at_s=500, group="surge"),
    )
    records = run(scenario)
    calls = records.calls.to_pandas()
    assert np.isnan(column(records.calls, "prefill_instance")).any()
    assert not calls.duplicated(["session_id", "call_index"]).any()
    done = calls.dropna(subset="finished_s")
    assert (done["released_s"] <= done["scheduled_s"]).all()
    assert (done["scheduled_s"] <= done["first_token_s"]).all()
    assert (done["first_token_s"] <= done["finished_s"]).all()
    assert (calls["cached_tokens"].dropna() < calls["prompt_tokens"][calls["cached_tokens"].notna()]).all()
