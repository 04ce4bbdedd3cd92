"""The pictures of Figures 3 to 6, against arms whose every figure is known."""

import matplotlib
import numpy as np
import pytest
from test_evaluate_trap import NONE, PLUS33, PLUS100, burst_arm

from artifact.reproduce.plots.trap import figure_4, figure_5, figure_6
from artifact.reproduce.plots.workload import figure_3
from artifact.workload.trajectory import Trajectory

matplotlib.use("Agg")

BURST = burst_arm(trapped_from=23, base_growth=1)
SURGE = {"none": [NONE], "plus33": [PLUS33], "plus100": [PLUS100]}
ALL = {**SURGE, "burst": [BURST], "burst_ended": [NONE]}


@pytest.fixture(autouse=True)
def _closed():
    yield
    matplotlib.pyplot.close("all")


def at(data, panel, series, minute, column="median"):
    """The plotted value of the 2-minute window around a minute."""
    rows = data[(data["panel"] == panel) & (data["series"] == series)]
    return rows.loc[(rows["x"] - minute).abs().idxmin(), column]


def titles(fig):
    return [ax.get_xlabel() for ax in fig.axes]


def shaded(ax):
    """Minutes of the shaded span."""
    span = ax.patches[0].get_extents().transformed(ax.transData.inverted()).intervalx
    return span.tolist() == pytest.approx([15, 25])


def test_figure_3_draws_every_call_but_gaps_only_of_returning_ones():
    sessions = [Trajectory("a", (1000, 3000), (1000, 2000), (5, 5), (9.0, 0.5))] * 2
    fig, data = figure_3(sessions)
    assert titles(fig) == [
        "Prompt (K tokens)\n(a) Prompt length per call",
        "Gap between calls (s)\n(b) Gap between calls",
    ]
    assert data.loc[data["panel"] == "a", ["x", "y"]].to_numpy().tolist() == [[1, 0.25], [1, 0.5], [3, 0.75], [3, 1]]
    assert data.loc[data["panel"] == "b", "x"].tolist() == [0.5, 0.5]
    circles = {tuple(xy) for ax in fig.axes for xy in ax.lines[-1].get_xydata()}
    assert circles == {(25.6, 0.5), (77.0, 0.9), (0.42, 0.5)}  # paper A §3.1


def test_figure_4_has_the_papers_panels_and_the_runs_values():
    fig, data = figure_4(SURGE)
    assert titles(fig) == [
        "Time (min)\n(a) Median TTFT",
        "Time (min)\n(b) Prefix hit rate",
        "Time (min)\n(c) Completed calls",
        "Session start (min)\n(d) Session slowdown",
    ]
    assert all(shaded(ax) for ax in fig.axes)
    assert [text.get_text() for text in fig.legends[0].get_texts()] == ["No surge", "+33%, 10 min", "+100%, 10 min"]
    assert [at(data, "a", arm, 61) for arm in SURGE] == pytest.approx([0.2, 0.2, 60.0])
    assert [at(data, "b", arm, 61) for arm in SURGE] == pytest.approx([0.95, 0.95, 0.27])
    assert at(data, "c", "none", 61) == 1.0
    assert [at(data, "d", "plus100", minute) for minute in (5, 45)] == pytest.approx([1.0, 5.0])
    assert fig.axes[0].get_yscale() == fig.axes[3].get_yscale() == "log"


def test_slowdowns_that_are_not_known_yet_are_not_drawn():
    from test_evaluate_trap import arm, base_sessions

    unfinished = arm(trapped_from=20, sessions=base_sessions(None))  # none that arrives from minute 25 on completes
    _, data = figure_4({**SURGE, "plus100": [unfinished]})
    assert np.isnan(at(data, "d", "plus100", 45)) and at(data, "d", "plus100", 5) == 1.0
    _, data = figure_4({arm: [*runs, *runs] for arm, runs in SURGE.items()} | {"plus100": [PLUS100, unfinished]})
    assert np.isnan(at(data, "d", "plus100", 45)), "half of the seeds is no median"


def test_figure_5_marks_where_the_last_burst_session_leaves():
    fig, data = figure_5({arm: ALL[arm] for arm in ("none", "burst", "burst_ended")})
    assert [text.get_text() for text in fig.legends[0].get_texts()] == [
        "no burst",
        "burst",
        "burst, sessions ended at 25",
    ]
    assert data.loc[data["series"] == "last burst session leaves", "x"].tolist() == [40.0]
    dotted = [line for ax in fig.axes for line in ax.lines if line.get_linestyle() == ":"]
    assert [line.get_xdata()[0] for line in dotted] == [40.0, 40.0]
    assert [at(data, "a", arm, 51) for arm in ("none", "burst", "burst_ended")] == pytest.approx([0.2, 60.0, 0.2])


def test_figure_6_splits_sessions_and_decode_memory_and_finds_the_cliff():
    fig, data = figure_6(ALL)
    assert [title.split("\n")[1][:3] for title in titles(fig)] == ["(a)", "(b)", "(c)", "(d)"]
    assert [at(data, "a", part, 25, "y") for part in ("burst", "total")] == [65, 40 + 65 + 24.5]
    assert at(data, "a", "base", 25, "y") == 40 + 24.5
    bins = data.loc[data["series"] == "window median", ["x", "y"]].to_numpy()
    assert bins == pytest.approx(np.array([[1.05, 0.95], [1.45, 0.95], [3.05, 0.27]]))
    assert len(data[data["series"] == "window"]) == 5 * 50
    assert data.loc[data["series"] == "prefill capacity", "y"].tolist() == [0.1]  # 100 tokens/s, in thousands
    assert at(data, "c", "plus100", 61) == pytest.approx(0.146 / 120, rel=1e-6)
    assert [at(data, "d", part, 61, "y") for part in ("decoding", "reserved, idle")] == pytest.approx([0.3, 0.67])
