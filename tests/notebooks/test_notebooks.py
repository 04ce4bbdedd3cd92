"""Every notebook: clean, parameterised, with a question first and its claims last, and it runs on its own."""

import json
from pathlib import Path

import nbformat
import papermill
import pytest

from artifact.reproduce.runner import CELL_LIMIT_S, IOPUB_TIMEOUT_S, find_notebooks

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = {path.stem: path for path in find_notebooks(ROOT, [])}
WITHOUT_CLAIMS = {
    "fig01",
    "fig02",
    "explore_trap",
    "open_choices",
    "table1_mechanisms",
    "trap_on_cpu",
    "first_aid",
    "fidelity_cpu",
    "compare_recovery",
    "escape_time",
}
"""Schematics and sandbox of the fluid model, our own experiments, a table, our demonstration: what is published has no
numbers to judge."""
MAPS = ("fig07_surge_map", "fig08_recoverable_load", "fig09_classification", "fig10_post_surge")
RUNNER_PARAMETERS = {"profile", "source", "seeds", "workers", "scheduler"}
MAIN = ("fig03_workload", "fig04_trap", "fig05_residual_sessions", "fig06_sustaining_loop")
COMPARISONS = (
    "fig12_hardware_goodput",
    "fig13_hardware_surge",
    "fig14_six_scenarios",
    "fig15_outputs3",
    "fig16_surge_size",
    "fig17_steady_load",
    "fig18_production_arrivals",
    "fig19_host_tier",
    "fig20_routers",
    "fig21_switched_on",
    "fig23_ablations",
    "fig24_sensitivity",
)
PAPER_B = (
    "b_fig1_burst",
    "b_fig2_traces",
    "b_fig3_sglang",
    "b_fig4_loop",
    "b_fig5_recovery",
    "b_fig6_mix",
    "b_fig7_trace_recovery",
    "b_fig8_cohorts",
    "b_prevention",
    "b_table1_controls",
    "b_table2_pairs",
    "b_table3_recovery",
)
UNJUDGED = ("fig22_post_surge_policies", "sec73_healthy_controls", "sec75_eviction_and_borrowing", "open_choices",
            "table1_mechanisms", "compare_recovery", "escape_time")  # fmt: skip
"""Their claims are about more runs than the smoke profile makes, or there are none."""


def cells(name, kind):
    return [cell for cell in nbformat.read(NOTEBOOKS[name], as_version=4).cells if cell.cell_type == kind]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_is_stripped_and_names_the_usual_kernel(name):
    assert all(not cell.outputs and cell.execution_count is None for cell in cells(name, "code"))
    assert nbformat.read(NOTEBOOKS[name], as_version=4).metadata.kernelspec.name == "python3"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_takes_the_runners_parameters(name):
    parameters = papermill.inspect_notebook(str(NOTEBOOKS[name]))
    assert set(parameters) >= RUNNER_PARAMETERS
    assert parameters["profile"]["default"] == '"smoke"' and parameters["source"]["default"] == '"sim"'


def test_figure_4_takes_a_trace():
    assert papermill.inspect_notebook(str(NOTEBOOKS["fig04_trap"]))["trace"]["default"] == "None"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_opens_with_a_question_and_ends_with_its_claims(name):
    opening = cells(name, "markdown")[0].source.splitlines()[0]
    assert opening.startswith("# ") and opening.endswith("?")
    if name not in WITHOUT_CLAIMS:
        assert "show_claims(" in cells(name, "code")[-1].source
        assert any(cell.source.startswith("## Claims") for cell in cells(name, "markdown")[-1:])


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_names_no_path_of_this_machine(name):
    assert str(ROOT) not in NOTEBOOKS[name].read_text(encoding="utf-8")


def outputs(executed, kind):
    return [o["data"][kind] for cell in executed.cells for o in cell.get("outputs", []) if kind in o.get("data", {})]


def execute(name, tmp_path, cwd=ROOT, **parameters):
    return papermill.execute_notebook(
        NOTEBOOKS[name],
        tmp_path / "out.ipynb",
        {"profile": "smoke", **parameters},
        cwd=cwd,
        progress_bar=False,
        execution_timeout=CELL_LIMIT_S["smoke"],
        iopub_timeout=IOPUB_TIMEOUT_S,
    )


def assert_it_shows_and_judges(name, executed):
    """A picture, a verdict on each claim shown, and the part of the ledger that holds it."""
    assert len(outputs(executed, "image/png")) == 1
    part = json.loads((ROOT / "build" / "claims" / f"{name}.smoke.json").read_text())
    shown = outputs(executed, "text/html")[-1]
    assert part["entries"] and all(f"<th>{entry['id']}</th>" in shown for entry in part["entries"])
    assert any(entry["verdict"] != "not evaluated" for entry in part["entries"])
    assert all((ROOT / "build" / "figures" / f"{name}.{kind}").is_file() for kind in ("pdf", "png", "csv", "json"))


def test_figure_3_runs_from_the_folder_of_the_notebooks(tmp_path):
    executed = execute("fig03_workload", tmp_path, cwd=NOTEBOOKS["fig03_workload"].parent)
    assert_it_shows_and_judges("fig03_workload", executed)


@pytest.mark.slow
@pytest.mark.parametrize("name", (*MAIN[1:], *MAPS, *COMPARISONS, *PAPER_B))
def test_it_runs_from_the_repository_root(name, tmp_path):
    assert_it_shows_and_judges(name, execute(name, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", UNJUDGED)
def test_it_draws_what_the_smoke_profile_makes(name, tmp_path):
    executed = execute(name, tmp_path)
    assert len(outputs(executed, "image/png")) == 1
    assert "Not evaluated: no hardware runs" not in "".join(outputs(executed, "text/markdown"))


@pytest.mark.slow
@pytest.mark.parametrize("name", (*MAIN[1:], *MAPS, *COMPARISONS, *PAPER_B, *UNJUDGED))
def test_without_hardware_runs_it_says_so_and_draws_nothing(name, tmp_path):
    if any((ROOT / "hw_runs" / "results" / runs).is_dir() for runs in ("h100-1p1d", "policies", "colocated", "rescue")):
        pytest.skip("there are hardware runs")
    part = ROOT / "build" / "claims" / f"{name}.smoke.json"
    before = part.read_bytes() if part.is_file() else None
    executed = execute(name, tmp_path, source="hw")
    assert not outputs(executed, "image/png")
    assert "Not evaluated: no hardware runs" in "".join(outputs(executed, "text/markdown"))
    assert (part.read_bytes() if part.is_file() else None) == before


@pytest.fixture
def _no_trace_left():
    yield
    for path in (ROOT / "build" / "figures").glob("fig04_trap-native.*"):  # the report would show it
        path.unlink()


@pytest.mark.slow
@pytest.mark.usefixtures("_no_trace_left")
def test_figure_4_runs_on_a_trace_and_judges_no_claims(tmp_path):
    trace = ROOT / "tests" / "data" / "traces" / "native.jsonl"
    executed = execute("fig04_trap", tmp_path, trace=str(trace.relative_to(ROOT)))
    words = "".join(outputs(executed, "text/markdown"))
    assert len(outputs(executed, "image/png")) == 1 and "Not judged" in words
    assert "sessions exceed the 1,090,000 tokens of one instance and are left out" in words
