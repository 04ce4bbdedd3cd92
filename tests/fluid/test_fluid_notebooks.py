"""The model's notebooks run on their own, from the repository root, and come without outputs."""

from pathlib import Path

import nbformat
import papermill
import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ("fig01", "fig02", "explore_trap")


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_stripped_and_takes_the_runner_s_parameters(name: str) -> None:
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert notebook.metadata.kernelspec.name == "python3"
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
    parameters = papermill.inspect_notebook(str(ROOT / "notebooks" / f"{name}.ipynb"))
    assert set(parameters) == {"profile", "source", "seeds", "workers", "scheduler"}
    assert notebook.cells[0].source.splitlines()[0].endswith("?")


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name: str, tmp_path: Path) -> None:
    done = papermill.execute_notebook(
        ROOT / "notebooks" / f"{name}.ipynb", tmp_path / "out.ipynb", {"profile": "smoke"}, cwd=ROOT, progress_bar=False
    )
    assert any(cell.get("outputs") for cell in done.cells)
