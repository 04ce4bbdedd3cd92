"""Experiments from their files to Records, through the real gateway and replay client, before an engine without a
model."""

import asyncio
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from artifact.metrics import hit_rate, ttft, windows
from artifact.records.schema import Records
from artifact.reproduce.scenarios import TRAP_DEPLOYMENT, recorded, trap_h100
from artifact.reproduce.scenarios_policies import HARDWARE, PROTOTYPE_POLICIES
from hw_runs import run_cli
from hw_runs.deployment import load_deployment
from hw_runs.experiment import known_experiments, load_experiment, results_root, runs_of
from hw_runs.run import Failed, effort, execute, unavailable
from hw_runs.scrape import load_engines
from sim.scenario import Scenario

SESSIONS = {"workload": "laptop-small", "rate_per_min": 60, "duration_s": 3, "warm_sessions": 2}


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Runs go below a folder of the test's own."""
    monkeypatch.setattr("hw_runs.experiment.repository_root", lambda: tmp_path)
    return results_root()


def experiment(tmp_path, deployment, policies, **load):
    path = tmp_path / "try.yaml"
    arms = {"steady": {**SESSIONS, **load}}
    loads = {"deployment": deployment, "policies": policies, "sample_s": 0.5, "arms": arms}
    path.write_text(yaml.safe_dump({"title": "a try", "loads": loads}))
    return str(path)


def test_runs_of_two_policies_are_replayed_recorded_and_not_repeated(fake, tmp_path, results):
    path = fake(file=True)
    runs, left_out = runs_of(load_experiment(experiment(tmp_path, path, ["budgeter"])))
    runs += runs_of(load_experiment(experiment(tmp_path, path, ["none"], warm_sessions=0)))[0]
    assert not left_out and effort(runs).runs == 2
    said, heard = [], []
    execute(runs, say=said.append, on_second=lambda run, now_s: heard.append(now_s))
    assert sum("unified-0: starting" in line for line in said) == 1, "one engine serves both policies"
    assert heard[-1] > 2.0
    for run in runs:
        records = Records.load(run.path)
        meta, calls = records.meta, records.calls.to_pandas().dropna(subset=["cached_tokens"])  # the last are cut off
        assert meta["source"] == "hw" and not records.simulated
        assert meta["versions"].keys() == {"basin-artifact", "basin"} and meta["commit"]
        assert meta["capacity"] == {"prefill_cache_tokens": 32000, "decode_kv_tokens": 32000, "host_cache_tokens": 0}
        assert "--enable-prefix-caching" in meta["commands"]["unified-0"]
        assert meta["prompt_tokens_over_planned"] == 1.0
        assert meta["unloaded_reference"]["measured"]["call_s"] > 0
        assert meta["scenario"]["policy"]["name"] == run.policy and meta["errors"] == {}
        assert len(calls) > 3 and (calls["prompt_tokens"] > calls["cached_tokens"]).all()
        assert (records.sessions.to_pandas()["unloaded_s"] > 0).all()
        samples = records.samples.to_pandas()
        assert samples["prompt_tokens_total"].iloc[0] == 0 and len(samples) >= 5
        engine = load_engines(run.path)
        assert {"vllm:kv_cache_usage_perc", "process_group_cpu_seconds"} <= set(engine["name"])
        assert 0 < hit_rate(records) < 1, "of a real run the first token stands in for the start of prefill"
    warm = Records.load(runs[0].path).calls.to_pandas()
    warm = warm[warm["session_id"].str.startswith("warm")].groupby("session_id").first()
    assert len(warm) and (warm["cached_tokens"] > 0.5 * warm["prompt_tokens"]).all(), "in the cache before the start"
    before = {run.path: (run.path / "calls.parquet").stat().st_mtime_ns for run in runs}
    execute(runs)
    assert {run.path: (run.path / "calls.parquet").stat().st_mtime_ns for run in runs} == before
    assert effort(runs).runs == 0
    (loaded,) = recorded("fake", ["steady/none"], root=tmp_path)["steady/none"]
    assert len(windows(loaded, 1.0)) == 3


def test_a_run_can_be_started_where_an_event_loop_runs_as_in_a_notebook(fake, tmp_path, results):
    (run,), _ = runs_of(load_experiment(experiment(tmp_path, fake(file=True), ["none"])))

    async def cell():
        execute([run])

    asyncio.run(cell())
    assert len(Records.load(run.path).calls)


def test_a_run_whose_engine_dies_is_not_saved_and_nothing_is_left(fake, tmp_path, results):
    """It dies at the first call that is streamed, as those of a run are."""
    flags = {"num-gpu-blocks-override": 1000, "block-size": 32, "die-streaming": True}
    path = fake(file=True, flags=flags)
    runs, _ = runs_of(load_experiment(experiment(tmp_path, path, ["none"], duration_s=6, warm_sessions=0)))
    with pytest.raises(Failed, match="unified-0 ended; the end of"):
        execute(runs)
    assert not runs[0].path.exists() and not runs[0].done
    assert unavailable(runs) == {}, "its ports are free again"


def test_text_whose_tokens_are_not_counted_as_planned_stops_a_run(fake, tmp_path, results):
    model = {"path": "no-model", "served_name": "fake", "bytes_per_token": 4}
    runs, _ = runs_of(load_experiment(experiment(tmp_path, fake(file=True, model=model), ["none"])))
    with pytest.raises(Failed, match=r"4 bytes of replayed text make 4\.00 tokens of fake; correct it in fake\.yaml"):
        execute(runs)


