"""How a claim's value comes out of runs: evaluators, one small function a claim, in `artifact.reproduce.evaluate`."""

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, NamedTuple, TypeVar

import numpy as np

from artifact.metrics import NotObserved
from artifact.reproduce.claims import Claim, load_claims

Runs = Mapping[str, Sequence[Any]]
"""Arm name -> what was run, one entry a seed and the same seeds in every arm: `Records`, or for claims about a
workload its trajectories or arrival times (a fixed set is a single "seed")."""

F = TypeVar("F", bound=Callable[..., Any])


class Noted(NamedTuple):
    """A value with a remark for the ledger, such as the other reading of a figure that the source gives twice."""

    value: Any
    note: str


@dataclass(frozen=True, slots=True)
class Evaluator:
    """`function` takes the arms named by its parameters: one seed's runs, or with `pooled` the lists over all seeds."""

    claim: Claim
    function: Callable[..., Any]
    arms: tuple[str, ...]
    pooled: bool


@dataclass(frozen=True, slots=True)
class Evaluation:
    """`obtained` is what gets judged; `per_seed` holds each seed's value (empty for a pooled evaluator)."""

    obtained: Any
    per_seed: tuple[Any, ...]
    note: str


_evaluators: dict[str, Evaluator] = {}


def evaluates(claim_id: str, *, pooled: bool = False, arms: Sequence[str] = ()) -> Callable[[F], F]:
    """Register the decorated function as the evaluator of a claim; its parameter names are the arms it needs
    (or `arms`, for a function of many).

    It returns a value shaped like the claim's expectation (a `Noted` adds a remark) and raises `NotObserved` where
    the runs cannot tell. Raises `ValueError` for an unknown claim or a second evaluator of the same."""

    def register(function: F) -> F:
        if claim_id not in load_claims():
            raise ValueError(f"evaluator {function.__qualname__}: no claim {claim_id!r} in claims.yaml")
        if claim_id in _evaluators:
            raise ValueError(f"evaluator {function.__qualname__}: claim {claim_id!r} has an evaluator already")
        needed = tuple(arms) or tuple(inspect.signature(function).parameters)
        _evaluators[claim_id] = Evaluator(load_claims()[claim_id], function, needed, pooled)
        return function

    return register


def evaluators() -> dict[str, Evaluator]:
    """All evaluators by claim id, those of every module in `artifact.reproduce.evaluate`."""
    package = import_module("artifact.reproduce.evaluate")
    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    return dict(_evaluators)


def evaluate(evaluator: Evaluator, runs: Runs) -> Evaluation:
    """Apply an evaluator. The value judged is the `over_seeds` of the per-seed values unless the evaluator is pooled
    or the claim is of a majority of seeds.

    Raises `NotObserved` when an arm is missing or any seed cannot tell, `ValueError` for arms of unequal length."""
    if missing := [arm for arm in evaluator.arms if not runs.get(arm)]:
        raise NotObserved(f"needs runs of {', '.join(missing)}")
    arms = [runs[arm] for arm in evaluator.arms]
    if evaluator.pooled:
        value, note = _split(evaluator.function(*(list(arm) for arm in arms)))
        return Evaluation(value, (), note)
    if len({len(arm) for arm in arms}) > 1:
        sizes = {arm: len(runs[arm]) for arm in evaluator.arms}
        raise ValueError(f"claim {evaluator.claim.id}: arms have different numbers of seeds: {sizes}")
    results = [_split(evaluator.function(*seed)) for seed in zip(*arms, strict=True)]
    values = tuple(value for value, _ in results)
    notes = "; ".join(dict.fromkeys(note for _, note in results if note))
    return Evaluation(list(values) if evaluator.claim.majority_of else over_seeds(values), values, notes)


def over_seeds(values: Sequence[Any]) -> Any:
    """One value for several seeds: the median of numbers, entry by entry in tables and lists of equal length; for the
    outcome of a test whether more than half passed; for words the one of more than half, or "mixed"."""
    first = values[0]
    if isinstance(first, dict):
        return {key: over_seeds([value[key] for value in values]) for key in first}
    if isinstance(first, (list, tuple)):
        return [over_seeds(entry) for entry in zip(*values, strict=True)]
    if isinstance(first, (bool, np.bool_)):
        return 2 * sum(map(bool, values)) > len(values)
    if isinstance(first, str):
        word, votes = Counter(map(str, values)).most_common(1)[0]
        return word if 2 * votes > len(values) else "mixed"
    return float(np.median(values))


def _split(result: Any) -> tuple[Any, str]:
    return (result.value, result.note) if isinstance(result, Noted) else (result, "")
