"""Peak contexts known to experiments only: exact, and exact up to an independent lognormal error (paper A §7.9)."""

import hashlib
import math
from statistics import NormalDist

from artifact.control.policy import SessionFacts


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
