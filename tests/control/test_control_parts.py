"""The small parts of the controller, each against hand-computed values or a slow obvious counterpart."""

import math
import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifact.control.admission import CurrentContexts, PeakReservations, admits
from artifact.control.budget import Budget
from artifact.control.capacity import Capacities, cliff_bound, effective_capacity, reference_budget
from artifact.control.latch import Latch
from artifact.control.lending import DecodeMemory, has_spare_memory, may_adopt, reclaim_key, reclaim_tokens
from artifact.control.parameters import SENSITIVITY, BasinParameters, sensitivity_variants
from artifact.control.parked import ParkedQueue, priority
from artifact.control.peaks import PerturbedPeak, true_peak
from artifact.control.policy import SessionFacts, Signals
from artifact.control.profile import DeploymentProfile
from artifact.control.shedding import ArrivalRate, excess
from artifact.control.working_set import Smoothed, WorkingSet

P = BasinParameters()
PROFILE = DeploymentProfile(kappa=1.0, plateau=0.95, floor=0.27)


def facts(name: str, arrival: float = 0.0, prompt: int = 10, peak: int | None = None) -> SessionFacts:
    return SessionFacts(name, arrival, prompt, true_peak_tokens=peak)


# Parameters ----------------------------------------------------------------------------------------------------
def test_parameters_are_the_published_ones() -> None:
    """Paper A §6.6."""
    published = (P.interval_s, P.busy_interval_s, P.margin, P.alpha_lend, P.alpha_order, P.alpha_release)
    assert published == (30, 5, 0.9, 0.8, 0.9, 0.8)
    assert (P.lend_cap, P.shed_after_s, P.priority_tokens_per_s) == (0.5, 900, 30)


def test_sensitivity_varies_seventeen_parameters_both_ways() -> None:
    """34 variants times six scenarios are the paper's 204 pairs (§7.9)."""
    variants = dict(sensitivity_variants(P))
    assert len(variants) == 34
    assert set(variants.values()).isdisjoint({P})
    assert variants["budget_range:high"] == replace(P, budget_range=(0.25, 4.0))
    assert len(SENSITIVITY) == 8 + 9


