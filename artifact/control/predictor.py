"""Peak predictor: a session's largest context, predicted once from what its first call shows (paper A §6.5).

Ridge regression of the log peak on TF-IDF features of the task text and two log lengths, of the task text and of the
first prompt. Text coefficients are penalised; the two length coefficients and the intercept are free.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import orth
from scipy.sparse import csr_matrix
from scipy.stats import spearmanr
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer
from sklearn.model_selection import KFold

from artifact.workload.trajectory import Trajectory

Floats = NDArray[np.float64]

TEXT_PENALTY = 1.0
"""Ridge penalty on the text coefficients; the paper does not give its own."""


@dataclass(frozen=True)
class PeakPredictor:
    """A fitted predictor. A prediction stays within the peaks seen in training, and above the first prompt."""

    idf: dict[str, float]
    coefficient: dict[str, float]
    intercept: float
    text_length_coefficient: float
    prompt_length_coefficient: float
    lowest_log_peak: float
    highest_log_peak: float

    @classmethod
    def fit(cls, trajectories: Sequence[Trajectory], text_penalty: float = TEXT_PENALTY) -> "PeakPredictor":
        """Raises `ValueError` for fewer than four trajectories, too few for the free coefficients."""
        data = _Data.of(trajectories)
        fitted = _fit(data, np.arange(len(trajectories)), text_penalty)
        terms = [data.terms[column] for column in fitted.columns]
        return cls(
            idf=dict(zip(terms, fitted.tfidf.idf_.tolist(), strict=True)) if terms else {},
            coefficient=dict(zip(terms, fitted.text_coefficients.tolist(), strict=True)),
            intercept=float(fitted.free[0]),
            text_length_coefficient=float(fitted.free[1]),
            prompt_length_coefficient=float(fitted.free[2]),
            lowest_log_peak=fitted.lowest,
            highest_log_peak=fitted.highest,
        )

    def predict(self, task_text: str, first_prompt_tokens: int) -> float:
        """Predicted peak context in tokens, input and output together, Ŵ."""
        counts: dict[str, int] = {}
        for term in self._analyse(task_text):
            if term in self.idf:
                counts[term] = counts.get(term, 0) + 1
        weights = {term: count * self.idf[term] for term, count in counts.items()}
        norm = sum(weight**2 for weight in weights.values()) ** 0.5 or 1.0
        lengths = _lengths(task_text, first_prompt_tokens)
        log_peak = (
            self.intercept
            + self.text_length_coefficient * lengths[0]
            + self.prompt_length_coefficient * lengths[1]
            + sum(weight * self.coefficient[term] for term, weight in weights.items()) / norm
        )
        return _bounded(log_peak, self.lowest_log_peak, self.highest_log_peak, first_prompt_tokens)

    @cached_property
    def _analyse(self) -> Any:
        return CountVectorizer().build_analyzer()

    def save(self, path: Path) -> None:
        """Write as JSON, for a deployment's gateway."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> "PeakPredictor":
        return cls(**json.loads(path.read_text()))


def cross_fitted(
    trajectories: Sequence[Trajectory], folds: int | None = None, text_penalty: float = TEXT_PENALTY
) -> Floats:
    """Predicted peaks in tokens, shape (trajectories,), each from a model trained on the other folds only: vocabulary,
    IDF weights and centring included. `folds` None leaves one trajectory out at a time.

    Raises `ValueError` where a training set would have fewer than four trajectories.
    """
    data = _Data.of(trajectories)
    predicted = np.empty(len(trajectories))
    for train, test in _splits(len(trajectories), folds):
        fitted = _fit(data, train, text_penalty)
        for row, log_peak in zip(test, fitted.log_peaks(data, test), strict=True):
            first = trajectories[row].prompt_tokens[0]
            predicted[row] = _bounded(float(log_peak), fitted.lowest, fitted.highest, first)
    return predicted


class PredictionScores(NamedTuple):
    rank_correlation: float
    """Spearman's, of predicted and true peaks."""
    log_error_std: float
    """Standard deviation of log(predicted / true)."""


