"""`basin trace`: what a trace file holds, and conversion between formats."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from artifact.workload import formats
from artifact.workload.formats import FORMATS, LoadResult, TraceError
from artifact.workload.stats import WorkloadStats, workload_stats
from artifact.workload.trajectory import Trajectory

app = typer.Typer(no_args_is_help=True, help="Statistics of session traces, and conversion between their formats.")

NAMES = ", ".join(FORMATS)
SHOWN_REASONS = 10

SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave bad sessions out and count them.")]


@app.command()
def stats(
    file: Annotated[Path, typer.Argument(help="A trace file, or a folder of trace files.")],
    format: Annotated[
        str | None, typer.Option("--format", help=f"One of {NAMES}; found by content unless given.")
    ] = None,
    skip_bad: SkipBad = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, with null for what the trace has none of.")
    ] = False,
) -> None:
    """Sessions, calls, and the distributions of prompt, output, gap, new tokens and peak context."""
    with _errors():
        result = formats.load(file, format, skip_bad)
        _account(result)
        if not result.trajectories:
            raise TraceError(file, "no good session is left", advice="see the reasons above")
        found = workload_stats(result)
    if as_json:
        typer.echo(json.dumps(_report(file, result, found), indent=2))
    else:
        _print(file, result, found)


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="A trace file, or a folder of trace files.")],
    target: Annotated[
        Path, typer.Argument(metavar="OUT", help="A file; a new folder for formats of a session a file.")
    ],
    to: Annotated[str, typer.Option("--to", help=f"One of {NAMES}.")],
    format: Annotated[str | None, typer.Option("--format", help="Format of IN; found by content unless given.")] = None,
    skip_bad: SkipBad = False,
    block_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens a hash id stands for (mooncake; 512).")
    ] = None,
) -> None:
    """Write the sessions of IN to OUT in another format, and say what that format could not hold."""
    with _errors():
        if source.resolve() == target.resolve():
            raise TraceError(target, "is the file to convert", advice="name another one")
        if block_tokens is not None and to != "mooncake":
            raise TraceError(target, f"{to} has no choice of block size", advice="leave --block-tokens out")
        options = {} if block_tokens is None else {"block_tokens": block_tokens}
        result = formats.load(source, format, skip_bad)
        _account(result)
        formats.save(target, result.trajectories, to, result.arrivals_s, **options)
        lost = _lost(result.trajectories, formats.load(target, to).trajectories)
    typer.echo(f"{len(result)} sessions: {source} ({result.format}) -> {target} ({to})")
    if lost:
        typer.echo(f"not kept as they were, since {to} cannot hold them: {', '.join(lost)}", err=True)


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except TraceError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    except OSError as error:
        typer.echo(f"error: {error.filename}: {error.strerror}", err=True)
        raise typer.Exit(2) from None


def _account(result: LoadResult) -> None:
    """Notes and skipped sessions, on the error stream, so that what is printed can be piped."""
    for note in result.notes:
        typer.echo(f"note: {note}", err=True)
    if result.skipped:
        typer.echo(f"left out: {len(result.skipped)}", err=True)
    for reason in result.skipped[:SHOWN_REASONS]:
        typer.echo(f"  {reason}", err=True)
    if len(result.skipped) > SHOWN_REASONS:
        typer.echo(f"  and {len(result.skipped) - SHOWN_REASONS} more (--json lists all)", err=True)


def _report(file: Path, result: LoadResult, found: WorkloadStats) -> dict[str, Any]:
    numbers = {key: value if math.isfinite(value) else None for key, value in asdict(found).items()}
    return {
        "file": str(file),
        "format": result.format,
        **numbers,
        "notes": list(result.notes),
        "skipped": list(result.skipped),
    }


def _print(file: Path, result: LoadResult, found: WorkloadStats) -> None:
    table = Table("", "p50", "p90", "mean", "max")
    for column in table.columns[1:]:
        column.justify = "right"
    rows: dict[str, tuple[float | None, ...]] = {
        "calls a session": (found.calls_per_session_p50, None, found.calls_per_session_mean, None),
        "prompt, tokens": (found.prompt_p50, found.prompt_p90, found.prompt_mean, None),
        "new since the preceding prompt": (found.new_p50, found.new_p90, found.new_mean, None),
        "output, tokens": (found.output_p50, found.output_p90, found.output_mean, None),
        "gap, s": (found.gap_p50_s, found.gap_p90_s, found.gap_mean_s, None),
        "peak context, tokens": (found.peak_p50, found.peak_p90, None, found.peak_max),
    }
    for name, values in rows.items():
        table.add_row(name, *(_number(value, 3 if name == "gap, s" else 0) for value in values))
    console = Console()
    console.print(
        f"{file} ({result.format}): {found.sessions:,} sessions, {found.calls:,} calls", highlight=False, soft_wrap=True
    )
    console.print(table)
    console.print(
        f"repeated from the preceding call: {_number(found.repeat_share * 100, 1)}% of returning calls' prompt tokens "
        f"({_number(found.repeat_share_with_first * 100, 1)}% with first calls)\n"
        f"a full prefix hit saves a returning call up to {_number(found.reuse_gain, 1)}x",
        highlight=False,
        soft_wrap=True,
    )


def _number(value: float | None, digits: int) -> str:
    if value is None:
        return ""
    return f"{value:,.{digits}f}" if math.isfinite(value) else "-"


def _lost(before: tuple[Trajectory, ...], after: tuple[Trajectory, ...]) -> list[str]:
    """Fields that did not survive, sessions paired in order of id, or of appearance where ids did not survive."""
    kept = {t.id: t for t in after}
    same_ids = kept.keys() == {t.id for t in before}
    pairs = list(zip(before, [kept[t.id] for t in before] if same_ids else after, strict=False))
    return [f.name for f in fields(Trajectory) if any(_differs(f.name, *pair) for pair in pairs)]


def _differs(field: str, before: Trajectory, after: Trajectory) -> bool:
    a, b = getattr(before, field), getattr(after, field)
    if field != "gap_before_s":
        return bool(a != b)
    return any(not math.isclose(x, y, abs_tol=1e-5) for x, y in zip(a, b, strict=False))
