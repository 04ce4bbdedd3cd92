"""Planned runs on real engines: replay, scrape, Records; engines are started once for all runs that they can serve."""

import json
import shutil
import time
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from artifact.control.profile import load_profile, save_profiles
from artifact.gateway.engines import read_page
from artifact.records.schema import Records
from artifact.reproduce.scenarios_policies import HARDWARE, base_rate_per_min
from artifact.workload.load import Load
from artifact.workload.plan import Unloaded, plan_sessions
from hw_runs import provenance
from hw_runs.checks import Machine, problems
from hw_runs.deployment import Deployment, load_deployment
from hw_runs.experiment import PROFILE, Planned, results_root
from hw_runs.laptop import trajectories
from hw_runs.processes import NotReady
from hw_runs.ramp import ladder, populations, profile_of, supply
from hw_runs.replay import Switch, Target, replay
from hw_runs.replay_cli import provenance as scenario_provenance
from hw_runs.scrape import Scraper
from hw_runs.serve import CannotServe, Say, Served, serving
from hw_runs.speed import measure, prompt_tokens
from sim.calibration.model import calibration
from sim.engine.costs import Costs, unloaded_duration

DRAIN_S = 120.0
"""For an engine to drop what the last run left behind."""
TEXT_TOKENS = (500, 2500)
LENGTH_TOLERANCE = 0.03


@dataclass(frozen=True, slots=True)
class Effort:
    """What runs will take: engines in use for so long. Starts are counted at half their longest."""

    runs: int
    wall_s: float
    gpu_s: float


class Failed(RuntimeError):
    """Some runs did not come about; one a line. The others are saved."""


def effort(runs: Iterable[Planned]) -> Effort:
    """Stated before anything is started."""
    todo = [run for run in runs if not run.done]
    wall = gpu = 0.0
    for deployment, group in _by_engines(todo):
        seconds = deployment.start_s / 2 + sum(run.scenario.load.duration_s for run in group)
        wall += seconds
        gpu += seconds * sum(instance.gpu is not None for instance in deployment.instances)
    return Effort(len(todo), wall, gpu)


def execute(
    runs: Sequence[Planned],
    *,
    accept_capacities: bool = False,
    machine: Machine | None = None,
    say: Say = lambda line: None,
    on_second: Callable[[Planned, float], None] = lambda run, now_s: None,
) -> None:
    """Run what is not there yet, and write a profile where a deployment's ramps are complete.

    Interrupted, it resumes with the next unfinished run. `on_second` hears how far the present run is. Raises `Failed`
    at the end for runs that did not come about; the others are done all the same."""
    machine = machine or Machine()
    failures: list[str] = []
    for deployment, group in _by_engines([run for run in runs if not run.done]):
        try:
            with serving(
                deployment, group[0].policy, accept_capacities=accept_capacities, machine=machine, say=say
            ) as served:
                about = provenance.of_engines(served, machine) | check_text(deployment)
                reference = reference_of(deployment)
                for run in group:
                    say(f"{run.folder}: {run.scenario.load.duration_s:.0f} s")
                    one_run(served, run, about, reference, say, partial(on_second, run))
        except (CannotServe, NotReady, OSError, RuntimeError, ValueError) as error:
            failures.append(f"{deployment.name} under {group[0].policy}: {error}")
            say(failures[-1])
    for run in runs:
        if run.ramp is not None:
            _profile(run, [other for other in runs if other.ramp is run.ramp], say)
    if failures:
        raise Failed("\n".join(failures))


def unavailable(runs: Sequence[Planned], machine: Machine | None = None) -> dict[str, list[str]]:
    """Why the deployments of these runs cannot be started here, by name; only those that cannot."""
    found = {
        deployment.name: problems(deployment, group[0].policy, machine or Machine())
        for deployment, group in _by_engines(runs)
    }
    return {name: reasons for name, reasons in found.items() if reasons}


class Reference(NamedTuple):
    """Unloaded durations, and where they come from."""

    unloaded: Unloaded
    about: dict[str, Any]


def reference_of(deployment: Deployment) -> Reference:
    """From the calibration, else measured now on the idle engine."""
    if deployment.calibration is not None:
        costs = Costs.of(calibration(deployment.calibration))
        return Reference(unloaded_duration(costs), {"calibration": deployment.calibration})
    empty_caches(deployment)
    speed = measure(deployment)
    return Reference(speed.unloaded(), {"measured": speed.meta()})


