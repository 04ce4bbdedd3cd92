"""What the sources leave open, with values to try on both sides of our choice.

A comparison depends on a choice of ours if the order of systems changes within these sweeps. The defaults, and why,
stand with the constructors.
"""

from collections.abc import Iterator, Mapping
from typing import Any

OPEN_CHOICES: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "concur": {
        "interval_s": (2.0, 10.0, 30.0),
        "initial_window": (4.0, 64.0),
        "floor": (1.0, 8.0),
        "hit_threshold": (0.2, 0.5, 0.85),  # 0.2 is the published default, 0.7 paper A's
    },
    "thunderagent": {
        "idle_lease_s": (30.0, 120.0),  # 30 s in the router port
        "promote_after_s": (30.0, 600.0),  # 30 s stands in a newer description of the same port
        "output_estimate_tokens": (0, 1024),
        "new_order": ("smallest",),
    },
    "continuum": {
        "ttl": ("fixed",),
        "window": (200, 5000),
        "wait_weight": (0.01, 0.2),
        "cold_samples": (20, 500),
    },
    "crossflow": {
        "most_tokens": (2048, 16384),
        "raise_tokens": (64, 1024),
        "revoke_s": (0.1, 2.0),
        "chunk_charge_s": (0.02,),  # paper A §7.5
    },
}


def open_variants(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """One-at-a-time variants of a baseline as (label, parameters); none for a policy without open choices."""
    for parameter, values in OPEN_CHOICES.get(name, {}).items():
        for value in values:
            yield f"{parameter}={value}", {parameter: value}
