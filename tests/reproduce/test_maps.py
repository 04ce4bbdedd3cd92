"""Outcomes of runs, searches over the load, branches of one engine state, and the pictures of the maps."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from handmade import call, records, sample, session
from test_evaluate_vulnerability import NARROW, PUBLISHED, WIDE, classes, outcome, post, trap_load

import sim.sweep
from artifact.metrics import NotObserved
from artifact.reproduce import outcomes as kept_outcomes
from artifact.reproduce import post_surge, scenarios_maps, scenarios_recovery
from artifact.reproduce.figures import GREY
from artifact.reproduce.findings_maps import classification_findings, grid_findings, map_findings, recovery_findings
from artifact.reproduce.outcomes import Found, Outcome, Resources, first_limit, kept, lowest_failing, together
from artifact.reproduce.outcomes import outcome as outcome_of
from artifact.reproduce.plots.maps import figure_7, figure_8, figure_9, figure_10
from artifact.reproduce.post_surge import Intervention
from artifact.reproduce.scenarios_maps import Modelled, deployment, plan, scenario, search, simulated
from sim.fluid.calibrated import fluid_deployment
from sim.run import run

ONE = Resources(1)


# Outcomes ----------------------------------------------------------------------------------------------------------


def course(collapses_min=999, full_min=999, minutes=60):
    """A call and a sample a minute: hit rate 0.95 before minute `collapses_min` and 0.3 from then on, decode KV (2000
    tokens) half in use before minute `full_min` and all from then on; one session of ten completes each minute."""
    calls, samples, sessions = [], [], []
    for minute in range(minutes):
        t = 60.0 * minute
        bad = minute >= collapses_min
        calls.append(call(t, 30.0 if bad else 0.2, cached_tokens=30 if bad else 95))
        used = 2000 if minute >= full_min else 1000
        samples.append(
            sample(
                t,
                active_sessions=40 + minute,
                active_extra_sessions=0,
                working_set_tokens=1500,
                decode_kv_running_tokens=used - 100,
                decode_kv_idle_tokens=100,
                computed_tokens_total=0,
            )
        )
        sessions.append(session(str(minute), t, 0.0))
    return records(calls, sessions, samples, 60.0 * minutes)


def test_an_outcome_says_what_the_run_did():
    found = outcome_of(course(collapses_min=40))
    assert found.late_ttft_s == pytest.approx(30.0)
    assert found.median_ttft_s == pytest.approx(30.0)  # 20 of the last 30 minutes
    assert found.late_hit_rate == pytest.approx((10 * 0.95 + 20 * 0.3) / 30)
    assert found.departures_per_min == pytest.approx(1.0)
    assert found.active_end == pytest.approx(np.mean(np.arange(95, 100)))
    assert found.windows == [(1.5, pytest.approx(0.3))] * 10
    with pytest.raises(NotObserved):
        outcome_of(course(minutes=30))


@pytest.mark.parametrize(
    ("collapses", "full", "word"),
    [(999, 999, "none"), (30, 999, "cache"), (999, 30, "decode"), (30, 34, "cache"), (34, 30, "decode")],
)
def test_the_first_limit_is_the_one_reached_first(collapses, full, word):
    assert first_limit(course(collapses, full)) == word


def test_a_warm_start_is_no_collapse_and_a_tie_goes_to_the_cache():
    assert first_limit(course(30, 30)) == "cache"
    early = course(999, 999)
    calls = early.calls.to_pandas()
    calls.loc[calls["released_s"] < 300, "cached_tokens"] = 0
    rows = [tuple(r) for r in calls.astype(object).where(calls.notna(), None).itertuples(index=False)]
    cold = records(rows, [], [tuple(r.values()) for r in early.samples.to_pylist()], 3600.0)
    assert first_limit(cold) == "none"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(kept_outcomes, "repository_root", lambda: tmp_path)
    monkeypatch.setattr(sim.sweep, "open_executor", lambda workers, scheduler: ThreadPoolExecutor(1))
    yield tmp_path


DONE: list[int] = []


def square(job: int) -> int:
    DONE.append(job)
    return job * job


def test_what_was_done_is_not_done_again(folder):
    DONE.clear()
    jobs = [({"n": n}, n) for n in (3, 4, 3)]
    assert kept(square, jobs, ONE, "squares") == [9, 16, 9] and sorted(DONE) == [3, 4]
    assert kept(square, [({"n": 4}, 4), ({"n": 5}, 5)], ONE, "squares") == [16, 25] and sorted(DONE) == [3, 4, 5]


def test_an_outcome_survives_json():
    found = outcome(first_limit="cache")
    again = Outcome(**json.loads(json.dumps(asdict(found))))
    assert asdict(again) == json.loads(json.dumps(asdict(found)))


# Searches ----------------------------------------------------------------------------------------------------------

RATES = [float(rate) for rate in range(1, 17)]
H100 = deployment(("h100", 1))


def answered(monkeypatch, limits):
    """Answers a search: seed k ends late from load `limits[k]` on. Returns the list of (load, seed) that were run."""
    asked: list[tuple[float, int]] = []

    def fake(scenarios, resources, label):
        asked.extend((s.load.rate_per_min, s.seed) for s in scenarios)
        return [outcome(late_ttft_s=60.0 if s.load.rate_per_min >= limits[s.seed] else 0.2) for s in scenarios]

    monkeypatch.setattr(kept_outcomes, "outcomes", fake)
    return asked


def searched(limits, rates=RATES) -> Found:
    seeds = range(len(limits))
    one = lowest_failing(rates, lambda rate: [scenario(H100, rate, s) for s in seeds], scenarios_maps.late)
    return together({"x": one}, ONE, "search")["x"]


@pytest.mark.parametrize("limit", [1, 2, 9, 16])
def test_bisection_finds_the_lowest_failing_load(monkeypatch, limit):
    asked = answered(monkeypatch, [limit])
    found = searched([limit])
    assert found.fails == limit and len(found.runs) == 1
    assert found.holds == limit - 1 or (limit == 1 and np.isnan(found.holds))
    assert len(asked) <= 5  # log2 of 16 rates, and one


def test_nothing_fails_or_everything_does(monkeypatch):
    answered(monkeypatch, [99])
    assert searched([99]) == Found(16.0, np.inf, ())


def test_most_seeds_decide_and_a_third_one_is_run_only_where_two_differ(monkeypatch):
    asked = answered(monkeypatch, [5, 9, 7])
    assert searched([5, 9, 7]).fails == 7
    for rate in {rate for rate, _ in asked}:
        assert (rate, 2) in asked if 5 <= rate < 9 else (rate, 2) not in asked


def test_searches_side_by_side_are_searches_alone(monkeypatch):
    asked = answered(monkeypatch, [5, 9, 7])
    alone = searched([5, 9, 7])
    many = {
        n: lowest_failing(RATES[:n], lambda rate: [scenario(H100, rate, s) for s in range(3)], scenarios_maps.late)
        for n in (4, 16)
    }
    both = together(many, ONE, "both")
    assert both[16] == alone and both[4].fails == np.inf and asked


def test_a_search_covers_the_models_peak_on_the_papers_step():
    rates = next(search(H100, (0,), 0.25))
    assert rates[0].load.rate_per_min % 0.25 == 0 and rates[0].load.surges == ()
    [surged] = next(search(H100, (0,), 0.25, surge=1.0, tool=3.0))
    assert surged.load.surges[0].factor == 2 and surged.load.tool_time_scale == 3


@pytest.mark.parametrize("limit", [1.25, 7.5, 19.0])
def test_a_search_goes_on_above_the_models_peak_until_something_fails(monkeypatch, limit):
    asked = answered(monkeypatch, [limit])
    found = together({"x": search(H100, (0,), 0.25)}, ONE, "search")["x"]
    assert (found.holds, found.fails) == (limit - 0.25, limit)
    assert max(rate for rate, _ in asked) < 2 * limit + 10


def test_plans_name_what_they_run():
    full = plan("full")
    assert full.coarser == 1 and len(full.seeds) == 3 and full.shares == tuple(np.round(np.arange(0.1, 1, 0.1), 1))
    assert (min(full.loads), max(full.loads)) == (0.4, 1.0) and (min(full.surges), max(full.surges)) == (0.25, 3.0)
    assert plan("quick", [7]).seeds == (7,)
    with pytest.raises(ValueError, match="tiny"):
        plan("tiny")


def test_nothing_is_run_for_hardware():
    assert simulated("hw", ["a", "b"], lambda: pytest.fail("ran")) == {"a": [], "b": []}
    with pytest.raises(ValueError, match="gpu"):
        simulated("gpu", ["a"], dict)


# Branches ----------------------------------------------------------------------------------------------------------


def test_a_branch_that_changes_nothing_is_the_run_itself(monkeypatch):
    monkeypatch.setattr(post_surge, "SURGES", {"none": 1.0, "plus300": 4.0})
    monkeypatch.setattr(scenarios_maps, "DURATION_S", 4800.0)
    base, surged = (scenario(H100, 1.0, seed=1, surge=surge) for surge in (0.0, 3.0))
    rows = {(row["surge"], row["share"]): row for row in post_surge.intervene(Intervention(base, (0.1, 0.5)))}
    assert len(rows) == 4
    assert rows["none", 0.5]["outcome"] == asdict(outcome_of(run(base)))
    assert rows["plus300", 0.5]["outcome"] == asdict(outcome_of(run(surged)))
    assert rows["plus300", 0.1]["outcome"]["active_end"] < rows["plus300", 0.5]["outcome"]["active_end"]


# Pictures and words ------------------------------------------------------------------------------------------------

META = {"source": "sim", "scenario": {"seeds": [0, 1, 2]}}


def with_meta(found):
    object.__setattr__(found, "meta", META)
    return found


MAPS = {"map_1p1d": [with_meta(PUBLISHED)], "map_1p3d": [with_meta(PUBLISHED)]}
GRIDS = {"grid_1p1d": [NARROW], "grid_1p3d": [WIDE], "trap_loads": [trap_load("h200", "GPU", 5.5, 12.0)]}
CLASSES = {
    "deployments": classes([(True, "cache")] * 2 + [(True, "decode"), (False, "decode")]),
    "fluid": [Modelled(fluid_deployment(deployment(("h200", 3), 2.0)), META)],
}
POST = {"post_gpu": [post({0.1: 0, 0.2: 3})], "post_host": [post({0.1: 0, 0.2: 2, 0.5: 3})]}


@pytest.mark.parametrize(
    ("draw", "arms", "rows"),
    [(figure_7, MAPS, {"a": 12, "b": 12}), (figure_8, GRIDS, {"a": 16, "b": 16}), (figure_9, CLASSES, {"b": 4})],
)
def test_a_figure_plots_every_result(draw, arms, rows):
    fig, data = draw(arms)
    fig.canvas.draw()
    plotted = data["panel"].value_counts()
    assert {panel: plotted[panel] for panel in rows} == rows


def test_figure_10_marks_what_is_trapped_and_shows_two_states_at_one_working_set():
    fig, data = figure_10(POST)
    fig.canvas.draw()
    marks = [line for line in fig.axes[0].lines if line.get_marker() == "o"]
    fills = [str(line.get_markerfacecolor()) for line in marks[:5]]  # +300%: GPU-only at two rates, host at three
    assert fills[1] == fills[4] == "white" and fills[3] == GREY and GREY not in (fills[0], fills[2])
    assert len(data[data["panel"] == "a"]) == 2 * (2 + 3)
    hits = data[data["panel"] == "b"].groupby("series")["y"].agg(["min", "max"])
    assert hits.loc["after +300%, trapped", "max"] < hits.loc["no surge", "min"]


def test_the_grid_shows_its_numbers_in_the_colors_of_their_limits():
    fig, data = figure_8(GRIDS)
    texts = [text.get_text() for text in fig.axes[1].texts]
    assert texts == [f"{load:g}" for load in np.ravel(WIDE.recoverable)]
    assert (data["limit"] == "cache").sum() == 4 + 9


def test_the_words_follow_the_numbers():
    assert "A surge of +300% traps most seeds from 0.5 of that load on. At 0.85 of it, +50% is enough." in map_findings(
        MAPS
    )
    words = grid_findings(GRIDS)
    assert "from 9 (GPU) to 19.5 sessions/min (x40)" in words and "H200 GPU 0.46" in words
    assert "the model calls 3 (75%)" in classification_findings(CLASSES)
    assert "Flagged all the same: d2" in classification_findings(CLASSES)
    words = recovery_findings(POST)
    assert "no seed is trapped at 0.1, all are at 0.2 of 12/min" in words
    assert "healthy at every rate" in words and "not healthy" not in words


def test_the_backlog_of_a_drain_is_what_is_parked_until_nobody_is(monkeypatch):
    """Ten sessions are parked at minute 35; every minute one is let in, until no more than two are left."""
    samples = [sample(60.0 * m, parked_sessions=max(0, min(10, 45 - m))) for m in range(120)]
    monkeypatch.setattr("sim.run.run", lambda base: records([], [], samples, 7200.0))
    assert scenarios_recovery.measure_drain(scenario(H100, 1.0, 0)) == (10, 8 * 60.0)


def test_a_backlog_that_stays_has_no_drain_time(monkeypatch):
    samples = [sample(60.0 * m, parked_sessions=10) for m in range(120)]
    monkeypatch.setattr("sim.run.run", lambda base: records([], [], samples, 7200.0))
    assert scenarios_recovery.measure_drain(scenario(H100, 1.0, 0)) == (10, None)
