"""`basin simulate` and `basin profile`: one run, and a deployment's profile, on the simulator."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
import yaml
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from artifact.metrics import NotObserved, column, completion_fraction, end_state, evaluated, first_call_wait, goodput
from artifact.metrics import duration_s as length
from artifact.records.schema import Records
from sim.profile import RAMPS, Step
from sim.profile import profile as measure
from sim.run import run
from sim.scenario import Deployment, Scenario

Model = TypeVar("Model", bound=BaseModel)


def simulate(
    scenario: Annotated[Path, typer.Argument(help="YAML file with the fields of a Scenario.")],
    out: Annotated[Path | None, typer.Option(help="Folder to write calls, sessions and samples to.")] = None,
) -> None:
    """Run one scenario and say how it ended."""
    with _errors():
        records = run(_read(scenario, Scenario))
    if out is not None:
        records.save(out)
    Console().print(summary(records))


def profile(
    deployment: Annotated[Path, typer.Argument(help="YAML file with the fields of a Deployment.")],
    workload: Annotated[str, typer.Option(help="A synthesised workload, or a trace file.")] = "terminal-bench",
    tool_time: Annotated[float, typer.Option(help="Scale of tool gaps.")] = 1.0,
    output: Annotated[float, typer.Option(help="Scale of output lengths.")] = 1.0,
    ramps: Annotated[int, typer.Option(min=1, help="Repeated load ramps.")] = RAMPS,
) -> None:
    """Measure cliff scale and peak departure rate by stepped load ramps, and print them as JSON."""
    with _errors():
        found = measure(_read(deployment, Deployment), workload, tool_time, output, ramps, _show)
    print(json.dumps(asdict(found), indent=2))


def summary(records: Records) -> Table:
    """A run in a few lines, by the metrics of paper A §7.1 over all sessions that arrive in it."""
    sessions = evaluated(records)
    wait = first_call_wait(sessions, length(records))
    prompt = column(records.samples, "prompt_tokens_total")[-1]
    rows: dict[str, Callable[[], str]] = {
        "simulated hours": lambda: f"{length(records) / 3600:.2f}",
        "sessions arrived": lambda: f"{len(sessions)}",
        "goodput, sessions/h": lambda: f"{goodput(records):.1f}",
        "completed": lambda: f"{completion_fraction(records):.1%}",
        "median first-call wait, s": lambda: f"{wait.median():.1f}",
        "hit rate": lambda: f"{column(records.samples, 'cached_tokens_total')[-1] / prompt:.3f}" if prompt else "none",
        "end state": lambda: str(end_state(records)),
    }
    table = Table("simulated", records.meta["scenario"]["policy"]["name"])
    for name, value in rows.items():
        table.add_row(name, _observed(value))
    return table


def _observed(value: Callable[[], str]) -> str:
    try:
        return value()
    except NotObserved as reason:
        return f"not observed ({reason})"


def _show(step: Step) -> None:
    Console(stderr=True).print(
        f"{step.sessions:5d} sessions  W {step.working_set_tokens / 1e6:6.2f}M tokens  hit {step.hit_rate:.3f}  "
        f"departures {step.departures_per_min:6.2f}/min"
    )


def _read(path: Path, model: type[Model]) -> Model:
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    fields: Any = yaml.safe_load(path.read_text())
    return model.model_validate(fields)


@contextmanager
def _errors() -> Iterator[None]:
    """Input errors end the command with their message."""
    try:
        yield
    except (ValueError, yaml.YAMLError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
