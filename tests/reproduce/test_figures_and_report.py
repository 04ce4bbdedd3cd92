import json

import matplotlib
import matplotlib.pyplot as plt
import nbformat
import pandas as pd
import pytest
from handmade import records
from PIL import Image

from artifact.reproduce import figures, ledger, report
from artifact.reproduce.notebook import seeds_for, show_claims

matplotlib.use("Agg")


@pytest.fixture
def fig():
    figures.use_style()
    fig, _ = plt.subplots()
    yield fig
    plt.close("all")


def test_save_writes_figure_data_and_provenance_and_marks_simulated_data(tmp_path, fig):
    meta = figures.provenance([records(source="sim", seed=s, scenario={"load": 3.3, "seed": s}) for s in (3, 1)])
    assert meta["scenarios"] == [{"load": 3.3}]
    assert meta["seeds"] == [1, 3] and meta["source"] == "sim"
    paths = figures.save(fig, pd.DataFrame({"minute": [1], "value": [1 / 3]}), "fig04", meta, "quick", tmp_path)
    assert {p.relative_to(tmp_path).as_posix() for p in paths} == {
        f"build/figures/fig04.{kind}" for kind in ("pdf", "png", "csv", "json")
    }
    assert [text.get_text() for text in fig.texts] == ["simulated"]
    assert json.loads(Image.open(tmp_path / "build/figures/fig04.png").text["Description"])["seeds"] == [1, 3]
    assert b"simulated" in (tmp_path / "build/figures/fig04.pdf").read_bytes()
    assert (tmp_path / "build/figures/fig04.csv").read_text() == "minute,value\n1,0.333333\n"
    assert json.loads((tmp_path / "build/figures/fig04.json").read_text())["marks"] == ["simulated"]


def test_measured_data_need_no_mark_and_the_full_profile_goes_to_figures(tmp_path, fig):
    figures.save(fig, pd.DataFrame({"x": [1]}), "fig12", {"source": "hw"}, "full", tmp_path)
    assert not fig.texts and (tmp_path / "figures/fig12.pdf").is_file()


def test_the_same_figure_is_saved_as_the_same_bytes(tmp_path):
    figures.use_style()
    for folder in ("a", "b"):
        fig, ax = plt.subplots()
        ax.plot([1, 2])
        figures.save(fig, pd.DataFrame({"x": [1]}), "f", {"source": "sim"}, "full", tmp_path / folder)
        plt.close(fig)
    for kind in ("pdf", "png"):
        assert (tmp_path / f"a/figures/f.{kind}").read_bytes() == (tmp_path / f"b/figures/f.{kind}").read_bytes()


def test_figures_without_a_source_or_with_an_unknown_profile_are_refused(tmp_path, fig):
    with pytest.raises(ValueError, match="no source"):
        figures.save(fig, pd.DataFrame(), "f", {}, "quick", tmp_path)
    with pytest.raises(ValueError, match="none of smoke, quick, full"):
        figures.save(fig, pd.DataFrame(), "f", {"source": "sim"}, "big", tmp_path)


def test_each_system_has_one_colour_in_the_papers_order():
    order = ["HiCache", "CONCUR", "ThunderAgent", "Continuum", "Crossflow", "Composition", "Basin"]
    assert list(figures.SYSTEMS) == order and len(set(figures.SYSTEMS.values())) == 7


def test_course_draws_the_median_and_range_over_seeds(fig):
    seeds = [pd.DataFrame({"start_s": [0, 120], "end_s": [120, 240], "v": v}) for v in ([1, 2], [3, 8], [2, 4])]
    drawn = figures.course(fig.gca(), seeds, "v", scale=10)
    assert drawn.to_dict("list") == {"minute": [1, 3], "median": [20, 40], "low": [10, 20], "high": [30, 80]}
    assert fig.gca().lines[0].get_ydata().tolist() == [20, 40]
    with pytest.raises(ValueError, match="no seeds"):
        figures.course(fig.gca(), [], "v")


def test_cdf_ends_at_one(fig):
    assert figures.cdf(fig.gca(), [3, 1, 2, 2]).to_dict("list") == {
        "value": [1, 2, 2, 3],
        "share": [0.25, 0.5, 0.75, 1.0],
    }


def test_log_axis_has_plain_numbers_and_the_surge_is_shaded_in_minutes(fig):
    ax = fig.gca()
    ax.set_ylim(0.5, 10)
    figures.log_axis(ax, ticks=[0.5, 1, 10])
    figures.shade(ax, (900, 1500), label="surge")
    fig.canvas.draw()
    assert [label.get_text() for label in ax.get_yticklabels()] == ["0.5", "1", "10"]
    assert ax.patches[0].get_extents().transformed(ax.transData.inverted()).intervalx == pytest.approx([15, 25])


