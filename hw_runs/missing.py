"""What a figure's notebook wants of real runs: those that are not recorded are run, where this machine can."""

from collections.abc import Sequence

from artifact.reproduce.scenarios import TRAP_DEPLOYMENT
from hw_runs.checks import Machine
from hw_runs.experiment import Planned, known_experiments, load_experiment, runs_of
from hw_runs.run import Failed, effort, execute, unavailable
from hw_runs.serve import Say

SHARED = {TRAP_DEPLOYMENT, "policies"}
"""Folders below `hw_runs/results` whose runs figures share."""


def record_missing(
    folder: str,
    arms: Sequence[str],
    seeds: Sequence[int] | None = None,
    say: Say = print,
    machine: Machine | None = None,
) -> None:
    """Run those arms of the experiments below `folder` that are not recorded, saying first how long it takes.

    Nothing is started for a deployment that this machine cannot serve; `say` hears why. An arm of no experiment, such
    as a system that no engine runs yet, stays without runs."""
    wanted = _wanted(folder, set(arms), seeds)
    if not wanted:
        return
    lacking = unavailable(wanted, machine)
    for name, reasons in lacking.items():
        say(f"not run here, {name}: {'; '.join(reasons)}")
    todo = [run for run in wanted if run.deployment not in lacking]
    if not todo:
        return
    ahead = effort(todo)
    say(f"{ahead.runs} runs ahead, about {ahead.wall_s / 60:.0f} min")
    try:
        execute(todo, say=say, machine=machine)
    except Failed as failed:
        say(f"some runs did not come about: {failed}")


def _wanted(folder: str, arms: set[str], seeds: Sequence[int] | None) -> list[Planned]:
    """The unrecorded runs of all experiments whose folders are `<folder>/<one of arms>/seed<k>`."""
    found: dict[str, Planned] = {}
    for name in known_experiments() if folder in SHARED else ():
        experiment = load_experiment(name)
        if experiment.trap is None and experiment.compared is None:
            continue
        for run in runs_of(experiment, seeds)[0]:
            if run.folder.parts[0] == folder and "/".join(run.folder.parts[1:-1]) in arms and not run.done:
                found[str(run.folder)] = run
    return list(found.values())
