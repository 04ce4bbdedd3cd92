"""Figures 1 and 2 hold what the model says, not what looks right."""

import numpy as np
import pytest

from sim.fluid.equilibria import landscape
from sim.fluid.figures import Remedies, Surge, figure_1, figure_2
from sim.fluid.model import FluidDeployment


@pytest.fixture
def surge(host_1p3d: FluidDeployment) -> Surge:
    return Surge.at(host_1p3d, share_of_peak=0.75, factor=4)


def words(fig) -> str:
    return " ".join(text.get_text() for ax in fig.axes for text in ax.texts)


def test_figure_1_is_the_departure_curve_and_its_two_crossings(surge: Surge) -> None:
    fig, data = figure_1(surge)
    expected = 60 * surge.d.departures(data["active_sessions"].to_numpy())
    np.testing.assert_allclose(data["completions_per_min"], expected)
    drawn = {tuple(np.round([*line.get_xdata(), *line.get_ydata()], 6)) for line in fig.axes[1].lines}
    for n in (surge.point.stable, surge.point.tipping):
        assert tuple(np.round([float(n), surge.rate * 60], 6)) in drawn
    assert {"healthy", "tipping point", "surge", "recovers", "piles up"} <= {t.get_text() for t in fig.axes[1].texts}


def test_figure_1_tells_of_a_trap(surge: Surge) -> None:
    """(a) reads the run an hour on: hit rate at the floor, more sessions, slower calls."""
    text = words(figure_1(surge)[0])
    assert f"{float(surge.point.stable):.0f} →" in text
    assert "→ 0.27" in text


def test_figure_2_holds_the_curves_of_its_panels(surge: Surge) -> None:
    remedies = Remedies.of(surge, first_prompt_tokens=8000)
    _, data = figure_2(remedies)
    peaks = data.groupby(["panel", "curve"])["completions_per_min"].max()
    assert sorted(peaks.index) == [
        ("a", "changed"),
        *((p, "unchanged") for p in "abc"),
        ("d", "changed"),
        ("d", "unchanged"),
    ]
    assert peaks["a", "unchanged"] == pytest.approx(float(surge.marks.peak) * 60, rel=1e-3)
    assert peaks["a", "changed"] == pytest.approx(float(landscape(remedies.more_cache).peak) * 60, rel=1e-3)
    assert peaks["d", "changed"] > peaks["d", "unchanged"]


def test_the_remedies_are_what_the_caption_says(surge: Surge) -> None:
    """Fig. 2: (b) limits entry but leaves a long queue; (c) admits too much or too little; (d) does neither."""
    r = Remedies.of(surge, first_prompt_tokens=8000)
    tipping = float(surge.point.tipping) * surge.d.context_tokens
    assert r.resident_first.active.max() < surge.point.tipping
    assert r.resident_first.queued.max() > r.basin.queued.max()
    assert r.resident_first.events["drained"] - surge.end_s > 1.5 * (r.basin.events["drained"] - surge.end_s)
    assert surge.d.departures(r.tight_tokens / surge.d.context_tokens) < surge.rate
    assert r.loose_tokens > tipping
    assert r.reference_tokens == min(0.9 * r.lent.hits.cliff, 1) * r.lent.cache_tokens
    assert r.basin.active.max() * surge.d.context_tokens <= 1.01 * r.reference_tokens
    assert "tipped" not in r.basin.events
