"""The composition of paper A §7.1: ThunderAgent's bound, Crossflow's borrowing, Continuum's order and pinning."""

from collections.abc import Callable, Mapping
from typing import Any

from artifact.baselines.continuum import Continuum
from artifact.baselines.crossflow import Lease, Leases
from artifact.baselines.thunderagent import ThunderAgent
from artifact.control.capacity import Capacities
from artifact.control.policy import SessionFacts


class Composition(ThunderAgent):
    """ThunderAgent decides who is inside; inside, Continuum orders and pins, and decode lends compute as in Crossflow.

    The three are the baselines themselves; `thunderagent`, `continuum` and `lease` hold their keyword settings.
    """

    def __init__(
        self,
        capacities: Capacities,
        reload_s: Callable[[int], float],
        thunderagent: Mapping[str, Any] | None = None,
        continuum: Mapping[str, Any] | None = None,
        lease: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(capacities, **(thunderagent or {}))
        self._continuum = Continuum(reload_s, **(continuum or {}))
        self._leases = Leases(**(lease or {}))

    def arrive(self, session: SessionFacts, now: float) -> None:
        super().arrive(session, now)
        self._continuum.arrive(session, now)

    def adopt(self, session: SessionFacts, context_tokens: int, now: float) -> None:
        super().adopt(session, context_tokens, now)
        self._continuum.adopt(session, context_tokens, now)

    def turn(self, session_id: str, prompt_tokens: int, now: float) -> bool:
        self._continuum.turn(session_id, prompt_tokens, now)
        return super().turn(session_id, prompt_tokens, now)

    def started(self, session_id: str, waited_s: float, cached_tokens: int, now: float) -> None:
        self._continuum.started(session_id, waited_s, cached_tokens, now)

    def call_done(self, session_id: str, context_tokens: int, now: float) -> None:
        super().call_done(session_id, context_tokens, now)
        self._continuum.call_done(session_id, context_tokens, now)

    def depart(self, session_id: str, now: float) -> None:
        super().depart(session_id, now)
        self._continuum.depart(session_id, now)

    def ordering(self) -> bool:
        return self._continuum.ordering()

    def order_key(self, session_id: str) -> float:
        return self._continuum.order_key(session_id)

    def pin_s(self, session_id: str, now: float) -> float:
        return self._continuum.pin_s(session_id, now)

    def lease(self, instance: int) -> Lease:
        return self._leases.of(instance)
