"""The few things that a figure's notebook needs to stay thin."""

import time
from collections.abc import Callable, Collection, Iterable
from fnmatch import fnmatchcase
from pathlib import Path

import pandas as pd
from IPython.display import Markdown
from matplotlib.figure import Figure

from artifact.records.schema import Records
from artifact.reproduce.claims import load_claims
from artifact.reproduce.figures import provenance, save
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

    The arguments are those of `evaluate_claims`; the wall time is that since the notebook imported this module. Without
    any run there is nothing to write, and what an earlier run of the figure found stays."""
    wall_s = round(time.monotonic() - STARTED, 1)
    entries = evaluate_claims(runs, figure, profile, ids, fitted, source, wall_s)
    if any(runs.values()):
        write_part(root or repository_root(), figure, profile, entries)
    pd.set_option("display.max_colwidth", None)  # notes hold the other reading where the source has two
    return frame(entries)


def claim_ids(group: str, *patterns: str) -> list[str]:
    """The claims of a group that match, named in full, so that `show_claims` reports those without runs, too. Raises
    `ValueError` where a pattern matches none."""
    ids = [claim.id for claim in load_claims().values() if claim.group == group]
    for pattern in patterns:
        if not any(fnmatchcase(claim_id, pattern) for claim_id in ids):
            raise ValueError(f"claim_ids: no claim of group {group!r} matches {pattern!r}")
    return [claim_id for claim_id in ids if any(fnmatchcase(claim_id, pattern) for pattern in patterns)]


def show_figure(
    draw: Callable[[Runs], tuple[Figure, pd.DataFrame]],
    runs: Runs,
    name: str,
    profile: str,
    note: str = "",
    root: Path | None = None,
) -> Figure | Markdown:
    """Draw a figure from `Records`, save it with its data, and return it to display; `note` is written into it.

    Where an arm has no runs, nothing is drawn and the text says so."""
    if lacking := missing(runs):
        return Markdown(lacking)
    fig, data = draw(runs)
    meta = provenance(run for seeds in runs.values() for run in seeds)
    save(fig, data, name, {**meta, "note": note}, profile, root)
    return fig


def show_text(words: Callable[[Runs], str], runs: Runs) -> Markdown:
    """What `words` finds in the runs, or that there are none."""
    return show_words(missing(runs) or words(runs))


def show_table(rows: Callable[[Runs], pd.DataFrame], runs: Runs) -> pd.DataFrame | Markdown:
    """The table that `rows` makes of the runs, or that there are none."""
    pd.set_option("display.max_colwidth", None)  # words are read whole
    lacking = missing(runs)
    return show_words(lacking) if lacking else rows(runs).round(2)


def show_words(words: str) -> Markdown:
    """Text in Markdown, to display."""
    return Markdown(words)


def missing(runs: Runs) -> str:
    """Which arms have no runs, in words; "" if all have some. Of simulated runs, some arms are only run from seeds that
    had collapsed when their control begins: there may be none."""
    arms = ", ".join(f"`{arm}`" for arm, seeds in runs.items() if not seeds)
    if not arms:
        return ""
    if any(run.simulated for seeds in runs.values() for run in seeds if isinstance(run, Records)):
        return f"**Not evaluated: none of the seeds gave a run** of {arms}: no engine was collapsed when control began."
    return f"**Not evaluated: no hardware runs** of {arms} in `hw_runs/results/<deployment>/<arm>/seed<k>/`."
