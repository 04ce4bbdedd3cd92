"""Experiments as data (`hw_runs/experiments/*.yaml`), and the single runs that they stand for."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from artifact.reproduce.paths import repository_root
from artifact.reproduce.scenarios import TRAP_DEPLOYMENT, trap_h100
from artifact.reproduce.scenarios_policies import HARDWARE, PROTOTYPE_POLICIES, arm, load
from artifact.workload.load import Load
from hw_runs.deployment import Deployment, load_deployment
from sim.profile import MEASURE_S, RAMPS, SETTLE_S, STEPS
from sim.scenario import Deployment as Simulated
from sim.scenario import PolicyChoice, Scenario

FOLDER = Path(__file__).parent / "experiments"
SEEDS = 1
"""Of a hardware experiment: the papers show one run each."""
RAMP_POLICY = "session-cap"
PROFILE = "profile.json"
"""Beside a deployment's results, once its ramps are recorded."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Trap(_Part):
    """Arms of `artifact.reproduce.scenarios.trap_h100`."""

    deployment: str
    arms: tuple[str, ...]


class Compared(_Part):
    """Settings of `artifact.reproduce.scenarios_policies.HARDWARE`, each on a deployment, under all systems that the
    deployment runs."""

    deployments: Mapping[str, str]

    @model_validator(mode="after")
    def _known(self) -> Self:
        if unknown := set(self.deployments) - set(HARDWARE):
            raise ValueError(f"deployments: no setting {sorted(unknown)}; there are {', '.join(HARDWARE)}")
        return self


class Ramp(_Part):
    """A stepped ramp of the number of active sessions (paper A §6.5), in the steps of `sim.profile`."""

    deployment: str
    workload: str = "terminal-bench"
    steps: tuple[float, ...] = STEPS
    settle_s: float = SETTLE_S
    measure_s: float = MEASURE_S


class Loads(_Part):
    """Loads by arm, each under every policy; the results go to `<deployment>/<arm>/<policy>`."""

    deployment: str
    policies: tuple[str, ...]
    seeds: int = SEEDS
    sample_s: float = 5.0
    arms: Mapping[str, Mapping[str, Any]]


class Experiment(_Part):
    """One of four kinds."""

    name: str
    title: str
    notebook: str | None = None
    trap: Trap | None = None
    compared: Compared | None = None
    ramp: Ramp | None = None
    loads: Loads | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [kind for kind in (self.trap, self.compared, self.ramp, self.loads) if kind is not None]
        if len(given) != 1:
            raise ValueError("give exactly one of trap, compared, ramp and loads")
        return self

    def deployments(self) -> list[str]:
        if self.compared is not None:
            return list(dict.fromkeys(self.compared.deployments.values()))
        part = self.trap or self.ramp or self.loads
        return [part.deployment] if part is not None else []


@dataclass(frozen=True)
class Planned:
    """One run. `folder` is below `hw_runs/results`. `setting` names the comparison whose base load is a share of the
    deployment's critical rate, known only once that has been profiled; `ramp` the steps of a ramp."""

    deployment: str
    policy: str
    folder: Path
    scenario: Scenario
    setting: str | None = None
    ramp: Ramp | None = None

    @property
    def path(self) -> Path:
        return results_root() / self.folder

    @property
    def done(self) -> bool:
        return (self.path / "samples.parquet").is_file()


def results_root(root: Path | None = None) -> Path:
    """Where real runs lie, below this repository's root or another."""
    return (root or repository_root()) / "hw_runs" / "results"


def shipped_root(root: Path | None = None) -> Path:
    """Where the real runs on a CPU lie that come with the artifact, laid out as those of `results_root`."""
    return (root or repository_root()) / "hw_runs" / "recorded"


def own_or_shipped(parts: Iterable[str], root: Path | None = None) -> Path:
    """`results_root` where all these folders of it are there, else `shipped_root`."""
    own = results_root(root)
    return own if all((own / part).is_dir() for part in parts) else shipped_root(root)


