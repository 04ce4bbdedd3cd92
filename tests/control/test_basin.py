"""Basin driven by hand: Algorithm 1 step by step on a toy engine of 1,000 cache tokens (B0 = 1,000)."""

import math
from dataclasses import replace

import pytest

from artifact.control.basin import Basin, Mechanisms
from artifact.control.capacity import Capacities
from artifact.control.parameters import BasinParameters
from artifact.control.peaks import Progress
from artifact.control.policy import Action, Decision, SessionFacts, Signals
from artifact.control.profile import DeploymentProfile

CAPACITIES = Capacities(prefill_cache_tokens=1000, decode_kv_tokens=2000)
PROFILE = DeploymentProfile(kappa=1.0, critical_rate_per_min=6.0)
HEALTHY = Signals(hit_rate=0.95, prefill_queue=0, decode_waiting=0, decode_kv_used_tokens=500, lent_tokens=0)
CONTEXT = 200


def basin(peak: float = 300, capacities: Capacities = CAPACITIES, **mechanisms) -> Basin:
    def predict(session: SessionFacts) -> float:
        return session.true_peak_tokens or peak

    return Basin(predict, PROFILE, capacities, BasinParameters(), Mechanisms(**mechanisms))


def facts(name: str, arrival: float = 0.0, peak: int | None = None, prompt: int = 50) -> SessionFacts:
    return SessionFacts(name, arrival, prompt, true_peak_tokens=peak)


def fill(policy: Basin, n: int, context: int = CONTEXT, now: float = 0.0) -> None:
    for i in range(n):
        policy.adopt(facts(f"in{i}", now - 100), context, now)
    policy.observe(HEALTHY, now)


def drain(policy: Basin, now: float) -> list[Decision]:
    return list(iter(lambda: policy.next(now), None))


def arrive(policy: Basin, name: str, now: float, **kw) -> None:
    policy.arrive(facts(name, now, **kw), now)


def test_everybody_enters_while_no_control_is_on() -> None:
    policy = basin()
    for i in range(20):
        arrive(policy, f"s{i}", float(i))
        assert drain(policy, i) == [Decision(Action.ADMIT, f"s{i}")]
    assert math.isinf(policy.state().budget_tokens)
    assert not policy.ordering() and not policy.lending()


def test_controls_engage_at_their_thresholds() -> None:
    """W = N x 200 against α_L B00 = 800, α_O B0 = 900 and B0 = 1,000."""
    seen = {}
    for n in (3, 4, 5):
        policy = basin()
        fill(policy, n)
        seen[n] = (policy.lending(), policy.ordering(), policy.state().admitting)
    assert seen == {3: (False, False, False), 4: (True, False, False), 5: (True, True, True)}
    policy = basin()
    fill(policy, 6, context=155)  # W = 930
    assert policy.ordering() and not policy.state().admitting


def test_idle_and_busy_interval() -> None:
    policy = basin()
    fill(policy, 1)
    assert policy.interval_s == 30
    policy.observe(replace(HEALTHY, prefill_queue=40), 30)
    assert policy.interval_s == 5


def test_budget_steps_up_once_an_interval_until_the_head_fits() -> None:
    policy = basin()
    fill(policy, 5)  # reserves 1,500; B = B0 = 1,000
    arrive(policy, "new", 1)
    assert drain(policy, 1) == []
    budgets = {}
    for t in range(5, 300, 5):
        policy.observe(HEALTHY, t)
        budgets[t] = policy.state().budget_tokens
        if decisions := drain(policy, t):
            break
    assert budgets[25] == 1000 and budgets[30] == 1100 and budgets[55] == 1100 and budgets[60] == 1200
    assert decisions == [Decision(Action.ADMIT, "new")]
    assert t == 240 and policy.state().budget_tokens == 1800  # 1,500 + 300


def test_admission_stays_on_between_release_and_activation() -> None:
    policy = basin()
    fill(policy, 5)
    policy.depart("in0", 1)  # W = 800 = α_R B0: no activation, and no release either
    for t in range(5, 1000, 5):
        policy.observe(HEALTHY, t)
    assert policy.state().admitting
    policy.depart("in1", 1000)
    for t in range(1000, 1125, 5):
        policy.observe(HEALTHY, t)
    assert not policy.state().admitting


