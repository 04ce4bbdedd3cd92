"""Judging what was obtained against a published figure. No verdict is ever set by hand."""

import math
from enum import StrEnum
from itertools import combinations
from typing import Any, NamedTuple

from artifact.reproduce.claims import Claim, leaves

ROUNDING = 1e-9


class Outcome(StrEnum):
    REPRODUCED = "reproduced"
    DIRECTION_ONLY = "direction only"
    NOT_REPRODUCED = "not reproduced"
    NOT_EVALUATED = "not evaluated"


class Verdict(NamedTuple):
    """An outcome, and for "not evaluated" why."""

    outcome: Outcome
    why: str = ""

    def __str__(self) -> str:
        return f"{self.outcome}: {self.why}" if self.why else str(self.outcome)


class Pair(NamedTuple):
    """One single expectation beside what was obtained for it; `values` are several where a range is to hold all."""

    path: tuple[str | int, ...]
    expected: Any
    values: tuple[Any, ...]


def judge(claim: Claim, obtained: Any, simulated: bool) -> Verdict:
    """Compare `obtained`, shaped like the claim's expectation, with the claim.

    A number must lie within the tolerance of the number or range expected; where a list stands in the place of a range
    (or of a number), every value of it must. A word is met by the same word or by `True`, the outcome of the claim's
    test. A majority claim takes the list of the seeds' words.

    What fails this is "direction only" by one rule:
    - a ratio (or a table of ratios): each value lies on the same side of 1 as the published one; an entry published as
      1, or as a range across 1, has no side and must lie within its tolerance;
    - any other table or grid in one unit: every two entries whose expectations do not overlap come in the published
      order.
    Anything else has no direction to keep.
    """
    if claim.needs_hardware and simulated:
        return Verdict(Outcome.NOT_EVALUATED, "only a run on that hardware can tell")
    if claim.majority_of is not None:
        return _judge_majority(claim, claim.majority_of, obtained)
    pairs = [Pair(path, expected, _values(obtained, path)) for path, expected in leaves(claim.expect).items()]
    for pair in pairs:
        if not pair.values or any(_undefined(value) for value in pair.values):
            name = " of " + ".".join(map(str, pair.path)) if pair.path else ""
            return Verdict(Outcome.NOT_EVALUATED, f"no value{name} was observed")
        if claim.needs_hardware and not isinstance(pair.expected, list):
            return Verdict(Outcome.NOT_EVALUATED, "the source states no tolerance for a repeat on hardware")
    if all(_holds(claim, pair) for pair in pairs):
        return Verdict(Outcome.REPRODUCED)
    kept = _side_kept(claim, pairs) if claim.unit == "ratio" else _order_kept(claim, pairs)
    return Verdict(Outcome.DIRECTION_ONLY if kept else Outcome.NOT_REPRODUCED)


def bounds(expected: float | list[float], tolerance: str | dict[str, float]) -> tuple[float, float]:
    """Lowest and highest value that counts as reproduced."""
    low, high = expected if isinstance(expected, list) else (expected, expected)
    if isinstance(tolerance, str):
        return low, high
    below = tolerance.get("abs", abs(low) * tolerance.get("rel_low", tolerance.get("rel", 0.0)))
    above = tolerance.get("abs", abs(high) * tolerance.get("rel_high", tolerance.get("rel", 0.0)))
    return low - below, high + above


def _judge_majority(claim: Claim, least: int, words: list[Any]) -> Verdict:
    if len(words) < least:
        return Verdict(Outcome.NOT_EVALUATED, f"{len(words)} seeds, {least} are the least")
    agree = sum(str(word) == claim.expect for word in words)
    return Verdict(Outcome.REPRODUCED if 2 * agree > len(words) else Outcome.NOT_REPRODUCED)


def _values(obtained: Any, path: tuple[str | int, ...]) -> tuple[Any, ...]:
    for key in path:
        try:
            obtained = obtained[key]
        except (KeyError, IndexError, TypeError):
            return ()
    return tuple(obtained) if isinstance(obtained, (list, tuple)) else (obtained,)


def _undefined(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _holds(claim: Claim, pair: Pair) -> bool:
    if isinstance(pair.expected, str):
        return all(value if isinstance(value, bool) else str(value) == pair.expected for value in pair.values)
    low, high = bounds(pair.expected, claim.tolerance(pair.path))
    slack = ROUNDING * max(1.0, abs(low), abs(high))
    return all(low - slack <= value <= high + slack for value in pair.values)


def _side_kept(claim: Claim, pairs: list[Pair]) -> bool:
    sided = 0
    for pair in pairs:
        low, high = pair.expected if isinstance(pair.expected, list) else (pair.expected, pair.expected)
        if low < high <= 1 or low == high < 1:
            kept = all(value < 1 for value in pair.values)
        elif 1 <= low < high or 1 < low == high:
            kept = all(value > 1 for value in pair.values)
        elif _holds(claim, pair):
            continue
        else:
            return False
        if not kept:
            return False
        sided += 1
    return sided > 0


def _order_kept(claim: Claim, pairs: list[Pair]) -> bool:
    if claim.unit == "mixed" or "," in claim.unit or any(isinstance(pair.expected, str) for pair in pairs):
        return False
    ordered = 0
    for one, other in combinations(pairs, 2):
        lower, upper = sorted((one, other), key=lambda pair: bounds(pair.expected, "exact"))
        if bounds(lower.expected, "exact")[1] < bounds(upper.expected, "exact")[0]:
            if not max(lower.values) < min(upper.values):
                return False
            ordered += 1
    return ordered > 0
