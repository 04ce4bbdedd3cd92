"""Peak predictor: a session's largest context, predicted once from what its first call shows (paper A §6.5).

Ridge regression of the log peak on TF-IDF features of the task text and two log lengths, of the task text and of the
first prompt. Text coefficients are penalised; the two length coefficients and the intercept are free.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import orth, solve
from scipy.sparse import csr_matrix
from scipy.stats import spearmanr
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer
from sklearn.metrics import r2_score
from sklearn.model_selection import GroupKFold, KFold, LeaveOneGroupOut, LeaveOneOut
from threadpoolctl import threadpool_limits

from artifact.control.policy import SessionFacts
from artifact.workload.trajectory import Trajectory

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]
"""Places in a sequence of trajectories."""

TEXT_PENALTY = 1.0
"""Ridge penalty on the text coefficients; the paper does not give its own."""


@dataclass(frozen=True)
class PeakPredictor:
    """A fitted predictor: data only, so it pickles and goes to a gateway as JSON."""

    idf: dict[str, float]
    text_coefficients: dict[str, float]
    text_length_coefficient: float
    prompt_length_coefficient: float
    intercept: float
    lowest_log_peak: float
    highest_log_peak: float

    @classmethod
    def fit(cls, trajectories: Sequence[Trajectory], text_penalty: float = TEXT_PENALTY) -> "PeakPredictor":
        """Raises `ValueError` for fewer than four trajectories: the free coefficients need them."""
        data = _Data.of(trajectories)
        return _fit(data, np.arange(len(trajectories)), text_penalty)

    def predict(self, task_text: str, first_prompt_tokens: int) -> float:
        """Predicted peak context in tokens, input and output together, Ŵ.

        It stays within the peaks seen in training, and is no less than the first prompt.
        """
        counts = Counter(term for term in words()(task_text) if term in self.idf)
        tfidf = {term: count * self.idf[term] for term, count in counts.items()}
        norm = math.hypot(*tfidf.values()) or 1.0
        text_length, prompt_length = log_lengths(task_text, first_prompt_tokens)
        log_peak = (
            self.intercept
            + self.text_length_coefficient * text_length
            + self.prompt_length_coefficient * prompt_length
            + sum(weight * self.text_coefficients[term] for term, weight in tfidf.items()) / norm
        )
        bounded = min(max(log_peak, self.lowest_log_peak), self.highest_log_peak)
        return max(math.exp(bounded), float(first_prompt_tokens))

    def __call__(self, session: SessionFacts) -> float:
        """`predict` for a session at the door, as a policy asks."""
        return self.predict(session.task_text, session.first_prompt_tokens)

    def save(self, path: Path) -> None:
        """Write as JSON."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> "PeakPredictor":
        return cls(**json.loads(path.read_text()))


def splits(
    trajectories: Sequence[Trajectory], folds: int | None = None, by_task: bool = False
) -> Iterator[tuple[Rows, Rows]]:
    """Training and test rows of cross-fitting; `folds` None leaves out one at a time. `by_task` keeps the sessions with
    the same task text together: where a task was tried several times, its other sessions give the peak away."""
    if by_task:
        tasks: dict[str | int, int] = {}
        groups = [tasks.setdefault(t.task_text or row, len(tasks)) for row, t in enumerate(trajectories)]
        grouped = GroupKFold(folds, shuffle=True, random_state=0) if folds else LeaveOneGroupOut()
        yield from grouped.split(groups, groups=groups)
    else:
        splitter = KFold(folds, shuffle=True, random_state=0) if folds else LeaveOneOut()
        yield from splitter.split(trajectories)


def cross_fitted(
    trajectories: Sequence[Trajectory],
    folds: int | None = None,
    text_penalty: float = TEXT_PENALTY,
    by_task: bool = False,
) -> Floats:
    """Predicted peaks in tokens, shape (trajectories,), each by a model fitted to the other folds only: vocabulary, IDF
    weights and centring included. `folds` and `by_task` as in `splits`; the paper leaves out one trajectory at a time.

    Raises `ValueError` where a training set has fewer than four trajectories.
    """
    data = _Data.of(trajectories)
    predicted = np.empty(len(trajectories))
    with threadpool_limits(1, "blas"):  # hundreds of small systems: threads cost far more than they bring
        for train, test in splits(trajectories, folds, by_task):
            model = _fit(data, train, text_penalty)
            for row in test:
                predicted[row] = model.predict(trajectories[row].task_text, trajectories[row].prompt_tokens[0])
    return predicted