def test_admission_releases_after_the_cooldown_and_reopens_gradually() -> None:
    policy = basin()
    fill(policy, 5)
    for name in ("x", "y", "z"):
        arrive(policy, name, 1, peak=900)
    for i in (0, 1):
        policy.depart(f"in{i}", 2)  # W = 600 < α_R B0 = 800
    admitting = {}
    for t in range(5, 400, 5):
        policy.observe(replace(HEALTHY, hit_rate=0.88), t)  # in the dead band: B holds while admission is on
        admitting[t] = (policy.state().admitting, policy.state().budget_tokens)
        if drain(policy, t):
            break
    assert admitting[120] == (True, 1000)
    assert admitting[125][0] is False  # clear since t = 5, cool-down 120 s
    # 900 reserved + 900 of the head need B = 1,800: eight reopening steps, the first at the next whole interval
    assert policy.state().budget_tokens == 1800
    for name in ("in2", "in3", "in4"):
        policy.depart(name, t)
    policy.observe(HEALTHY, t + 5)
    assert len(drain(policy, t + 5)) == 1
    for later in range(t + 10, t + 700, 30):
        policy.observe(HEALTHY, later)
        drain(policy, later)
    assert policy.state().parked == 0
    policy.observe(HEALTHY, t + 730)
    assert math.isinf(policy.state().budget_tokens)


def test_the_head_blocks_and_progress_is_made_on_an_empty_engine() -> None:
    policy = basin(admission="always")
    arrive(policy, "huge", 0, peak=50_000)
    assert drain(policy, 0) == [Decision(Action.ADMIT, "huge")]
    arrive(policy, "late", 1, peak=10)
    assert drain(policy, 1) == []
    policy.depart("huge", 2)
    assert drain(policy, 2) == [Decision(Action.ADMIT, "late")]


def test_parked_sessions_go_by_arrival_plus_predicted_peak_over_r() -> None:
    policy = basin(admission="always")
    fill(policy, 8)
    arrive(policy, "large", 0, peak=900)  # p = 0 + 900/30 = 30
    arrive(policy, "small", 20, peak=60)  # p = 22, overtakes
    arrive(policy, "later", 29, peak=60)  # p = 31, does not
    for i in range(8):
        policy.depart(f"in{i}", 30)
    entered = [d.session_id for d in drain(policy, 30)]
    assert entered == ["small", "large"]  # 60 + 900 of 1,000; "later" still waits
    assert policy.order_key("large") == 30.0
    assert "parked first in line" in policy.explain("later")
    arrive(policy, "last", 31)
    assert policy.explain("last").startswith("parked: later is first in line")
    assert policy.explain("small").startswith("resident")


def test_first_prompt_and_adopted_context_bound_the_prediction_from_below() -> None:
    policy = basin(peak=10, admission="always")
    policy.adopt(facts("in", prompt=50), 700, 0)
    arrive(policy, "new", 0, prompt=400)
    assert drain(policy, 0) == []  # 700 + 400 > 1,000
    assert policy.order_key("new") == pytest.approx(400 / 30)


def test_shedding_takes_the_last_once_an_interval_under_persistent_excess() -> None:
    policy = basin(admission="always")
    fill(policy, 5, context=1000)  # holds 5,000 for ever
    now = 0.0
    for i in range(200):  # 12 a minute against λ_c = 6
        now = i * 5.0
        arrive(policy, f"s{i}", now)
        policy.observe(HEALTHY, now)
        decisions = drain(policy, now)
        if now <= 900:
            assert decisions == []
        if now > 900 and decisions:
            break
    assert decisions == [Decision(Action.SHED, f"s{i}")]  # equal peaks: the latest has the lowest priority
    shed = []
    for k in range(1, 13):
        policy.observe(HEALTHY, now + 5 * k)
        shed += drain(policy, now + 5 * k)
    assert len(shed) == 2  # two whole intervals of 30 s in a minute


def test_no_shedding_below_the_critical_rate() -> None:
    policy = basin(admission="always")
    fill(policy, 5, context=1000)
    for i in range(120):  # 3 a minute
        arrive(policy, f"s{i}", i * 20.0)
        policy.observe(HEALTHY, i * 20.0)
        assert drain(policy, i * 20.0) == []


