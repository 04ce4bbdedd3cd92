"""The container file and the pins it installs: one place says each version, and every command in it exists."""

import re
import shlex
import subprocess
import tomllib
from importlib.metadata import entry_points

import pytest

from artifact.lending.plugin import SGLANG_VERSION
from artifact.reproduce.environment import GPU_FILE, pins
from artifact.reproduce.paths import repository_root
from hw_runs.deployment import known_deployments, load_deployment
from hw_runs.experiment import known_experiments

ROOT = repository_root()
TEXT = (ROOT / "Containerfile").read_text()
PINS = dict(pin.split("==") for pin in pins((ROOT / GPU_FILE).read_text()))


def instructions():
    """(word, rest) of each instruction, continued lines joined."""
    joined = re.sub(r"\\\n", " ", "\n".join(line for line in TEXT.splitlines() if not line.startswith("#")))
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def targets():
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))


def test_it_names_no_version_but_those_of_the_base_image():
    assert re.findall(r"\d+\.\d+", " ".join(rest for _, rest in instructions())) == ["13.0", "24.04"]


def test_the_engines_versions_are_said_in_one_place():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert dict(pin.split("==") for pin in extras["sglang"]).items() <= PINS.items()
    assert PINS["sglang"] == SGLANG_VERSION
    for name in known_deployments():
        deployment = load_deployment(name)
        if deployment.engine == "sglang":
            wanted = dict(deployment.interpreter.packages)
            assert {package: wanted[package] for package in ("sglang", "nixl", "sglang-router")}.items() <= PINS.items()
    makefile = (ROOT / "Makefile").read_text()
    assert not re.search(r"\b(sglang|nixl|sglang-router|torch|triton)==\d", makefile)


def test_make_installs_the_pinned_engine_with_and_without_a_gpu():
    def printed(target, *words):
        shown = subprocess.run(
            ["make", "-n", "-B", "-o", "setup", target, *words], cwd=ROOT, capture_output=True, text=True, check=True
        )
        return shown.stdout

    assert f"-r {GPU_FILE}" in printed("setup-sglang-gpu")
    without = printed("setup-sglang-cpu").split()
    for name in ("sglang", "nixl", "sglang-router"):
        assert f"{name}=={PINS[name]}" in without
    assert f"nixl-cu12=={PINS['nixl']}" in without and not any(word.startswith("torch==") for word in without)


def test_every_make_target_and_command_in_it_exists():
    runs = [shlex.split(part) for word, rest in instructions() if word == "RUN" for part in rest.split("&&")]
    made = [word for words in runs if words[0] == "make" for word in words[1:]]
    assert made == ["setup", "setup-sglang-gpu"] and set(made) <= targets()
    assert ("ENTRYPOINT", '["basin"]') in instructions()
    (example,) = re.findall(r"^#\s+basin (\S+) (\S+)$", TEXT, re.M)
    assert example[0] in {point.name for point in entry_points(group="basin.commands")}
    assert example[1] in known_experiments()


def test_what_the_image_lacks_is_not_tracked_and_what_records_need_is_copied():
    ignored = [line for line in (ROOT / ".containerignore").read_text().splitlines() if not line.startswith("#")]
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert not {line.strip("*/") for line in ignored} & {path.split("/")[0] for path in tracked}
    assert ".git" not in ignored and "requirements.lock" in tracked and GPU_FILE in tracked


@pytest.mark.engine
def test_the_base_image_has_the_cuda_that_the_engine_is_built_for():
    python = load_deployment("cpu-sglang-1p1d").interpreter.find()
    if not python.exists():
        pytest.skip(f"no engine: {python} is absent")
    asks = "from importlib.metadata import requires; print(requires('sglang'))"
    wanted = subprocess.run([python, "-c", asks], capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"\[cu(\d+)\]", wanted)) == {re.search(r"nvidia/cuda:(\d+)\.", TEXT)[1]}
    assert f"torch=={PINS['torch']}" in wanted
