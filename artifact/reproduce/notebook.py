"""The few things that a figure's notebook needs to stay thin."""

import time
from collections.abc import Collection, Iterable
from pathlib import Path

import pandas as pd

from artifact.reproduce.ledger import evaluate_claims, write_part
from artifact.reproduce.paths import check_profile, repository_root
from artifact.reproduce.registry import Runs
from artifact.reproduce.render import frame

STARTED = time.monotonic()
SEEDS = {"smoke": 1, "quick": 3, "full": 5}


def seeds_for(profile: str, seeds: Iterable[int] | None = None) -> tuple[int, ...]:
    """The seeds asked for, or else the profile's: one (smoke), three (quick) or five (full), counted from 0."""
    return tuple(range(SEEDS[check_profile(profile)])) if seeds is None else tuple(seeds)


def show_claims(
    figure: str,
    runs: Runs,
    profile: str,
    ids: Iterable[str] = ("*",),
    fitted: Collection[str] = (),
    source: str = "synthetic",
    root: Path | None = None,
) -> pd.DataFrame:
    """Evaluate a figure's claims on its runs, write its part of the ledger, and return the table to display.

    The arguments are those of `evaluate_claims`; the wall time is that since the notebook imported this module."""
    wall_s = round(time.monotonic() - STARTED, 1)
    entries = evaluate_claims(runs, figure, profile, ids, fitted, source, wall_s)
    write_part(root or repository_root(), figure, profile, entries)
    return frame(entries)
