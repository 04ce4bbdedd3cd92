"""The growing predictor: the contract of the ridge, what it learns from growth, and that no session predicts itself."""

import math
import pickle
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from artifact.control.growing import GrowingPeaks, GrowingPredictor, cross_fit, landmarks
from artifact.control.peaks import Progress
from artifact.control.policy import SessionFacts
from artifact.control.predictor import PeakPredictor, cross_fitted, score
from artifact.workload.catalog import workload
from artifact.workload.trajectory import Trajectory

WORDS = ("kernel", "rename", "train", "query", "parse", "emulate", "sort", "boot")


def grown(id: str, text: str, first: int, pace: int, calls: int) -> Trajectory:
    """A context of `first` tokens that every call lengthens by `pace`, one of them its output."""
    prompts = tuple(first + pace * call for call in range(calls))
    return Trajectory(
        id=id,
        prompt_tokens=prompts,
        new_tokens=(first, *[pace] * (calls - 1)),
        output_tokens=(1,) * calls,
        gap_before_s=(0.0,) * calls,
        task_text=text,
    )


def made_up(count: int = 40, seed: int = 0, textless: bool = False) -> list[Trajectory]:
    """Ten to twenty calls each; those at a pace of 2,000 tokens a call reach twenty times what those at 100 add.
    Nothing at the door tells which is which."""
    rng = random.Random(seed)
    return [
        grown(
            str(i),
            "" if textless else " ".join(rng.choices(WORDS, k=rng.randint(5, 20))) + f" {i}",
            rng.randint(500, 1500),
            rng.choice((100, 2000)),
            rng.randint(10, 20),
        )
        for i in range(count)
    ]


def facts(t: Trajectory) -> SessionFacts:
    return SessionFacts(t.id, 0.0, t.prompt_tokens[0], t.task_text)


@pytest.fixture(scope="module")
def sessions() -> list[Trajectory]:
    return made_up(120)


@pytest.fixture(scope="module")
def fitted(sessions: list[Trajectory]) -> GrowingPredictor:
    return GrowingPredictor.fit(sessions)


def test_it_answers_what_the_ridge_answers(fitted: GrowingPredictor, sessions: list[Trajectory]) -> None:
    ridge = PeakPredictor.fit(sessions)
    for model in (fitted, ridge):
        assert model(facts(sessions[3])) == model.predict(sessions[3].task_text, sessions[3].prompt_tokens[0])
        assert model.predict("kernel", 10**7) == 10**7
        assert pickle.loads(pickle.dumps(model)).predict("boot the kernel", 900) == model.predict(
            "boot the kernel", 900
        )
    log_mean = (math.log(ridge.predict("boot", 900)) + _trees_alone(fitted, "boot", 900)) / 2
    assert fitted.predict("boot", 900) == pytest.approx(math.exp(log_mean))


def _trees_alone(model: GrowingPredictor, text: str, first: int) -> float:
    terms = model.terms.transform([text]).toarray()[0]
    return float(model.trees.predict([[*terms, math.log(len(text)), math.log(first)]])[0])


def test_landmarks_are_all_calls_but_the_last() -> None:
    """Contexts of 100, 130 and 160 tokens and one of output each."""
    assert list(landmarks(grown("a", "", 100, 30, 3))) == [Progress(101, 1, 1), Progress(131, 2, 31)]
    assert list(landmarks(grown("a", "", 100, 30, 1))) == []


def test_growth_tells_what_the_door_could_not(fitted: GrowingPredictor) -> None:
    """Five calls in, the pace is known, and with it the peak to within the number of calls to come."""
    fast, slow = grown("fast", "sort", 1000, 2000, 15), grown("slow", "sort", 1000, 100, 15)
    assert fitted(facts(fast)) == fitted(facts(slow))
    for session, rival in ((fast, slow), (slow, fast)):
        seen = list(landmarks(session))[5]
        error = abs(math.log(fitted.revise(facts(session), seen) / session.peak_tokens))
        assert error < 0.35
        assert error < abs(math.log(fitted(facts(session)) / session.peak_tokens)) / 2
        assert error < abs(math.log(fitted.revise(facts(session), seen) / rival.peak_tokens))


def test_a_revised_peak_is_never_below_the_context_reached(
    fitted: GrowingPredictor, sessions: list[Trajectory]
) -> None:
    for context in (1_000, 50_000, 10**7):
        assert fitted.revise(facts(sessions[0]), Progress(context, 30, context)) >= context


def test_sessions_without_texts_are_predicted_too() -> None:
    sessions = made_up(30, textless=True)
    model = GrowingPredictor.fit(sessions)
    lowest, highest = min(t.peak_tokens for t in sessions), max(t.peak_tokens for t in sessions)
    assert lowest <= model.predict("", 1000) <= highest


def test_too_few_sessions_are_refused() -> None:
    with pytest.raises(ValueError, match="7 trajectories to fit to; it needs eight"):
        GrowingPredictor.fit(made_up(7))


# Leakage -----------------------------------------------------------------------------------------------------------

PredictAll = Callable[[Sequence[Trajectory]], np.ndarray]
"""Predictions for every session of a set, in order."""


