"""One event script and the invariants of the seam, for every policy in the registry."""

import inspect
import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from artifact.baselines.concur import Concur
from artifact.baselines.continuum import Continuum
from artifact.baselines.crossflow import Lease
from artifact.baselines.open_choices import OPEN_CHOICES, open_variants
from artifact.baselines.registry import POLICIES, PolicyContext, make_policy
from artifact.baselines.thunderagent import ThunderAgent
from artifact.control.basin import Basin
from artifact.control.capacity import Capacities
from artifact.control.parameters import BasinParameters
from artifact.control.peaks import Progress
from artifact.control.policy import Action, Decision, Policy, SessionFacts, Signals
from artifact.control.profile import DeploymentProfile

CAPACITIES = Capacities(prefill_cache_tokens=1000, decode_kv_tokens=2000)


class Twice:
    """Twice the first prompt at the door, then twice the context."""

    def __call__(self, session: SessionFacts) -> float:
        return 2.0 * session.first_prompt_tokens

    def revise(self, session: SessionFacts, progress: Progress) -> float:
        return 2.0 * progress.context_tokens


CONTEXT = PolicyContext(
    seed=1,
    capacities=CAPACITIES,
    profile=DeploymentProfile(kappa=1.0, critical_rate_per_min=6.0),
    predict=lambda session: 2.0 * session.first_prompt_tokens,
    revise=lambda session, progress: 1.5 * progress.context_tokens,
    growing=Twice(),
    reload_s=lambda tokens: tokens / 500,
)
NAMES = list(POLICIES)


