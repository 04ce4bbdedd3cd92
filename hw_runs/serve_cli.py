"""`basin serve`: a deployment's engines, router and gateway, until Ctrl-C."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hw_runs.checks import Machine, problems
from hw_runs.deployment import known_deployments, load_deployment
from hw_runs.processes import NotReady
from hw_runs.serve import TOKEN_FILE, CannotServe, dry_run, planned, serving


def serve(
    deployment: Annotated[str, typer.Argument(help=f"{', '.join(known_deployments())}, or a YAML file.")],
    policy: Annotated[str, typer.Option(help="Policy in charge of the gateway; `none` lets everybody in.")] = "basin",
    dry: Annotated[bool, typer.Option("--dry-run", help="Print every command and what would stop it here.")] = False,
    profile: Annotated[Path | None, typer.Option(help="Deployment profile written by `basin profile`.")] = None,
    accept_capacities: Annotated[bool, typer.Option(help="Serve although the file says otherwise.")] = False,
) -> None:
    """Check this machine, start DEPLOYMENT's engines, router and gateway, and end them all on Ctrl-C."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)  # a path, or a line that is waited for, stays whole
    try:
        wanted = load_deployment(deployment)
        if dry:
            print(dry_run(planned(wanted, policy, profile)))
            for reason in problems(wanted, policy, Machine()):
                console.print(f"would not start here: {reason}", markup=False)
            return
        with (
            serving(wanted, policy, accept_capacities=accept_capacities, say=console.print) as served,
            served.gateway(policy, profile, console.print) as gateway,
        ):
            console.print(f"{wanted.name} under {policy} at {wanted.gateway_url}; pages at {wanted.gateway_url}/ui")
            console.print(f"admin token in {served.logs / TOKEN_FILE}; Ctrl-C ends everything")
            while True:
                replace(served, processes=(*served.processes, gateway)).check_alive()
                time.sleep(1.0)
    except KeyboardInterrupt:
        console.print("ended")
    except (ValueError, OSError, CannotServe, NotReady) as error:
        console.print(f"error: {error}", style="red", markup=False)
        raise typer.Exit(2) from error
