"""The synthesised shapes beside public recordings of the same kind, where they are at hand (BASIN_TRACES)."""

import os
from pathlib import Path

import numpy as np
import pytest

from artifact.workload.catalog import workload
from artifact.workload.formats import load
from artifact.workload.synth_check import obtained
from artifact.workload.synth_spec import FirstFifth
from artifact.workload.trajectory import Trajectory

TRACES = Path(os.environ.get("BASIN_TRACES", Path(__file__).parents[2].parent / "shared" / "traces"))

RECORDED = [
    ("terminal-bench", "tb_core_mini_swe_agent.jsonl"),
    ("swe-bench-pro", "swe_rebench_claude_code_agentcgroup.jsonl"),
]
PAIRS = pytest.mark.parametrize(("name", "recording"), RECORDED)


def recorded(name: str) -> list[Trajectory]:
    """Sessions of some length: shares of a session mean little over three calls."""
    if not (TRACES / name).exists():
        pytest.skip(f"{name} is not in {TRACES} (set BASIN_TRACES)")
    return [t for t in load(TRACES / name) if t.n_calls > 5]


def beyond_floor(sessions: list[Trajectory]) -> np.ndarray:
    """Gaps in seconds over the shortest of their session, which is the environment's floor."""
    return np.concatenate([np.array(t.gap_before_s[1:]) - min(t.gap_before_s[1:]) for t in sessions if t.n_calls > 5])


@PAIRS
def test_tool_times_have_the_recorded_mixture(name: str, recording: str) -> None:
    real, ours = beyond_floor(recorded(recording)), beyond_floor(workload(name))
    for seconds in (0.1, 1.0, 10.0):
        assert np.mean(ours < seconds) == pytest.approx(np.mean(real < seconds), abs=0.07)


def test_growth_is_front_loaded_between_the_recorded_sets() -> None:
    terminal, coding = (obtained(FirstFifth(0), recorded(recording)) for _, recording in RECORDED)
    assert terminal < obtained(FirstFifth(0), workload("terminal-bench")) < coding
    assert obtained(FirstFifth(0), workload("swe-bench-pro")) == pytest.approx(coding, abs=0.05)
