"""Deployments of real engines as data: `hw_runs/deployments/*.yaml`."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from artifact.control.capacity import Capacities
from artifact.gateway.config import Role
from artifact.reproduce.paths import repository_root

FOLDER = Path(__file__).parent / "deployments"
Flags = Mapping[str, str | int | float | bool]
"""Options of a command line without their dashes: true is a switch, false is one left out."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Interpreter(_Part):
    """The Python that has the engine. `variable` names the environment variable that overrides `path`."""

    path: str
    variable: str
    setup: str
    """What installs it, for the error that says it is missing."""
    packages: Mapping[str, str]
    """Distribution -> the one version that was tried."""

    def find(self) -> Path:
        given = Path(os.environ.get(self.variable, self.path)).expanduser()
        return given if given.is_absolute() else repository_root() / given


class Model(_Part):
    """A model by name or folder, or with `tiny` one with random weights that `hw_runs.tiny_model` makes."""

    path: str | None = None
    tiny: str | None = None
    served_name: str
    bytes_per_token: int = Field(gt=0)
    """Length of replayed text that makes one token."""

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.path is None) == (self.tiny is None):
            raise ValueError("model: give either path or tiny")
        return self

    def folder(self) -> str:
        return self.path if self.path is not None else str(repository_root() / "build" / "models" / str(self.tiny))


class Gpus(_Part):
    """What every GPU of a deployment has to be."""

    name: str
    """Part of the product name that `nvidia-smi` gives."""
    free_gib: float = Field(gt=0)


class Instance(_Part):
    """One engine process."""

    role: Role
    port: int = Field(gt=0, lt=65536)
    bootstrap_port: int | None = Field(default=None, gt=0, lt=65536)
    gpu: int | None = None
    flags: Flags = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class Router(_Part):
    """SGLang's router before several instances."""

    port: int = Field(gt=0, lt=65536)
    metrics_port: int = Field(gt=0, lt=65536)
    launch: tuple[str, ...]
    flags: Flags = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class Expected(_Part):
    """Capacities over all instances that the started engines must report, within `tolerance` of each."""

    prefill_cache_tokens: int | None = None
    """None: that of the calibration."""
    decode_kv_tokens: int | None = None
    host_cache_tokens: int | None = None
    tolerance: float = Field(default=0.02, ge=0)
    source: str
    """Where the numbers come from."""


class PolicyRun(_Part):
    """What a policy needs of the deployment beyond the gateway's being told its name."""

    flags: Mapping[Role, Flags] = {}
    environment: Mapping[str, str] = {}
    options: Mapping[str, Any] = {}
    """Parameters of the policy."""
    gateway: Flags = {}


class Deployment(_Part):
    """Engines, their router and the gateway before them, on one machine."""

    name: str
    description: str
    engine: Literal["sglang", "vllm"]
    interpreter: Interpreter
    launch: tuple[str, ...]
    model: Model
    calibration: str | None = None
    """Of the simulator, whose costs give the unloaded reference of slowdown."""
    gpus: Gpus | None = None
    host_gib: float = Field(gt=0)
    """Memory that must be available before the start."""
    host_ratio: float = Field(default=0.0, ge=0)
    """Host tier over GPU prefix cache; 0: none."""
    flags: Flags = {}
    role_flags: Mapping[Role, Flags] = {}
    environment: Mapping[str, str] = {}
    instances: tuple[Instance, ...] = Field(min_length=1)
    router: Router | None = None
    gateway_port: int = Field(gt=0, lt=65536)
    gateway: Flags = {}
    expected: Expected
    policies: Mapping[str, PolicyRun]
    unsupported: Mapping[str, str] = {}
    """Policies of the paper that cannot be run here, and why."""
    start_s: float = Field(gt=0)
    """Longest start of any one process."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        ports = self.ports()
        if repeated := {port for port in ports if ports.count(port) > 1}:
            raise ValueError(f"ports: {sorted(repeated)} are used twice")
        if (self.gpus is None) != all(i.gpu is None for i in self.instances):
            raise ValueError("gpus: every instance has a gpu if gpus says of which kind, and none otherwise")
        if len(self.instances) > 1 and self.router is None:
            raise ValueError("router: several instances need one")
        expected = (self.expected.prefill_cache_tokens, self.expected.decode_kv_tokens)
        if self.calibration is None and None in expected:
            raise ValueError("expected: without a calibration, prefill_cache_tokens and decode_kv_tokens are needed")
        return self

    def ports(self) -> list[int]:
        """Every port that something will listen on."""
        ports = [self.gateway_port, *(i.port for i in self.instances)]
        ports += [i.bootstrap_port for i in self.instances if i.bootstrap_port is not None]
        return ports + ([self.router.port, self.router.metrics_port] if self.router else [])

    @property
    def gateway_url(self) -> str:
        return f"http://127.0.0.1:{self.gateway_port}"

    @property
    def upstream(self) -> str:
        """What the gateway sends calls to."""
        return self.router.url if self.router is not None else self.instances[0].url

    def count(self, role: Role) -> int:
        return sum(instance.role == role for instance in self.instances)

    def policy(self, name: str) -> PolicyRun:
        """Raises `ValueError` for a policy that this deployment does not run, saying why or naming those it does."""
        if name in self.policies:
            return self.policies[name]
        why = self.unsupported.get(name, f"it runs {', '.join(self.policies)}")
        raise ValueError(f"deployment {self.name!r} does not run policy {name!r}: {why}")

    def capacities(self) -> Capacities:
        """Expected over all instances: what the file says, else the calibration's."""
        known = self._calibrated()
        given = self.expected
        return Capacities(
            _first(given.prefill_cache_tokens, known.prefill_cache_tokens),
            _first(given.decode_kv_tokens, known.decode_kv_tokens),
            _first(given.host_cache_tokens, known.host_cache_tokens),
        )

    def _calibrated(self) -> Capacities:
        from sim.engine.costs import Costs, capacities
        from sim.scenario import Deployment as Simulated

        if self.calibration is None:
            return Capacities(0, 0, 0)
        from sim.calibration.model import calibration

        shape = Simulated(
            calibration=self.calibration,
            prefill=max(self.count("prefill"), 1),
            decode=max(self.count("decode"), 1),
            host_ratio=self.host_ratio,
        )
        return capacities(shape, Costs.of(calibration(self.calibration)))


def load_deployment(name_or_path: str, **changes: Any) -> Deployment:
    """A deployment of `hw_runs/deployments`, or one of a user's own by its file's path; `changes` replace top-level
    fields, mappings key by key.

    A file may begin with `extends: NAME`: it then says only what differs. Raises `ValueError` naming the known ones,
    or what is wrong in the file.
    """
    try:
        return Deployment.model_validate(_merged(_read(name_or_path), changes))
    except (ValidationError, yaml.YAMLError) as error:
        raise ValueError(f"deployment {name_or_path!r}: {error}") from error


def known_deployments() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def _read(name_or_path: str) -> dict[str, Any]:
    known = name_or_path in known_deployments()
    path = FOLDER / f"{name_or_path}.yaml" if known else Path(name_or_path)
    if not path.is_file():
        there = ", ".join(known_deployments())
        raise ValueError(f"no deployment {name_or_path!r}: known are {there}, or give a YAML file's path")
    fields: dict[str, Any] = yaml.safe_load(path.read_text())
    base = fields.pop("extends", None)
    return _merged(_read(base), fields) if base is not None else fields


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def _first(given: int | None, known: int) -> int:
    return known if given is None else given
