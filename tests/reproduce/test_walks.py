"""The walks of REPRODUCE.md with the very files that it shows, on a copy of the code; what the pages name exists."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from artifact.reproduce.paths import repository_root

ROOT = repository_root()
TEXT = (ROOT / "REPRODUCE.md").read_text()
FILES = dict(re.findall(r"^```\w+ (\S+)\n(.*?)^```$", TEXT, re.M | re.S))
BASIN = "import sys; from artifact.cli import main; sys.argv[0] = 'basin'; main()"
IMPORT = "from artifact.baselines.hicache import HiCache\n"
TABLE = "POLICIES: Mapping[str, Maker] = {\n"


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the code with the files shown, the policy registered as told."""
    root = tmp_path_factory.mktemp("walk")
    for folder in ("artifact", "sim", "hw_runs"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__", "results"))
    shutil.copy(ROOT / "pyproject.toml", root)
    for name, text in FILES.items():
        (root / name).write_text(text)
    registry = root / "artifact/baselines/registry.py"
    code, (line,) = registry.read_text(), re.findall(r'`("hit-gate": .*?)`', TEXT)
    assert code.count(IMPORT) == code.count(TABLE) == 1
    code = code.replace(IMPORT, f"{IMPORT}from artifact.baselines.hit_gate import HitGate\n")
    registry.write_text(code.replace(TABLE, f"{TABLE}    {line}\n"))
    return root


def basin(root, *words):
    """What `basin` of the copy prints."""
    environment = os.environ | {"PYTHONPATH": str(root), "COLUMNS": "200"}
    told = subprocess.run(
        [sys.executable, "-c", BASIN, *words], cwd=root, env=environment, capture_output=True, text=True, timeout=280
    )
    assert told.returncode == 0, told.stdout + told.stderr
    return told.stdout + told.stderr


def test_a_trace_is_read(copy):
    found = json.loads(basin(copy, "trace", "stats", "--json", "my-trace.jsonl"))
    assert (found["sessions"], found["calls"]) == (2, 5)


def test_a_policy_serves_that_trace_in_the_simulator(copy):
    told = basin(copy, "simulate", "my-load.yaml")
    assert "hit-gate" in told and "goodput" in told
    (arrived,) = re.findall(r"sessions arrived\W+(\d+)", told)
    assert 120 < int(arrived) < 240, "6 a minute for half an hour"


def test_a_policy_is_known_to_the_gateway(copy):
    code = (
        "from artifact.gateway.policies import PolicyMaker; from artifact.control.policy import Signals;"
        "print(type(PolicyMaker()('hit-gate', {'least': 0.5}, Signals())).__name__)"
    )
    environment = os.environ | {"PYTHONPATH": str(copy)}
    assert subprocess.check_output([sys.executable, "-c", code], cwd=copy, env=environment, text=True) == "HitGate\n"


def test_a_deployment_is_planned_with_its_experiment(copy):
    served = basin(copy, "serve", "my-node.yaml", "--dry-run", "--policy", "basin-prior")
    assert served.count("sglang.launch_server") == 2 and "--port 31001" in served and "CUDA_VISIBLE_DEVICES=3" in served
    planned = basin(copy, "run-hw", "my-steps.yaml", "--dry-run")
    assert "4 runs ahead, about 140 min, 4.7 GPU hours" in planned and "my-node/surge/basin-prior/seed0" in planned


@pytest.mark.parametrize("page", ["REPRODUCE.md", "README.md", "hw_runs/README.md"])
def test_what_a_page_names_exists(page):
    text = (ROOT / page).read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    commands = {point.name for point in entry_points(group="basin.commands")}
    made = re.findall(r"(?:^|`|bin/)make\s([a-z-]+)", text, re.M)
    given = re.findall(r"(?:^|`|bin/)basin\s([a-z-]+)", text, re.M)
    paths = re.findall(r"(?:artifact|hw_runs|notebooks|tests|figures)/[\w./-]+\.(?:py|yaml|ipynb|json|txt)", text)
    assert made and given and set(made) <= targets and set(given) <= commands
    assert [path for path in paths if not (ROOT / path).is_file() and path not in FILES] == []
