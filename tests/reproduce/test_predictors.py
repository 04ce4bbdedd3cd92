"""Scores of predictors on sets of one's own, what they are worth in goodput, and the claims about them."""

import math
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from artifact.control.predictor import PredictionScores, score
from artifact.reproduce.findings_predictors import gains_findings, growth_findings, scores_findings
from artifact.reproduce.plots.predictors import predictor, predictor_goodput
from artifact.reproduce.predictors import (
    BY_TASK,
    FEWEST,
    GROWING,
    LATER,
    MOST,
    ONE_OUT,
    RIDGE,
    TRAP,
    TRUE_PEAKS,
    VARIANTS,
    Foretold,
    PeakSet,
    claim_inputs,
    gains,
    growth_table,
    later_scores,
    scores_table,
    supplied,
)
from artifact.reproduce.registry import evaluate, evaluators
from artifact.reproduce.summaries import Summary
from artifact.workload.formats import save
from artifact.workload.trajectory import Trajectory

TRACES = Path(__file__).parents[1] / "data" / "traces"


def grown(id: str, text: str, first: int, pace: int, calls: int) -> Trajectory:
    """A context of `first` tokens that every call lengthens by `pace`, one of them its output."""
    prompts = tuple(first + pace * call for call in range(calls))
    return Trajectory(id, prompts, (first, *[pace] * (calls - 1)), (1,) * calls, (0.0,) * calls, text)


def recorded(count: int = 40, texts: bool = True) -> list[Trajectory]:
    """Sessions that say "huge" grow five times as fast as the others."""
    rng = random.Random(0)
    sessions = []
    for i in range(count):
        huge = rng.random() < 0.5
        text = f"{'huge' if huge else 'tiny'} task about {rng.choice(['tests', 'docs'])} {i}" if texts else ""
        sessions.append(grown(str(i), text, rng.randint(900, 1100), 1000 if huge else 200, rng.randint(6, 9)))
    return sessions


@pytest.fixture(scope="module")
def foretold() -> Foretold:
    return Foretold.of(PeakSet("mine", recorded()))


def test_a_set_is_a_file_or_a_folder_and_what_is_none_is_said(tmp_path: Path) -> None:
    save(tmp_path / "a.jsonl", recorded(), "native")
    (tmp_path / "b").mkdir()
    save(tmp_path / "b" / "one.jsonl", recorded(31, texts=False), "native")
    shutil.copy(TRACES / "native.jsonl", tmp_path / "few.jsonl")
    (tmp_path / "notes.md").write_text("no trace")
    sets, refused = supplied(tmp_path)
    assert [(s.name, len(s.sessions), s.with_texts, s.fitted) for s in sets] == [
        ("a.jsonl", 40, 1.0, False),
        ("b", 31, 0.0, False),
    ]
    assert len(refused) == 2 and f"scores need {FEWEST}" in refused[0] and refused[1].startswith("notes.md: ")
    assert supplied(None) == ([], [])
    with pytest.raises(FileNotFoundError, match="no such folder; give one that holds traces"):
        supplied(tmp_path / "nowhere")


def test_of_a_large_set_an_evenly_spaced_part_is_taken(tmp_path: Path) -> None:
    save(tmp_path / "many.jsonl", [grown(str(i), "", 100 + i, 10, 2) for i in range(2 * MOST + 1)], "native")
    [[many], _] = supplied(tmp_path)
    assert [t.id for t in many.sessions[:3]] == ["0", "3", "6"] and len(many.sessions) == 667
    assert many.note == "every 3th of 2001 sessions"


def test_scores_are_those_of_each_predictor_and_split(foretold: Foretold) -> None:
    table = scores_table([foretold]).set_index(["predictor", "split"])
    assert list(table.index) == [(RIDGE, ONE_OUT), (RIDGE, BY_TASK), (GROWING, BY_TASK)]
    row = table.loc[(RIDGE, ONE_OUT)]
    assert row["rank_correlation"] == score(foretold.ridge, foretold.peaks.sessions).rank_correlation > 0.5
    assert set(table["kind"]) == {"recorded"} and set(table["with_texts"]) == {1.0}


