"""How admission counts demand (paper A §6.1, §6.4): predicted peaks, or current contexts as in the prototype."""

from typing import Protocol

from artifact.control.working_set import WorkingSet


class Demand(Protocol):
    """What residents are counted for against the budget B."""

    def enter(self, session_id: str, footprint_tokens: float) -> None: ...
    def revise(self, session_id: str, footprint_tokens: float) -> None:
        """A resident's predicted peak has changed."""

    def leave(self, session_id: str) -> None: ...
    def tokens(self) -> float:
        """Demand of all residents, in tokens."""

    def of(self, footprint_tokens: float) -> float:
        """What a session with this predicted peak would add."""


class PeakReservations:
    """Σ Ŵ over residents: each reserves its predicted peak from entry to departure."""

    def __init__(self) -> None:
        self._reserved: dict[str, float] = {}
        self._total = 0.0

    def enter(self, session_id: str, footprint_tokens: float) -> None:
        self._reserved[session_id] = footprint_tokens
        self._total += footprint_tokens

    def revise(self, session_id: str, footprint_tokens: float) -> None:
        self._total += footprint_tokens - self._reserved[session_id]
        self._reserved[session_id] = footprint_tokens

    def leave(self, session_id: str) -> None:
        self._total -= self._reserved.pop(session_id, 0.0)
        if not self._reserved:
            self._total = 0.0  # no rounding error outlives the last resident

    def tokens(self) -> float:
        return self._total

    def of(self, footprint_tokens: float) -> float:
        return footprint_tokens


class CurrentContexts:
    """W = N c̄, a newcomer counting c̄: the accounting of the hardware prototype (paper A §6.6)."""

    def __init__(self, working_set: WorkingSet) -> None:
        self._working_set = working_set

    def enter(self, session_id: str, footprint_tokens: float) -> None:
        """The working set counts residents already."""

    def revise(self, session_id: str, footprint_tokens: float) -> None:
        """As for `enter`."""

    def leave(self, session_id: str) -> None:
        """As for `enter`."""

    def tokens(self) -> float:
        return self._working_set.tokens

    def of(self, footprint_tokens: float) -> float:
        return self._working_set.mean_tokens


def admits(demand: Demand, footprint_tokens: float, budget_tokens: float, residents: int) -> bool:
    """Whether the head enters: its demand fits what is left of B, or nobody is inside (the progress rule)."""
    return residents == 0 or demand.tokens() + demand.of(footprint_tokens) <= budget_tokens