def test_backlog_must_persist_before_it_orders() -> None:
    policy = basin()
    fill(policy, 1)
    busy = replace(HEALTHY, prefill_queue=40)
    policy.observe(busy, 30)
    policy.observe(busy, 55)
    assert not policy.ordering()
    policy.observe(busy, 60)
    assert policy.ordering()
    policy.observe(HEALTHY, 65)
    policy.observe(HEALTHY, 180)
    assert policy.ordering()  # cool-down
    policy.observe(HEALTHY, 185)
    assert not policy.ordering()


def test_wait_for_decode_memory_orders_and_stops_lending() -> None:
    policy = basin()
    fill(policy, 4)
    assert policy.lending()
    waiting = replace(HEALTHY, decode_waiting=3)
    policy.observe(waiting, 5)
    assert not policy.lending()
    policy.observe(waiting, 35)
    assert policy.ordering()
    policy.observe(HEALTHY, 40)
    assert policy.lending()


def test_lent_tokens_raise_the_bound_up_to_their_cap() -> None:
    policy = basin()
    fill(policy, 4)
    policy.observe(replace(HEALTHY, lent_tokens=400), 5)
    policy.observe(replace(HEALTHY, lent_tokens=800), 10)
    assert 1500 < policy.state().reference_budget_tokens < 1700  # averaged over Δ
    for t in range(15, 600, 5):
        policy.observe(replace(HEALTHY, lent_tokens=5000), t)
    assert policy.state().reference_budget_tokens == pytest.approx(2000)  # C_G + φ x 2,000
    backlog = replace(HEALTHY, lent_tokens=5000, prefill_queue=40)
    for t in (600, 640):
        policy.observe(backlog, t)
    assert policy.state().reference_budget_tokens == pytest.approx(2000)


def test_without_lent_capacity_in_the_bound_under_a_backlog() -> None:
    policy = basin(lent_under_backlog=False)
    fill(policy, 4)
    lent = replace(HEALTHY, lent_tokens=600)
    for t in range(5, 600, 5):
        policy.observe(lent, t)
    assert policy.state().reference_budget_tokens == pytest.approx(1600, rel=1e-3)
    for t in (600, 640):
        policy.observe(replace(lent, prefill_queue=40), t)
    assert policy.state().reference_budget_tokens == 1000


def test_activation_of_lending_looks_at_the_prefill_tiers_alone() -> None:
    """At W = 800 lending is on by α_L B00; however much is lent, B00 stays and so does lending."""
    policy = basin()
    fill(policy, 4)
    for t in range(5, 900, 5):
        policy.observe(replace(HEALTHY, lent_tokens=900), t)
    assert policy.lending()


def test_late_activation_adopts_a_trapped_population() -> None:
    policy = basin()
    for i in range(400):
        policy.adopt(facts(f"in{i}", arrival=i), 250, 2700)
    policy.observe(replace(HEALTHY, hit_rate=0.3, prefill_queue=350, decode_waiting=9), 2700)
    state = policy.state()
    assert (state.resident, state.working_set_tokens) == (400, 100_000)
    assert state.admitting and state.ordering and policy.interval_s == 5
    assert policy.order_key("in3") < policy.order_key("in4")
    arrive(policy, "new", 2701)
    assert drain(policy, 2701) == []
    for i in range(400):
        policy.depart(f"in{i}", 2702)
    assert drain(policy, 2702) == [Decision(Action.ADMIT, "new")]


def test_missing_telemetry_keeps_the_last_safe_bound() -> None:
    policy = basin()
    fill(policy, 5)
    arrive(policy, "new", 1)
    for t in range(5, 600, 5):
        policy.observe(Signals(), t)
    state = policy.state()
    assert state.admitting and state.budget_tokens == pytest.approx(2000)  # within its range of the last B0
    assert state.reference_budget_tokens == 1000