class Host:
    """A host that carries out decisions at once and holds every policy to the contract of the seam."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.now = 0.0
        self.at_door: dict[str, SessionFacts] = {}
        self.inside: dict[str, int] = {}
        self.in_call: set[str] = set()
        self.suspended: set[str] = set()
        self.released: list[str] = []
        self.log: list[tuple[float, Action | str, str]] = []

    def arrive(self, name: str, prompt: int) -> None:
        self.at_door[name] = SessionFacts(name, self.now, prompt, true_peak_tokens=2 * prompt)
        self.policy.arrive(self.at_door[name], self.now)
        self.drain()

    def adopt(self, name: str, context: int) -> None:
        self.policy.adopt(SessionFacts(name, self.now, context, true_peak_tokens=2 * context), context, self.now)
        self.inside[name] = context
        self.drain()

    def turn(self, name: str) -> None:
        if self.policy.turn(name, self.inside[name], self.now):
            self._start(name)
        else:
            self.suspended.add(name)
            self.log.append((self.now, "suspend", name))
        self.drain()

    def done(self, name: str, context: int) -> None:
        self.in_call.remove(name)
        self.inside[name] = context
        self.policy.call_done(name, context, self.now)
        self.drain()

    def depart(self, name: str) -> None:
        """Whatever the exit: completed, abandoned at the door, cancelled in flight or while suspended."""
        for place in (self.at_door, self.inside):
            place.pop(name, None)
        self.in_call.discard(name)
        self.suspended.discard(name)
        self.policy.depart(name, self.now)
        self.drain()

    def observe(self, signals: Signals) -> None:
        self.policy.observe(signals, self.now)
        self.drain()

    def drain(self) -> None:
        for _ in range(1000):
            decision = self.policy.next(self.now)
            if decision is None:
                return self.check()
            self._carry_out(decision)
        raise AssertionError("next never came to an end")

    def _carry_out(self, decision: Decision) -> None:
        action, name = decision
        self.log.append((self.now, action, name))
        if action is Action.RESUME:
            self.suspended.remove(name)  # KeyError: resumed what was not suspended
            return self._start(name)
        session = self.at_door.pop(name)  # KeyError: let in or shed twice
        if action is Action.ADMIT:
            assert name not in self.released
            self.released.append(name)
            self.inside[name] = session.first_prompt_tokens
            self._start(name)
        else:
            self.policy.depart(name, self.now)

    def _start(self, name: str) -> None:
        assert name not in self.in_call
        self.in_call.add(name)
        self.policy.started(name, 0.1, 0, self.now)
        if self.policy.ordering():
            assert math.isfinite(self.policy.order_key(name))
        assert self.policy.pin_s(name, self.now) >= 0

    def check(self) -> None:
        state = self.policy.state()
        active = len(self.inside) - len(self.suspended)
        if not isinstance(self.policy, Basin) and state.resident != active:
            # ThunderAgent counts a session paused while idle neither as resident nor as waiting.
            assert state.resident <= active
        else:
            assert state.resident == active
        assert (state.parked, state.suspended) == (len(self.at_door), len(self.suspended))
        if not self.inside:
            assert not self.at_door, "nobody is inside, so the head must enter"
        elif not active:
            raise AssertionError("all inside are suspended and nobody proceeds")
        for name in [*self.at_door, *self.inside]:
            assert self.policy.explain(name) not in ("", "unknown session")


def busy(used: int, hit: float, lent: int = 0) -> Signals:
    return Signals(
        hit_rate=hit,
        prefill_queue=10,
        decode_waiting=0,
        decode_kv_used_tokens=used,
        decode_kv_capacity_tokens=2000,
        prefill_cache_capacity_tokens=1000,
        host_cache_capacity_tokens=0,
        lent_tokens=lent,
    )


def script(host: Host) -> None:
    """Four sessions of 200 tokens inside; five of 300 come at the door; reuse is healthy, then two leave."""
    for i in range(4):
        host.adopt(f"in{i}", 200)
    for step in range(5):
        host.now = 1.0 + step
        host.arrive(f"new{step}", 300)
    host.now = 30
    host.observe(busy(1200, 0.95))
    for step in range(4):
        host.now = 31.0 + step
        host.turn(f"in{step}")
        if f"in{step}" in host.in_call:
            host.done(f"in{step}", 250)
    host.now = 40
    host.depart("in0")
    host.depart("in1")
    host.now = 60
    host.observe(busy(1200, 0.95))


ALL = [f"new{i}" for i in range(5)]
LET_IN = {
    # W = N c̄ is judged only every Δ: all enter before the first judgement
    **{name: ALL for name in NAMES if name.startswith("basin")},
    # reservations of 4 x 400 already exceed B = 1,000, and still do after two departures
    "basin-always-on": [],
    "hicache": ALL,
    "continuum": ALL,
    "crossflow": ALL,
    "concur": ALL,  # window 16
    # 1,000 - 4 x 200 leaves no room for 300 + 100; after two departures 1,000 - 2 x 250 does for one
    "thunderagent": ["new0"],
    "thunderagent-router": ["new0"],
    "composition": ["new0"],
    # 4 x (200 + 1,024) exceed 750 with the default output budget, and so do two
    "budgeter": [],
    "session-cap": ALL,
    # no demand is known before the first turn, so no cap either
    "adaptive-cap": ALL,
    "latency-aimd": ALL,
    "admission-only": ALL,
}
SUSPENDED = {
    "budgeter": ["in0", "in1", "in2"],  # far beyond 950; the last one inside goes on
    "adaptive-cap": ["in0", "in1", "in2", "in3"],  # 950 / 1,224 makes a cap of one, and nine are inside
}


@pytest.mark.parametrize("name", NAMES)
def test_the_same_script_gives_each_policy_its_own_decisions(name: str) -> None:
    host = Host(make_policy(name, CONTEXT))
    script(host)
    assert host.released == LET_IN[name]
    assert [who for _, what, who in host.log if what == "suspend"] == SUSPENDED.get(name, [])


@pytest.mark.parametrize("name", NAMES)
def test_the_same_facts_give_the_same_decisions(name: str) -> None:
    logs = []
    for _ in range(2):
        host = Host(make_policy(name, CONTEXT))
        script(host)
        logs.append(host.log)
    assert logs[0] == logs[1]


EVENT = st.tuples(
    st.sampled_from(["arrive", "arrive", "adopt", "turn", "turn", "done", "done", "depart", "observe", "wait"]),
    st.integers(0, 10**6),
)


def play(host: Host, events: list[tuple[str, int]], look: Callable[[Host], None] = lambda host: None) -> Host:
    """Turn random numbers into facts that a correct host could report."""
    for i, (what, number) in enumerate(events):
        host.now += 0.5
        idle = sorted(set(host.inside) - host.in_call - host.suspended)
        calling = sorted(host.in_call)
        known = sorted([*host.at_door, *host.inside])
        if what == "arrive":
            host.arrive(f"s{i}", 1 + number % 900)
        elif what == "adopt" and i < 10:
            host.adopt(f"s{i}", 1 + number % 900)
        elif what == "turn" and idle:
            host.turn(idle[number % len(idle)])
        elif what == "done" and calling:
            name = calling[number % len(calling)]
            host.done(name, max(host.inside[name] + number % 400 - 100, 1))
        elif what == "depart" and known:
            host.depart(known[number % len(known)])
        elif what == "observe":
            host.observe(busy(number % 2000, number % 101 / 100, number % 1500) if number % 7 else Signals())
        elif what == "wait":
            host.now += number % 2000
        look(host)
    return host


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15, deadline=None)
@given(events=st.lists(EVENT, max_size=80))
def test_every_admission_is_released_exactly_once_and_nothing_is_left(name: str, events: list[tuple[str, int]]) -> None:
    host = play(Host(make_policy(name, CONTEXT)), events)
    for session in [*host.at_door, *host.inside]:
        if session in host.at_door or session in host.inside:
            host.depart(session)
    while host.at_door or host.inside:
        host.depart(next(iter([*host.at_door, *host.inside])))
    state = host.policy.state()
    assert (state.resident, state.parked, state.suspended) == (0, 0, 0)
    assert not state.working_set_tokens
    # what a policy still held of departed sessions would now bar a session of ordinary size
    host.arrive("after", 100)
    host.arrive("all", 100)
    assert "after" in host.inside


@pytest.mark.parametrize("name", ["thunderagent", "thunderagent-router", "composition"])
@settings(max_examples=30, deadline=None)
@given(events=st.lists(EVENT, max_size=80))
def test_thunderagent_holds_exactly_the_footprints_of_the_unpaused(name: str, events: list[tuple[str, int]]) -> None:
    host = play(Host(make_policy(name, CONTEXT)), events)
    for session in list(host.inside):
        host.depart(session)
    while host.at_door or host.inside:
        host.depart(next(iter([*host.at_door, *host.inside])))
    assert host.policy.room_tokens == 1000  # type: ignore[attr-defined]


@settings(max_examples=40, deadline=None)
@given(events=st.lists(EVENT, max_size=120))
def test_basin_budget_stays_in_its_range_while_admission_is_on(events: list[tuple[str, int]]) -> None:
    p = BasinParameters()

    def look(host: Host) -> None:
        state = host.policy.state()
        if state.admitting:
            low, high = (share * state.reference_budget_tokens for share in p.budget_range)
            assert low <= state.budget_tokens <= high

    play(Host(make_policy("basin-always-on", CONTEXT)), events, look)
    play(Host(make_policy("basin", CONTEXT)), events, look)


@settings(max_examples=40, deadline=None)
@given(events=st.lists(EVENT, max_size=120))
def test_basin_lets_nobody_overtake_beyond_a_plus_w_over_r(events: list[tuple[str, int]]) -> None:
    r = BasinParameters().priority_tokens_per_s
    arrivals: dict[str, SessionFacts] = {}

    def look(host: Host) -> None:
        arrivals.update(host.at_door)
        for name in host.at_door:
            bar = host.at_door[name].arrival_s + 2 * host.at_door[name].first_prompt_tokens / r
            for when, action, other in host.log:
                if action is Action.ADMIT and when > bar and other in arrivals:
                    assert arrivals[other].arrival_s <= bar

    play(Host(make_policy("basin-always-on", CONTEXT)), events, look)


@settings(max_examples=40, deadline=None)
@given(events=st.lists(EVENT, max_size=120))
def test_basin_reserves_no_more_than_the_budget_when_it_admits(events: list[tuple[str, int]]) -> None:
    """Whoever enters while others are inside fits: Σ Ŵ of residents stays within B at that moment."""
    peaks: dict[str, float] = {}

    class Checked(Host):
        def _carry_out(self, decision: Decision) -> None:
            others = set(self.inside)
            if decision.action is Action.ADMIT:
                session = self.at_door[decision.session_id]
                peaks[session.id] = 2.0 * session.first_prompt_tokens
                if others:
                    held = sum(peaks[name] for name in others) + peaks[session.id]
                    assert held <= self.policy.state().budget_tokens + 1e-6
            super()._carry_out(decision)

        def adopt(self, name: str, context: int) -> None:
            peaks[name] = 2.0 * context
            super().adopt(name, context)

    play(Checked(make_policy("basin-always-on", CONTEXT)), events)


def test_registry_names_what_is_wrong() -> None:
    with pytest.raises(ValueError, match=r"no policy 'basil'; there are hicache, concur"):
        make_policy("basil", CONTEXT)
    with pytest.raises(ValueError, match=r"'concur'.*hit_treshold"):
        make_policy("concur", PolicyContext(parameters={"hit_treshold": 0.2}))
    with pytest.raises(ValueError, match=r"'basin'.*unknown parameters r_value"):
        make_policy("basin", PolicyContext(**{**CONTEXT.__dict__, "parameters": {"r_value": 1}}))
    with pytest.raises(ValueError, match=r"'basin': needs predict"):
        make_policy("basin", PolicyContext())
    with pytest.raises(ValueError, match=r"'thunderagent': needs capacities"):
        make_policy("thunderagent", PolicyContext())
    with pytest.raises(ValueError, match=r"'basin'.*margin"):
        make_policy("basin", PolicyContext(**{**CONTEXT.__dict__, "parameters": {"margin": 2}}))


def test_parameters_reach_the_policy() -> None:
    def build(name: str, **parameters) -> Policy:
        return make_policy(name, PolicyContext(**{**CONTEXT.__dict__, "parameters": parameters}))

    basin = build("basin", budget_range=[0.25, 4], cliff_scale=0.25)
    assert isinstance(basin, Basin)
    assert basin.parameters.budget_range == (0.25, 4)
    assert basin.state().reference_budget_tokens == pytest.approx(0.9 * 1.9 * 0.25 * 1000)
    assert build("concur", hit_threshold=0.2).hit_threshold == 0.2  # type: ignore[attr-defined]
    session = SessionFacts("a", 0.0, 10, true_peak_tokens=600)
    exact = build("basin-true-peaks")
    exact.arrive(session, 0)
    assert exact.order_key("a") == 600 / 30
    noisy = build("basin-perturbed-peaks", sigma=1.0)
    noisy.arrive(session, 0)
    assert noisy.order_key("a") != 600 / 30


@pytest.mark.parametrize(
    ("name", "where"),
    [("concur", Concur), ("thunderagent", ThunderAgent), ("continuum", Continuum), ("crossflow", Lease)],
)
def test_open_choices_are_parameters_and_not_their_defaults(name: str, where: type) -> None:
    defaults = inspect.signature(where).parameters
    assert set(OPEN_CHOICES[name]) <= set(defaults)
    for label, parameters in open_variants(name):
        make_policy(name, PolicyContext(**{**CONTEXT.__dict__, "parameters": parameters}))
        assert all(defaults[field].default != value for field, value in parameters.items()), label
    assert list(open_variants("hicache")) == []