def score(predicted: Sequence[float] | Floats, trajectories: Sequence[Trajectory]) -> PredictionScores:
    """How well `predicted` peaks, in tokens, fit those of the trajectories (paper A §6.5, §7.9)."""
    true = np.array([t.peak_tokens for t in trajectories])
    error = np.log(np.asarray(predicted)) - np.log(true)
    return PredictionScores(float(spearmanr(predicted, true).statistic), float(error.std()))


@dataclass(frozen=True)
class _Data:
    """What a fit reads of its trajectories. `counts` is (trajectories, terms), `free` the unpenalised columns."""

    counts: csr_matrix
    terms: list[str]
    free: Floats
    log_peak: Floats

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory]) -> "_Data":
        vectorizer = CountVectorizer()
        texts = [t.task_text for t in trajectories]
        try:
            counts, terms = vectorizer.fit_transform(texts), vectorizer.get_feature_names_out().tolist()
        except ValueError:  # no text holds a word: lengths only
            counts, terms = csr_matrix((len(texts), 0)), []
        lengths = [_lengths(t.task_text, t.prompt_tokens[0]) for t in trajectories]
        free = np.column_stack([np.ones(len(texts)), np.array(lengths).reshape(-1, 2)])
        return cls(csr_matrix(counts, dtype=float), terms, free, np.log([t.peak_tokens for t in trajectories]))


@dataclass(frozen=True)
class _Fitted:
    columns: NDArray[np.intp]
    """Terms of the training texts."""
    tfidf: TfidfTransformer
    text_coefficients: Floats
    free: Floats
    """Intercept, text length, prompt length."""
    lowest: float
    highest: float

    def log_peaks(self, data: _Data, rows: NDArray[np.intp]) -> Floats:
        log_peak: Floats = data.free[rows] @ self.free
        if len(self.columns):
            log_peak += self.tfidf.transform(data.counts[rows][:, self.columns]) @ self.text_coefficients
        return log_peak


def _fit(data: _Data, rows: NDArray[np.intp], penalty: float) -> _Fitted:
    """Ridge in its dual form, n equations instead of one a term.

    Projecting the free columns (among them the constant, which centres the features) out of both sides leaves a plain
    ridge problem in the text; the free coefficients then fit what remains.
    """
    if len(rows) < 4:
        raise ValueError(f"peak predictor: {len(rows)} trajectories to train on; four are the least")
    free, log_peak = data.free[rows], data.log_peak[rows]
    counts = data.counts[rows]
    columns = np.flatnonzero(counts.getnnz(axis=0))
    tfidf = TfidfTransformer()
    coefficients = np.zeros(len(columns))
    rest = log_peak
    if len(columns):
        text = tfidf.fit_transform(counts[:, columns])
        basis = orth(free)
        gram = (text @ text.T).toarray()
        gram -= basis @ (basis.T @ gram)
        gram -= (gram @ basis) @ basis.T
        target = log_peak - basis @ (basis.T @ log_peak)
        dual = np.linalg.solve(gram + penalty * np.eye(len(rows)), target)
        coefficients = text.T @ dual
        rest = log_peak - text @ coefficients
    return _Fitted(
        columns,
        tfidf,
        coefficients,
        np.asarray(np.linalg.lstsq(free, rest)[0], dtype=np.float64),
        float(log_peak.min()),
        float(log_peak.max()),
    )


def _splits(count: int, folds: int | None) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Leaving one out needs no shuffle; folds get a fixed one."""
    splitter = KFold(folds or count, shuffle=folds is not None, random_state=0 if folds else None)
    yield from splitter.split(np.zeros(count))


def _lengths(task_text: str, first_prompt_tokens: int) -> tuple[float, float]:
    """Log lengths of the task text (characters) and the first prompt (tokens)."""
    return float(np.log1p(len(task_text))), float(np.log(first_prompt_tokens))


def _bounded(log_peak: float, lowest: float, highest: float, first_prompt_tokens: int) -> float:
    return max(float(np.exp(np.clip(log_peak, lowest, highest))), float(first_prompt_tokens))
