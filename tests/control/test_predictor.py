"""The peak predictor against a plain scikit-learn refit, limiting cases worked by hand, and the published scores."""

import math
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from artifact.control.policy import SessionFacts
from artifact.control.predictor import CrossFittedPeaks, PeakPredictor, cross_fitted, score, splits
from artifact.workload.catalog import workload
from artifact.workload.trajectory import Trajectory


def session(text: str, first: int, peak: int, id: str = "t") -> Trajectory:
    """Two calls: `first` tokens, then a context that peaks at `peak` with one token of output."""
    return Trajectory(
        id=id,
        prompt_tokens=(first, peak - 1),
        new_tokens=(first, peak - 1 - first),
        output_tokens=(1, 1),
        gap_before_s=(0.0, 1.0),
        task_text=text,
    )


def made_up(count: int, seed: int = 0) -> list[Trajectory]:
    """Sessions whose peak depends on words, text length and first prompt, with noise."""
    rng = random.Random(seed)
    words = ["kernel", "rename", "train", "query", "parse", "emulate", "sort", "boot"]
    sessions = []
    for i in range(count):
        text = " ".join(rng.choices(words, k=rng.randint(3, 30)))
        first = rng.randint(500, 4000)
        log_peak = 9 + 0.3 * math.log(first) + 0.8 * ("kernel" in text) + rng.gauss(0, 0.2)
        sessions.append(session(text, first, round(math.exp(log_peak)), id=str(i)))
    return sessions


def refitted(train: list[Trajectory], test: Trajectory, penalty: float) -> float:
    """The model of paper A §6.5 written out: ridge on centred TF-IDF columns and centred, unpenalised log lengths."""
    vectorizer = TfidfVectorizer()
    text = vectorizer.fit_transform([t.task_text for t in train]).toarray()
    lengths = np.log([[len(t.task_text), t.prompt_tokens[0]] for t in train])
    columns = np.hstack([text, lengths])
    centre, log_peak = columns.mean(axis=0), np.log([t.peak_tokens for t in train])
    ridge = np.diag([penalty] * text.shape[1] + [0.0, 0.0])
    centred = columns - centre
    weights = np.linalg.solve(centred.T @ centred + ridge, centred.T @ (log_peak - log_peak.mean()))
    row = np.hstack(
        [vectorizer.transform([test.task_text]).toarray()[0], np.log([len(test.task_text), test.prompt_tokens[0]])]
    )
    bounded = np.clip(log_peak.mean() + (row - centre) @ weights, log_peak.min(), log_peak.max())
    return float(max(np.exp(bounded), test.prompt_tokens[0]))


def test_leaving_one_out_equals_refitting_everything_without_it() -> None:
    sessions = made_up(25)
    expected = [refitted(sessions[:i] + sessions[i + 1 :], t, penalty=0.7) for i, t in enumerate(sessions)]
    assert cross_fitted(sessions, text_penalty=0.7) == pytest.approx(expected, rel=1e-8)


def test_folds_partition_the_sessions_and_are_the_same_every_time() -> None:
    sessions = made_up(40)
    first = cross_fitted(sessions, folds=5)
    assert np.isfinite(first).all()
    assert first == pytest.approx(cross_fitted(sessions, folds=5), rel=0)
    assert score(first, sessions).rank_correlation > 0.5


def test_a_peak_that_follows_the_lengths_alone_is_found_whatever_the_text_penalty() -> None:
    """peak = 2 x length of text x first prompt: coefficients 1 and 1, intercept log 2, text coefficients 0."""
    rng = random.Random(1)
    sessions = []
    for i in range(12):
        text, first = "word " * rng.randint(2, 12), rng.randint(300, 900)
        sessions.append(session(text, first, 2 * len(text) * first, id=str(i)))
    for penalty in (1e-3, 1e6):
        model = PeakPredictor.fit(sessions, text_penalty=penalty)
        assert model.text_length_coefficient == pytest.approx(1, abs=1e-6)
        assert model.prompt_length_coefficient == pytest.approx(1, abs=1e-6)
        assert model.intercept == pytest.approx(math.log(2), abs=1e-5)


def test_text_coefficients_shrink_with_the_penalty_and_words_keep_their_sign() -> None:
    weak, strong = (PeakPredictor.fit(made_up(60), text_penalty=p).text_coefficients for p in (0.1, 100.0))
    assert weak["kernel"] > 0
    assert sum(c**2 for c in strong.values()) < 0.01 * sum(c**2 for c in weak.values())


def test_words_that_training_never_saw_do_not_count() -> None:
    model = PeakPredictor.fit(made_up(30))
    assert model.predict("kernel zzzzz", 1000) == pytest.approx(model.predict("kernel qqqqq", 1000))


