"""Summaries of runs: their numbers on a run by hand, and that runs are shared, kept and paired."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from math import isnan

import pytest
from handmade import call, records, sample, session

from artifact.control.profile import DeploymentProfile
from artifact.metrics import NotObserved
from artifact.records.store import RunStore
from artifact.reproduce import outcomes, summaries
from artifact.reproduce.outcomes import Resources
from artifact.reproduce.scenarios_policies import Setting, Variant, arm, base_rates_per_min, scenario, seeds_of
from artifact.reproduce.summaries import Cell, Summary, cells, median, summarise, summary, summary_runs
from sim.run import run
from sim.sweep import determinants

SHORT = Setting("short", factor=1, rate_per_min=0.05, duration_s=5700.0)


def handmade():
    """Ten sessions in the first 90 minutes: six good, one in time but over the ITL allowance, one too slow, one shed,
    one parked for 30 minutes that never ends; a warm one, which does not count. Calls take 1 s but for two."""
    sessions = [session(f"good{i}", 600.0 * i, 200.0) for i in range(6)]
    sessions += [
        session("itl", 100.0, 300.0, slow_steps=6),
        session("slow", 100.0, 500.0),
        session("shed", 100.0, None, outcome="shed", admitted_s=None, started_s=None),
        session("parked", 2400.0, None, admitted_s=4200.0, started_s=4210.0),
        session("warm", 0.0, 100.0, group="warm"),
    ]
    calls = [call(600.0 * i, session_id=f"good{i}", prefill_instance=0) for i in range(6)]
    calls += [
        call(100.0, session_id="itl", prefill_instance=0),
        call(100.0, session_id="slow"),  # prefilled on decode
        call(4200.0, 10.0, session_id="parked", prefill_instance=0),
        call(0.0, 99.0, session_id="warm", call_index=3, prefill_instance=0),
    ]
    samples = [
        sample(60.0 * m, active_sessions=m, prefill_queue_calls=2 * m, computed_tokens_total=0) for m in range(121)
    ]
    return records(calls, sessions, samples, 7200.0)


def test_a_summary_by_hand():
    found = summary(handmade())
    assert found.goodput == pytest.approx(6 / 1.5) and found.in_time == pytest.approx(7 / 1.5)
    assert found.in_time_over_itl == pytest.approx(1 / 7) and found.over_itl == pytest.approx(0.1)
    assert (found.completed, found.shed, found.shed_sessions) == (0.8, 0.1, 1)
    assert found.wait_p50_s == 0.0 and found.wait_p99_s > 1810.0  # shed: until the run's end
    assert found.ttft_p90_s == pytest.approx(1 + 0.2 * 9)  # nine calls of evaluated sessions, the largest 10 s
    assert found.second_hour_s == pytest.approx(1800.0 + 10.0)  # released in the second hour, waited from arrival
    assert found.active == pytest.approx(67.0) and found.queue == pytest.approx(134.0)  # minutes 60 to 74
    assert found.elastic_calls == 1 and found.meta["duration_s"] == 7200.0


def test_a_run_without_good_sessions_has_no_share_of_them():
    nothing = records([], [session("s", 0.0, None)], [sample(60.0 * m) for m in range(121)], 7200.0)
    found = summary(nothing)
    assert found.goodput == 0.0 and isnan(found.in_time_over_itl) and isnan(found.ttft_p90_s)
    with pytest.raises(NotObserved):
        summary(records([], [], [], 3600.0))


def test_arms_are_named_by_setting_and_variant():
    found = cells({"a": SHORT}, {"late": Variant("basin", from_min=45.0)}) | cells({"a": SHORT}, ("hicache",))
    assert list(found) == ["a/late", "a/hicache"] and found["a/hicache"] == Cell(SHORT, Variant("hicache"))
    one = scenario(*found["a/late"], 1.0, 3)
    assert (one.policy.name, one.policy.from_s, one.seed, one.load.surges) == ("basin", 2700.0, 3, ())


def test_later_arrivals_begin_where_the_surge_ends():
    one = scenario(SHORT._replace(factor=6, after=0.2), Variant("hicache"), 8.0, 0)
    assert (one.load.rate_change.at_s, one.load.rate_change.factor) == (2100.0, 0.2)


def test_profiles_say_how_many_seeds():
    assert (seeds_of("smoke"), seeds_of("quick"), seeds_of("full")) == ((0,), (0,), (0, 1, 2, 3, 4))
    assert seeds_of("full", None, 3) == (0, 1, 2) and seeds_of("full", [7], 3) == (7,)


@pytest.fixture
def _own_store(tmp_path, monkeypatch):
    monkeypatch.setattr(outcomes, "repository_root", lambda: tmp_path)
    monkeypatch.setattr(summaries, "run_folder", lambda: tmp_path / "runs")


@pytest.mark.usefixtures("_own_store")
def test_runs_are_summarised_once(tmp_path):
    arms = cells({"short": SHORT}, ("hicache", "continuum"))
    found = summary_runs("sim", arms, (0, 1), Resources(1), "test")
    assert {name: [one.meta["seed"] for one in seeds] for name, seeds in found.items()} == {
        arm("short", "hicache"): [0, 1],
        arm("short", "continuum"): [0, 1],
    }
    kept = sorted((tmp_path / "build" / "outcomes").rglob("*.json"))
    assert len(kept) == 4
    entry = json.loads(kept[0].read_text()) | {"goodput": -1.0}
    kept[0].write_text(json.dumps(entry))
    again = summary_runs("sim", arms, (0, 1), Resources(1), "test")
    assert sum(one.goodput == -1.0 for seeds in again.values() for one in seeds) == 1
    assert median(found["short/hicache"], "completed") > 0


@pytest.mark.usefixtures("_own_store")
def test_a_run_that_was_kept_is_not_run_again(tmp_path):
    one = scenario(SHORT, Variant("hicache"), 0.05, 0)
    other = run(scenario(SHORT, Variant("hicache"), 0.5, 0))
    RunStore(tmp_path / "runs").put(RunStore.key(determinants(one)), other)
    assert Summary(**summarise(one)) == summary(other)


def test_there_is_nothing_recorded():
    arms = cells({"short": SHORT}, ("hicache",))
    assert summary_runs("hw", arms, (0,), Resources(1), "test") == {"short/hicache": []}
    with pytest.raises(ValueError, match="none of sim, hw"):
        summary_runs("real", arms, (0,), Resources(1), "test")
    with pytest.raises(NotObserved):
        median([], "goodput")


def test_a_deployment_is_profiled_side_by_side_but_once(monkeypatch):
    measured = []

    def profile(deployment, workload_name, tools, outputs):
        measured.append((deployment.host_ratio, deployment.eviction, outputs))
        return DeploymentProfile(1.0, 10.0 * outputs)

    @contextmanager
    def threads(workers, scheduler):
        measured.append("side by side")
        yield ThreadPoolExecutor(1)

    monkeypatch.setattr("sim.profile.profile", profile)
    monkeypatch.setattr("sim.sweep.open_executor", threads)
    usual = Setting("usual")
    settings = [usual, usual._replace(factor=8), usual._replace(eviction="largest-first"), usual._replace(share=0.55)]
    settings += [usual._replace(outputs=3), SHORT]
    assert base_rates_per_min(settings) == [5.0, 5.0, 5.0, 5.5, 15.0, 0.05]
    assert measured[:3] == ["side by side", (2.0, "lru", 1.0), (2.0, "lru", 3.0)]
    measured.clear()
    assert base_rates_per_min([SHORT]) == [0.05] and measured == []
