"""The load ramp: it finds the cliff of an engine whose capacity it knows nothing else of."""

from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from artifact.control.policy import Action, SessionFacts
from artifact.control.profile import DeploymentProfile, reference_hit_rate
from artifact.workload.load import Load
from sim import cli
from sim import profile as ramps
from sim.profile import Staircase, Step, profile, ramp
from sim.scenario import Deployment

H100 = Deployment(calibration="h100")
SHORT = Load(rate_per_min=1, duration_s=1)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ramps, "STEPS", (0.6, 1.2, 1.8, 2.6, 3.6, 5.0))
    monkeypatch.setattr(ramps, "SETTLE_S", 300.0)
    monkeypatch.setattr(ramps, "MEASURE_S", 300.0)


def test_the_staircase_admits_up_to_its_step() -> None:
    policy = Staircase([2, 3], step_s=10.0)
    for i in range(5):
        policy.arrive(SessionFacts(str(i), 0.0, 10), 0.0)
    admitted = [policy.next(0.0) for _ in range(3)]
    assert [d and d.action for d in admitted] == [Action.ADMIT, Action.ADMIT, None]
    assert [policy.next(10.0) is None for _ in range(2)] == [False, True]
    policy.depart("0", 11.0)
    assert policy.next(11.0) is not None
    assert policy.next(1e6) is None, "the last step lasts"


def test_a_ramp_climbs_holds_its_population_and_falls_off_the_cliff(quick: None) -> None:
    steps = ramp(H100, SHORT, seed=0)
    assert [s.sessions for s in steps] == sorted({s.sessions for s in steps})
    assert steps[0].hit_rate > 0.9
    assert min(s.hit_rate for s in steps) < steps[0].hit_rate - 0.3
    peak = max(steps, key=lambda s: s.departures_per_min)
    assert 0 < peak.departures_per_min < 20
    assert steps[-1].departures_per_min < peak.departures_per_min, "past the cliff departures fall"


def test_a_profile_is_measured_once_a_deployment_and_workload(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ramps, "repository_root", lambda: tmp_path)
    heard: list[Step] = []
    first = profile(H100, ramps=1, say=heard.append)
    measured = len(heard)
    assert measured >= 4
    assert first.router == "affinity"
    assert 0.3 < first.kappa < 3
    assert first.critical_rate_per_min == max(step.departures_per_min for step in heard)
    assert profile(H100, ramps=1, say=heard.append) == first
    assert len(heard) == measured, "the second time it is read"
    assert profile(H100, ramps=1, output_scale=3.0, say=heard.append) != first


def test_kappa_is_the_lower_quartile_and_the_rate_the_highest_of_any_ramp() -> None:
    """Three ramps along the reference curve, their cliffs at 0.8, 1.0 and 1.2 of it."""
    capacity = ramps.capacities_of(H100).cache_tokens
    curve = {}
    for scale in (0.8, 1.0, 1.2):
        curve[scale] = [
            Step(n, x * capacity, float(reference_hit_rate(np.array(x / scale))), rate)
            for n, (x, rate) in enumerate(
                [(0.5, 2.0), (1.0, 4.0), (1.5, 5.0 * scale), (2.0, 4.5), (2.5, 2.0), (3.0, 1.0)]
            )
        ]
    found = ramps.profile_of_steps(list(curve.values()), capacity)
    assert found.kappa == pytest.approx(0.9, rel=0.05)
    assert found.critical_rate_per_min == pytest.approx(6.0), "5.0 x 1.2, of the ramp whose cliff comes last"


def test_a_router_has_a_profile_of_its_own() -> None:
    places = {ramps._place(Deployment(prefill=2, decode=2, router=r), SHORT, 3) for r in ("affinity", "least_loaded")}
    assert len(places) == 2


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer()
    app.command("simulate")(cli.simulate)
    app.command("profile")(cli.profile)
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text("deployment: {calibration: h100}\nload: {rate_per_min: 2, duration_s: 300}\n")
    result = CliRunner().invoke(app, ["simulate", str(scenario), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "goodput" in result.output
    assert "not observed" in result.output, "five minutes have no end state"
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"calls.parquet", "sessions.parquet", "samples.parquet"}
    monkeypatch.setattr(cli, "measure", lambda *a: DeploymentProfile(kappa=0.8, critical_rate_per_min=3.0))
    deployment = tmp_path / "deployment.yaml"
    deployment.write_text("calibration: h100\n")
    result = CliRunner().invoke(app, ["profile", str(deployment)])
    assert '"kappa": 0.8' in result.output
    for text, told in (("decodes: 3\n", "decodes"), ("calibration: [\n", "error"), ("", "error")):
        deployment.write_text(text)
        result = CliRunner().invoke(app, ["profile", str(deployment)])
        assert (result.exit_code, told in result.output) == (2, True)
    assert CliRunner().invoke(app, ["simulate", str(tmp_path / "none.yaml")]).exit_code == 2
