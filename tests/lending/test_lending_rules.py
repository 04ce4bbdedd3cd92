"""The plain decisions of lending, ordering and pins: no engine, no torch."""

import itertools
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from artifact.control.lending import DecodeMemory
from artifact.lending import hints, order
from artifact.lending.fetches import FetchTable
from artifact.lending.index import Lent, UnitIndex, prefix_digest
from artifact.lending.pins import Pin, PinTable
from artifact.lending.settings import Settings, parse
from artifact.lending.units import Unit, UnitTable

RULES = Settings(phi=0.5, headroom=0.1).rules


def memory(active=100, queued=0, lent=0):
    return DecodeMemory(1000, active, queued, lent)


def table(*units):
    return UnitTable({u.id: u for u in units})


def unit(id, tokens=100, on_prefill=False, used_s=0.0, session=None):
    return Unit(id, session or f"s{id}", tokens, b"", on_prefill=on_prefill, used_s=used_s)


def test_importing_the_package_imports_no_engine():
    code = (
        "import artifact.lending, artifact.lending.plugin, sys; print('sglang' in sys.modules, 'torch' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["False", "False"]


# Headroom, cap, order of reclaiming (paper A §6.2) ------------------------------------------------------------
@pytest.mark.parametrize(
    ("tokens", "reading", "allowed"),
    [
        (100, memory(), True),
        (100, memory(queued=1), False),
        (100, memory(active=801), False),  # 99 would stay spare, 100 are wanted
        (100, memory(active=800), True),
        (501, memory(), False),  # the cap
    ],
)
def test_adoption(tokens, reading, allowed):
    assert table().adoption("new", tokens, reading, RULES) == ([] if allowed else None)


def test_at_the_cap_adoption_gives_back_just_enough_others():
    units = table(unit(1, 200), unit(2, 200, used_s=1))
    full = memory(active=0, lent=400)
    assert units.adoption("new", 100, full, RULES) == []
    assert [u.id for u in units.adoption("new", 101, full, RULES)] == [1]
    assert [u.id for u in units.adoption("new", 400, full, RULES)] == [1, 2]


def test_a_session_has_one_unit_and_its_earlier_one_makes_room_first():
    units = table(unit(1, 300), unit(2, 200, used_s=1))
    full = memory(active=0, lent=500)
    assert [u.id for u in units.adoption("s2", 200, full, RULES)] == [2]
    assert [u.id for u in units.adoption("s2", 201, full, RULES)] == [2, 1]


def test_room_made_at_the_cap_counts_as_spare_but_no_unit_goes_for_headroom_alone():
    units = table(unit(1, 300))
    assert units.adoption("new", 100, memory(active=550, lent=300), RULES) is None
    assert [u.id for u in units.adoption("new", 300, memory(active=400, lent=300), RULES)] == [1]


def test_reclaiming_begins_at_half_the_margin_of_adoption():
    units = table(unit(1), unit(2))
    between = memory(active=720, lent=200)  # 80 spare
    assert units.adoption("new", 10, between, RULES) is None and units.short(between, RULES) == []
    assert [u.id for u in units.short(memory(active=751, lent=200), RULES)] == [1]
    assert [u.id for u in units.short(memory(active=800, queued=60, lent=200), RULES)] == [1, 2]


def test_units_also_on_prefill_go_first_then_the_least_recently_used():
    units = table(unit(1, used_s=5), unit(2, used_s=1), unit(3, on_prefill=True, used_s=9), unit(4, used_s=3))
    assert [u.id for u in units.reclaim_order()] == [3, 2, 4, 1]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 400), st.booleans(), st.floats(0, 9)), max_size=8),
    st.integers(0, 1000),
    st.integers(0, 1500),
)
def test_reclaiming_covers_the_shortage_or_takes_all_and_never_more_than_needed(sizes, active, queued):
    units = table(*(unit(i, n, held, used) for i, (n, held, used) in enumerate(sizes)))
    reading = memory(active=active, queued=queued, lent=units.lent_tokens)
    given_back = units.short(reading, RULES)
    shortage = 50 - reading.spare_tokens
    assert given_back == units.reclaim_order()[: len(given_back)]
    assert sum(u.tokens for u in given_back) >= shortage or len(given_back) == len(sizes)
    assert not given_back or sum(u.tokens for u in given_back[:-1]) < shortage


