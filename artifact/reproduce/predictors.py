"""How well peak contexts are foretold, and what that is worth (paper A §6.5, §7.9).

Scores of the paper's ridge and of the growing predictor (`artifact.control.growing`) on the synthesised workloads and
on sets of the user's, at the door and after each call; and goodput under each in one trap of Fig. 24.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from artifact.control.growing import FOLDS, GrowingPeaks, landmarks
from artifact.control.policy import SessionFacts
from artifact.control.predictor import Floats, PeakPredictor, PredictionScores, cross_fitted, score
from artifact.reproduce.notebook import seeds_for
from artifact.reproduce.outcomes import Resources
from artifact.reproduce.scenarios_ablation import SENSITIVE, TRUE_PEAKS
from artifact.reproduce.summaries import Summaries, cells, summary_runs
from artifact.workload.catalog import workload
from artifact.workload.formats import LoadResult, TraceError, load
from artifact.workload.synth_spec import SPECS
from artifact.workload.trajectory import Trajectory

FEWEST, MOST = 30, 1000
"""Ours: sessions that a set needs for its scores to mean something, and how many are taken of a larger one, where
leaving out one at a time would take hours."""
FIFTHS = 5
RIDGE, GROWING = "ridge (paper A)", "ridge + trees"
ONE_OUT, BY_TASK, LATER = "one session left out", f"{FOLDS} folds, tasks kept together", "trained on earlier sessions"


@dataclass(frozen=True)
class PeakSet:
    """Sessions whose peaks are to be foretold. `fitted`: synthesised so that the ridge scores as published."""

    name: str
    sessions: Sequence[Trajectory]
    fitted: bool = False
    format: str = ""
    arrivals_s: Mapping[str, float] = field(default_factory=dict)
    note: str = ""

    @property
    def with_texts(self) -> float:
        """Share of the sessions that have a task text."""
        return float(np.mean([bool(t.task_text) for t in self.sessions]))


def synthesised() -> list[PeakSet]:
    """The shipped workloads."""
    return [PeakSet(name, workload(name), fitted=True) for name in SPECS]


def supplied(folder: str | Path | None) -> tuple[list[PeakSet], list[str]]:
    """The sets of a folder, one a trace file or folder of trace files directly in it, and why others are none.

    A set of fewer than `FEWEST` sessions is none; of one of more than `MOST` an evenly spaced part is taken. Raises
    `FileNotFoundError` for a folder that is not there."""
    if folder is None:
        return [], []
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"traces {str(folder)!r}: no such folder; give one that holds traces, or None")
    sets, refused = [], []
    for path in sorted(Path(folder).iterdir()):
        try:
            sets.append(_as_set(path.name, load(path, skip_bad=True)))
        except (TraceError, UnicodeDecodeError) as error:
            refused.append(f"{path.name}: {error}")
        except ValueError as error:
            refused.append(str(error))
    return sets, refused


def _as_set(name: str, loaded: LoadResult) -> PeakSet:
    if len(loaded) < FEWEST:
        raise ValueError(f"{name}: {len(loaded)} sessions; scores need {FEWEST}")
    step = -(-len(loaded) // MOST)
    note = f"every {step}th of {len(loaded)} sessions" if step > 1 else ""
    return PeakSet(name, loaded.trajectories[::step], False, loaded.format, loaded.arrivals_s, note)


# At the door ---------------------------------------------------------------------------------------------------------


def facts(trajectory: Trajectory) -> SessionFacts:
    """What the first call of a session shows."""
    return SessionFacts(trajectory.id, 0.0, trajectory.prompt_tokens[0], trajectory.task_text)


def later_scores(peaks: PeakSet) -> PredictionScores | None:
    """Scores on the later half by arrival of a ridge fitted to the earlier (paper A §7.9); None where the set does not
    record arrivals."""
    timed = [t for t in peaks.sessions if t.id in peaks.arrivals_s]
    if len(timed) < FEWEST:
        return None
    timed.sort(key=lambda t: peaks.arrivals_s[t.id])
    earlier, later = timed[: len(timed) // 2], timed[len(timed) // 2 :]
    model = PeakPredictor.fit(earlier)
    return score([model(facts(t)) for t in later], later)


@dataclass(frozen=True)
class Foretold:
    """A set, its peaks in tokens by the paper's ridge, one session left out at a time, and the growing predictor
    cross-fitted to it."""

    peaks: PeakSet
    ridge: Floats
    growing: GrowingPeaks

    @classmethod
    def of(cls, peaks: PeakSet) -> "Foretold":
        return cls(peaks, cross_fitted(peaks.sessions), GrowingPeaks(peaks.sessions))

    @property
    def ridge_scores(self) -> PredictionScores:
        return score(self.ridge, self.peaks.sessions)


def scores_table(sets: Iterable[Foretold]) -> pd.DataFrame:
    """One row a set, predictor and way of splitting: `sessions`, `with_texts`, the four scores, `kind`."""
    rows = []
    for one in sets:
        peaks, sessions = one.peaks, one.peaks.sessions
        by_task = cross_fitted(sessions, FOLDS, by_task=True)
        found = [(RIDGE, ONE_OUT, one.ridge_scores), (RIDGE, BY_TASK, score(by_task, sessions))]
        found.append((GROWING, BY_TASK, score([one.growing(facts(t)) for t in sessions], sessions)))
        if (later := later_scores(peaks)) is not None:
            found.append((RIDGE, LATER, later))
        kind = "fitted by construction" if peaks.fitted else "recorded"
        about = {"set": peaks.name, "kind": kind, "sessions": len(sessions), "with_texts": peaks.with_texts}
        rows += [{**about, "predictor": name, "split": split, **scores._asdict()} for name, split, scores in found]
    return pd.DataFrame(rows)


def claim_inputs(sets: Iterable[Foretold]) -> dict[str, list[Any]]:
    """What the claims about predictions look at: the scores of the synthesised sets, and of every Bailian trace given
    (the time split of §7.9)."""
    arms: dict[str, list[Any]] = {f"{name.replace('-', '_')}_peaks": [] for name in SPECS} | {"bailian_peaks": []}
    for one in sets:
        if one.peaks.fitted:
            arms[f"{one.peaks.name.replace('-', '_')}_peaks"] = [one.ridge_scores]
        elif one.peaks.format == "bailian" and (later := later_scores(one.peaks)) is not None:
            arms["bailian_peaks"].append(later)
    return arms


# As a session grows --------------------------------------------------------------------------------------------------


def growth_table(sets: Iterable[Foretold]) -> pd.DataFrame:
    """How wrong predictions are while a session goes on: one row a set, fifth of its calls and predictor, with `error`,
    the mean over calls of |log(predicted / true peak)|. No prediction counts as less than the context reached."""
    rows = []
    for one in sets:
        for door, t in zip(one.ridge.tolist(), one.peaks.sessions, strict=True):
            for number, seen in enumerate(landmarks(t)):
                fixed, grown = max(door, seen.context_tokens), one.growing.revise(facts(t), seen)
                about = {"set": one.peaks.name, "fifth": FIFTHS * number // t.n_calls}
                rows += [
                    {**about, "predictor": name, "error": abs(log(peak / t.peak_tokens))}
                    for name, peak in (("at the door, kept", fixed), ("as it grows", grown))
                ]
    each = pd.DataFrame(rows, columns=["set", "fifth", "predictor", "error"])
    return each.groupby(["set", "fifth", "predictor"], sort=False)["error"].mean().reset_index()


# Goodput -------------------------------------------------------------------------------------------------------------

TRAP = "x8"
"""The largest surge of Fig. 24: HiCache alone stays trapped, and under Basin many sessions wait for their turn, so that
it matters how large they are taken to be."""
VARIANTS = {
    "hicache": "HiCache (no control)",
    "basin": "ridge at the door (paper A)",
    "basin-revised-peaks": "ridge, given the context reached",
    "basin-blended-peaks": "ridge + trees at the door",
    "basin-growing-peaks": "ridge + trees, as it grows",
    TRUE_PEAKS: "true peaks",
}
"""Policies by where their peaks come from; "given the context reached" cuts the ridge's lognormal error off there."""


def goodput_runs(
    source: str,
    profile: str,
    seeds: Iterable[int] | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
) -> Summaries:
    """Summaries of the trap under every policy of `VARIANTS`, arms "<trap>/<policy>", the same arrivals in a seed."""
    arms = cells({TRAP: SENSITIVE[TRAP]}, list(VARIANTS))
    return summary_runs(source, arms, seeds_for(profile, seeds), Resources(workers, scheduler), "predictors")


def gains(runs: Summaries) -> pd.DataFrame:
    """Goodput of every policy and seed (sessions/h), its `gain` over Basin with the paper's ridge in that seed, and the
    sessions `active` in minutes 60-75."""
    base = {run.meta["seed"]: run.goodput for run in runs[f"{TRAP}/basin"]}
    rows = [
        {
            "policy": name.split("/")[1],
            "seed": run.meta["seed"],
            "goodput": run.goodput,
            "gain": run.goodput / base[run.meta["seed"]] if base[run.meta["seed"]] else np.nan,
            "state": run.state,
            "wait_p90_s": run.wait_p90_s,
            "active": run.active,
        }
        for name, seeds in runs.items()
        for run in seeds
    ]
    return pd.DataFrame(rows)
