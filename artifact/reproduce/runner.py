"""Running the figures' notebooks: one after the other, resumable, past failures."""

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
import papermill
from papermill.exceptions import PapermillExecutionError
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from artifact.reproduce.costs import Cost, measured
from artifact.reproduce.ledger import commit

CODE = {"sim": ("artifact", "sim"), "hw": ("artifact", "hw_runs")}
"""Folders whose files determine a figure's results, by source; those of real runs hold the recorded results, too."""
CODE_KINDS = (".py", ".yaml", ".json", ".jsonl", ".parquet")
TRACEBACK_LINES = 15
IOPUB_TIMEOUT_S = 120
"""How long a busy machine may take to hand over what a cell printed; nbclient's default is four seconds."""
CELL_LIMIT_S = {"smoke": 3600, "quick": 24 * 3600, "full": 14 * 24 * 3600}
"""By profile, far beyond any cell: a kernel that is alive but has lost a message would be waited for without end."""
UNKNOWN_CELL_S = 1.0
"""Assumed of a cell that was never run here, for the time left."""
ANSI = re.compile(r"\x1b\[[0-9;]*m")


class Failure(NamedTuple):
    figure: str
    reason: str


@dataclass(frozen=True, slots=True)
class Job:
    """One notebook at one profile. `determinants` are the parameters that change its results, `execution` those that
    only say how it is computed."""

    root: Path
    notebook: Path
    profile: str
    determinants: Mapping[str, Any]
    execution: Mapping[str, Any]

    @property
    def figure(self) -> str:
        return self.notebook.stem

    @property
    def executed(self) -> Path:
        return self.root / "build" / "notebooks" / f"{self.figure}.{self.profile}.ipynb"

    @property
    def state(self) -> Path:
        return self.executed.with_suffix(".json")

    def fingerprint(self) -> str:
        """Hash of the notebook, the code below it and the parameters that change results."""
        digest = hashlib.sha256(json.dumps(dict(self.determinants), sort_keys=True).encode())
        for path in (self.notebook, *code_files(self.root, self.determinants["source"])):
            digest.update(str(path.relative_to(self.root)).encode() + b"\0" + path.read_bytes() + b"\0")
        return digest.hexdigest()

    def done(self) -> bool:
        """Whether this very job has been executed to its end before."""
        if not (self.state.is_file() and self.executed.is_file()):
            return False
        return bool(json.loads(self.state.read_text(encoding="utf-8"))["fingerprint"] == self.fingerprint())

    def execute(self, on_cell: Callable[[int], None]) -> None:
        """Run the notebook into `executed`; `on_cell(index)` after each cell. The job counts as done only if all went
        well. Raises what papermill raises, `PapermillExecutionError` for an error in a cell."""
        self.executed.parent.mkdir(parents=True, exist_ok=True)
        self.state.unlink(missing_ok=True)
        fingerprint = self.fingerprint()
        with measured(self.root) as meter:
            papermill.execute_notebook(
                self.notebook,
                self.executed,
                parameters={**self.determinants, **self.execution},
                cwd=self.root,
                progress_bar=False,
                execution_timeout=CELL_LIMIT_S[self.profile],
                iopub_timeout=IOPUB_TIMEOUT_S,
                on_cell_executed=lambda cell, cell_index, execute_reply: on_cell(cell_index),
            )
        cost = meter.cost(self.figure, self.profile, int(self.execution["workers"]), commit(self.root))
        state = {"fingerprint": fingerprint, "cost": cost.model_dump()}
        self.state.write_text(json.dumps(state) + "\n", encoding="utf-8")

    def cell_seconds(self) -> list[float]:
        """What each cell took the last time, or a guess where there was none (one more for the injected parameters)."""
        if self.executed.is_file():
            cells = nbformat.read(self.executed, as_version=4).cells
            return [cell.metadata.get("papermill", {}).get("duration") or UNKNOWN_CELL_S / 100 for cell in cells]
        return [UNKNOWN_CELL_S] * (len(nbformat.read(self.notebook, as_version=4).cells) + 1)