# The index on prefill -----------------------------------------------------------------------------------------
PROMPT = list(range(1000, 1100))


def lent(tokens=80, peer="d0", number=1, session="a", prompt=PROMPT):
    return Lent(peer, number, session, tokens, prefix_digest(prompt, tokens))


def test_a_unit_is_worth_fetching_only_where_it_extends_the_local_match():
    index = UnitIndex()
    index.announce(lent())
    assert index.better("a", "r", PROMPT, 0, 32).unit == 1
    assert index.better("a", "r", PROMPT, 48, 32).unit == 1
    assert index.better("a", "r", PROMPT, 49, 32) is None
    assert index.better("b", "r", PROMPT, 0, 32) is None
    assert index.better("a", "r2", PROMPT[:79], 0, 32) is None, "the unit is longer than the prompt"
    assert index.better("a", "r3", [7, *PROMPT[1:]], 0, 32) is None, "another context of the same session"


def test_only_the_latest_unit_of_a_session_is_known():
    index = UnitIndex()
    assert index.announce(lent()) is None
    assert index.announce(lent(90, number=2)) is None, "same instance: it has replaced its own"
    stale = index.announce(lent(95, peer="d1"))
    assert (stale.peer, stale.unit) == ("d0", 2)
    index.forget("d0", 2)
    assert index.better("a", "r", PROMPT, 0, 1).peer == "d1"
    index.forget("d1", 1)
    assert index.better("a", "r", PROMPT, 0, 1) is None


def test_digests_differ_with_length_and_content():
    assert prefix_digest([1, 2, 3], 2) == prefix_digest([1, 2, 9], 2)
    assert len({prefix_digest([1, 2, 3], n) for n in (1, 2, 3)} | {prefix_digest([1, 2, 4], 3)}) == 4


# Fetches ------------------------------------------------------------------------------------------------------
def test_a_fetch_ends_once_and_gives_its_row_back():
    fetches = FetchTable(slots=1, timeout_s=2.0, quarantine_s=30.0)
    one = fetches.begin("r", lent(), 30, now=0.0)
    assert (one.tokens, one.first_token) == (50, 30)
    assert fetches.begin("r2", lent(), 0, now=0.0) is None, "no row of flags left"
    assert fetches.overdue(1.9) == []
    assert fetches.stopped(one.id, None, 640, now=1.0) is one and one.done.is_set() and one.cause is None
    assert fetches.stopped(one.id, None, 640, now=1.0) is None
    two = fetches.begin("r2", lent(), 0, now=3.0)
    assert two.slot == one.slot and two.epoch > one.epoch, "a row's next user has a flag value of its own"


@pytest.mark.parametrize("acknowledged", [True, False])
def test_an_abandoned_fetch_keeps_its_memory_until_nobody_writes_to_it(acknowledged):
    fetches = FetchTable(slots=1, timeout_s=2.0, quarantine_s=30.0)
    one = fetches.begin("r", lent(), 0, now=0.0)
    assert fetches.overdue(2.1) == [one] and one.cause == "timed out"
    assert fetches.settled(3.0) == [] and fetches.busy and fetches.quarantined_tokens == 80
    assert fetches.begin("r2", lent(), 0, now=3.0) is None, "a late flag would be taken for the new fetch's"
    if acknowledged:
        assert fetches.stopped(one.id, "cancelled", 0, now=3.5) is None
        assert fetches.settled(3.6) == [one]
    else:
        assert fetches.settled(32.1) == []
        assert fetches.settled(32.2) == [one]
    assert not fetches.busy and fetches.begin("r2", lent(), 0, now=99.0) is not None


def test_memory_of_a_failed_fetch_is_freed_once_by_its_request_or_by_the_table():
    fetches = FetchTable(slots=3, timeout_s=2.0, quarantine_s=30.0)
    failed, acknowledged, silent = (fetches.begin(r, lent(), 0, now=0.0) for r in "abc")
    fetches.stopped(failed.id, "gone", 0, now=1.0)
    assert fetches.withdrawn(failed), "decode said so: the request frees it"
    fetches.overdue(2.1)
    fetches.stopped(acknowledged.id, "cancelled", 0, now=2.2)
    assert fetches.withdrawn(acknowledged) and not fetches.withdrawn(silent)
    assert fetches.settled(99.0) == [silent], "the table must not free what a request keeps"


