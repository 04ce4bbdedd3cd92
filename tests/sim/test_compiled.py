"""The compiled simulator gives the interpreted one's records, and stands aside where it is out of date."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sim import compiled, compiling

RUNS = """
import hashlib
from artifact.control.profile import DeploymentProfile
from artifact.records.schema import TABLES
from artifact.workload.load import Load, Surge
from sim import driver, policies
from sim.run import run
from sim.scenario import Deployment, PolicyChoice, Scenario

policies._profile = lambda scenario: DeploymentProfile()
load = Load(rate_per_min=3, duration_s=900, surges=(Surge(start_s=120, end_s=600, factor=5),))
pd = Deployment(calibration="h100", host_ratio=1.0)
colocated = Deployment(kind="colocated", calibration="mi300x-qwen3-8b")
print(driver.__file__.endswith(".py"))
for engine, policy in ((pd, "basin"), (pd, "crossflow"), (pd, "continuum"), (colocated, "basin-suspend")):
    records = run(Scenario(deployment=engine, load=load, policy=PolicyChoice(name=policy)))
    tables = [getattr(records, name).to_pandas().to_csv() for name in TABLES]
    print(engine.kind, policy, hashlib.sha256(repr((tables, records.meta)).encode()).hexdigest())
"""
HERE = compiled.folder().is_dir()
WHY = "the simulator is not compiled here (`make setup` does it where there is a C compiler)"


def runs(interpreted: str) -> list[str]:
    environment = {**os.environ, "BASIN_INTERPRETED": interpreted}
    told = subprocess.run([sys.executable, "-c", RUNS], env=environment, check=True, capture_output=True, text=True)
    return told.stdout.splitlines()


@pytest.mark.skipif(not HERE, reason=WHY)
def test_compiled_and_interpreted_runs_are_the_same_bytes() -> None:
    is_source, *hashes = runs(interpreted="0")
    assert is_source == "False" and len(set(hashes)) == 4
    assert runs(interpreted="1") == ["True", *hashes]


def test_a_changed_source_is_interpreted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for source in (*compiled.SOURCES, "sim/compiling.py"):
        copy = tmp_path / source
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((compiled.ROOT / source).read_bytes())
    original = compiled.folder().name
    monkeypatch.setattr(compiled, "ROOT", tmp_path)
    assert compiled.folder().name == original
    with (tmp_path / "sim/engine/cache.py").open("a") as source_file:
        source_file.write("\n")
    assert compiled.folder().name != original
    path = ["where the sources are"]
    compiled.attach("sim.engine", path)
    assert path == ["where the sources are"]


@pytest.mark.slow
def test_without_a_c_compiler_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiling, "folder", lambda: tmp_path / "compiled")
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.chdir(compiled.ROOT)
    compiling.main()
    assert "Not compiled" in capsys.readouterr().out
    assert not (tmp_path / "compiled").exists()
