"""`basin replay`: run a scenario's load against a gateway or an engine, as the simulator would run it."""

from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from pydantic import ValidationError

from artifact.workload.catalog import workload
from artifact.workload.plan import plan_sessions
from hw_runs.replay import Target, replay
from sim.calibration.model import calibration
from sim.engine.costs import Costs, unloaded_duration
from sim.scenario import Scenario


def replay_command(
    scenario: Annotated[Path, typer.Argument(help="Scenario as YAML or JSON, the same that `basin simulate` takes.")],
    url: Annotated[str, typer.Option(help="Base URL of the gateway, or of the engine itself.")],
    out: Annotated[Path, typer.Option(help="Folder for the records.")],
    source: Annotated[str, typer.Option(help="What stands behind the URL: hw or stub.")] = "hw",
    model: Annotated[str, typer.Option(help="Model name in the requests.")] = "stub",
    speed: Annotated[float, typer.Option(help="Seconds of the scenario a real second (stub engines only).")] = 1.0,
    bytes_per_token: Annotated[int, typer.Option(help="Text length that makes one token.")] = 4,
    gateway: Annotated[bool, typer.Option(help="Whether the URL is a Basin gateway (samples, warm adoption).")] = True,
    admin_token_file: Annotated[Path | None, typer.Option(help="Hand warm sessions to the gateway as inside.")] = None,
    preload: Annotated[str | None, typer.Option(help="Base URL of a stub engine that takes warm contexts.")] = None,
    itl_slo_ms: Annotated[float | None, typer.Option(help="Count slower steps; where an event is a token.")] = None,
) -> None:
    """Replay SCENARIO's sessions as real HTTP clients and write Records."""
    plan = _scenario(scenario)
    if source not in ("hw", "stub"):
        raise typer.BadParameter(f"--source {source!r}: expected hw or stub")
    if speed != 1.0 and source == "hw":
        raise typer.BadParameter("--speed: a real engine cannot be sped up; use a stub engine")
    unloaded = unloaded_duration(Costs.of(calibration(plan.deployment.calibration)))
    sessions = plan_sessions(plan.load, workload(plan.load.workload), plan.seed, unloaded)
    target = Target(
        base_url=url.rstrip("/"),
        model=model,
        speed=speed,
        bytes_per_token=bytes_per_token,
        gateway=gateway,
        admin_token=admin_token_file.read_text().strip() if admin_token_file is not None else None,
        preload_url=preload.rstrip("/") if preload is not None else None,
        itl_slo_s=itl_slo_ms / 1e3 if itl_slo_ms is not None else None,
    )
    records = replay(
        sessions,
        target,
        plan.load.duration_s,
        meta={"source": source, **provenance(plan)},
        unloaded_s=lambda p: unloaded(p.trajectory, p.first_call),
        end_group=(plan.end_group.at_s, plan.end_group.group) if plan.end_group is not None else None,
        sample_s=plan.sample_s,
    )
    records.save(out)
    typer.echo(f"{records.calls.num_rows} calls of {records.sessions.num_rows} sessions written to {out}")


def provenance(scenario: Scenario) -> dict[str, Any]:
    """What the records say about where they come from, under the simulator's keys."""
    load = scenario.load
    first = load.surges[0] if load.surges else load.burst
    meta: dict[str, Any] = {"scenario": scenario.model_dump(mode="json"), "seed": scenario.seed}
    if first is not None:
        meta["trigger"] = {"start_s": first.start_s, "end_s": first.end_s}
    if scenario.end_group is not None:
        meta["ended_at_s"] = scenario.end_group.at_s
    return meta


def _scenario(path: Path) -> Scenario:
    try:
        return Scenario.model_validate(yaml.safe_load(path.read_text()))
    except (OSError, yaml.YAMLError, ValidationError) as error:
        raise typer.BadParameter(f"{path}: {error}") from error
