"""Load ramps: how many sessions each step lets in, and the profile that their records give."""

import numpy as np
import pytest

from artifact.control.profile import reference_hit_rate
from artifact.records.schema import Records
from artifact.workload.load import Load
from artifact.workload.trajectory import Trajectory
from hw_runs.experiment import RAMP_POLICY, Ramp, load_experiment, runs_of
from hw_runs.ramp import ladder, populations, profile_of, steps_of, supply
from sim.profile import STEPS
from sim.scenario import PolicyChoice

PART = Ramp(deployment="any", steps=(0.5, 1.0, 1.8, 2.6, 3.0), settle_s=10, measure_s=20)
FLAT = [Trajectory(f"s{i}", (1000, 1000), (1000, 0), (8, 8), (0.0, 0.0)) for i in range(3)]
CALLS = 4
KAPPA = 0.8


def test_steps_fill_the_cache_as_the_simulators_do():
    """Contexts of 1,000 tokens, a cache of 10,000: the steps' multiples of ten sessions."""
    counts = populations(PART, FLAT, lambda t, first: 60.0, 10_000)
    assert counts == [5, 10, 18, 26, 30]
    assert Ramp(deployment="x").steps == STEPS
    offered = supply(Load(rate_per_min=1, duration_s=100), counts, FLAT, lambda t, first: 60.0)
    assert offered.rate_per_min == pytest.approx(1.5 * 30) and offered.warm_sessions == 5


def test_the_gateway_lets_in_more_step_by_step_and_parks_nobody_inside():
    switches = ladder(PART, PolicyChoice(name=RAMP_POLICY), [5, 10])
    assert [(s.at_s, s.options["admit"]) for s in switches] == [(0, 5), (30, 10)]
    assert all(s.policy == "session-cap" and s.options["park"] > 1e6 for s in switches)
    ((run, *_), _) = runs_of(load_experiment("ramp-h200"))
    assert run.policy == RAMP_POLICY and run.scenario.load.duration_s == 1800 * len(STEPS)


def ramped(scale=1.0):
    """Counters whose rates lie on the reference curve at each step; departures rise, and fall beyond the cliff."""
    samples, prompt, cached, done = [], 0.0, 0.0, 0.0
    departures = (1.0, 2.0, 3.0, 1.0, 0.5)
    for t in range(30 * len(PART.steps)):
        step = t // 30
        w = PART.steps[step]
        hit = float(reference_hit_rate(np.array(w / KAPPA)))
        samples.append((float(t), 5, 0, 0, 0, round(10_000 * w), round(prompt), round(cached), 0, round(done),
                        *([0] * 3), *([None] * 9)))  # fmt: skip
        prompt, cached, done = prompt + 1e6, cached + 1e6 * hit, done + scale * departures[step] * CALLS / 60 * 1000
    sessions = [("s", "base", "t", 0.0, 0.0, 0.0, None, "unfinished", CALLS * 1000, 0, 1000, 1.0, 0, None)]
    capacity = {"prefill_cache_tokens": 10_000, "host_cache_tokens": 0, "decode_kv_tokens": 10_000}
    return Records.from_rows([], sessions, samples, {"duration_s": float(len(samples)), "capacity": capacity})


def test_steps_are_means_over_what_has_settled_and_end_beyond_the_cliff():
    steps = steps_of(ramped(), PART)
    assert [step.working_set_tokens for step in steps] == [5000, 10_000, 18_000, 26_000], "two collapsed"
    assert [step.departures_per_min for step in steps] == pytest.approx([1, 2, 3, 1], rel=0.01)
    assert steps[0].hit_rate > 0.9 and steps[-1].hit_rate < 0.4


def test_the_profile_has_the_cliff_and_the_highest_departures():
    profile = profile_of([ramped(), ramped(1.2), ramped(0.9)], PART)
    assert profile.kappa == pytest.approx(KAPPA, rel=0.05)
    assert profile.critical_rate_per_min == pytest.approx(1.2 * 3.0, rel=0.01), "of the fastest ramp"
