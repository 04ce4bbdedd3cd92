"""CLAIMS.md, what it is written from, and what figures cost."""

import json
import math
import re
import subprocess
import sys
import time

import nbformat
import pytest

from artifact.reproduce import claim_table
from artifact.reproduce.claims import Claim, load_claims
from artifact.reproduce.costs import PERIOD_S, Cost, commit_costs, committed, held_bytes, measured
from artifact.reproduce.ledger import Entry, current, dump, load
from artifact.reproduce.paths import repository_root
from artifact.reproduce.registry import evaluators
from artifact.reproduce.runner import Job, costs_here
from artifact.reproduce.verdict import Outcome, judge

ROOT = repository_root()


def test_the_committed_table_is_what_the_committed_ledger_and_costs_give():
    assert (ROOT / claim_table.NAME).read_text() == claim_table.markdown(ROOT), "stale: run `make claims-table`"


def test_it_has_every_claim_once_and_links_every_figure():
    page = (ROOT / claim_table.NAME).read_text()
    assert re.findall(r"^\| ([AB]-[a-z0-9-]+) \|", page, re.M).__len__() == len(load_claims())
    assert set(re.findall(r"^\| ([AB]-[a-z0-9-]+) \|", page, re.M)) == set(load_claims())
    headings = set(re.findall(r"^## (\w+)$", page, re.M))
    assert set(re.findall(r"\]\(#(\w+)\)", page)) == headings and len(headings) > 35


def test_every_claim_that_can_be_evaluated_has_a_notebook():
    assert set(evaluators()) == set(claim_table.figures_of(ROOT))


def finite(value):
    """A value of the ledger as it was judged: "never" stands for infinity."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [finite(inner) for inner in value]
    return {"never": math.inf, None: math.nan}.get(value, value) if not isinstance(value, bool) else value


@pytest.mark.parametrize("entry", [e for e in load(ROOT / "figures/claims.json") if e.obtained is not None], ids=str)
def test_every_committed_verdict_is_that_of_its_value_today(entry):
    verdict = judge(load_claims()[entry.id], finite(entry.obtained), simulated="hw" not in entry.source)
    assert verdict.outcome is entry.verdict


def test_a_claim_never_run_says_what_is_missing_today_and_a_changed_row_is_seen(tmp_path):
    (tmp_path / "figures").mkdir()
    old = Entry(id="A-trap-ttft", group="", unit="h", what="old", expected=1, why="no evaluator is written for it")
    run = old.model_copy(update={"id": "A-trap-hit", "figure": "fig04_trap", "obtained": 0.3})
    (tmp_path / "figures/claims.json").write_text(dump([old, run]))
    found = {entry.id: entry for entry in current(tmp_path)}
    assert found["A-trap-ttft"].why == "no run yet" and found["A-lend-transfer"].why.startswith("no evaluator")
    assert (found["A-trap-hit"].expected, found["A-trap-hit"].obtained) == (0.27, 0.3)


@pytest.mark.parametrize(
    ("tol", "words"),
    [
        ("exact", "exact"),
        ("hardware", "only hardware can tell"),
        ({"rel": 0.2}, "±20%"),
        ({"rel_low": 0.08, "rel_high": 0.25}, "−8% +25%"),
        ({"rel": 0.4, "cap": {"abs": 0.1}, "twins": "exact"}, "±40%, cap ±0.1, twins exact"),
    ],
)
def test_tolerances_in_words(tol, words):
    claim = Claim(
        id="A-x", group="g", source="A", where="", basis="sim", unit="", expect={"cap": 1, "twins": 2}, tol=tol, what=""
    )
    assert claim_table.tolerance(claim) == words


def test_costs_are_those_of_children_and_of_new_runs(tmp_path):
    (tmp_path / "build/runs/ab").mkdir(parents=True)
    (tmp_path / "build/runs/ab/found").mkdir()
    with measured(tmp_path) as meter:
        work = "import time\nwhile time.process_time() < 1: pass\n"
        hold = f"{work}block = bytearray({200 * 2**20}); block[::4096] = b'x' * len(block[::4096])"
        child = subprocess.Popen([sys.executable, "-c", f"{hold}; print(flush=True); time.sleep(60)"], stdout=-1)
        child.stdout.readline()
        time.sleep(3 * PERIOD_S)
        child.kill()
        child.wait()
        (tmp_path / "build/runs/ab/new").mkdir()
        (tmp_path / "build/runs/ab/draft.tmp").mkdir()
    cost = meter.cost("fig04", "full", 2, "abc")
    assert 200 <= cost.peak_mib < 260 and cost.new_runs == 1 and 3 * PERIOD_S < cost.wall_s < 60
    assert 1 <= cost.cpu_s < 4


def test_of_a_process_that_has_ended_nothing_is_held():
    import psutil

    child = subprocess.Popen([sys.executable, "-c", ""])
    process = psutil.Process(child.pid)
    child.wait()
    assert held_bytes(process) == 0 and held_bytes(psutil.Process()) > 2**20


def test_of_several_executions_the_larger_profile_and_the_one_with_new_runs_stay(tmp_path):
    def cost(profile, new_runs, wall_s):
        return Cost(figure="f", profile=profile, cpu_s=1, wall_s=wall_s, peak_mib=9, new_runs=new_runs, workers=1)

    commit_costs(tmp_path, [cost("quick", 5, 1.0)])
    commit_costs(tmp_path, [cost("full", 9, 2.0), cost("quick", 50, 3.0)])
    commit_costs(tmp_path, [cost("full", 0, 0.1)])
    assert committed(tmp_path)["f"].wall_s == 2.0
    assert len(json.loads((tmp_path / "figures/costs.json").read_text())) == 1


def test_an_executed_notebook_leaves_its_cost(tmp_path):
    for folder in ("notebooks", "artifact", "sim"):
        (tmp_path / folder).mkdir()
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("block = b'x' * 100_000_000")])
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(book, tmp_path / "notebooks/fig01.ipynb")
    assert costs_here(tmp_path) == []
    job = Job(tmp_path, tmp_path / "notebooks/fig01.ipynb", "quick", {"source": "sim"}, {"workers": 3})
    job.execute(lambda index: None)
    (cost,) = costs_here(tmp_path)
    assert (cost.figure, cost.profile, cost.workers) == ("fig01", "quick", 3)
    assert cost.peak_mib > 20 and cost.wall_s > 0 and cost.cpu_s > 0.3, "a kernel takes as much to start"


def test_the_page_is_rendered_from_any_root(tmp_path):
    """A figure with a claim, its cost and its experiment; all other claims have no figure there."""
    (tmp_path / "notebooks").mkdir()
    cells = [
        nbformat.v4.new_markdown_cell("# Does it | last?"),
        nbformat.v4.new_code_cell("%matplotlib inline\nids = claim_ids('trap_h100_1p1d', 'A-trap-hit')"),
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "notebooks/fig04_trap.ipynb")
    commit_costs(
        tmp_path, [Cost(figure="fig04_trap", profile="full", cpu_s=90, wall_s=9, peak_mib=512, new_runs=2, workers=1)]
    )
    page = claim_table.write(tmp_path).read_text()
    assert "| 2 | 2 (full, 2 new runs) | 512 MiB, 1 worker | 1 not evaluated |" in page
    assert ".venv/bin/basin run-hw fig04`" in page and "| A-trap-hit | A " in page.split("## No figure")[0]
    assert f"{Outcome.NOT_EVALUATED}: no run yet" in page
