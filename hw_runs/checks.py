"""What must hold before a deployment is started, and what its engines must report once they are up."""

import json
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from artifact.control.capacity import Capacities
from artifact.gateway.engines import Reading, read_page
from hw_runs.commands import merged_flags
from hw_runs.deployment import Deployment, Instance, PolicyRun

_QUERY = "index,name,memory.free,memory.total,driver_version,clocks.max.sm,clocks.max.memory,power.limit"
_VERSIONS = """
import json, sys
from importlib.metadata import PackageNotFoundError, version
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        found[name] = None
print(json.dumps(found))
"""
_TIMEOUT_S = 60


class Gpu(NamedTuple):
    """One line of `nvidia-smi`; sizes in MiB, clocks in MHz, power in W, as text where the driver has no number."""

    number: int
    name: str
    free_mib: float
    total_mib: float
    driver: str
    max_sm_clock: str
    max_memory_clock: str
    power_limit: str


class Machine:
    """This machine as the checks see it."""

    def gpus(self) -> list[Gpu] | None:
        """None without `nvidia-smi`, or when it fails."""
        if shutil.which("nvidia-smi") is None:
            return None
        asked = subprocess.run(
            ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
        return parse_gpus(asked.stdout) if asked.returncode == 0 else None

    def available_gib(self) -> float:
        """Host memory that can be had without swapping."""
        lines = Path("/proc/meminfo").read_text().splitlines()
        by_name = dict(line.split(":", 1) for line in lines)
        return float(by_name["MemAvailable"].split()[0]) / 2**20

    def port_is_free(self, port: int) -> bool:
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return True
        return False

    def versions(self, python: Path, packages: Iterable[str]) -> dict[str, str | None]:
        """Installed versions by distribution, None where it is not. Raises `OSError` when the interpreter fails."""
        asked = subprocess.run(
            [str(python), "-c", _VERSIONS, *packages], capture_output=True, text=True, timeout=_TIMEOUT_S
        )
        if asked.returncode:
            raise OSError(f"{python}: {asked.stderr.strip()[-300:]}")
        found: dict[str, str | None] = json.loads(asked.stdout)
        return found


def parse_gpus(text: str) -> list[Gpu]:
    """The lines of the query above."""
    rows = [[field.strip() for field in line.split(",")] for line in text.splitlines() if line.strip()]
    return [Gpu(int(r[0]), r[1], float(r[2]), float(r[3]), *r[4:]) for r in rows]


def problems(deployment: Deployment, policy: str, machine: Machine) -> list[str]:
    """Why this deployment cannot be started here now, each with what to do; empty if it can."""
    found = []
    try:
        deployment.policy(policy)
    except ValueError as error:
        found.append(str(error))
    found += _interpreter(deployment, machine)
    found += _gpus(deployment, machine)
    available = machine.available_gib()
    if available < deployment.host_gib:
        found.append(
            f"host memory: {available:.0f} GiB available, {deployment.name} needs {deployment.host_gib:g}; end other "
            "programs, or lower host_gib and the pools in a file of your own"
        )
    if busy := [port for port in deployment.ports() if not machine.port_is_free(port)]:
        found.append(
            f"ports in use: {', '.join(map(str, busy))}; end what listens there (`ss -ltnp`), or change them in a "
            f"copy of {deployment.name}.yaml"
        )
    path = deployment.model.path
    if path is not None and path.startswith(("/", ".")) and not Path(path).is_dir():
        found.append(f"model: no folder {path}; download it or correct model.path")
    return found


def _interpreter(deployment: Deployment, machine: Machine) -> list[str]:
    wanted, python = deployment.interpreter, deployment.interpreter.find()
    if not python.exists():
        return [f"engine: {python} is absent; `{wanted.setup}` installs it, or set {wanted.variable}"]
    try:
        installed = machine.versions(python, wanted.packages)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"engine: {error}"]
    return [
        f"engine: {name} {installed.get(name) or 'is not installed'} in {python}, tried is {version}; `{wanted.setup}`"
        for name, version in wanted.packages.items()
        if installed.get(name) != version
    ]


