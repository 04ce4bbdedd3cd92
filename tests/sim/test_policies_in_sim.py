"""Every policy, unchanged, on the simulated engine."""

from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import yaml

from artifact.baselines.registry import POLICIES
from artifact.control.peaks import Progress
from artifact.control.policy import Policy
from artifact.control.profile import DeploymentProfile
from artifact.metrics import column
from artifact.records.schema import Records
from artifact.workload.load import Load, Surge
from sim import policies
from sim.calibration.model import calibration
from sim.engine.costs import Costs
from sim.run import Simulation, run
from sim.scenario import Deployment, PolicyChoice, Scenario

PROFILE = DeploymentProfile(kappa=0.9, critical_rate_per_min=9.0)


@pytest.fixture(autouse=True)
def _no_ramp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "_profile", lambda scenario: PROFILE)


@pytest.fixture(scope="module")
def quarter(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A calibration with a quarter of H200's memories, so that a few sessions make a surge."""
    fields = yaml.safe_load(Path(str(files("sim.calibration") / "h200.yaml")).read_text())
    for part, name in (("prefill", "cache_tokens"), ("decode", "kv_tokens")):
        fields[part][name]["value"] /= 4
    path = tmp_path_factory.mktemp("calibration") / "quarter.yaml"
    path.write_text(yaml.safe_dump(fields))
    return str(path)


def surge(policy: str, calibration: str = "h200", minutes: float = 20) -> Scenario:
    """A surge that a quarter of H200's GPU-only cache does not hold."""
    load = Load(rate_per_min=3, duration_s=60 * minutes, surges=(Surge(start_s=60, end_s=600, factor=5),))
    deployment = Deployment(calibration=calibration, prefill=1, decode=2)
    return Scenario(deployment=deployment, load=load, policy=PolicyChoice(name=policy))


@pytest.fixture(scope="module")
def surges(quarter: str) -> dict[str, tuple[Simulation, Records]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policies, "_profile", lambda scenario: PROFILE)
        simulations = {name: Simulation(surge(name, quarter)) for name in POLICIES}
        return {name: (simulation, simulation.finish()) for name, simulation in simulations.items()}


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_serves_a_surge_within_its_own_and_the_engines_rules(
    name: str, surges: dict[str, tuple[Simulation, Records]]
) -> None:
    simulation, records = surges[name]
    samples, sessions = records.samples.to_pandas(), records.sessions.to_pandas()
    capacity = records.meta["capacity"]
    assert (sessions["outcome"] == "completed").sum() > 10
    assert (samples["cached_tokens_total"] <= samples["prompt_tokens_total"]).all()
    held = samples["decode_kv_running_tokens"] + samples["decode_kv_idle_tokens"] + samples["lent_tokens"]
    assert (held <= capacity["decode_kv_tokens"]).all()
    for prefill in simulation.engine.prefills:
        assert prefill.cache.used <= prefill.cache.capacity
    over = sessions[sessions["outcome"] == "shed"]
    assert over["admitted_s"].isna().all()
    state = simulation.driver.policy.state()
    if name != "thunderagent-router":  # its idle sessions may be paused without having been suspended
        assert state.resident + state.suspended == simulation.driver.active
    assert state.parked == len(simulation.driver.parked)


def test_what_sets_the_policies_apart_shows(surges: dict[str, tuple[Simulation, Records]]) -> None:
    """Each mechanism acts, and only where it belongs."""
    for name, (_, records) in surges.items():
        lent = column(records.samples, "lent_tokens").max()
        elastic = np.isnan(column(records.calls, "prefill_instance")).any()
        assert elastic == (name in ("crossflow", "composition")), name
        if not name.startswith("basin"):
            assert lent == 0, name
    assert column(surges["basin"][1].samples, "lent_tokens").max() > 0
    assert column(surges["basin"][1].calls, "cached_lent_tokens")[:-50].sum() > 0
    assert column(surges["basin-no-lending"][1].samples, "lent_tokens").max() == 0
    assert column(surges["concur"][1].samples, "suspended_sessions").max() > 0
    assert column(surges["thunderagent"][1].samples, "parked_sessions").max() > 0


def test_the_same_scenario_gives_the_same_records(quarter: str) -> None:
    scenario = surge("basin", quarter, minutes=12)
    first, again = run(scenario), run(scenario)
    assert first.calls.equals(again.calls)
    assert first.samples.equals(again.samples)


def test_reservation_follows_the_policy_unless_the_deployment_says() -> None:
    assert not Simulation(surge("hicache")).engine.late
    assert Simulation(surge("basin")).engine.late
    fixed = surge("basin").deployment.model_copy(update={"reserve_at": "arrival"})
    assert not Simulation(surge("basin").model_copy(update={"deployment": fixed})).engine.late


def test_a_policy_is_told_of_every_call_that_enters_prefill() -> None:
    class Told(Policy):
        def __init__(self) -> None:
            super().__init__()
            self.told: list[tuple[float, int]] = []

        def started(self, session_id: str, waited_s: float, cached_tokens: int, now: float) -> None:
            self.told.append((now, cached_tokens))

    policy = Told()
    records = Simulation(surge("hicache", minutes=3), policy).finish()
    scheduled = column(records.calls, "scheduled_s")
    assert len(policy.told) == (~np.isnan(scheduled)).sum()
    assert sum(cached for _, cached in policy.told) == np.nansum(column(records.calls, "cached_tokens"))


def test_predicted_peaks_know_the_output_scale_and_never_fall_below_what_is_seen() -> None:
    simulation = Simulation(surge("hicache", minutes=1))
    facts = [simulation.driver._facts(s) for s in simulation.driver.sessions.values()]
    plain, longer = policies.Peaks("terminal-bench", 1.0), policies.Peaks("terminal-bench", 3.0)
    assert sum(map(longer, facts)) > sum(map(plain, facts))
    for session in facts:
        peak = plain(session)
        assert peak >= session.first_prompt_tokens
        for context in (peak / 2, peak, 2 * peak, 50 * peak):
            assert plain.revise(session, Progress(int(context))) >= int(context)
        assert plain.revise(session, Progress(int(2 * peak))) > plain.revise(session, Progress(int(peak / 2)))


def test_reload_time_is_that_of_the_unloaded_reference() -> None:
    """Two chunks of 8,192 and one of 3,616 tokens at the published coefficients of the form in `Prefill`."""
    costs = Costs.of(calibration("h200"))
    tokens = 2 * costs.chunk_tokens + 3616
    by_hand = 3 * costs.prefill_fixed_s + tokens * costs.prefill_token_s
    by_hand += sum(range(tokens)) * costs.prefill_position_s
    assert costs.prefill_s(tokens) == pytest.approx(by_hand, rel=1e-3)