@pytest.mark.parametrize(
    ("mechanisms", "expected"),
    [
        ({}, (True, True, True)),
        ({"lending": False}, (False, True, True)),
        ({"engine_order": False}, (True, False, True)),
        ({"admission": "off"}, (True, True, False)),
        ({"engine_order": False, "admission": "off"}, (True, False, False)),
        ({"lending": False, "admission": "off"}, (False, True, False)),
    ],
)
def test_ablations_remove_one_mechanism_each(mechanisms: dict, expected: tuple[bool, bool, bool]) -> None:
    policy = basin(**mechanisms)
    fill(policy, 10)
    assert (policy.lending(), policy.ordering(), policy.state().admitting) == expected
    arrive(policy, "new", 1)
    assert bool(drain(policy, 1)) == (not expected[2])


def test_cliff_alone_bounds_beyond_the_memory() -> None:
    policy = basin(capacity_term=False)
    fill(policy, 5)
    assert policy.state().reference_budget_tokens == pytest.approx(1710)
    assert not policy.state().admitting


def test_prior_orders_by_arrival_and_counts_current_contexts() -> None:
    policy = basin(size_aware=False, demand="contexts", admission="always")
    fill(policy, 4)  # W = 800, a newcomer counts 200
    arrive(policy, "huge", 10, peak=50_000)
    arrive(policy, "tiny", 11, peak=1)
    assert drain(policy, 11) == [Decision(Action.ADMIT, "huge")]
    assert policy.order_key("tiny") == 11
    policy.depart("in0", 12)
    assert drain(policy, 12) == [Decision(Action.ADMIT, "tiny")]


def test_revised_peaks_change_reservations_but_never_the_priority() -> None:
    policy = Basin(
        lambda s: 900.0,
        PROFILE,
        CAPACITIES,
        mechanisms=Mechanisms(admission="always"),
        revise=lambda s, p: 2.0 * p.context_tokens,
    )
    arrive(policy, "first", 0)
    arrive(policy, "second", 0)
    assert drain(policy, 0) == [Decision(Action.ADMIT, "first")]
    policy.call_done("first", 60, 1)  # 120 now, so that 900 more do not fit yet
    assert drain(policy, 1) == []
    policy.call_done("first", 50, 2)  # 100
    assert drain(policy, 2) == [Decision(Action.ADMIT, "second")]
    assert policy.order_key("first") == 30.0
    for name in ("first", "second"):
        policy.depart(name, 3)
    arrive(policy, "third", 3, prompt=1000)
    assert drain(policy, 3) == [Decision(Action.ADMIT, "third")]


def test_a_shrunk_context_lowers_the_working_set() -> None:
    policy = basin()
    fill(policy, 4)
    for i in range(4):
        policy.call_done(f"in{i}", 20, 10)
    for t in range(10, 30_000, 30):
        policy.observe(HEALTHY, t)
    assert policy.state().working_set_tokens == pytest.approx(80, rel=0.05)


def test_departures_leave_nothing_behind() -> None:
    policy = basin(admission="always")
    fill(policy, 3)
    arrive(policy, "parked", 1, peak=900)
    assert drain(policy, 1) == []
    policy.depart("parked", 2)
    policy.depart("parked", 2)
    for i in range(3):
        policy.depart(f"in{i}", 3)
    state = policy.state()
    assert (state.resident, state.parked, state.working_set_tokens) == (0, 0, 0)
    assert policy.explain("parked") == "unknown session"
    with pytest.raises(KeyError):
        policy.order_key("parked")


def test_who_revises_hears_what_a_session_has_shown_since_it_came_in() -> None:
    heard: list[tuple[str, Progress]] = []

    def revise(session: SessionFacts, progress: Progress) -> float:
        heard.append((session.id, progress))
        return 100.0

    policy = Basin(lambda s: 100.0, PROFILE, CAPACITIES, revise=revise)
    policy.adopt(SessionFacts("old", 0, 10), 70, 0)
    arrive(policy, "new", 0, prompt=20)
    drain(policy, 0)
    policy.call_done("new", 25, 1)
    policy.call_done("old", 90, 2)
    policy.call_done("new", 60, 3)
    policy.call_done("new", 30, 4)  # compacted
    assert heard == [
        ("new", Progress(25, 1, 5)),
        ("old", Progress(90, 1, 20)),
        ("new", Progress(60, 2, 40)),
        ("new", Progress(30, 3, 10)),
    ]
