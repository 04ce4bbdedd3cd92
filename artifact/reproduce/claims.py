"""The published figures as data: `claims.yaml`, one row a claim."""

import re
from functools import cache
from importlib.resources import files
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

TOLERANCE_WORDS = ("exact", "hardware")
TOLERANCE_KINDS = frozenset({"rel", "abs", "rel_low", "rel_high"})
MAJORITY = re.compile(r"majority of at least (\d+) seeds")

Expectation = Any
"""A number, a range [low, high], a word, a grid (list of lists of numbers), or a table of any of these."""


class Claim(BaseModel):
    """One row of `claims.yaml`, whose header explains the fields. Raises `ValidationError` for an unknown field, a
    range that is not low to high, or a tolerance of no known kind."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    id: str = Field(pattern=r"^[AB]-[a-z0-9-]+$")
    group: str
    source: Literal["A", "B"]
    where: str
    basis: Literal["hw", "sim", "analysis", "trace"]
    unit: str
    expect: Expectation
    tol: str | dict[str, Any]
    what: str

    @model_validator(mode="after")
    def _check(self) -> Self:
        if isinstance(self.tol, str):
            if self.tol not in TOLERANCE_WORDS and not MAJORITY.fullmatch(self.tol):
                raise ValueError(f"{self.id}: tol: {self.tol!r} is none of {TOLERANCE_WORDS} or 'majority of …'")
        else:
            keys = set(self.expect) if isinstance(self.expect, dict) else set()
            if unknown := set(self.tol) - TOLERANCE_KINDS - keys:
                raise ValueError(f"{self.id}: tol: {sorted(unknown)} are no tolerances and no keys of expect")
        for leaf in leaves(self.expect).values():
            if isinstance(leaf, list) and not (len(leaf) == 2 and leaf[0] <= leaf[1]):
                raise ValueError(f"{self.id}: expect: {leaf} is no range from low to high")
        return self

    @property
    def needs_hardware(self) -> bool:
        return self.tol == "hardware"

    @property
    def majority_of(self) -> int | None:
        """The least number of seeds of a majority claim, None for other claims."""
        found = MAJORITY.fullmatch(self.tol) if isinstance(self.tol, str) else None
        return int(found[1]) if found else None

    def tolerance(self, path: tuple[str | int, ...] = ()) -> str | dict[str, float]:
        """The tolerance of the expectation at `path` (see `leaves`): its table entry's own one, or else the shared."""
        if isinstance(self.tol, str):
            return self.tol
        shared = {kind: value for kind, value in self.tol.items() if kind in TOLERANCE_KINDS}
        return self.tol.get(str(path[0]), shared) if path else shared


def leaves(expect: Expectation) -> dict[tuple[str | int, ...], Any]:
    """The single expectations (number, range or word) by their path of keys; rows and columns are a grid's keys."""
    if isinstance(expect, dict):
        inner = {(key, *path): leaf for key, entry in expect.items() for path, leaf in leaves(entry).items()}
    elif isinstance(expect, list) and any(isinstance(row, list) for row in expect):
        inner = {(i, j): cell for i, row in enumerate(expect) for j, cell in enumerate(row)}
    else:
        inner = {(): expect}
    return inner


@cache
def load_claims() -> dict[str, Claim]:
    """All claims by id, in the order of the file. Raises `ValueError` for an id used twice."""
    groups = yaml.safe_load((files("artifact.reproduce") / "claims.yaml").read_text(encoding="utf-8"))
    claims = [Claim(group=group, **row) for group, rows in groups.items() for row in rows]
    by_id = {claim.id: claim for claim in claims}
    if len(by_id) < len(claims):
        raise ValueError("claims.yaml: an id is used twice")
    return by_id