@pytest.mark.parametrize(
    "wrong",
    [{"margin": 1.2}, {"lend_cap": 1.0}, {"interval_s": 0}, {"cooldown_s": -1}, {"budget_range": (1.1, 2.0)}],
)
def test_impossible_parameters_are_named(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        BasinParameters(**wrong)  # type: ignore[arg-type]


# Capacity ------------------------------------------------------------------------------------------------------
def test_budget_is_the_smaller_of_margin_below_cliff_and_capacity() -> None:
    assert reference_budget(1000, PROFILE, 0.9) == 1000  # 0.9 x 1.9 x 1000 = 1710 is beyond the memory
    assert reference_budget(1000, replace(PROFILE, kappa=0.5), 0.9) == pytest.approx(855)
    assert cliff_bound(1000, PROFILE, 0.9) == pytest.approx(1710)


def test_effective_capacity_takes_the_larger_of_host_tier_and_gpu_with_lent() -> None:
    gpu_only = Capacities(1000, 3000)
    assert effective_capacity(gpu_only, 0, 0.5) == 1000
    assert effective_capacity(gpu_only, 700, 0.5) == 1700
    assert effective_capacity(gpu_only, 9000, 0.5) == 2500  # at most half of decode memory
    host = Capacities(1000, 3000, 2000)
    assert effective_capacity(host, 700, 0.5) == 2000
    assert effective_capacity(host, 1400, 0.5) == 2400


def test_missing_readings_keep_the_last_capacities() -> None:
    before = Capacities(1000, 3000, 2000)
    assert before.updated(Signals()) == before
    assert before.updated(Signals(prefill_cache_capacity_tokens=500)) == Capacities(500, 3000, 2000)


# Time ----------------------------------------------------------------------------------------------------------
def test_latch_needs_persistence_to_close_and_cooldown_to_open() -> None:
    latch = Latch(persistence_s=30, cooldown_s=100)
    readings = [(0, True), (20, True), (30, True), (60, False), (150, True), (160, False), (250, False), (260, False)]
    assert [latch.update(on, t) for t, on in readings] == [False, False, True, True, True, True, True, False]


def test_latch_forgets_an_interrupted_backlog() -> None:
    latch = Latch(persistence_s=30, cooldown_s=0)
    assert not any(latch.update(on, t) for t, on in [(0, True), (25, False), (30, True), (55, True)])
    assert latch.update(True, 60)


def test_smoothed_is_the_time_average_at_first_and_forgets_later() -> None:
    short = Smoothed(1e9)
    for t, reading in [(0, 5.0), (10, 10.0), (30, 40.0)]:
        short.update(reading, t)
    assert short.value == pytest.approx((10 * 10 + 20 * 40) / 30, rel=1e-6)
    old = Smoothed(100)
    for t in range(0, 2000, 10):
        old.update(1.0, t)
    old.update(0.0, 1990 + 100)
    assert old.value == pytest.approx(math.exp(-1), rel=1e-3)


# Working set ---------------------------------------------------------------------------------------------------
def test_new_sessions_count_the_mean_context_at_once() -> None:
    ws = WorkingSet(1800)
    ws.enter("a", 100)
    ws.enter("b", 300)
    ws.observe(0)
    assert ws.tokens == 400
    ws.enter("c", 1)  # young, but counted for the mean of 200
    assert ws.tokens == 600
    ws.grow("a", 50)  # compaction
    ws.grow("unknown", 1000)
    ws.leave("b")
    ws.leave("b")
    ws.observe(5)
    assert ws.mean_tokens == pytest.approx(25.5)  # the first reading stood for no time at all
    ws.observe(10)
    assert len(ws) == 2


# Parked queue --------------------------------------------------------------------------------------------------
def test_priority_trades_tokens_for_seconds() -> None:
    assert priority(100, 6000, 30) == 300
    assert priority(300.001, 0, 30) > priority(100, 6000, 30)  # nobody overtakes after a + Ŵ/r


@given(st.lists(st.tuples(st.sampled_from(["push", "pop", "shed", "drop"]), st.integers(0, 5)), max_size=60))
def test_queue_agrees_with_a_sorted_list(script: list[tuple[str, int]]) -> None:
    queue, model = ParkedQueue(), []
    for i, (what, key) in enumerate(script):
        if what == "push":
            queue.push(facts(f"s{i}"), key, 1)
            model.append((key, i, f"s{i}"))
        elif model:
            model.sort()
            gone = {"pop": model[0], "shed": model[-1], "drop": model[key % len(model)]}[what]
            model.remove(gone)
            assert queue.remove(gone[2]) is not None
        model.sort()
        assert len(queue) == len(model)
        head, tail = queue.head(), queue.tail()
        assert (head.session.id if head else None) == (model[0][2] if model else None)
        assert (tail.session.id if tail else None) == (model[-1][2] if model else None)


def test_a_session_may_come_back_to_the_queue() -> None:
    queue = ParkedQueue()
    queue.push(facts("a"), 1, 1)
    queue.push(facts("b"), 2, 1)
    queue.remove("a")
    queue.push(facts("a"), 3, 1)
    assert queue.head().session.id == "b"
    assert queue.tail().priority == 3
    assert queue.remove("nobody") is None


# Admission -----------------------------------------------------------------------------------------------------
def test_peaks_are_reserved_from_entry_to_departure() -> None:
    demand = PeakReservations()
    demand.enter("a", 600)
    assert admits(demand, 400, 1000, residents=1)
    assert not admits(demand, 401, 1000, residents=1)
    demand.leave("a")
    demand.leave("a")
    assert demand.tokens() == 0
    assert admits(demand, 5000, 1000, residents=0)  # progress: an empty engine takes any head


def test_prototype_counts_current_contexts() -> None:
    ws = WorkingSet(1800)
    for name in "abc":
        ws.enter(name, 300)
    demand = CurrentContexts(ws)
    demand.enter("a", 9999)
    assert demand.tokens() == 900
    assert admits(demand, 9999, 1200, residents=3)
    assert not admits(demand, 1, 1199, residents=3)


# Budget --------------------------------------------------------------------------------------------------------
def test_budget_rises_on_the_plateau_only_with_sessions_parked() -> None:
    budget = Budget(P, PROFILE)
    budget.engage(1000)
    assert budget.tokens == 1000
    budget.step(1000, 0.93, demand=900, parked=True)
    assert budget.tokens == 1100
    budget.step(1000, 0.93, demand=900, parked=False)
    budget.step(1000, 0.88, demand=900, parked=True)  # between: neither healthy nor deteriorated
    budget.step(1000, None, demand=900, parked=True)
    assert budget.tokens == 1100


def test_budget_falls_from_what_residents_hold() -> None:
    budget = Budget(P, PROFILE)
    budget.engage(1000)
    budget.step(1000, 0.5, demand=1200, parked=True)  # residents exceed B: entry is shut already
    assert budget.tokens == 1000
    budget.step(1000, 0.5, demand=900, parked=True)
    assert budget.tokens == 800
    budget.step(1000, 0.5, demand=100, parked=True)
    assert budget.tokens == 500  # the lower end of the range


@given(
    st.lists(st.tuples(st.sampled_from(["engage", "step", "clamp"]), st.floats(0, 1), st.floats(0, 5000))),
    st.floats(100, 2000),
)
def test_budget_stays_in_its_range_whatever_happens(script: list[tuple[str, float, float]], reference: float) -> None:
    budget = Budget(P, PROFILE)
    budget.engage(reference)
    for what, hit, demand in script:
        if what == "engage":
            budget.engage(reference)
        elif what == "step":
            budget.step(reference, hit, demand, parked=True)
        else:
            budget.clamp(reference)
        assert 0.5 * reference <= budget.tokens <= 2 * reference


def test_budget_reopens_gradually_and_then_learns_the_plateau() -> None:
    budget = Budget(P, PROFILE)
    budget.engage(1000)
    budget.reopen(1000)
    assert budget.tokens == 1100
    budget.release(0.97, 0)
    assert math.isinf(budget.tokens)
    assert budget.plateau == 0.97
    for t in range(10, 100_000, 10):
        budget.release(0.2, t)
    assert budget.plateau == pytest.approx(0.61)  # never taken from a collapsed cache: half-way between the profile's


# Lending -------------------------------------------------------------------------------------------------------
def test_adoption_needs_headroom_cap_and_nobody_waiting() -> None:
    assert may_adopt(DecodeMemory(1000, 300, 0, 0), 100, P)
    assert not may_adopt(DecodeMemory(1000, 300, 1, 0), 100, P)
    assert may_adopt(DecodeMemory(1000, 0, 0, 400), 100, P)
    assert not may_adopt(DecodeMemory(1000, 0, 0, 400), 101, P)  # φ
    assert may_adopt(DecodeMemory(1000, 800, 0, 0), 100, P)
    assert not may_adopt(DecodeMemory(1000, 801, 0, 0), 100, P)  # a tenth stays free


def test_reclaim_starts_at_half_the_headroom_and_takes_what_is_missing() -> None:
    assert reclaim_tokens(DecodeMemory(1000, 600, 0, 350), P) == 0
    assert reclaim_tokens(DecodeMemory(1000, 620, 0, 350), P) == 20
    assert reclaim_tokens(DecodeMemory(1000, 620, 100, 350), P) == 120
    assert reclaim_tokens(DecodeMemory(1000, 900, 500, 100), P) == 100


@given(*[st.integers(0, 1000)] * 3)
def test_an_adopted_unit_is_not_reclaimed_at_once(active: int, lent: int, unit: int) -> None:
    if may_adopt(DecodeMemory(1000, active, 0, lent), unit, P):
        assert reclaim_tokens(DecodeMemory(1000, active, 0, lent + unit), P) == 0


def test_units_that_prefill_also_holds_go_first_then_lru() -> None:
    units = {"old": (False, 1.0), "new": (False, 9.0), "copy": (True, 10.0)}
    assert sorted(units, key=lambda u: reclaim_key(*units[u])) == ["copy", "old", "new"]


def test_spare_memory() -> None:
    assert has_spare_memory(0, 900, 1000, P)
    assert not has_spare_memory(0, 901, 1000, P)
    assert not has_spare_memory(1, 0, 1000, P)


# Shedding ------------------------------------------------------------------------------------------------------
def test_arrival_rate_is_unbiased_early_and_follows_later() -> None:
    rate = ArrivalRate(1800)
    assert rate.rate(10) == 0
    for t in range(0, 600, 10):
        rate.arrived(t)
    assert rate.rate(600) == pytest.approx(0.1, rel=0.02)
    for t in range(600, 20_000, 5):
        rate.arrived(t)
    assert rate.rate(20_000) == pytest.approx(0.2, rel=0.02)


def test_excess_needs_both_rate_and_wait() -> None:
    assert excess(0.4, 0.3, 901, 900)
    assert not excess(0.3, 0.3, 901, 900)
    assert not excess(0.4, 0.3, 900, 900)


# Peaks ---------------------------------------------------------------------------------------------------------
def test_perturbed_peaks_have_the_stated_error_and_are_the_same_in_every_run() -> None:
    peaks = PerturbedPeak(0.54, seed=1)
    errors = [math.log(peaks(facts(f"s{i}", peak=1000)) / 1000) for i in range(2000)]
    assert statistics.stdev(errors) == pytest.approx(0.54, rel=0.06)
    assert statistics.mean(errors) == pytest.approx(0, abs=0.04)
    assert peaks(facts("s7", peak=1000)) == PerturbedPeak(0.54, seed=1)(facts("s7", peak=1000))
    assert peaks(facts("s7", peak=1000)) != PerturbedPeak(0.54, seed=2)(facts("s7", peak=1000))
    assert PerturbedPeak(0, seed=1)(facts("s7", peak=1000)) == true_peak(facts("s7", peak=1000)) == 1000
    with pytest.raises(ValueError, match="true_peak_tokens"):
        true_peak(facts("a"))
    with pytest.raises(ValueError, match="negative"):
        PerturbedPeak(-1, 0)
