"""The one order of every engine queue: by priority, ties by arrival (paper A §6.3)."""

import itertools
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
Key = tuple[float, float]


def key(priority: int | None, arrival_s: float) -> Key:
    """Smaller goes first. A request without a priority goes after all that have one."""
    return (float("inf") if priority is None else float(priority), arrival_s)


def sort(queue: list[T], key_of: Callable[[T], Key]) -> bool:
    """Sort in place; True when that moved somebody."""
    keys = [key_of(entry) for entry in queue]
    if all(a <= b for a, b in itertools.pairwise(keys)):
        return False
    queue.sort(key=key_of)
    return True
