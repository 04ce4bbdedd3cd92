"""Ledger entries for people: one wording for the terminal, the notebooks and the report."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from rich.table import Column, Table

from artifact.reproduce.ledger import Entry, counts
from artifact.reproduce.verdict import Outcome

STYLES = {
    Outcome.REPRODUCED: "green",
    Outcome.DIRECTION_ONLY: "yellow",
    Outcome.NOT_REPRODUCED: "red",
    Outcome.NOT_EVALUATED: "dim",
}
OUTCOMES = ("reproduced", "reproduced (fitted)", "direction only", "not reproduced", "not evaluated")


def text(value: Any) -> str:
    """A value of the ledger on one line: "0.27", "1.8 to 6.1", "basin 769, hicache 84"; "–" for none."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "holds" if value else "does not hold"
    if isinstance(value, (int, float)):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_inner(entry)}" for key, entry in value.items())
    if isinstance(value, list):
        return (" to " if len(value) == 2 and not any(isinstance(v, (list, str)) for v in value) else ", ").join(
            map(_inner, value)
        )
    return str(value)


def frame(entries: Sequence[Entry]) -> pd.DataFrame:
    """The entries as a table for notebooks, one row a claim."""
    rows = [(e.id, text(e.expected), e.unit, text(e.obtained), verdict(e), e.role, e.what, e.note) for e in entries]
    names = ["id", "expected", "unit", "obtained", "verdict", "fitted or validated", "what", "note"]
    return pd.DataFrame(rows, columns=names).set_index("id")


def verdict(entry: Entry) -> str:
    return f"{entry.verdict}: {entry.why}" if entry.why else str(entry.verdict)


def origin(entry: Entry) -> str:
    """What the value rests on: "sim, full"."""
    return f"{entry.source}, {entry.profile}" if entry.source else ""


def table(entries: Sequence[Entry]) -> Table:
    """The entries for the terminal."""
    found = Table(Column("id", no_wrap=True), "expected", "obtained", "verdict", "role", "from", title="Claims")
    for e in entries:
        cells = (e.id, f"{text(e.expected)} {e.unit}", text(e.obtained), verdict(e), e.role, origin(e))
        found.add_row(*cells, style=STYLES[e.verdict])
    return found


def summary(entries: Sequence[Entry]) -> Table:
    """Verdicts counted by group."""
    found = Table(Column("group", no_wrap=True), *OUTCOMES, title="Verdicts by group")
    for group, verdicts in counts(entries).items():
        found.add_row(group, *(str(verdicts[outcome]) for outcome in OUTCOMES))
    return found


def _inner(value: Any) -> str:
    return f"({text(value)})" if isinstance(value, (dict, list)) else text(value)