def gives_itself_away(
    predict_all: PredictAll, sessions: Sequence[Trajectory], row: int, other: int | None = None
) -> bool:
    """Whether the prediction for `row` moves when the future of a session (its own, or of `other`) becomes another:
    one more call, which takes its context to twenty times the peak. Nothing seen before that call changes."""
    changed = row if other is None else other
    t = sessions[changed]
    peak = 20 * t.peak_tokens
    longer = replace(
        t,
        prompt_tokens=(*t.prompt_tokens, peak),
        new_tokens=(*t.new_tokens, peak - t.prompt_tokens[-1]),
        output_tokens=(*t.output_tokens, 1),
        gap_before_s=(*t.gap_before_s, 0.0),
    )
    altered = [*sessions[:changed], longer, *sessions[changed + 1 :]]
    return bool(predict_all(sessions)[row] != predict_all(altered)[row])


def in_sample_ridge(sessions: Sequence[Trajectory]) -> np.ndarray:
    model = PeakPredictor.fit(sessions)
    return np.array([model(facts(t)) for t in sessions])


def in_sample_growing(sessions: Sequence[Trajectory]) -> np.ndarray:
    model = GrowingPredictor.fit(sessions)
    return np.array([model.revise(facts(t), next(landmarks(t))) for t in sessions])


def at_the_door(sessions: Sequence[Trajectory]) -> np.ndarray:
    peaks = GrowingPeaks(sessions, folds=4)
    return np.array([peaks(facts(t)) for t in sessions])


def after_the_first_call(sessions: Sequence[Trajectory]) -> np.ndarray:
    peaks = GrowingPeaks(sessions, folds=4)
    return np.array([peaks.revise(facts(t), next(landmarks(t))) for t in sessions])


@pytest.mark.parametrize("predict_all", [cross_fitted, at_the_door, after_the_first_call])
def test_cross_fitted_predictions_do_not_depend_on_the_sessions_own_future(predict_all: PredictAll) -> None:
    assert not gives_itself_away(predict_all, made_up(24), row=5)


@pytest.mark.parametrize("predict_all", [in_sample_ridge, in_sample_growing])
def test_fitting_to_the_session_itself_is_caught(predict_all: PredictAll) -> None:
    assert gives_itself_away(predict_all, made_up(24), row=5)


def test_another_attempt_at_the_same_task_gives_the_peak_away_unless_tasks_stay_together() -> None:
    sessions = made_up(24)
    sessions[7] = replace(sessions[7], task_text=sessions[5].task_text)
    assert gives_itself_away(cross_fitted, sessions, row=5, other=7)
    assert not gives_itself_away(lambda them: cross_fitted(them, by_task=True), sessions, row=5, other=7)
    assert not gives_itself_away(after_the_first_call, sessions, row=5, other=7)


def test_peaks_that_nothing_foretells_are_not_foretold() -> None:
    """Texts, first prompts and peaks drawn apart: fitted to themselves the scores shine, cross-fitted they do not."""
    rng = random.Random(3)
    sessions = [
        grown(str(i), " ".join(rng.choices(WORDS, k=12)) + f" {i}", rng.randint(500, 1500), rng.randint(50, 5000), 2)
        for i in range(60)
    ]
    model = GrowingPredictor.fit(sessions)
    assert score([model(facts(t)) for t in sessions], sessions).rank_correlation > 0.7
    assert abs(score(at_the_door(sessions), sessions).rank_correlation) < 0.35


def test_every_session_is_asked_of_a_model_once() -> None:
    sessions = made_up(16)
    trained: list[set[str]] = []

    def fit(train: Sequence[Trajectory]) -> GrowingPredictor:
        trained.append({t.id for t in train})
        return None  # type: ignore[return-value]

    asked = [{sessions[row].id for row in fold.rows} for fold in cross_fit(sessions, 4, fit)]
    assert sorted(id for ids in asked for id in ids) == sorted(t.id for t in sessions)
    assert all(known == {t.id for t in sessions} - ids for known, ids in zip(trained, asked, strict=True))


def test_a_replay_is_recognised_and_a_stranger_is_not() -> None:
    sessions = made_up(16)
    peaks = GrowingPeaks(sessions, folds=4)
    (fold,) = [fold for fold in cross_fit(sessions, 4) if 3 in fold.rows]
    assert peaks(facts(sessions[3])) == fold.model(facts(sessions[3]))
    seen = Progress(4000, 4, 3000)
    assert peaks.revise(facts(sessions[3]), seen) == fold.model.revise(facts(sessions[3]), seen)
    with pytest.raises(KeyError, match="session 'new' replays none"):
        peaks(SessionFacts("new", 0.0, 12, "another task"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["terminal-bench", "swe-bench-pro"])
def test_it_beats_the_ridge_on_the_synthesised_workloads(name: str) -> None:
    """On the same folds: at the door at least its rank correlation, and half-way less of its error."""
    sessions = workload(name)
    peaks, ridge = GrowingPeaks(sessions), cross_fitted(sessions, 10)
    door = score([peaks(facts(t)) for t in sessions], sessions)
    assert door.rank_correlation > score(ridge, sessions).rank_correlation
    error, fixed = [], []
    for t, predicted in zip(sessions, ridge, strict=True):
        if seen := list(landmarks(t)):
            halfway = seen[len(seen) // 2]
            error.append(abs(math.log(peaks.revise(facts(t), halfway) / t.peak_tokens)))
            fixed.append(abs(math.log(max(predicted, halfway.context_tokens) / t.peak_tokens)))
    assert np.mean(error) < 0.85 * np.mean(fixed)