def test_predictions_stay_within_the_peaks_seen_and_above_the_first_prompt() -> None:
    sessions = made_up(30)
    model = PeakPredictor.fit(sessions)
    highest = max(t.peak_tokens for t in sessions)
    assert model.predict("kernel " * 10_000, 10**5) == pytest.approx(max(highest, 10**5))
    assert model.predict("rename", 10**7) == 10**7
    assert model.predict("rename", 1) >= min(t.peak_tokens for t in sessions) * (1 - 1e-9)


def test_sessions_without_texts_are_predicted_from_their_first_prompt() -> None:
    sessions = [session("", first, 10 * first, id=str(first)) for first in (100, 200, 400, 800, 1600)]
    assert PeakPredictor.fit(sessions).predict("", 600) == pytest.approx(6000)
    # the smallest and the largest are out of the range of the other four's peaks
    assert cross_fitted(sessions) == pytest.approx([2000, 2000, 4000, 8000, 8000])


def test_too_few_sessions_are_refused() -> None:
    with pytest.raises(ValueError, match="3 trajectories to fit to; it needs four"):
        PeakPredictor.fit(made_up(3))
    with pytest.raises(ValueError, match="needs four"):
        cross_fitted(made_up(4))


def test_a_saved_predictor_predicts_the_same(tmp_path: Path) -> None:
    model = PeakPredictor.fit(made_up(20))
    model.save(tmp_path / "peak.json")
    asked = ("boot the kernel and sort", 1234)
    assert PeakPredictor.load(tmp_path / "peak.json").predict(*asked) == model.predict(*asked)
    assert pickle.loads(pickle.dumps(model)).predict(*asked) == model.predict(*asked)


def test_a_policy_asks_with_what_it_sees_at_the_door() -> None:
    sessions = made_up(20)
    facts = [SessionFacts(f"s{i}", 0.0, t.prompt_tokens[0], t.task_text) for i, t in enumerate(sessions)]
    model, replay = PeakPredictor.fit(sessions), CrossFittedPeaks(sessions)
    assert model(facts[3]) == model.predict(sessions[3].task_text, sessions[3].prompt_tokens[0])
    assert [replay(session) for session in facts] == cross_fitted(sessions).tolist()
    with pytest.raises(KeyError, match="session 'new' replays none"):
        replay(SessionFacts("new", 0.0, 12, "another task"))


def test_scores_of_a_hand_made_prediction() -> None:
    """Errors log 2, 0, -log 2: deviation log 2 x sqrt(2/3). Ranks 1, 3, 2 of 1, 2, 3: 1 - 6 x 2 / (3 x 8) = 0.5."""
    sessions = [session("", 10, peak, id=str(peak)) for peak in (100, 300, 400)]
    scores = score([200, 300, 200 + 1e-9], sessions)
    assert scores.log_error_std == pytest.approx(math.log(2) * math.sqrt(2 / 3))
    assert scores.rank_correlation == pytest.approx(0.5)
    assert scores.median_error == pytest.approx(0.5)  # of 1, 0 and 1/2
    mean = math.log(100 * 300 * 400) / 3
    spread = sum((math.log(peak) - mean) ** 2 for peak in (100, 300, 400))
    assert scores.r2 == pytest.approx(1 - 2 * math.log(2) ** 2 / spread)


def test_sessions_of_one_task_stay_together_where_asked() -> None:
    sessions = [session(text, 10, 100 + i, id=str(i)) for i, text in enumerate(["a", "b", "", "a", "", "b", "a"])]
    left_out = sorted(sorted(test.tolist()) for _, test in splits(sessions, by_task=True))
    assert left_out == [[0, 3, 6], [1, 5], [2], [4]]
    for train, test in splits(sessions, folds=2, by_task=True):
        assert set(train) | set(test) == set(range(7)) and not set(train) & set(test)
        assert not {sessions[i].task_text for i in train} & {sessions[i].task_text for i in test} - {""}
    assert [test.tolist() for _, test in splits(sessions)] == [[i] for i in range(7)]


@pytest.mark.parametrize(
    ("name", "rank", "rank_tolerance", "std"),
    [("terminal-bench", 0.64, 0.06, 0.54), ("swe-bench-pro", 0.56, 0.08, 0.34)],
)
def test_published_scores_on_the_synthesised_workloads(
    name: str, rank: float, rank_tolerance: float, std: float
) -> None:
    sessions = workload(name)
    scores = score(cross_fitted(sessions), sessions)
    assert scores.rank_correlation == pytest.approx(rank, abs=rank_tolerance)
    assert scores.log_error_std == pytest.approx(std, abs=0.08)