def costs_here(root: Path) -> list[Cost]:
    """Of every figure's latest execution in this checkout that ended well."""
    states = (json.loads(path.read_text(encoding="utf-8")) for path in (root / "build" / "notebooks").glob("*.json"))
    return [Cost.model_validate(state["cost"]) for state in states if "cost" in state]


def code_files(root: Path, source: str) -> list[Path]:
    """The files whose change makes every result of a source stale, sorted."""
    found = (path for folder in CODE[source] for path in (root / folder).rglob("*"))
    return sorted(path for path in found if path.suffix in CODE_KINDS and path.is_file())


def find_notebooks(root: Path, names: Sequence[str]) -> list[Path]:
    """The notebooks whose names begin with one of `names` (all, if there is none), in the order of their names.

    Raises `ValueError` for a name that no notebook begins with, naming those there are."""
    notebooks = sorted((root / "notebooks").glob("*.ipynb"))
    if unknown := [name for name in names if not any(path.stem.startswith(name) for path in notebooks)]:
        there = ", ".join(path.stem for path in notebooks) or "none"
        raise ValueError(f"no notebook begins with {', '.join(unknown)}; there are: {there}")
    return [path for path in notebooks if not names or path.stem.startswith(tuple(names))]


def run_all(jobs: Iterable[Job], console: Console, fresh: bool = False) -> list[Failure]:
    """Execute the jobs that are not done (all of them with `fresh`), each failure reported and passed over.

    An interruption (`KeyboardInterrupt`) goes through; what was finished before stays done."""
    todo = []
    for job in jobs:
        if not fresh and job.done():
            console.print(
                f"[dim]{job.figure}: done before at profile {job.profile}, skipped (--fresh runs it again)[/]"
            )
        else:
            todo.append(job)
    seconds = {job.figure: job.cell_seconds() for job in todo}
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    clocks = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    failures = []
    with Progress(*columns, *clocks, console=console) as progress:
        bar = progress.add_task("figures", total=sum(map(sum, seconds.values())))
        for number, job in enumerate(todo, 1):
            progress.update(bar, description=f"{job.figure} ({number}/{len(todo)})")
            before = progress.tasks[bar].completed
            failure = _run(job, seconds[job.figure], progress, bar)
            progress.update(bar, completed=before + sum(seconds[job.figure]))
            if failure:
                failures.append(failure)
                console.print(f"[red]{job.figure} failed:[/]")
                console.print(failure.reason, markup=False, highlight=False)
    return failures


def _run(job: Job, seconds: Sequence[float], progress: Progress, bar: TaskID) -> Failure | None:
    """Execute a job, twice if a message of its kernel was lost the first time: the runs that it did are kept."""
    began, start = time.monotonic(), progress.tasks[bar].completed
    on_cell = partial(_advance, progress, bar, seconds)
    try:
        try:
            job.execute(on_cell)
        except TimeoutError as error:
            progress.console.print(f"{job.figure}: no word from its kernel, once more: {error.args[0].splitlines()[0]}")
            progress.update(bar, completed=start)
            job.execute(on_cell)
    except PapermillExecutionError as error:
        return Failure(job.figure, describe(error, job.executed))
    except Exception as error:  # a missing kernel or a broken notebook must not stop the other figures
        return Failure(job.figure, f"{type(error).__name__}: {error}")
    progress.console.print(f"{job.figure}: done in {time.monotonic() - began:.0f} s")
    return None


def _advance(progress: Progress, bar: TaskID, seconds: Sequence[float], index: int) -> None:
    progress.advance(bar, seconds[index] if index < len(seconds) else 0)


def describe(error: PapermillExecutionError, executed: Path) -> str:
    """Which cell failed, how it begins, the end of its traceback, and where the whole of it is."""
    first = next((line for line in error.source.splitlines() if line.strip()), "")
    lines = ANSI.sub("", "\n".join(error.traceback)).splitlines()[-TRACEBACK_LINES:]
    return "\n".join([f"cell [{error.exec_count}]: {first}", *lines, f"whole output: {executed}"])
