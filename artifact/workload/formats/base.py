"""What the trace formats are behind: gathered sessions, the result of a load, and what a format has to offer."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from artifact.workload.formats.record import Record, TraceError
from artifact.workload.trajectory import Trajectory

MAX_TOKENS = 2**31 - 1
"""Largest context, so that counts fit the 32-bit columns of the records."""


@dataclass(frozen=True)
class LoadResult:
    """The sessions of a trace, in file order, and an account of what is not among them. Iterates over the sessions."""

    trajectories: tuple[Trajectory, ...]
    skipped: tuple[str, ...]
    """One reason for every session, or stray line, that was left out: bad (with `skip_bad`) or a duplicate."""
    format: str
    notes: tuple[str, ...] = ()
    """What the file does not record and how it was filled in, with counts."""
    arrivals_s: Mapping[str, float] = field(default_factory=dict)
    """Recorded arrival of a session in seconds, by session id, as far as the format records it."""

    def __iter__(self) -> Iterator[Trajectory]:
        return iter(self.trajectories)

    def __len__(self) -> int:
        return len(self.trajectories)


class Call(NamedTuple):
    """One call of a session: whole prompt, the part not in the preceding prompt, output; gap in seconds."""

    prompt: int
    new: int
    output: int
    gap_s: float


class Collector:
    """Gathers the sessions of a load: a bad one raises, or is counted and left out with `skip_bad`."""

    def __init__(self, skip_bad: bool) -> None:
        self.skip_bad = skip_bad
        self.skipped: list[str] = []
        self.arrivals_s: dict[str, float] = {}
        self._sessions: dict[str, Trajectory] = {}
        self._seen: set[Trajectory] = set()
        self._notes: Counter[str] = Counter()

    def reject(self, error: TraceError) -> None:
        if not self.skip_bad:
            raise error
        self.skipped.append(str(error))

    @contextmanager
    def session(self) -> Iterator[None]:
        """Reading one session: a `TraceError` inside rejects that session alone."""
        try:
            yield
        except TraceError as error:
            self.reject(error)

    def note(self, text: str, count: int = 1) -> None:
        if count:
            self._notes[text] += count

    def add(self, calls: Sequence[Call], place: Record, arrival_s: float | None = None, **other: Any) -> None:
        """Add the session made of `calls`; `other` are the remaining fields of `Trajectory`, id among them."""
        prompt, new, output, gap_s = zip(*calls, strict=True) if calls else ((), (), (), ())
        self.add_columns(
            place, arrival_s, prompt_tokens=prompt, new_tokens=new, output_tokens=output, gap_before_s=gap_s, **other
        )

    def add_columns(self, place: Record, arrival_s: float | None = None, **columns: Any) -> None:
        """Add `Trajectory(**columns)`. Drops and counts an exact duplicate; a used id is made a new one."""
        try:
            trajectory = Trajectory(**columns)
        except ValueError as error:
            field, _, problem = str(error).removeprefix(f"trajectory {columns['id']!r}: ").partition(": ")
            raise place.error(field, problem) from None
        if trajectory.peak_tokens > MAX_TOKENS:
            raise place.error("", f"a context of {trajectory.peak_tokens} tokens is not credible")
        if trajectory in self._seen:
            where = place.path if place.line is None else f"{place.path}:{place.line}"
            self.skipped.append(f"{where}: duplicate of session {trajectory.id!r}; dropped")
            return
        self._seen.add(trajectory)
        key, same = trajectory.id, 1
        while key in self._sessions:
            same += 1
            key = f"{trajectory.id}#{same}"
        self.note("sessions share another one's id and got a new one (name#2, ...)", key != trajectory.id)
        self._sessions[key] = trajectory if key == trajectory.id else replace(trajectory, id=key)
        if arrival_s is not None:
            self.arrivals_s[key] = arrival_s

    def result(self, name: str) -> LoadResult:
        sessions = tuple(self._sessions.values())
        shapes = [(t.prompt_tokens, t.new_tokens, t.output_tokens, t.gap_before_s) for t in sessions if t.n_calls > 1]
        alike = len(shapes) - len(set(shapes))
        self.note("sessions equal an earlier one in all but the id (kept; drop them if they are copies)", alike)
        notes = tuple(f"{count} {text}" for text, count in self._notes.items())
        return LoadResult(sessions, tuple(self.skipped), name, notes, self.arrivals_s)


class Format(Protocol):
    """One trace format: the modules of this package are these."""

    NAME: str
    SUFFIX: str
    MANY: bool
    """Whether one file holds many sessions; if not, many sessions are a folder of files."""
    NESTS: bool
    """Whether a session's file holds the sessions of its sub-agents too."""

    def matches(self, sample: "Sample") -> bool: ...
    def read(self, path: Path, out: Collector) -> None: ...
    def write(
        self, path: Path, trajectories: Sequence[Trajectory], arrivals_s: Mapping[str, float], **options: Any
    ) -> None: ...


@dataclass(frozen=True)
class Sample:
    """What `detect` shows the formats: the JSON objects in a file's first lines, or its one document, and its head."""

    head: str
    document: Any = None
    lines: tuple[dict[str, Any], ...] = ()

    @property
    def broken(self) -> bool:
        """Whether it begins like JSON and holds none."""
        return self.head.lstrip()[:1] in ("{", "[") and self.document is None and not self.lines


def appended(prompts: Sequence[int], cached: Sequence[int | None]) -> list[int]:
    """New tokens of each prompt where only sizes are known: a prompt that did not shrink appends to the preceding one;
    one that shrank (compaction) repeats what the provider says it found cached, or nothing."""
    new = [prompts[0]] if prompts else []
    for (before, prompt), hit in zip(pairwise(prompts), cached[1:], strict=True):
        new.append(prompt - (before if prompt >= before else min(hit or 0, prompt)))
    return new


def out_of_order(times: Sequence[float]) -> set[int]:
    """The fewest positions without which `times` never decreases (all but a longest non-decreasing subsequence)."""
    tails: list[float] = []
    ends: list[int] = []
    before: list[int] = []
    for i, time in enumerate(times):
        at = bisect_right(tails, time)
        before.append(ends[at - 1] if at else -1)
        tails[at : at + 1], ends[at : at + 1] = [time], [i]
    keep: set[int] = set()
    i = ends[-1] if ends else -1
    while i >= 0:
        keep.add(i)
        i = before[i]
    return set(range(len(times))) - keep
