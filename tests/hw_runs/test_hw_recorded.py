"""The real runs that come with the artifact: complete, real, and predicted by a simulator that has not seen them."""

import shutil

import pandas as pd
import pytest

from artifact.records.schema import Records
from hw_runs.calibrate import load_runs
from hw_runs.experiment import results_root, shipped_root
from hw_runs.fidelity import state
from hw_runs.fidelity_view import (
    FITTED,
    figure_fidelity,
    findings,
    meets,
    other_runs,
    predictions,
    shelf,
)
from hw_runs.scrape import load_engines
from hw_runs.trap import FOLDER, SIX
from hw_runs.trap_view import CONTROLS, NO_CURE, folder_of, outcomes, trap_runs


@pytest.fixture
def elsewhere(tmp_path):
    """A checkout in which nothing has been run."""
    shutil.copytree(shipped_root(), shipped_root(tmp_path))
    return tmp_path


def test_they_are_real_small_and_name_no_folder_of_the_machine_that_made_them():
    files = [path for path in shipped_root().rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 2e6
    for path in {path.parent for path in files if path.name == "calls.parquet"}:
        meta = Records.load(path).meta
        assert meta["source"] == "hw" and not meta["commit"].endswith("+")
        assert "/home" not in str(meta) and "/root" not in str(meta) and "/tmp" not in str(meta)


def test_the_first_seed_shows_the_trap_and_the_way_out(elsewhere):
    runs = trap_runs([0], elsewhere)
    table = outcomes(runs).set_index("arm")
    assert set(table.index) >= set(SIX)
    assert table["met"].drop(list(NO_CURE)).all(), table
    assert table["back_s"][list(set(CONTROLS) & set(table.index) - set(NO_CURE))].max() <= 60
    assert table["completed"]["basin"] > table["completed"]["burst"]
    assert not load_engines(folder_of("burst", 0, elsewhere)).empty


def test_a_second_engine_is_trapped_too():
    """SGLang 1P1D over NIXL: a burst of eight seconds, and a minute later hardly any prompt is found in the cache."""
    pair = {arm: shipped_root() / "cpu-sglang-1p1d-long" / arm / "none" / "seed0" for arm in ("twin", "burst")}
    assert {arm: state(Records.load(path)) for arm, path in pair.items()} == {"twin": "healthy", "burst": "collapsed"}


def test_held_out_runs_are_predicted(elsewhere):
    """The bars: hit rate within 0.08, answered calls within 15%, end state right in 8 of 10."""
    table = predictions(root=elsewhere)
    held = table[table["role"] == "held out"]
    assert len(held) >= 10 and meets(held), held
    assert set(held["end"]) >= {"healthy", "collapsed"}, "a simulator that always says the same would not pass"
    assert set(table[table["role"] == "same arrivals"]["run"].str[-5:]) == {"seed0"}
    assert f"Of the {len(held)} held-out runs" in findings(table)
    assert set(figure_fidelity(table)[1]["role"]) == set(table["role"])


def test_bars_can_fail():
    rows = pd.DataFrame({"hit_off": [0.01, 0.01], "calls_off": [0.1, 0.1], "end_right": [True, True]})
    assert meets(rows)
    assert not meets(rows.assign(hit_off=[0.01, 0.09]))
    assert not meets(rows.assign(calls_off=[0.16, 0.1]))
    assert not meets(rows.assign(end_right=[True, False]))


def test_a_machines_own_runs_come_first_once_all_that_are_fitted_are_there(elsewhere):
    assert shelf(elsewhere) == shipped_root(elsewhere)
    for part in FITTED[:-1]:
        shutil.copytree(shipped_root(elsewhere) / part, results_root(elsewhere) / part)
    assert shelf(elsewhere) == shipped_root(elsewhere)
    shutil.copytree(shipped_root(elsewhere) / FITTED[-1], results_root(elsewhere) / FITTED[-1])
    assert shelf(elsewhere) == results_root(elsewhere)
    assert other_runs(root=elsewhere) == []
    assert len(load_runs([results_root(elsewhere) / FOLDER])) == 1
