"""A figure that asks for hardware: what is not recorded is run where the machine can, and told where it cannot."""

import pytest
from fake_machine import FakeMachine, h200

from artifact.reproduce.scenarios import trap_runs
from hw_runs import missing
from hw_runs.missing import record_missing

PAIR = ("hicache", "crossflow")


def test_a_machine_without_gpus_runs_nothing_and_says_why():
    said = []
    record_missing("h100-1p1d", ["none", "plus33"], say=said.append, machine=FakeMachine())
    assert len(said) == 1 and "needs 2 H100" in said[0] and said[0].startswith("not run here, h100-1p1d:")


@pytest.mark.parametrize(
    ("folder", "arms", "folders"),
    [
        ("h100-1p1d", ["none", "burst"], {"h100-1p1d/none/seed2", "h100-1p1d/burst/seed2"}),
        ("policies", [f"1p3d-gpu/{p}" for p in PAIR], {f"policies/1p3d-gpu/{p}/seed2" for p in PAIR}),
        ("rescue", ["anything"], set()),
    ],
)
def test_what_is_missing_is_run_once(folder, arms, folders, monkeypatch, tmp_path):
    python, ran = tmp_path / "python", []
    python.touch()
    monkeypatch.setenv("BASIN_SGLANG_GPU_PYTHON", str(python))
    monkeypatch.setattr(missing, "execute", lambda runs, **how: ran.extend(runs))
    gpus = [h200(i, name="NVIDIA H100 NVL" if folder == "h100-1p1d" else "NVIDIA H200") for i in range(4)]
    said = []
    record_missing(folder, arms, [2], said.append, FakeMachine(gpus=gpus))
    assert {str(run.folder) for run in ran} == folders
    assert not folders or "runs ahead, about" in said[0]


def test_a_figure_asks_for_it(monkeypatch):
    asked = []
    monkeypatch.setattr(missing, "record_missing", lambda *what: asked.append(what))
    assert trap_runs("hw", ["none"], "smoke", seeds=[5]) == {"none": []}
    assert asked == [("h100-1p1d", ["none"], (5,))]