def load_experiment(name_or_path: str) -> Experiment:
    """An experiment of `hw_runs/experiments`, or one of a user's own by its file's path.

    Raises `ValueError` naming the known ones, or what is wrong in the file."""
    path = FOLDER / f"{name_or_path}.yaml"
    path = path if path.is_file() else Path(name_or_path)
    if not path.is_file():
        raise ValueError(f"no experiment {name_or_path!r}: known are {', '.join(known_experiments())}, or give a file")
    try:
        return Experiment.model_validate({"name": path.stem, **yaml.safe_load(path.read_text())})
    except (ValidationError, yaml.YAMLError, TypeError) as error:
        raise ValueError(f"experiment {name_or_path!r}: {error}") from error


def known_experiments() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def runs_of(experiment: Experiment, seeds: Sequence[int] | None = None) -> tuple[list[Planned], dict[str, str]]:
    """The runs of an experiment, and why some of what it compares is not among them, by policy."""
    if experiment.trap is not None:
        return _trap(experiment.trap, seeds or range(SEEDS)), {}
    if experiment.compared is not None:
        return _compared(experiment.compared, seeds or range(SEEDS))
    if experiment.ramp is not None:
        return _ramps(experiment.ramp, seeds or range(RAMPS)), {}
    assert experiment.loads is not None
    return _loads(experiment.loads, seeds or range(experiment.loads.seeds)), {}


def _trap(part: Trap, seeds: Sequence[int]) -> list[Planned]:
    arms = trap_h100(seeds, part.arms)
    return [
        Planned(part.deployment, "hicache", Path(TRAP_DEPLOYMENT, name, f"seed{scenario.seed}"), scenario)
        for name, scenarios in arms.items()
        for scenario in scenarios
    ]


def _compared(part: Compared, seeds: Sequence[int]) -> tuple[list[Planned], dict[str, str]]:
    planned, left_out = [], {}
    for setting, name in part.deployments.items():
        deployment, offered = load_deployment(name), load(HARDWARE[setting], HARDWARE[setting].rate_per_min or 1.0)
        for policy in PROTOTYPE_POLICIES:
            if policy in deployment.unsupported:
                left_out[policy] = deployment.unsupported[policy]
                continue
            choice = PolicyChoice(name=policy, parameters=dict(deployment.policy(policy).options))
            planned += [
                Planned(
                    name,
                    policy,
                    Path("policies", arm(setting, policy), f"seed{seed}"),
                    Scenario(deployment=simulated(deployment), load=offered, policy=choice, seed=seed),
                    setting if HARDWARE[setting].rate_per_min is None else None,
                )
                for seed in seeds
            ]
    return planned, left_out


def _ramps(part: Ramp, seeds: Sequence[int]) -> list[Planned]:
    deployment = load_deployment(part.deployment)
    step_s = part.settle_s + part.measure_s
    offered = Load(
        workload=part.workload,
        rate_per_min=1.0,  # set when the run begins, from the steps' populations
        duration_s=step_s * len(part.steps),
    )
    choice = PolicyChoice(name=RAMP_POLICY)
    return [
        Planned(
            part.deployment,
            RAMP_POLICY,
            Path(deployment.name, "ramp", Path(part.workload).stem, f"seed{seed}"),
            Scenario(deployment=simulated(deployment), load=offered, policy=choice, seed=seed),
            ramp=part,
        )
        for seed in seeds
    ]


def _loads(part: Loads, seeds: Sequence[int]) -> list[Planned]:
    deployment = load_deployment(part.deployment)
    planned = []
    for policy in part.policies:
        choice = PolicyChoice(name=policy, parameters=dict(deployment.policy(policy).options))
        for name, fields in part.arms.items():
            offered = Load.model_validate(dict(fields))
            planned += [
                Planned(
                    part.deployment,
                    policy,
                    Path(deployment.name, name, policy, f"seed{seed}"),
                    Scenario(
                        deployment=simulated(deployment),
                        load=offered,
                        policy=choice,
                        seed=seed,
                        sample_s=part.sample_s,
                    ),
                )
                for seed in seeds
            ]
    return planned


def simulated(deployment: Deployment) -> Simulated:
    """The same engines as the simulator's scenarios name them; without a calibration under the deployment's name."""
    shape: dict[str, Any] = {"calibration": deployment.calibration or deployment.name}
    if deployment.count("unified"):
        return Simulated.model_validate({**shape, "kind": "colocated"})
    counts = {"prefill": deployment.count("prefill"), "decode": deployment.count("decode")}
    return Simulated.model_validate({**shape, **counts, "host_ratio": deployment.host_ratio})
