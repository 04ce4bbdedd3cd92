"""The pinned environment: `requirements.lock` from an installed one, and `environment.yml` from the lock.

python -m artifact.reproduce.environment lock     the pins of the running interpreter's environment
python -m artifact.reproduce.environment conda    environment.yml
"""

import re
import sys
from collections.abc import Iterable
from importlib.metadata import distributions
from pathlib import Path

from artifact.reproduce.paths import repository_root

TOOLS = {"pip", "wheel", "basin-artifact"}
LOCK_HEADER = """\
# Pinned CPU set: what `make setup` installs and what the CPU part of environment.yml lists.
# Regenerate with `make lock`, from the direct dependencies in pyproject.toml.
"""
GPU_FILE = "hw_runs/requirements-sglang-gpu.txt"
"""What the engine extension and the kernels need beside a CUDA driver; pinned with the SGLang the extension fits."""
GPU_MARK = "# ---- GPU part: needs a CUDA driver. Delete from here to the end on a machine without one. ----"
CONDA = """\
# Conda environment. Written by `make environment` from requirements.lock; do not edit.
name: basin
channels:
  - conda-forge
dependencies:
  - python=3.11
  - pip
  - pip:
      # ---- CPU part: the set that `make setup` installs into .venv ----
{cpu}
      {mark}
{gpu}
"""


def pins(lock: str) -> list[str]:
    """The requirements of a lock file's text, comments left out."""
    return [line for line in lock.splitlines() if line and not line.startswith("#")]


def installed() -> str:
    """Lock text of the running environment, sorted by name."""
    names = {_normal(d.name): f"{d.name}=={d.version}" for d in distributions()}
    return LOCK_HEADER + "".join(f"{names[n]}\n" for n in sorted(names) if n not in TOOLS)


def conda(lock: str, gpu: str) -> str:
    """`environment.yml` with the lock's pins as its CPU part and the engine's as its GPU part."""

    def items(requirements: Iterable[str]) -> str:
        return "\n".join(f"      - {requirement}" for requirement in requirements)

    return CONDA.format(cpu=items(pins(lock)), mark=GPU_MARK, gpu=items(pins(gpu)))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    root: Path = repository_root()
    files = (root / "requirements.lock", root / GPU_FILE)
    print({"lock": installed, "conda": lambda: conda(*(f.read_text() for f in files))}[sys.argv[1]](), end="")