def test_where_arrivals_are_recorded_later_sessions_are_foretold_from_earlier_ones() -> None:
    """The later half obeys peak = 10 x first prompt as the earlier does; a session without an arrival is left out."""
    sessions = [grown(str(i), "", 100 + 7 * i, 9 * (100 + 7 * i) - 1, 2) for i in range(2 * FEWEST)]
    shuffled = {t.id: (13 * i) % len(sessions) for i, t in enumerate(sessions)}
    scores = later_scores(PeakSet("timed", sessions, arrivals_s=shuffled))
    assert scores is not None and scores.rank_correlation > 0.98 and scores.log_error_std < 0.1
    assert later_scores(PeakSet("untimed", sessions, arrivals_s={"0": 1.0})) is None


def test_following_a_session_takes_the_error_down() -> None:
    """Nothing at the door tells slow sessions from fast ones; the pace of the first calls does."""
    rng = random.Random(1)
    sessions = [grown(str(i), "", 1000 + i, rng.choice((100, 2000)), rng.randint(8, 12)) for i in range(120)]
    table = growth_table([Foretold.of(PeakSet("paced", sessions))])
    errors = table.pivot(index="fifth", columns="predictor", values="error")
    assert list(errors.index) == [0, 1, 2, 3, 4]
    assert (errors["as it grows"] < errors["at the door, kept"] / 2).iloc[1:3].all()  # a first call grows by nothing


def test_words_say_what_is_not_known(foretold: Foretold) -> None:
    assert "No recorded set" not in scores_findings([foretold], ["x: broken"])
    assert "Not scored: x: broken" in scores_findings([foretold], ["x: broken"])
    fitted = replace(foretold, peaks=replace(foretold.peaks, fitted=True))
    assert "**No recorded set was given**" in scores_findings([fitted], [])
    assert "in the first fifth" in growth_findings(growth_table([foretold]))


