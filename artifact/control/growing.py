"""A peak predictor beside the paper's ridge: other words about the task, and a second look as the session grows.

At the door it takes the mean, in logs, of the ridge of paper A §6.5 and of randomised trees over TF-IDF features and
the same lengths: trees see words that only matter together. After each call a landmark model predicts the peak anew
from what the session has shown. It is boosted trees, fitted to every call of the training sessions as a moment from
which to look ahead, so that about a session that came far only sessions speak which came as far.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import log, log1p
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.ensemble import ExtraTreesRegressor, GradientBoostingRegressor
from sklearn.feature_extraction.text import TfidfVectorizer

from artifact.control.peaks import Progress
from artifact.control.policy import SessionFacts
from artifact.control.predictor import ANY_TEXT, Floats, PeakPredictor, Rows, cross_fitted, log_lengths, splits, words
from artifact.workload.trajectory import Trajectory

FOLDS = 10
"""Of cross-fitting, here and inside a fit; leaving out one trajectory at a time would cost twenty times as much."""
TREES = 100
RARE = 3
"""Texts that a term must stand in for the trees to see it."""
LANDMARK = {"n_estimators": 100, "max_depth": 3, "min_samples_leaf": 100, "subsample": 0.5, "random_state": 0}
"""Settings of the landmark model. A leaf holds more calls than most sessions make, so that none fills one alone."""


Door = tuple[str, int]
"""What is seen of a session at the door: its task text, and its first prompt in tokens."""


@dataclass(frozen=True)
class GrowingPredictor:
    """A fitted predictor: it answers what `PeakPredictor` answers, and `revise`. It pickles."""

    ridge: PeakPredictor
    terms: TfidfVectorizer
    trees: ExtraTreesRegressor
    landmark: GradientBoostingRegressor

    @classmethod
    def fit(cls, trajectories: Sequence[Trajectory]) -> "GrowingPredictor":
        """Raises `ValueError` for fewer than eight trajectories: it is cross-fitted inside."""
        if len(trajectories) < 8:
            raise ValueError(f"growing predictor: {len(trajectories)} trajectories to fit to; it needs eight")
        log_peak = np.log([t.peak_tokens for t in trajectories])
        doors = [_door(t) for t in trajectories]
        texts = [text for text, _ in doors]
        terms = TfidfVectorizer(vocabulary=_common(texts), sublinear_tf=True)
        trees = ExtraTreesRegressor(
            TREES, min_samples_leaf=3, max_features=0.3, bootstrap=True, oob_score=True, random_state=0
        ).fit(_columns(terms.fit_transform(texts), doors), log_peak)
        # The landmark model must see door predictions as wrong as they will be: none of these knows its own session.
        unseen = (np.log(cross_fitted(trajectories, min(FOLDS, len(trajectories) // 2))) + trees.oob_prediction_) / 2
        seen = [(door, t, p) for door, t in zip(unseen, trajectories, strict=True) for p in landmarks(t)]
        landmark = GradientBoostingRegressor(**LANDMARK)
        landmark.fit([_looks(door, p) for door, _, p in seen], [log(t.peak_tokens) - door for door, t, _ in seen])
        return cls(PeakPredictor.fit(trajectories), terms, trees, landmark)

    def predict(self, task_text: str, first_prompt_tokens: int) -> float:
        """Predicted peak context at the door, as `PeakPredictor.predict`."""
        return self.doors([(task_text, first_prompt_tokens)])[0]

    def doors(self, seen: Sequence[Door]) -> list[float]:
        """`predict` for many at once."""
        ridge = np.log([self.ridge.predict(*door) for door in seen])
        trees = self.trees.predict(_columns(self.terms.transform([text for text, _ in seen]), seen))
        peaks = np.exp((ridge + trees) / 2)
        return [max(peak, float(first)) for peak, (_, first) in zip(peaks.tolist(), seen, strict=True)]

    def __call__(self, session: SessionFacts) -> float:
        """`predict` for a session at the door, as a policy asks."""
        return self.predict(session.task_text, session.first_prompt_tokens)

    def revise(self, session: SessionFacts, progress: Progress) -> float:
        """Predicted peak in tokens of a session that has come so far; no less than the context it has reached."""
        return self.ahead(self(session), progress)

    def ahead(self, door: float, progress: Progress) -> float:
        """`revise`, given the prediction at the door, in tokens."""
        correction = self.landmark.predict([_looks(log(door), progress)])[0]
        return max(door * float(np.exp(correction)), float(progress.context_tokens))


class Fold(NamedTuple):
    """Rows of the trajectories that a model is asked about, and the model, fitted to the others only."""

    rows: Rows
    model: GrowingPredictor


def cross_fit(
    trajectories: Sequence[Trajectory],
    folds: int = FOLDS,
    fit: Callable[[Sequence[Trajectory]], GrowingPredictor] = GrowingPredictor.fit,
) -> list[Fold]:
    """A model a fold. All sessions of one task are in the same fold: another attempt would give its peak away."""
    parts = splits(trajectories, folds, by_task=True)
    return [Fold(test, fit([trajectories[row] for row in train])) for train, test in parts]


class GrowingPeaks:
    """Peaks of replayed sessions at the door and as they grow, each by a model that never saw its trajectory.

    As `CrossFittedPeaks`, it recognises sessions by what the predictor sees. Answers are kept: a trajectory is replayed
    many times in a run.
    """

    def __init__(self, trajectories: Sequence[Trajectory], folds: int = FOLDS) -> None:
        self._models: dict[Door, GrowingPredictor] = {}
        self._doors: dict[Door, float] = {}
        self._revised: dict[tuple[Door, Progress], float] = {}
        for rows, model in cross_fit(trajectories, folds):
            doors = [_door(trajectories[row]) for row in rows]
            self._models.update(dict.fromkeys(doors, model))
            self._doors.update(zip(doors, model.doors(doors), strict=True))

    def __call__(self, session: SessionFacts) -> float:
        """Tokens. Raises `KeyError` for a session of none of the trajectories."""
        return self._doors[self._known(session)]

    def revise(self, session: SessionFacts, progress: Progress) -> float:
        """As `GrowingPredictor.revise`; raises as `__call__`."""
        door = self._known(session)
        if (door, progress) not in self._revised:
            self._revised[door, progress] = self._models[door].ahead(self._doors[door], progress)
        return self._revised[door, progress]

    def _known(self, session: SessionFacts) -> Door:
        door = session.task_text, session.first_prompt_tokens
        if door not in self._doors:
            raise KeyError(f"session {session.id!r} replays none of the trajectories fitted to")
        return door


def landmarks(trajectory: Trajectory) -> Iterator[Progress]:
    """What the session has shown after each of its calls but the last, which nothing follows."""
    progress = Progress(trajectory.prompt_tokens[0])
    for prompt, output in zip(trajectory.prompt_tokens[:-1], trajectory.output_tokens[:-1], strict=True):
        yield (progress := progress.after(prompt + output))


def _looks(log_door: float, progress: Progress) -> tuple[float, ...]:
    """Features of the landmark model: how much of the prediction is used up, after how many calls, at which pace."""
    used = log(progress.context_tokens) - log_door
    return used, log1p(progress.calls), progress.grown_tokens / max(progress.calls, 1), log_door


def _door(trajectory: Trajectory) -> Door:
    return trajectory.task_text, trajectory.prompt_tokens[0]


def _columns(text: csr_matrix, doors: Sequence[Door]) -> Floats:
    """Features of the trees, shape (doors, terms + 2)."""
    return np.hstack([text.toarray(), [log_lengths(*door) for door in doors]])


def _common(texts: Sequence[str]) -> list[str]:
    """Terms of at least `RARE` texts; one that stands for none where there are none."""
    seen = Counter(term for text in texts for term in set(words()(text)))
    return sorted(term for term, count in seen.items() if count >= RARE) or [ANY_TEXT]
