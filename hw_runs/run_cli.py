"""`basin run-hw`: experiments on real engines, resumable, their time stated ahead."""

from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from hw_runs.deployment import load_deployment
from hw_runs.experiment import Planned, known_experiments, load_experiment, runs_of
from hw_runs.run import Effort, Failed, effort, execute, unavailable
from hw_runs.serve import dry_run, planned


def run_hw(
    experiments: Annotated[list[str], typer.Argument(help=f"{', '.join(known_experiments())}, or YAML files.")],
    dry: Annotated[bool, typer.Option("--dry-run", help="Print runs, time and commands, and start nothing.")] = False,
    seeds: Annotated[list[int] | None, typer.Option(help="Instead of the experiment's (repeatable).")] = None,
    usd_per_gpu_hour: Annotated[float | None, typer.Option(help="States the cost ahead, too.")] = None,
    accept_capacities: Annotated[bool, typer.Option(help="Run although the engines' differ from the file.")] = False,
) -> None:
    """Run EXPERIMENTS on real engines and write Records to `hw_runs/results`; what is there is not run again."""
    console = Console(stderr=True, highlight=False)
    try:
        runs = _planned(experiments, seeds, console)
        console.print(_table(runs))
        console.print(_words(effort(runs), usd_per_gpu_hour))
        if dry:
            _show_commands(runs)
        for name, reasons in unavailable([run for run in runs if not run.done]).items():
            for reason in reasons:
                console.print(f"{name} cannot be started here: {reason}", markup=False)
        if not dry:
            _run(runs, accept_capacities, console)
    except KeyboardInterrupt:
        console.print("interrupted; the same command resumes with the unfinished run")
        raise typer.Exit(130) from None
    except (ValueError, Failed) as error:
        console.print(f"error: {error}", style="red", markup=False)
        raise typer.Exit(2) from error


def _planned(experiments: list[str], seeds: list[int] | None, console: Console) -> list[Planned]:
    """Runs that several experiments share appear once."""
    by_folder: dict[str, Planned] = {}
    for name in experiments:
        runs, left_out = runs_of(load_experiment(name), seeds)
        by_folder |= {str(run.folder): run for run in runs}
        for policy, reason in left_out.items():
            console.print(f"{name}: without {policy}: {reason}", markup=False)
    return list(by_folder.values())


def _table(runs: list[Planned]) -> Table:
    table = Table("run", "deployment", "policy", "minutes", "state")
    for run in runs:
        minutes = f"{run.scenario.load.duration_s / 60:.1f}"
        table.add_row(str(run.folder), run.deployment, run.policy, minutes, "there" if run.done else "to run")
    return table


def _words(ahead: Effort, usd_per_gpu_hour: float | None) -> str:
    hours = ahead.gpu_s / 3600
    cost = f", {hours * usd_per_gpu_hour:,.0f} USD" if usd_per_gpu_hour is not None else ""
    gpus = f", {hours:.1f} GPU hours{cost}" if hours else ""
    return f"{ahead.runs} runs ahead, about {ahead.wall_s / 60:.0f} min{gpus}"


def _show_commands(runs: list[Planned]) -> None:
    for deployment, policy in dict.fromkeys((run.deployment, run.policy) for run in runs):
        print(f"## {deployment} under {policy}\n{dry_run(planned(load_deployment(deployment), policy))}\n")


def _run(runs: list[Planned], accept_capacities: bool, console: Console) -> None:
    todo = [run for run in runs if not run.done]
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    clocks = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, *clocks, console=console) as progress:
        bar = progress.add_task("runs", total=sum(run.scenario.load.duration_s for run in todo))
        before: dict[str, float] = {}

        def advance(run: Planned, now_s: float) -> None:
            before[str(run.folder)] = now_s
            progress.update(bar, description=str(run.folder), completed=sum(before.values()))

        execute(todo, accept_capacities=accept_capacities, say=console.print, on_second=advance)