REAL = Path(os.environ.get("BASIN_TRACES", Path(__file__).resolve().parents[3] / "shared" / "traces"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tb_core_mini_swe_agent.jsonl", "swe_rebench_claude_code_agentcgroup.jsonl"])
def test_recorded_sessions_without_texts_are_foretold_better_as_they_grow(name: str, tmp_path: Path) -> None:
    """From first prompts alone little is known at the door; half-way the landmark model knows more than what was."""
    if not (REAL / name).is_file():
        pytest.skip(f"no {name} in {REAL}; set BASIN_TRACES to a folder of recorded traces")
    shutil.copy(REAL / name, tmp_path)
    [[peaks], _] = supplied(tmp_path)
    assert peaks.with_texts == 0 and not peaks.fitted
    errors = growth_table([Foretold.of(peaks)]).pivot(index="fifth", columns="predictor", values="error")
    assert (errors["as it grows"] < errors["at the door, kept"]).loc[1:3].all()


# Claims --------------------------------------------------------------------------------------------------------------


def value(claim_id: str, runs: dict[str, list[PredictionScores]]) -> object:
    return evaluate(evaluators()[claim_id], runs).obtained


def test_claims_read_the_scores() -> None:
    one, two, three = (PredictionScores(0.1 * n, 0.2 * n, 0.3, 0.4) for n in (1, 2, 3))
    runs = {"terminal_bench_peaks": [one], "swe_bench_pro_peaks": [two], "bailian_peaks": [three, one]}
    assert value("A-pred-rank-tb", runs) == pytest.approx(0.1) and value("A-pred-rank-swe", runs) == pytest.approx(0.2)
    assert value("A-pred-std-tb", runs) == pytest.approx(0.2) and value("A-pred-std-swe", runs) == pytest.approx(0.4)
    assert value("A-pred-bailian", runs) == pytest.approx([0.3, 0.1])
    assert value("A-pred-std-range", runs) == pytest.approx([0.2, 0.4, 0.6, 0.2])


def test_a_bailian_trace_is_recognised_by_its_format(foretold: Foretold) -> None:
    sessions = [grown(str(i), "", 100 + i, 50, 2) for i in range(2 * FEWEST)]
    arrivals = {t.id: float(7 * i % 60) for i, t in enumerate(sessions)}
    bailian = replace(foretold, peaks=PeakSet("coder", sessions, format="bailian", arrivals_s=arrivals))
    shipped = replace(foretold, peaks=replace(foretold.peaks, name="terminal-bench", fitted=True))
    arms = claim_inputs([shipped, bailian, foretold])
    assert {name: len(scores) for name, scores in arms.items()} == {
        "terminal_bench_peaks": 1,
        "swe_bench_pro_peaks": 0,
        "bailian_peaks": 1,
    }
    assert LATER in set(scores_table([Foretold.of(bailian.peaks)])["split"])


# Goodput -------------------------------------------------------------------------------------------------------------


def run(goodput: float, seed: int = 0) -> Summary:
    numbers = dict.fromkeys(Summary.__slots__, math.nan) | {"goodput": goodput, "wait_p90_s": 10.0, "active": 30.0}
    return Summary(**numbers | {"state": "healthy", "meta": {"source": "sim", "seed": seed}})


def runs(growing: tuple[float, float], exact: tuple[float, float] = (130.0, 260.0)) -> dict[str, list[Summary]]:
    given = dict.fromkeys(VARIANTS, (100.0, 200.0)) | {"basin-growing-peaks": growing, TRUE_PEAKS: exact}
    return {f"{TRAP}/{policy}": [run(one, seed) for seed, one in enumerate(both)] for policy, both in given.items()}


def test_gains_are_paired_by_seed() -> None:
    found = gains(runs((110.0, 210.0))).set_index(["policy", "seed"])["gain"]
    assert found["basin-growing-peaks"].tolist() == pytest.approx([1.1, 1.05])
    assert found[TRUE_PEAKS].tolist() == pytest.approx([1.3, 1.3]) and found["basin"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("growing", "verdict"),
    [
        ((110.0, 210.0), "**Following sessions raises goodput in every seed**, by 7.5% in the mean"),
        ((90.0, 190.0), "**Following sessions lowers goodput in every seed**, by 7.5% in the mean"),
        ((90.0, 210.0), "**Following sessions makes no difference that all seeds agree on** (-2.5% in the mean)"),
    ],
)
def test_the_verdict_is_that_of_every_seed(growing: tuple[float, float], verdict: str) -> None:
    words = gains_findings(runs(growing))
    assert verdict in words and "make +30.0%." in words
    assert "is not there for others" not in words  # as many are active under every predictor
    assert "30 sessions active in minutes 60-75, p90 wait 10 s; healthy." in words


def test_fewer_sessions_inside_are_named_as_what_following_costs() -> None:
    found = runs((90.0, 190.0))
    for policy, active in (("basin-growing-peaks", 20.0), ("basin-blended-peaks", 25.0)):
        found[f"{TRAP}/{policy}"] = [replace(one, active=active) for one in found[f"{TRAP}/{policy}"]]
    assert "follow the sessions 20 are active, with the same ones kept from the door 25" in gains_findings(found)


def test_pictures_hold_what_they_draw(foretold: Foretold) -> None:
    fig, data = predictor([foretold])
    assert set(data["panel"]) == {"a", "c"} and (data["panel"] == "a").sum() == 40
    _, drawn = predictor_goodput(runs((110.0, 210.0)))
    assert len(drawn) == 10 and "hicache" not in set(drawn["policy"])
    assert len(fig.axes) == 4
