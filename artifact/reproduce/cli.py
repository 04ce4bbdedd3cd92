"""`basin claims`, `basin reproduce` and `basin report`."""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from artifact.reproduce.claims import load_claims
from artifact.reproduce.ledger import commit_full, dump, merged
from artifact.reproduce.paths import PROFILES, repository_root
from artifact.reproduce.render import summary, table
from artifact.reproduce.verdict import Outcome

INTERRUPTED = 130


def claims(
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole ledger as JSON.")] = False,
    group: Annotated[str | None, typer.Option(help="Only this group of claims.yaml.")] = None,
    only_evaluated: Annotated[bool, typer.Option("--only-evaluated", help="Leave out claims without a run.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Write CLAIMS.md from the committed ledger.")] = False,
) -> None:
    """Judge every published figure whose runs exist against what came out."""
    if write:
        typer.echo(str(_write(repository_root())))
        return
    groups = list(dict.fromkeys(claim.group for claim in load_claims().values()))
    if group is not None and group not in groups:
        raise typer.BadParameter(f"{group!r} is none of {', '.join(groups)}", param_hint="--group")
    entries = [entry for entry in merged(repository_root()) if group in (None, entry.group)]
    shown = [e for e in entries if not (only_evaluated and e.verdict is Outcome.NOT_EVALUATED)]
    if as_json:
        typer.echo(dump(shown), nl=False)
    else:
        console = Console()
        console.print(table(shown))
        console.print(summary(entries))


def reproduce(
    figures: Annotated[
        list[str] | None, typer.Argument(help="Notebooks by the start of their names; all if none.")
    ] = None,
    profile: Annotated[str, typer.Option(help=f"One of {', '.join(PROFILES)}.")] = "quick",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes for runs; the CPUs if not given.")] = None,
    scheduler: Annotated[str | None, typer.Option(help="Dask scheduler address, to use many machines.")] = None,
    source: Annotated[str, typer.Option(help="sim, or hw for recorded runs.")] = "sim",
    seeds: Annotated[str | None, typer.Option(help="Seeds, comma-separated; the profile's if not given.")] = None,
    resume: Annotated[bool, typer.Option("--resume/--fresh", help="Skip what is done, or run everything.")] = True,
) -> None:
    """Regenerate the figures from their notebooks and judge the claims."""
    from artifact.reproduce.runner import CODE, Job, find_notebooks, run_all  # papermill is slow to import

    if profile not in PROFILES:
        raise typer.BadParameter(f"{profile!r} is none of {', '.join(PROFILES)}", param_hint="--profile")
    if source not in CODE:
        raise typer.BadParameter(f"{source!r} is none of {', '.join(CODE)}", param_hint="--source")
    root, console = repository_root(), Console()
    try:
        notebooks = find_notebooks(root, figures or [])
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="FIGURES") from error
    determinants = {"profile": profile, "source": source, "seeds": _seeds(seeds)}
    execution = {"workers": workers or os.cpu_count() or 1, "scheduler": scheduler}
    jobs = [Job(root, notebook, profile, determinants, execution) for notebook in notebooks]
    try:
        failures = run_all(jobs, console, fresh=not resume)
    except KeyboardInterrupt:
        console.print("[yellow]Interrupted; the same command goes on with the figure it was at.[/]")
        raise typer.Exit(INTERRUPTED) from None
    if profile == "full":
        console.print(f"Ledger written to {commit_full(root)} and {_write(root)}")
    console.print(summary(merged(root)))
    if failures:
        console.print(f"[red]Failed: {', '.join(failure.figure for failure in failures)}[/]")
        raise typer.Exit(1)


def report() -> None:
    """Build one page with all figures and verdicts."""
    from artifact.reproduce.report import build

    typer.echo(str(build(repository_root())))


def _write(root: Path) -> Path:
    """The costs measured here, and the table of all claims."""
    from artifact.reproduce.claim_table import write
    from artifact.reproduce.costs import commit_costs
    from artifact.reproduce.runner import costs_here

    commit_costs(root, costs_here(root))
    return write(root)


def _seeds(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no list of whole numbers like 0,1,2", param_hint="--seeds") from None