# Ordering -----------------------------------------------------------------------------------------------------
def test_priority_first_then_arrival_and_no_priority_last():
    queue = [("none", None, 0), ("late", 5, 2), ("early", 5, 1), ("first", -3, 9)]
    assert order.sort(queue, lambda e: order.key(e[1], e[2]))
    assert [e[0] for e in queue] == ["first", "early", "late", "none"]
    assert not order.sort(queue, lambda e: order.key(e[1], e[2])), "already in order"


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(-5, 5)), max_size=20))
def test_sorting_never_swaps_equals(priorities):
    queue = list(enumerate(priorities))
    order.sort(queue, lambda e: order.key(e[1], 0))
    for (i, p), (j, q) in itertools.pairwise(queue):
        assert order.key(p, 0) <= order.key(q, 0)
        assert p != q or i < j


# Pins ---------------------------------------------------------------------------------------------------------
def pin(session, tokens=100, until_s=10.0, arrival_s=0.0):
    return Pin(session, tokens, until_s, arrival_s)


def test_pins_end_at_their_deadline_or_with_the_next_of_the_session():
    pins = PinTable()
    assert pins.put(pin("a"), 1000) == []
    assert [p.until_s for p in pins.put(pin("a", until_s=20.0), 1000)] == [10.0]
    assert pins.expired(19.9) == [] and [p.session for p in pins.expired(20.0)] == ["a"]
    assert pins.end("a") == []


def test_the_pin_cap_ends_the_one_that_would_end_first():
    pins = PinTable()
    pins.put(pin("a", until_s=30.0), 250)
    pins.put(pin("b", until_s=20.0), 250)
    assert [p.session for p in pins.put(pin("c", until_s=25.0), 250)] == ["b"]
    assert [p.session for p in pins.put(pin("d", until_s=1.0), 250)] == ["d"], "the new one itself ends first"
    assert pins.tokens == 200


def test_when_nothing_can_run_the_session_that_arrived_last_gives_way():
    pins = PinTable()
    for session, arrival in (("a", 1.0), ("b", 3.0), ("c", 2.0)):
        pins.put(pin(session, arrival_s=arrival), 1000)
    assert [pins.newest()[0].session for _ in range(3)] == ["b", "c", "a"] and pins.newest() == []


# Settings and hints -------------------------------------------------------------------------------------------
def test_settings_by_words_and_by_json():
    assert parse("order, lend").features == {"order", "lend"} and parse("").features == frozenset()
    assert parse('{"features": ["late"], "phi": 0.3}') == Settings(features=frozenset({"late"}), phi=0.3)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("order,lent", "'lent'"),
        ("lend,elastic", "choose one"),
        ('{"features": ["lend"]', "JSON"),
        ('{"fi": 0.3}', "'fi'"),
        ('{"phi": 30}', "phi=30"),
        ('{"headroom": 1}', "headroom=1"),
        ('{"fetch_timeout_s": 0}', "positive"),
    ],
)
def test_a_wrong_setting_is_named(text, says):
    with pytest.raises(ValueError, match=says):
        parse(text)


def test_run_time_switches_take_numbers_and_leave_the_rest():
    before = parse("lend")
    after = before.switched({"lending": 0.0, "phi": 0.25})
    assert (after.lending, after.phi, after.features) == (False, 0.25, before.features) and before.lending is True
    assert before.switched({"drop_wait": 1.0, "layer_delay_s": 0.5}) == Settings(
        features=before.features, drop_wait=True, layer_delay_s=0.5
    )
    with pytest.raises(ValueError, match="layers_per_group"):
        before.switched({"layers_per_group": 2.0})


def test_hints_are_read_and_malformed_ones_ignored():
    given_hint = {"basin": {"session": "s", "retain": True, "pin_s": 2, "last": True, "elastic": True}}
    assert hints.read(given_hint) == hints.Hint("s", True, 2.0, True, True)
    for raw in (None, {}, {"basin": 3}, {"basin": {"session": 7, "retain": 1, "pin_s": "x", "last": "no"}}):
        assert hints.read(raw) == hints.NOTHING
