"""First aid worked out on runs made by hand: 3,000 tokens a session, a pool of 80,000, a cliff at 96,000."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from artifact.control.capacity import Capacities
from artifact.control.parameters import BasinParameters
from artifact.control.policy import Signals
from artifact.gateway.policies import PolicyMaker
from artifact.metrics import windows
from artifact.records.schema import Records
from artifact.reproduce.paths import repository_root
from artifact.reproduce.scenarios import recorded
from hw_runs import first_aid, first_aid_view
from hw_runs.trap import ARMS, CONTROL_S, FOLDER
from sim.risk.assess import assess
from sim.risk.question import UsageError

POOL, CLIFF, CONTEXT = 80_000, 96_000, 3_000
HEALTHY, COLLAPSED = 0.9, 0.15
RATE, CALLS = 0.28, 14
GAP_S = 2.0


def population(arm, t):
    """Active sessions: ten, and with the burst 26 more that stay unless the pool is large or a control works."""
    if arm == "twin" or t < 20:
        return 10
    grown = 10 + 26 * min((t - 20) / 8, 1)
    if arm == "large-pool":
        return max(grown - 0.5 * max(t - 28, 0), 10)
    if arm in ("budgeter", "basin-suspend") and t >= CONTROL_S:
        return 26
    return grown + 0.15 * max(t - 28, 0)


def record(arm, seed=0):
    """Five calls a second: hits by whether the sessions fit, counters and queues to match."""
    end, pool = ARMS[arm].duration_s, POOL * ARMS[arm].pool
    calls, samples, computed, prompts, cached = [], [], 0, 0, 0
    for second in np.arange(0.0, end):
        n = population(arm, second)
        fits = n * CONTEXT <= CLIFF * ARMS[arm].pool
        hit, rate, busy = (HEALTHY, n / (GAP_S + 0.3), 0.13 * n) if fits else (COLLAPSED, 2.6, n - 5)
        wait = 0.2 if fits else 12.0
        for i in range(round(rate)):
            at = second + i / rate
            found = round(CONTEXT * hit)
            row = ("s", 0, at, None, None, at + wait, at + wait + 0.1, CONTEXT, found, None, None, 8, None, None, None)
            calls.append(row)
        computed += round(rate * (1 - hit) * CONTEXT)
        prompts, cached = prompts + round(rate) * CONTEXT, cached + round(rate * hit) * CONTEXT
        w = round(n * CONTEXT)
        counters = (prompts, cached, computed, len(calls))
        samples.append((second, round(n), 0, 0, 0, w, *counters, round(busy), 0, 0, 0, 0, 0, None, None, None,
                        False, False, False))  # fmt: skip
    sessions = [
        (f"s{i}", "base", "t", i / RATE, i / RATE, i / RATE, None, "unfinished", CALLS, 1, CONTEXT, 30.0, 7, None)
        for i in range(round(RATE * end))
    ]
    capacity = {"prefill_cache_tokens": pool, "decode_kv_tokens": pool, "host_cache_tokens": 0}
    meta = {"source": "hw", "seed": seed, "duration_s": end, "scenario": {"seed": seed}}
    meta["capacity"] = capacity | {"saturated_prefill_tokens_per_s": math.nan}
    return Records.from_rows(calls, sessions, samples, meta)


@pytest.fixture(scope="module")
def runs():
    return {arm: [record(arm)] for arm in ARMS}


def test_the_question_holds_what_the_runs_show(runs):
    asked = first_aid.question(runs)
    assert asked.cache_tokens == asked.decode_kv_tokens == POOL and asked.context_tokens == pytest.approx(CONTEXT)
    assert (asked.plateau, asked.floor) == (pytest.approx(HEALTHY, abs=0.03), pytest.approx(COLLAPSED, abs=0.03))
    assert asked.new_tokens == 300 and asked.prompt_tokens == CONTEXT and asked.calls_per_session == CALLS
    assert asked.sessions_per_min == pytest.approx(60 * RATE, rel=0.05)
    assert asked.prefill_tokens_per_s == pytest.approx(2.6 * 0.85 * CONTEXT, rel=0.05)
    assert first_aid.question(runs, "large-pool").cache_tokens == 4 * POOL
    words = first_aid.command(asked).split()
    assert words[:4] == ["basin", "risk", "--cache-tokens", "80000"] and "--name" not in words


def test_the_answer_finds_the_cliff_and_the_burst_beyond_the_tipping_point(runs):
    small, large = first_aid.risk(runs)["twin"], first_aid.risk(runs)["large-pool"]
    assert small.cliff_tokens == pytest.approx(CLIFF, rel=0.1) and small.load.state == "vulnerable"
    assert large.cliff_tokens == pytest.approx(4 * small.cliff_tokens)
    assert 28 < small.load.tipping_sessions < 38 < large.load.tipping_sessions
    words = first_aid_view.risk_findings(runs)
    assert "**burst**, seed 0: up to 39.6 active sessions, beyond the tipping point" in words
    assert "**burst, pool ×4**, seed 0: up to 34.0 active sessions, within the tipping point" in words
    assert words.count("did not collapse for good") == 1
    assert "vulnerable" not in first_aid_view.told(runs) and "tips beyond about" in first_aid_view.told(runs)


def test_without_a_collapse_there_is_no_cliff_to_measure(runs):
    with pytest.raises(UsageError, match="drive the load on"):
        first_aid.question({**runs, "burst": runs["twin"]})


def test_alarms_ring_in_the_run_that_traps_and_in_no_other(runs):
    table = first_aid.alarms(runs)
    assert table.loc[["no burst", "burst, pool ×4"]].isin([np.inf]).all(axis=None)
    working_set, hits, collapsed = table.loc["burst"]
    assert working_set <= 40.0 and working_set < hits
    run = runs["burst"][0]
    # the mean of seconds 25 to 29 is 32.1 sessions, just beyond: the second window in a row ends at 35
    assert first_aid.alarm_s(run, CLIFF / first_aid.NEAR)[first_aid.NEAR_CLIFF] == 35.0
    # calls from second 27 on miss and get their first tokens 12 s later, from 39 on: windows 35-40 and 40-45
    assert (hits, collapsed) == (45.0, 35.0)
    assert first_aid.alarm_s(run, 200_000)[first_aid.NEAR_CLIFF] == np.inf


def test_the_dashboard_is_read_at_the_time_of_the_alarm(runs, monkeypatch):
    def signals(run, folder):
        assert folder.parts[-2:] in (("burst", "seed0"), ("large-pool", "seed0"))
        time_s = np.arange(0.0, 115.0)
        late = 40 if folder.parts[-2] == "burst" else 0
        told = {"time_s": time_s, "kv_usage": 0.3, "waiting": np.where(time_s > 60, late, 3.0), "utilisation": 1.5}
        return pd.DataFrame(told)

    monkeypatch.setattr(first_aid_view, "signals", signals)
    words = first_aid_view.dashboard_findings(runs)
    assert "reached 0.30 at most: an alarm at 0.9 would never have rung" in words
    assert "**Queue length** had been 3.0 at most when the working set rang, 3.0 in the burst" in words
    full = first_aid.KV_ALARM
    monkeypatch.setattr(first_aid_view, "signals", lambda *a: signals(*a).assign(kv_usage=full))
    assert "would have rung at second 0" in first_aid_view.dashboard_findings(runs)


def test_the_cheapest_control_that_works_is_named(runs):
    table = first_aid.aids(runs)
    assert list(table.index) == ["admission only", "the budgeter", "Basin", "Basin, suspending"]
    assert list(table["healthy within a minute"]) == ["0 of 1", "1 of 1", "0 of 1", "1 of 1"]
    words = first_aid_view.aid_findings(runs)
    assert "under the budgeter from then on" in words and "had collapsed: admission only, Basin." in words
    none = {arm: seeds for arm, seeds in runs.items() if arm not in ("budgeter", "basin-suspend")}
    assert "None of the controls" in first_aid_view.aid_findings(none)


def test_the_orders_are_policies_that_the_gateway_takes(runs):
    text = first_aid_view.orders(runs)
    bodies = [json.loads(line.split("-d '")[1].rstrip("'")) for line in text.splitlines() if line.startswith("curl")]
    assert [body["policy"] for body in bodies] == ["admission-only", "budgeter"]
    cliff = first_aid.risk(runs)["twin"].cliff_sessions
    assert bodies[0]["options"] == {"admit": int(BasinParameters().margin * cliff)}
    make = PolicyMaker(capacities=Capacities(POOL, POOL, 0))
    for body in bodies:
        make(body["policy"], body["options"], Signals())


def test_lending_moves_the_cliff_by_what_decode_leaves_idle(runs):
    asked = first_aid.question(runs)
    found = first_aid.lent(asked, BasinParameters(lend_cap=0.5, lending_headroom=0.1))
    assert found.tokens == 0.5 * POOL, "the cap: nine tenths less one session's context would be more"
    assert found.lending.cliff_tokens == pytest.approx(1.5 * found.without.cliff_tokens)
    assert found.lending.load.tipping_sessions > found.without.load.tipping_sessions
    crowded = asked.model_copy(update={"active_sessions": 200.0, "in_service": 0.13})
    left = first_aid.lent(crowded, BasinParameters(lend_cap=0.5, lending_headroom=0.1)).tokens
    assert left == 0, "decode needs all of it itself"
    with pytest.raises(ValueError, match="in_service"):
        first_aid.lent(asked.model_copy(update={"in_service": None}))
    assert "no idle decode memory to lend" in first_aid_view.lending_findings(runs)
    assert assess(asked).cliff_tokens == found.without.cliff_tokens


def test_the_picture_shows_the_watched_runs_against_the_alarms(runs):
    _, drawn = first_aid_view.figure_watch(runs)
    assert set(drawn["arm"]) == set(first_aid.WATCHED)
    top = drawn[drawn["panel"] == "a"].groupby("arm")["median"].max()
    assert top["burst"] > 1 > top["large-pool"] and top["twin"] < 0.5


def test_the_alarm_is_the_one_that_the_gateways_alert_rules_ring():
    rules = (repository_root() / "artifact/gateway/operations/alerts.yml").read_text()
    assert f"basin_working_set_tokens > {first_aid.NEAR} * basin_cliff_tokens" in rules


def test_on_the_real_runs_that_come_with_the_artifact():
    """vLLM on one core: the model places the burst beyond the tipping point, and the alarm rings in that run alone."""
    real = recorded(FOLDER, list(ARMS), shelf="recorded")
    answers = first_aid.risk(real)
    assert all(run.meta["source"] == "hw" for runs in real.values() for run in runs)
    most = windows(real["burst"][0], 5.0).query("end_s <= @CONTROL_S")["active_sessions"].max()
    assert answers["twin"].load.stable_sessions < 15 < answers["twin"].load.tipping_sessions < most + 1
    assert answers["large-pool"].load.tipping_sessions > 2 * most
    table = first_aid.alarms(real)
    rung, hits, collapsed = table.loc["burst"]
    assert rung <= collapsed < hits < np.inf
    assert table.loc[["no burst", "burst, pool ×4"]].isin([np.inf]).all(axis=None)
    assert "would never have rung" in first_aid_view.dashboard_findings(real, repository_root())
    assert "under the budgeter from then on" in first_aid_view.aid_findings(real)
