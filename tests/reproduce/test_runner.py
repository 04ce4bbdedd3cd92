import io
from pathlib import Path

import nbformat
import pytest
from nbclient.exceptions import CellTimeoutError
from rich.console import Console
from typer.testing import CliRunner

from artifact.reproduce import cli, runner
from artifact.reproduce.runner import Job, find_notebooks, run_all

GOOD = "with open('ran.txt', 'a') as f: f.write(f'{profile} {workers} {seeds};')"
BAD = ["y = 1", "def deep(): raise RuntimeError('the engine melted')\ndeep()"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("notebooks", "artifact", "sim"):
        (tmp_path / folder).mkdir()
    (tmp_path / "sim" / "engine.py").write_text("speed = 1\n")
    return tmp_path


def notebook(root: Path, name: str, *cells: str) -> Path:
    parameters = nbformat.v4.new_code_cell(
        "profile, source, seeds, workers, scheduler = 'smoke', 'sim', None, 1, None", metadata={"tags": ["parameters"]}
    )
    book = nbformat.v4.new_notebook(cells=[parameters, *map(nbformat.v4.new_code_cell, cells)])
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    path = root / "notebooks" / f"{name}.ipynb"
    nbformat.write(book, path)
    return path


def job(root: Path, path: Path, profile="quick", workers=1) -> Job:
    determinants = {"profile": profile, "source": "sim", "seeds": [3]}
    return Job(root, path, profile, determinants, {"workers": workers, "scheduler": None})


def test_failures_are_passed_over_and_reported_and_what_is_done_is_skipped(root):
    bad, good = notebook(root, "fig01_bad", *BAD), notebook(root, "fig02_good", GOOD)
    jobs = [job(root, bad), job(root, good, workers=2)]
    out = io.StringIO()
    failures = run_all(jobs, Console(file=out, width=200))
    assert [failure.figure for failure in failures] == ["fig01_bad"]
    assert "RuntimeError: the engine melted" in out.getvalue() and "def deep()" in out.getvalue()
    assert (root / "ran.txt").read_text() == "quick 2 [3];"  # executed at the root, with the parameters
    assert jobs[1].executed.is_file()
    assert not jobs[0].done() and jobs[1].done()
    assert not job(root, good, profile="full").done()
    assert job(root, good, workers=7).done()  # how many workers does not matter
    out.truncate(0)
    assert run_all(jobs[1:], Console(file=out)) == [] and "skipped" in out.getvalue()
    assert (root / "ran.txt").read_text() == "quick 2 [3];"
    (root / "sim" / "engine.py").write_text("speed = 2\n")
    assert not jobs[1].done()


def test_a_notebook_whose_kernel_fell_silent_is_run_once_more(root, monkeypatch):
    jobs = [job(root, notebook(root, name, GOOD)) for name in ("fig01", "fig02")]
    execute, silent = Job.execute, {"fig01": 1, "fig02": 2}

    def losing(self, on_cell):
        if silent[self.figure]:
            silent[self.figure] -= 1
            raise CellTimeoutError("A cell timed out\nTimeout waiting for IOPub output.")
        execute(self, on_cell)

    monkeypatch.setattr(Job, "execute", losing)
    out = io.StringIO()
    failures = run_all(jobs, Console(file=out, width=200))
    assert "fig01: no word from its kernel, once more: A cell timed out" in out.getvalue()
    assert [failure.figure for failure in failures] == ["fig02"] and "CellTimeoutError" in failures[0].reason
    assert jobs[0].done() and not jobs[1].done()


def test_an_interruption_keeps_what_was_finished(root, monkeypatch):
    jobs = [job(root, notebook(root, name, "1")) for name in ("fig01", "fig02", "fig03")]

    def execute(path, out, **_):
        if path.stem == "fig02":
            raise KeyboardInterrupt
        Path(out).write_text(path.read_text())

    monkeypatch.setattr(runner.papermill, "execute_notebook", execute)
    with pytest.raises(KeyboardInterrupt):
        run_all(jobs, Console(file=io.StringIO()))
    assert [j.done() for j in jobs] == [True, False, False]


def test_anything_but_an_interruption_is_only_that_figures_failure(root, monkeypatch):
    def execute(*_, **__):
        raise OSError("no such kernel")

    monkeypatch.setattr(runner.papermill, "execute_notebook", execute)
    found = run_all([job(root, notebook(root, "fig01", "1"))], Console(file=io.StringIO()))
    assert found == [runner.Failure("fig01", "OSError: no such kernel")]


def test_a_started_job_is_not_done_even_if_an_older_result_lies_there(root, monkeypatch):
    mine = job(root, notebook(root, "fig01", "1"))
    monkeypatch.setattr(runner.papermill, "execute_notebook", lambda path, out, **_: Path(out).write_text("{}"))
    mine.execute(lambda index: None)
    assert mine.done()

    def fail(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner.papermill, "execute_notebook", fail)
    with pytest.raises(KeyboardInterrupt):
        mine.execute(lambda index: None)
    assert not mine.done()


def test_notebooks_are_found_by_the_start_of_their_names(root):
    paths = [notebook(root, name, "1") for name in ("fig04_surge", "fig03_workload", "tab01")]
    assert find_notebooks(root, []) == sorted(paths)
    assert [path.stem for path in find_notebooks(root, ["tab", "fig04"])] == ["fig04_surge", "tab01"]
    with pytest.raises(ValueError, match="no notebook begins with fig99; there are: fig03_workload"):
        find_notebooks(root, ["fig99", "tab"])


def cli_app(command):
    import typer

    app = typer.Typer()
    app.command()(command)
    return app


def test_the_command_exits_non_zero_with_the_list_of_failures(root, monkeypatch):
    notebook(root, "fig01", "1")
    monkeypatch.setattr(cli, "repository_root", lambda: root)
    monkeypatch.setattr(runner, "run_all", lambda jobs, console, fresh: [runner.Failure("fig01", "broke")])
    result = CliRunner().invoke(cli_app(cli.reproduce), ["--profile", "full"])
    assert result.exit_code == 1 and "Failed: fig01" in result.output
    assert (root / "figures" / "claims.json").is_file()


@pytest.mark.parametrize(
    "arguments", [["--profile", "huge"], ["--source", "dream"], ["--seeds", "one"], ["fig99"], ["--workers", "0"]]
)
def test_bad_arguments_are_refused(root, monkeypatch, arguments):
    monkeypatch.setattr(cli, "repository_root", lambda: root)
    assert CliRunner().invoke(cli_app(cli.reproduce), arguments).exit_code == 2


def test_an_interrupted_command_exits_with_130(root, monkeypatch):
    def interrupted(jobs, console, fresh):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "repository_root", lambda: root)
    monkeypatch.setattr(runner, "run_all", interrupted)
    assert CliRunner().invoke(cli_app(cli.reproduce), []).exit_code == 130


def test_claims_command_filters_and_prints_json(root, monkeypatch):
    import json

    from artifact.reproduce.ledger import evaluate_claims, write_part

    entries = evaluate_claims({"terminal_bench": [["one"] * 216]}, "fig03", "smoke", ["A-wl-sessions"])
    write_part(root, "fig03", "smoke", entries)
    monkeypatch.setattr(cli, "repository_root", lambda: root)
    app = cli_app(cli.claims)
    shown = json.loads(CliRunner().invoke(app, ["--json", "--only-evaluated"]).output)
    assert [entry["id"] for entry in shown] == ["A-wl-sessions"] and shown[0]["verdict"] == "reproduced"
    assert len(json.loads(CliRunner().invoke(app, ["--json", "--group", "workload"]).output)) == 25
    assert "A-wl-sessions" in CliRunner().invoke(app, ["--only-evaluated"]).output
    assert CliRunner().invoke(app, ["--group", "nothing"]).exit_code == 2
