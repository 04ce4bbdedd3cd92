"""`CLAIMS.md`: every claim with its figure, command, cost, expectation, tolerance, outcome and verdict, from the
committed ledger and the committed costs."""

import ast
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
from jinja2 import Environment, StrictUndefined

from artifact.reproduce.claims import Claim, load_claims
from artifact.reproduce.costs import Cost, committed
from artifact.reproduce.ledger import Entry, current
from artifact.reproduce.render import OUTCOMES, origin, text, verdict

NAME = "CLAIMS.md"
TO_START_MIN, A_ROW_MIN = 1.0, 0.25
"""A person's minutes: to give a command and come back to it, and to compare one row. A rule of thumb."""
WORDS = {"abs": "±{:g}", "rel": "±{:.0%}", "rel_low": "−{:.0%}", "rel_high": "+{:.0%}"}


class Section(NamedTuple):
    """One figure's part of the page."""

    figure: str
    question: str
    rows: Sequence[Entry]
    cost: Cost | None
    hardware: Sequence[str]
    """Experiments of `basin run-hw` that the figure reads with `-p source hw`."""

    @property
    def human_min(self) -> int:
        return math.ceil(TO_START_MIN + A_ROW_MIN * len(self.rows))

    @property
    def ledger_s(self) -> float | None:
        """Wall time up to the claims, as the ledger has it."""
        return max((row.wall_s for row in self.rows if row.wall_s is not None), default=None)

    @property
    def verdicts(self) -> str:
        found = Counter(str(row.verdict) for row in self.rows)
        return ", ".join(f"{found[name]} {name}" for name in OUTCOMES if found[name])


def markdown(root: Path) -> str:
    """The whole page; claims that no notebook judges come last."""
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(cell=cell, text=text, verdict=verdict, origin=origin, minutes=minutes)
    template = environment.from_string((files("artifact.reproduce") / "claims.md").read_text(encoding="utf-8"))
    judged = figures_of(root)
    rows = current(root)
    page = template.render(
        sections=sections(root, judged, rows),
        without=[entry for entry in rows if entry.id not in judged],
        claims=load_claims(),
        tolerance=tolerance,
    )
    return page.rstrip() + "\n"


def write(root: Path) -> Path:
    path = root / NAME
    path.write_text(markdown(root), encoding="utf-8")
    return path


def sections(root: Path, figures: Mapping[str, str], rows: Sequence[Entry]) -> list[Section]:
    """One a figure that judges claims (`figures`: claim -> figure), by the notebooks' names, paper A's first."""
    costs, hardware = committed(root), experiments()
    names = sorted(set(figures.values()), key=paper_order)
    return [
        Section(
            name,
            question(root, name),
            [entry for entry in rows if figures.get(entry.id) == name],
            costs.get(name),
            hardware.get(name, ()),
        )
        for name in names
    ]


def figures_of(root: Path) -> dict[str, str]:
    """Claim -> the first notebook that judges it, as the notebooks' own calls say."""
    found: dict[str, str] = {}
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "code":
                for claim_id in _judged(cell.source):
                    found.setdefault(claim_id, path.stem)
    return found


def experiments() -> Mapping[str, Sequence[str]]:
    """Notebook -> experiments on hardware that it reads."""
    from hw_runs.experiment import known_experiments, load_experiment  # this package runs hw_runs; nothing else may

    found: dict[str, list[str]] = {}
    for name in known_experiments():
        if (notebook := load_experiment(name).notebook) is not None:
            found.setdefault(notebook, []).append(name)
    return found


def paper_order(figure: str) -> tuple[bool, str]:
    """A key that sorts paper A's figures before paper B's, each by name."""
    return figure.startswith("b_"), figure


def question(root: Path, name: str) -> str:
    """The notebook's title; "" where there is no such notebook."""
    path = root / "notebooks" / f"{name}.ipynb"
    if not path.is_file():
        return ""
    return str(nbformat.read(path, as_version=4).cells[0].source).splitlines()[0].removeprefix("# ")


def tolerance(claim: Claim) -> str:
    """In words: "±20%", "−8% +25%", "exact", "twins ±2, else ±10%"."""
    return _tolerance(claim.tol)


def minutes(seconds: float | None) -> str:
    return "–" if seconds is None else "< 1" if seconds < 60 else f"{seconds / 60:.0f}"


def cell(words: str) -> str:
    """Words as one cell of a table."""
    return " ".join(words.replace("|", "\\|").replace("<", "&lt;").split())


def _tolerance(tol: str | Mapping[str, Any]) -> str:
    if isinstance(tol, str):
        return "only hardware can tell" if tol == "hardware" else tol
    shared = " ".join(WORDS[kind].format(value) for kind, value in tol.items() if kind in WORDS)
    own = [f"{key} {_tolerance(value)}" for key, value in tol.items() if key not in WORDS]
    return ", ".join([shared, *own] if shared else own)


def _judged(source: str) -> Iterator[str]:
    """Claims that a cell names: `claim_ids(group, patterns…)`, and lists of patterns given to `show_claims`."""
    for node in ast.walk(ast.parse("\n".join("" if line.startswith("%") else line for line in source.splitlines()))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        if node.func.id == "claim_ids":
            group, *patterns = (ast.literal_eval(argument) for argument in node.args)
            yield from _matching(patterns, group)
        elif node.func.id == "show_claims":
            for keyword in node.keywords:
                if keyword.arg == "ids" and isinstance(keyword.value, ast.List):
                    yield from _matching(ast.literal_eval(keyword.value))


def _matching(patterns: Sequence[str], group: str | None = None) -> list[str]:
    known = [claim for claim in load_claims().values() if group in (None, claim.group)]
    return [claim.id for claim in known if any(fnmatchcase(claim.id, pattern) for pattern in patterns)]