def test_an_engine_that_cannot_start_says_why_and_other_groups_go_on(fake, tmp_path, results):
    path = fake(file=True, flags={"never-ready": True})
    runs, _ = runs_of(load_experiment(experiment(tmp_path, path, ["none"])))
    with pytest.raises(Failed, match="the model is too large for this machine"):
        execute(runs)


def test_capacities_other_than_the_files_stop_a_run_before_its_first_call(fake, tmp_path, results):
    expected = {"prefill_cache_tokens": 64000, "decode_kv_tokens": 32000, "source": "wishes"}
    runs, _ = runs_of(load_experiment(experiment(tmp_path, fake(file=True, expected=expected), ["none"])))
    with pytest.raises(Failed, match=r"engines report 32,000, expected are 64,000 within 2% \(wishes\)"):
        execute(runs)


# Experiments as data ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", known_experiments())
def test_every_experiment_has_runs_on_deployments_that_run_their_policies(name):
    loaded = load_experiment(name)
    runs, _ = runs_of(loaded)
    assert runs and {run.deployment for run in runs} == set(loaded.deployments())
    for run in runs:
        load_deployment(run.deployment).policy(run.policy)
    assert len({run.folder for run in runs}) == len(runs)
    if loaded.notebook is not None:
        assert (Path("notebooks") / f"{loaded.notebook}.ipynb").is_file()


def test_figures_4_to_6_run_the_scenarios_that_the_simulator_runs_and_save_where_notebooks_look():
    runs, _ = runs_of(load_experiment("fig06"), seeds=[3])
    arms = trap_h100([3])
    assert {run.folder.parts[1]: run.scenario for run in runs} == {name: s for name, (s,) in arms.items()}
    assert {run.folder.parts[0] for run in runs} == {TRAP_DEPLOYMENT} and {run.folder.parts[2] for run in runs} == {
        "seed3"
    }


def test_figure_12_compares_all_systems_of_the_paper():
    runs, left_out = runs_of(load_experiment("fig12"))
    assert left_out == {}
    arms = {"/".join(run.folder.parts[1:3]) for run in runs}
    assert arms == {f"{s}/{p}" for s in HARDWARE for p in PROTOTYPE_POLICIES}
    tools = next(run for run in runs if "1p3d-tools3" in run.folder.parts)
    assert tools.scenario.load.duration_s == 9000 and tools.scenario.load.tool_time_scale == 3
    swe = next(run for run in runs if "swe" in run.folder.parts)
    assert swe.scenario.load.rate_per_min == 2.6 and swe.setting is None and swe.deployment == "h200-swe-pro"
    assert tools.setting == "1p3d-tools3", "its base load is a share of the critical rate"


def test_what_a_deployment_says_it_does_not_run_is_left_out_with_its_reason(monkeypatch):
    def without_continuum(name):
        return load_deployment(name).model_copy(update={"unsupported": {"continuum": "no pins"}})

    monkeypatch.setattr("hw_runs.experiment.load_deployment", without_continuum)
    runs, left_out = runs_of(load_experiment("fig13"))
    assert left_out == {"continuum": "no pins"}
    assert {run.policy for run in runs} == set(PROTOTYPE_POLICIES) - {"continuum"}


def test_the_effort_counts_engines_not_runs():
    runs, _ = runs_of(load_experiment("fig04"))
    ahead = effort(runs)
    start_s = load_deployment("h100-1p1d").start_s / 2
    assert ahead.wall_s == start_s + 3 * 6300 and ahead.gpu_s == 2 * ahead.wall_s


def test_a_dry_run_prints_every_command_and_what_would_stop_it():
    from typer import Typer

    app = Typer()
    app.command()(run_cli.run_hw)
    result = CliRunner().invoke(app, ["fig04", "--dry-run", "--usd-per-gpu-hour", "2"])
    assert result.exit_code == 0, result.output
    assert "sglang.launch_server" in result.output and "basin gateway" in result.output
    assert "3 runs ahead" in result.output and "USD" in result.output
    assert "cannot be started here" in result.output
    wrong = CliRunner().invoke(app, ["fig99", "--dry-run"])
    assert wrong.exit_code == 2 and "no experiment 'fig99'" in wrong.output


def test_a_scenario_survives_its_file():
    for name in known_experiments():
        for run in runs_of(load_experiment(name))[0]:
            assert Scenario.model_validate(run.scenario.model_dump(mode="json")) == run.scenario


def test_errors_name_what_is_wrong(tmp_path):
    path = tmp_path / "odd.yaml"
    path.write_text("title: x\n")
    with pytest.raises(ValueError, match="exactly one of trap, compared, ramp and loads"):
        load_experiment(str(path))
    path.write_text("title: x\ncompared: {deployments: {1p9d: h200-1p3d}}\n")
    with pytest.raises(ValueError, match=r"no setting \['1p9d'\]"):
        load_experiment(str(path))


@pytest.mark.slow
def test_calls_under_way_at_the_end_are_recorded_without_an_end(fake, tmp_path, results):
    """Answers take two seconds of a run of three: half of the calls are still coming when it ends."""
    flags = {"num-gpu-blocks-override": 1000, "block-size": 32, "answer-s": 2.0}
    runs, _ = runs_of(load_experiment(experiment(tmp_path, fake(file=True, flags=flags), ["none"], warm_sessions=0)))
    execute(runs)
    records = Records.load(runs[0].path)
    calls = records.calls.to_pandas()
    open_calls = calls[calls["finished_s"].isna()]
    assert 0 < len(open_calls) < len(calls)
    assert open_calls["cached_tokens"].isna().all() and (open_calls["prompt_tokens"] > 0).all()
    assert (ttft(records)[calls["first_token_s"].isna()] > 0).all(), "they have waited for so long at least"
