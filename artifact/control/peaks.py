"""What is asked about peak contexts, and peaks known to experiments only: exact, and exact up to an independent
lognormal error (paper A §7.9)."""

import hashlib
import math
from collections.abc import Callable
from statistics import NormalDist
from typing import NamedTuple

from artifact.control.policy import SessionFacts

Predict = Callable[[SessionFacts], float]
"""Predicted peak context Ŵ in tokens, input and output together, from what the first call shows."""


class Progress(NamedTuple):
    """What a resident has shown since it came in, or was adopted."""

    context_tokens: int
    calls: int = 0
    """Done."""
    grown_tokens: int = 0
    """By which the context has grown meanwhile."""

    def after(self, context_tokens: int) -> "Progress":
        """One call later, with the context it left."""
        return Progress(context_tokens, self.calls + 1, self.grown_tokens + context_tokens - self.context_tokens)


Revise = Callable[[SessionFacts, Progress], float]
"""Ŵ anew after a resident's call. The paper's prediction stays fixed until completion."""


def true_peak(session: SessionFacts) -> float:
    """The peak the session will reach. Raises `ValueError` where the host does not know it."""
    if session.true_peak_tokens is None:
        raise ValueError(f"session {session.id!r}: true_peak_tokens is not known here; use a predictor")
    return session.true_peak_tokens


class PerturbedPeak:
    """True peaks times exp(σ z), z standard normal, drawn from seed and session id: the same in every run and order."""

    def __init__(self, sigma: float, seed: int) -> None:
        if sigma < 0:
            raise ValueError(f"sigma: {sigma} is negative")
        self._sigma = sigma
        self._seed = seed

    def __call__(self, session: SessionFacts) -> float:
        digest = hashlib.blake2b(f"{self._seed}/{session.id}".encode(), digest_size=8).digest()
        uniform = (int.from_bytes(digest, "big") + 0.5) / 2**64
        return true_peak(session) * math.exp(self._sigma * NormalDist().inv_cdf(uniform))
