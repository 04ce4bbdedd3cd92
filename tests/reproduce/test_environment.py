"""One lock feeds `make setup` and the conda environment."""

import tomllib

import yaml

from artifact.reproduce.environment import GPU_FILE, GPU_MARK, conda, pins
from artifact.reproduce.paths import repository_root

ROOT = repository_root()
CONDA = (ROOT / "environment.yml").read_text()
NAMED = ("jupyterlab", "papermill", "simpy", "numpy", "pandas", "matplotlib", "seaborn", "scikit-learn")


def test_conda_environment_is_the_lock_plus_the_gpu_part() -> None:
    lock, engine = ((ROOT / name).read_text() for name in ("requirements.lock", GPU_FILE))
    *_, pip_part = yaml.safe_load(CONDA)["dependencies"]
    assert pip_part["pip"] == [*pins(lock), *pins(engine)]
    assert conda(lock, engine) == CONDA


def test_what_needs_cuda_stands_below_the_mark() -> None:
    above, below = CONDA.split(GPU_MARK)
    assert all(f"- {name}==" in above for name in NAMED)
    for name in ("torch", "triton", "sglang", "nixl"):
        assert f"- {name}==" in below
        assert f"- {name}==" not in above


def test_every_direct_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    direct = [*project["dependencies"], *extras["gateway"], *extras["cluster"], *extras["dev"]]
    locked = {pin.split("==")[0].lower().replace("_", "-") for pin in pins((ROOT / "requirements.lock").read_text())}
    assert {name.split("=")[0].lower().replace("_", "-") for name in direct} <= locked
