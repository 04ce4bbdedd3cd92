"""Trace formats: `load`, `save` and `detect`, over one module a format.

A format is a module with `NAME`, `SUFFIX`, `MANY`, `matches`, `read` and `write` (the protocol
`artifact.workload.formats.base.Format`); adding one means writing the module and naming it in `FORMATS`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from artifact.workload.formats import (
    atif,
    bailian,
    claude_code,
    mini_swe_agent,
    mooncake,
    native,
    swe_agent,
    tracelab,
    weka,
)
from artifact.workload.formats.base import Collector, Format, LoadResult, Sample
from artifact.workload.formats.record import TraceError, json_document
from artifact.workload.trajectory import Trajectory

__all__ = ["FORMATS", "LoadResult", "TraceError", "detect", "load", "save"]

_MODULES: tuple[ModuleType, ...] = (
    native, tracelab, mooncake, bailian, weka, claude_code, atif, mini_swe_agent, swe_agent,
)  # fmt: skip
FORMATS: Mapping[str, Format] = {module.NAME: module for module in _MODULES}
SAMPLE_LINES = 100


def load(path: str | Path, format: str | None = None, skip_bad: bool = False) -> LoadResult:
    """Read the sessions of a trace file, or of all trace files below a folder, which must be of one format.

    The format is found by content unless given; of a folder, only files of a given format's suffix are read. With
    `skip_bad`, a bad session is left out and its reason is in `skipped`; a duplicate always is. Raises `TraceError`
    naming file, line and field otherwise, also where nothing could be read, and `FileNotFoundError` where nothing is.
    """
    path = Path(path)
    given = [_format(format, path)] if format else list(FORMATS.values())
    files = _files(path, tuple({candidate.SUFFIX for candidate in given}))
    name = format or _detect_first(files, skip_bad)
    chosen = _format(name, path)
    out = Collector(skip_bad)
    for file in files:
        with out.session():
            if path.is_dir() and format is None and detect(file) != name:
                raise TraceError(file, f"is not {name} like the first", advice="name one format, or move it")
            chosen.read(file, out)
    result = out.result(name)
    if not result.trajectories and not result.skipped:
        raise TraceError(path, "holds no session", advice="give a trace with at least one call")
    return result


def _files(path: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """`path`, or the files below it that end in one of `suffixes`."""
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.name.endswith(suffixes))
    if not files:
        raise TraceError(path, f"no file below it ends in {', '.join(sorted(suffixes))}", advice="name a trace file")
    return files


def _detect_first(files: Sequence[Path], skip_bad: bool) -> str:
    """Format of the first file, or with `skip_bad` of the first file that has one."""
    for file in files[:-1] if skip_bad else ():
        try:
            return detect(file)
        except TraceError:
            continue
    return detect(files[-1] if skip_bad else files[0])


def _format(name: str, path: Path) -> Format:
    if name not in FORMATS:
        raise TraceError(path, f"no trace format is called {name!r}", advice=f"choose one of {', '.join(FORMATS)}")
    return FORMATS[name]


def detect(path: str | Path) -> str:
    """Name of a file's format, by its content. Raises `TraceError` listing the formats where none fits."""
    sample = _sample(Path(path))
    for name, candidate in FORMATS.items():
        if candidate.matches(sample):
            return name
    if not sample.head:
        raise TraceError(Path(path), "is empty", advice="give a trace with at least one call")
    if sample.broken:
        json_document(Path(path))  # says where
    raise TraceError(
        Path(path), "is in no known trace format", advice=f"name it if it is one of {', '.join(FORMATS)}, or convert it"
    )


def _sample(path: Path) -> Sample:
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        head = file.readline()
        first = _parsed(head)
        if first is None and head.lstrip()[:1] in ("{", "["):  # a document over several lines, or one broken line
            first = _parsed(head + file.read())
        if first is not None and not file.readline().strip():
            return Sample(head, first, (first,) if isinstance(first, dict) else ())
        file.seek(0)
        lines = (_parsed(line) for _, line in zip(range(SAMPLE_LINES), file, strict=False))
        return Sample(head, None, tuple(line for line in lines if isinstance(line, dict)))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def save(
    path: str | Path,
    trajectories: Sequence[Trajectory],
    format: str,
    arrivals_s: Mapping[str, float] | None = None,
    **options: Any,
) -> None:
    """Write sessions in a format, with their arrivals (seconds, by session id) where it records them.

    A format of one session a file writes a single session (with its sub-agents) to `path`, and more of them to files
    in `path` as a new folder. `options` go to the format: `block_tokens` to Mooncake. What a format cannot hold is
    left out; the text of its module says what that is. Raises `TraceError` for an unknown format, for no sessions,
    and for a folder that is not empty.
    """
    path = Path(path)
    chosen = _format(format, path)
    if not trajectories:
        raise TraceError(path, "no sessions to write", advice="give at least one")
    arrivals_s = arrivals_s or {}
    families = [list(trajectories)] if chosen.MANY else list(_families(path, trajectories, chosen))
    if len(families) == 1 and not path.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        chosen.write(path, families[0], arrivals_s, **options)
        return
    if chosen.MANY or (path.exists() and (not path.is_dir() or any(path.iterdir()))):
        raise TraceError(path, "is in the way", advice="name a new file or folder")
    path.mkdir(parents=True, exist_ok=True)
    for i, family in enumerate(families):
        chosen.write(path / f"{i:05d}{chosen.SUFFIX}", family, arrivals_s, **options)


def _families(path: Path, trajectories: Sequence[Trajectory], chosen: Format) -> Iterator[list[Trajectory]]:
    """Sessions that go into one file: each root with the sub-agents below it, where the format nests them."""
    if not chosen.NESTS:
        yield from ([t] for t in trajectories)
        return
    sessions = {t.id: t for t in trajectories}
    families: dict[str, list[Trajectory]] = {}
    for t in sorted(trajectories, key=lambda t: t.parent_id in sessions):  # roots first, otherwise in order
        line = [t]
        while (above := sessions.get(line[-1].parent_id or "")) is not None:
            if above in line:
                raise TraceError(path, f"session {t.id!r} is its own ancestor", field="parent_id", advice="correct it")
            line.append(above)
        families.setdefault(line[-1].id, []).append(t)
    yield from families.values()