def test_seeds_of_a_profile_and_seeds_asked_for():
    assert [len(seeds_for(profile)) for profile in ("smoke", "quick", "full")] == [1, 3, 5]
    assert seeds_for("quick", [7, 9]) == (7, 9)
    with pytest.raises(ValueError, match="none of"):
        seeds_for("tiny")


def test_show_claims_writes_the_ledgers_part_and_returns_the_table(tmp_path):
    table = show_claims(
        "fig03",
        {"terminal_bench": [["one"] * 216]},
        "smoke",
        ["A-wl-sessions"],
        fitted=["A-wl-sessions"],
        root=tmp_path,
    )
    assert table.loc["A-wl-sessions", ["obtained", "verdict", "fitted or validated"]].tolist() == [
        "216",
        "reproduced",
        "fitted",
    ]
    entry = ledger.merged(tmp_path)[0]
    assert entry.obtained == 216.0 and entry.wall_s is not None and entry.wall_s >= 0


def test_report_holds_all_figures_and_claims(tmp_path, fig):
    show_claims("fig03", {"terminal_bench": [["<b>"] * 216]}, "smoke", ["A-wl-sessions"], root=tmp_path)
    figures.save(fig, pd.DataFrame({"x": [1]}), "fig03", {"source": "synthetic"}, "quick", tmp_path)
    page = report.build(tmp_path).read_text()
    assert page.count("data:image/png;base64,") == 1 and "synthetic workload" in page
    assert page.count("<tr class=") == 285 and 'class="reproduced"' in page


def test_report_shows_what_came_out_here_and_else_what_is_committed(tmp_path, fig):
    (tmp_path / "notebooks").mkdir()
    title = nbformat.v4.new_markdown_cell("# Figure 3: what do sessions <ask>?")
    nbformat.write(nbformat.v4.new_notebook(cells=[title]), tmp_path / "notebooks/fig03.ipynb")
    for name in ("b_fig1", "fig03"):
        figures.save(fig, pd.DataFrame({"x": [1]}), name, {"source": "sim", "commit": "c"}, "full", tmp_path)
    workload = {"terminal_bench": [["one"] * 216], "swe_bench_pro": [["one"] * 71]}
    show_claims("fig03", workload, "full", ["A-wl-sessions", "A-wl-swe-sessions"], root=tmp_path)
    ledger.commit_full(tmp_path)
    (tmp_path / "build/claims/fig03.full.json").unlink()
    show_claims("fig03", {"swe_bench_pro": [["one"] * 70]}, "smoke", ["A-wl-swe-sessions"], root=tmp_path)
    rows, here = report.entries(tmp_path)
    found = {row.id: (row.obtained, row.profile) for row in rows}
    assert found["A-wl-sessions"] == (216.0, "full") and found["A-wl-swe-sessions"] == (70.0, "smoke")
    assert here == {"A-wl-swe-sessions"} and len(rows) == 285
    page = report.build(tmp_path).read_text()
    assert "1 claims were evaluated in this checkout" in page and "synthetic, smoke, here" in page
    assert page.index("Figure 3: what do sessions &lt;ask&gt;?") < page.index('alt="b_fig1"')


def test_committing_the_full_ledger_keeps_lines_that_were_not_run_again(tmp_path):
    workload = {"terminal_bench": [["one"] * 216], "swe_bench_pro": [["one"] * 70]}
    show_claims("fig03", workload, "full", ["A-wl-sessions", "A-wl-swe-sessions"], root=tmp_path)
    first = {entry.id: entry for entry in ledger.load(ledger.commit_full(tmp_path))}
    assert first["A-wl-swe-sessions"].verdict == "reproduced" and len(first) == 285
    show_claims("fig03", {"terminal_bench": [["one"] * 7]}, "full", ["A-wl-sessions"], root=tmp_path)
    show_claims("fig03", {"terminal_bench": [["one"] * 8]}, "quick", ["A-wl-sessions"], root=tmp_path)
    second = {entry.id: entry for entry in ledger.load(ledger.commit_full(tmp_path))}
    assert second["A-wl-sessions"].obtained == 7.0
    assert second["A-wl-swe-sessions"].obtained == 70.0


@pytest.mark.parametrize(("source", "left"), [("sim", "not evaluated"), ("hw", "reproduced")])
def test_a_figure_that_ran_again_takes_back_what_it_can_no_longer_tell_but_not_what_hardware_showed(
    tmp_path, source, left
):
    workload = {"terminal_bench": [["one"] * 216]}
    show_claims("fig03", workload, "full", ["A-wl-sessions"], root=tmp_path)
    path = ledger.commit_full(tmp_path)
    lines = [e.model_copy(update={"source": source}) if e.figure else e for e in ledger.load(path)]
    path.write_text(ledger.dump(lines))
    show_claims("fig03", {"another arm": [["one"]]}, "full", ["A-wl-sessions"], root=tmp_path)
    found = {entry.id: entry.verdict for entry in ledger.load(ledger.commit_full(tmp_path))}
    assert found["A-wl-sessions"] == left