class CrossFittedPeaks:
    """Predicted peaks of replayed sessions, each by a model that never saw its trajectory, as a policy asks for them.

    Sessions are recognised by what the predictor sees; trajectories that look the same share a prediction.
    """

    def __init__(self, trajectories: Sequence[Trajectory], folds: int | None = None) -> None:
        seen = ((t.task_text, t.prompt_tokens[0]) for t in trajectories)
        self._peaks = dict(zip(seen, cross_fitted(trajectories, folds).tolist(), strict=True))

    def __call__(self, session: SessionFacts) -> float:
        """Tokens. Raises `KeyError` for a session of none of the trajectories."""
        try:
            return self._peaks[session.task_text, session.first_prompt_tokens]
        except KeyError:
            raise KeyError(f"session {session.id!r} replays none of the trajectories fitted to") from None


class PredictionScores(NamedTuple):
    rank_correlation: float
    """Spearman's, of predicted and true peaks."""
    log_error_std: float
    """Standard deviation of log(predicted / true)."""
    r2: float
    """Share of the variance of the log peaks that is explained, R²; negative for worse than their mean."""
    median_error: float
    """Median of |predicted / true - 1|."""


def score(predicted: Sequence[float] | Floats, trajectories: Sequence[Trajectory]) -> PredictionScores:
    """How predicted peaks, in tokens, compare with those of the trajectories. The paper gives the first two (paper A
    §6.5, §7.9)."""
    true = np.array([t.peak_tokens for t in trajectories])
    ratio = np.asarray(predicted) / true
    error = np.log(ratio)
    return PredictionScores(
        rank_correlation=float(spearmanr(predicted, true).statistic),
        log_error_std=float(error.std()),
        r2=float(r2_score(np.log(true), np.log(predicted))),
        median_error=float(np.median(np.abs(ratio - 1))),
    )


@dataclass(frozen=True)
class _Data:
    """What a fit reads of its trajectories, counted once for all folds."""

    counts: csr_matrix
    """Shape (trajectories, terms)."""
    terms: NDArray[np.object_]
    free: Floats
    """The unpenalised columns, shape (trajectories, 3): one, log text length, log prompt length."""
    log_peak: Floats

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory]) -> "_Data":
        vectorizer = CountVectorizer(analyzer=words())
        counts = vectorizer.fit_transform([t.task_text for t in trajectories] + [ANY_TEXT])[:-1]
        lengths = [log_lengths(t.task_text, t.prompt_tokens[0]) for t in trajectories]
        return cls(
            counts=csr_matrix(counts, dtype=np.float64),
            terms=vectorizer.get_feature_names_out(),
            free=np.array([(1.0, *pair) for pair in lengths]).reshape(-1, 3),
            log_peak=np.log([t.peak_tokens for t in trajectories]),
        )


ANY_TEXT = "text"
"""The vectorizer refuses texts without a single term; this one is dropped again."""


def _fit(data: _Data, rows: Rows, penalty: float) -> PeakPredictor:
    """Ridge in its dual form: one equation a trajectory instead of one a term.

    Projecting the free columns (the constant among them, which centres the features) out of both sides leaves a plain
    ridge problem in the text; the free coefficients then fit what the text leaves.
    """
    if len(rows) < 4:
        raise ValueError(f"peak predictor: {len(rows)} trajectories to fit to; it needs four")
    free, log_peak = data.free[rows], data.log_peak[rows]
    known = np.flatnonzero(data.counts[rows].getnnz(axis=0))
    coefficients, idf = np.zeros(0), np.zeros(0)
    rest = log_peak
    if len(known):
        weighting = TfidfTransformer()
        text = weighting.fit_transform(data.counts[rows][:, known])
        basis = orth(free)
        gram = _without(basis, _without(basis, (text @ text.T).toarray()).T)
        gram[np.diag_indices_from(gram)] += penalty
        dual = solve(gram, _without(basis, log_peak), assume_a="pos", overwrite_a=True, check_finite=False)
        coefficients, idf = text.T @ dual, weighting.idf_
        rest = log_peak - text @ coefficients
    intercept, text_length, prompt_length = np.linalg.lstsq(free, rest)[0].tolist()
    terms = data.terms[known].tolist()
    return PeakPredictor(
        idf=dict(zip(terms, idf.tolist(), strict=True)),
        text_coefficients=dict(zip(terms, coefficients.tolist(), strict=True)),
        text_length_coefficient=text_length,
        prompt_length_coefficient=prompt_length,
        intercept=intercept,
        lowest_log_peak=float(log_peak.min()),
        highest_log_peak=float(log_peak.max()),
    )


def _without(basis: Floats, columns: Floats) -> Floats:
    """`columns` less what the orthonormal `basis` spans."""
    return columns - basis @ (basis.T @ columns)


@cache
def words() -> Any:
    """From a text to its terms: lower-case words of two characters and more."""
    return CountVectorizer().build_analyzer()


def log_lengths(task_text: str, first_prompt_tokens: int) -> tuple[float, float]:
    """Of the task text in characters (an empty one counts as one) and of the first prompt in tokens."""
    return math.log(max(len(task_text), 1)), math.log(first_prompt_tokens)