def _gpus(deployment: Deployment, machine: Machine) -> list[str]:
    if deployment.gpus is None:
        return []
    wanted = [instance.gpu for instance in deployment.instances]
    found = machine.gpus()
    if found is None:
        return [f"GPUs: {deployment.name} needs {len(wanted)} {deployment.gpus.name}, and nvidia-smi finds none here"]
    there = {gpu.number: gpu for gpu in found}
    lines = []
    for index in wanted:
        gpu = there.get(index) if index is not None else None
        if gpu is None:
            lines.append(
                f"GPU {index}: there is none; nvidia-smi lists {sorted(there)}. Change gpu in a copy of the file"
            )
        elif deployment.gpus.name not in gpu.name:
            lines.append(f"GPU {index}: is a {gpu.name}, the deployment is for {deployment.gpus.name}")
        elif gpu.free_mib < deployment.gpus.free_gib * 1024:
            lines.append(
                f"GPU {index}: {gpu.free_mib / 1024:.0f} GiB free of {gpu.total_mib / 1024:.0f}, needed are "
                f"{deployment.gpus.free_gib:g}; `nvidia-smi` names what holds it"
            )
    return lines


# Once the engines are up ---------------------------------------------------------------------------------------------


class Reported(NamedTuple):
    """What the engines say of themselves: capacities over all instances, and each one's page of metrics and flags."""

    capacities: Capacities
    pages: Mapping[str, str]
    flags: Mapping[str, Mapping[str, Any]]


def reported(deployment: Deployment) -> Reported:
    """Ask every engine. Raises `OSError` where one does not answer, `ValueError` for a page of something else."""
    pages = {i.url: _get(f"{i.url}/metrics") for i in deployment.instances}
    readings = [(i, read_page(pages[i.url], i.role)) for i in deployment.instances]
    capacities = Capacities(
        _sum(r.kv_capacity_tokens for i, r in readings if i.role != "decode"),
        _sum(r.kv_capacity_tokens for i, r in readings if i.role != "prefill"),
        _sum(r.host_capacity_tokens for i, r in readings if i.role != "decode"),
    )
    return Reported(capacities, pages, {i.url: _flags(deployment, i, r) for i, r in readings})


def deviations(deployment: Deployment, policy: PolicyRun, found: Reported) -> list[str]:
    """Where the started engines differ from the file: capacities beyond its tolerance, flags that did not take."""
    lines = []
    expected, tolerance = asdict(deployment.capacities()), deployment.expected.tolerance
    for name, value in asdict(found.capacities).items():
        if abs(value - expected[name]) > tolerance * max(expected[name], 1):
            lines.append(
                f"{name}: the engines report {value:,}, expected are {expected[name]:,} within {tolerance:.0%} "
                f"({deployment.expected.source})"
            )
    for instance in deployment.instances:
        told = found.flags[instance.url]
        for flag, wanted in merged_flags(deployment, instance, policy).items():
            name = flag.replace("-", "_")
            if name in told and not _same(told[name], wanted):
                lines.append(f"{instance.role} at {instance.url}: --{flag} is {told[name]!r}, the file says {wanted!r}")
    return lines


def _flags(deployment: Deployment, instance: Instance, reading: Reading) -> dict[str, Any]:
    """SGLang tells its arguments; vLLM the configuration of its cache, as labels of a metric."""
    if deployment.engine == "sglang":
        told: dict[str, Any] = json.loads(_get(f"{instance.url}/server_info"))
        return told
    return cache_labels(_get(f"{instance.url}/metrics"))


def cache_labels(page: str) -> dict[str, str]:
    """Labels of vLLM's `cache_config_info` under the names of its flags."""
    line = next((text for text in page.splitlines() if text.startswith("vllm:cache_config_info{")), "")
    pairs = (pair.partition("=") for pair in line.partition("{")[2].rpartition("}")[0].split(","))
    return {key: value.strip('"') for key, _, value in pairs if key}


def _same(told: Any, wanted: Any) -> bool:
    if isinstance(wanted, bool) or isinstance(told, bool):
        return str(told).lower() == str(wanted).lower()
    try:
        return float(told) == float(wanted)
    except (TypeError, ValueError):
        return str(told) == str(wanted)


def _sum(values: Iterable[float | None]) -> int:
    return round(sum(value for value in values if value is not None))


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:
        text: str = response.read().decode("utf-8", "replace")
        return text
