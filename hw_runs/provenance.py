"""Where a real run comes from: versions, commit, machine, GPUs and their clocks, every flag."""

import os
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from artifact.reproduce.ledger import commit
from artifact.reproduce.paths import repository_root
from hw_runs.checks import Machine
from hw_runs.serve import Served


def of_engines(served: Served, machine: Machine) -> dict[str, Any]:
    """What holds for every run on these engines."""
    deployment = served.deployment
    interpreter = deployment.interpreter
    gpus = machine.gpus() if deployment.gpus is not None else None
    return {
        "deployment": deployment.model_dump(mode="json"),
        "engine_policy": served.policy,
        "commands": {p.command.name: list(relative(p.command.words)) for p in served.processes},
        "environments": {p.command.name: dict(p.command.environment) for p in served.processes},
        "versions": {**machine.versions(interpreter.find(), interpreter.packages), "basin": version("basin-artifact")},
        "commit": commit(repository_root()),
        "gpus": [gpu._asdict() for gpu in gpus or ()],
        "host": host(),
        "reported": {"capacities": asdict(served.reported.capacities)},
    }


def host() -> dict[str, Any]:
    """Processor, cores, kernel, and what else was going on."""
    names = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_1min": os.getloadavg()[0],
    }


def now() -> str:
    """UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def relative(words: Iterable[str]) -> Iterable[str]:
    """Paths in the checkout without where it lies."""
    root = str(repository_root()) + os.sep
    return (word.replace(root, "") for word in words)


def clocks() -> list[str]:
    """SM and memory clock, power and temperature of every GPU now; empty without any."""
    try:
        asked = subprocess.run(
            [
                "nvidia-smi",
                "--query-gpu=index,clocks.sm,clocks.mem,power.draw,temperature.gpu",
                "--format=csv,noheader",
            ],
            capture_output=True,
            text=True,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return asked.stdout.splitlines() if asked.returncode == 0 else []


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).is_file() else []