def one_run(
    served: Served,
    run: Planned,
    about: dict[str, Any],
    reference: Reference,
    say: Say = lambda line: None,
    on_second: Callable[[float], None] = lambda now_s: None,
) -> Records:
    """Empty the caches, replay behind a gateway of its own, and save the records with their provenance."""
    deployment = served.deployment
    unloaded = reference.unloaded
    run, rate_from = _with_base_rate(run, results_root() / deployment.name / PROFILE)
    sessions = trajectories(run.scenario.load.workload)
    changes: tuple[Switch, ...] = (
        Switch(run.scenario.policy.from_s, run.scenario.policy.name, run.scenario.policy.parameters),
    )
    if run.ramp is not None:
        cache = served.reported.capacities.cache_tokens
        counts = populations(run.ramp, sessions, unloaded, cache)
        changes = ladder(run.ramp, run.scenario.policy, counts)
        run = _with_load(run, supply(run.scenario.load, counts, sessions, unloaded))
    plan = plan_sessions(run.scenario.load, sessions, run.scenario.seed, unloaded)
    inside = sum(session.group == "warm" for session in plan)
    scenario = _with_load(run, run.scenario.load.model_copy(update={"warm_sessions": inside})).scenario
    empty_caches(deployment)
    scraper = Scraper(deployment, {p.command.name: p.pid for p in served.processes}, scenario.sample_s, on_second)
    meta = {
        "source": "hw",
        **scenario_provenance(scenario),
        **about,
        "capacity": asdict(served.reported.capacities),
        "unloaded_reference": reference.about,
        "rate_from": rate_from,
        "began": provenance.now(),
        "clocks_before": provenance.clocks(),
    }
    profile = results_root() / deployment.name / PROFILE
    try:
        with served.gateway("none", profile if profile.is_file() else None, say):
            records = replay(
                plan,
                Target(
                    deployment.gateway_url,
                    model=deployment.model.served_name,
                    bytes_per_token=deployment.model.bytes_per_token,
                    admin_token=served.token,
                    warm_calls=True,
                    switches=changes,
                    itl_slo_s=_itl_slo_s(deployment),
                ),
                scenario.load.duration_s,
                meta=meta,
                unloaded_s=lambda p: unloaded(p.trajectory, p.first_call),
                end_group=(scenario.end_group.at_s, scenario.end_group.group) if scenario.end_group else None,
                sample_s=scenario.sample_s,
                on_start=scraper.start,
            )
    finally:
        scraper.stop()
        served.check_alive()  # says more than what its clients saw
    records.meta["clocks_after"] = provenance.clocks()
    _save(records, scraper, run.path)
    return records


def check_text(deployment: Deployment) -> dict[str, float]:
    """Prompt tokens that the engine counts over those planned, for text as it is replayed, less what a conversation's
    frame costs. Raises `CannotServe` where lengths would be off by more than `LENGTH_TOLERANCE`."""
    counted = [prompt_tokens(deployment, words * deployment.model.bytes_per_token) for words in TEXT_TOKENS]
    ratio = (counted[1] - counted[0]) / (TEXT_TOKENS[1] - TEXT_TOKENS[0])
    if abs(ratio - 1) > LENGTH_TOLERANCE:
        raise CannotServe(
            f"model.bytes_per_token: {deployment.model.bytes_per_token} bytes of replayed text make {ratio:.2f} tokens "
            f"of {deployment.model.served_name}; correct it in {deployment.name}.yaml"
        )
    return {"prompt_tokens_over_planned": ratio}


def empty_caches(deployment: Deployment) -> None:
    """Once nothing runs any more. Raises `RuntimeError` for an engine that does not become idle, or will not."""
    for instance in deployment.instances:
        until = time.monotonic() + DRAIN_S
        while (left := _busy(instance.url, instance.role)) and time.monotonic() < until:
            time.sleep(0.5)
        if left:
            raise RuntimeError(f"{instance.url} still holds {left:.0f} calls {DRAIN_S:g} s after the last run")
        path = "flush_cache" if deployment.engine == "sglang" else "reset_prefix_cache"
        with urllib.request.urlopen(urllib.request.Request(f"{instance.url}/{path}", b""), timeout=60) as response:
            if response.status != 200:
                raise RuntimeError(f"{instance.url}/{path}: status {response.status}")


def _busy(url: str, role: Any) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as page:
        reading = read_page(page.read().decode("utf-8", "replace"), role)
    return (reading.waiting or 0) + (reading.running or 0)


def _itl_slo_s(deployment: Deployment) -> float | None:
    return calibration(deployment.calibration).itl_slo_s.value if deployment.calibration is not None else None


def _with_base_rate(run: Planned, path: Path) -> tuple[Planned, str]:
    """The base load of a comparison is a share of the critical rate: the recorded ramps', else the simulator's."""
    if run.setting is None:
        return run, "scenario"
    setting = HARDWARE[run.setting]
    if path.is_file():
        rate, origin = round(setting.share * load_profile(path).critical_rate_per_min, 2), "recorded ramps"
    else:
        rate, origin = base_rate_per_min(setting), "the simulator's profile"
    return _with_load(run, run.scenario.load.model_copy(update={"rate_per_min": rate})), origin


def _with_load(run: Planned, load: Load) -> Planned:
    return replace(run, scenario=run.scenario.model_copy(update={"load": load}))


def _by_engines(runs: Sequence[Planned]) -> list[tuple[Deployment, list[Planned]]]:
    """Runs that the same engines can serve, together: the deployment's and its policies' flags and environment."""
    deployments = {run.deployment: load_deployment(run.deployment) for run in runs}

    def engines(run: Planned) -> str:
        needs = deployments[run.deployment].policy(run.policy)
        return json.dumps([run.deployment, needs.model_dump(mode="json", include={"flags", "environment", "gateway"})])

    ordered = sorted(runs, key=engines)
    return [(deployments[group[0].deployment], group) for group in (list(g) for _, g in groupby(ordered, engines))]


def _save(records: Records, scraper: Scraper, path: Path) -> None:
    """A run appears whole or not at all."""
    draft = path.with_name(path.name + ".draft")
    if draft.is_dir():
        shutil.rmtree(draft)
    records.save(draft)
    scraper.save(draft)
    draft.rename(path)


def _profile(run: Planned, ramps: Sequence[Planned], say: Say) -> None:
    path = results_root() / load_deployment(run.deployment).name / PROFILE
    if run.ramp is None or path.is_file() or not all(ramp.done for ramp in ramps):
        return
    with suppress(ValueError):
        profile = profile_of([Records.load(ramp.path) for ramp in ramps], run.ramp)
        save_profiles([profile], path)
        say(f"{path}: κ {profile.kappa:.2f}, critical rate {profile.critical_rate_per_min:.2f}/min")
