"""The escape study: what the words and the picture make of times that are known."""

import matplotlib
import numpy as np
import pytest

from artifact.reproduce import escape
from artifact.reproduce.escape import Escape, chain_s, escape_findings, escape_table, escapes, fluid_model, published
from artifact.reproduce.plots.escape import figure_escape
from sim.escape.splitting import Split
from sim.escape.watch import EscapeTime
from sim.fluid.hits import HitCurve

matplotlib.use("Agg")
META = {"source": "sim", "scenario": {}}


def at(per_s, mean_min, chain_min, collapses=4, split_min=None):
    plain = EscapeTime(mean_min * 60, mean_min * 30, mean_min * 120, collapses, 1e6)
    if not collapses:
        plain = EscapeTime(np.inf, 600.0, np.inf, 0, 1e6)
    split = None if split_min is None else Split(split_min * 60, split_min * 30, split_min * 90, 5, 1e5, (0.1, 0.2))
    return Escape(per_s, plain, split, chain_min * 60, META)


RESULTS = {"escape": [at(0.03, 0, 900, 0, 500), at(0.035, 400, 300), at(0.04, 100, 30)]}


def test_published_twins_say_two_collapses_in_the_time_they_were_watched():
    """Ten twins watched for 80 minutes after the first ten, the others for 15 and 20: 835 minutes, two collapses."""
    assert published().mean_s == pytest.approx(835 / 2 * 60) and published().collapses == 2


def test_the_table_and_the_words_hold_the_error_of_the_chain():
    table = escape_table(RESULTS)
    assert table["chain_over_simulated"].tolist() == pytest.approx([0.0, 0.75, 0.3])
    assert table["split_min"].tolist()[0] == 500 and np.isnan(table["split_min"][1])
    words = escape_findings(RESULTS)
    assert "0 collapses seen, mean not reached (95%: 10 to no bound); by splitting 500 min (95%: 250 to 750)" in words
    assert (
        "stays within an order of magnitude" in words and "at 1 of 2" in words and "0.04/s, by a factor of 0.3" in words
    )
    wrong = escape_findings({"escape": [at(0.04, 100, 1)]})
    assert "wrong by an order of magnitude or more" in wrong and "1 collapse" not in wrong.splitlines()[-1]
    assert "No collapse was seen" in escape_findings({"escape": [at(0.03, 0, 9, 0)]})


def test_the_picture_tells_bounds_from_estimates():
    fig, data = figure_escape(RESULTS)
    labels = [text.get_text() for text in fig.axes[0].get_legend().get_texts()]
    assert set(labels) >= {"simulated", "simulated, at least", "splitting", "birth-death chain", "paper B's twins"}
    assert len(data) == 3 and fig.axes[0].get_yscale() == "log"


def test_the_chain_escapes_sooner_at_higher_loads_and_at_once_beyond_capacity():
    fluid = fluid_model(HitCurve(plateau=0.95, floor=0.1, kappa=0.6))
    times = [chain_s(fluid, per_s) for per_s in (0.035, 0.04, 0.045, 1.0)]
    assert times[0] > 3 * times[1] > 3 * times[2] > times[3] == 0.0


def test_a_scenario_without_excursions_has_no_splitting_estimate():
    assert escape.split_once((escape.undisturbed(0.0005, 0.3), 3)) is None


def test_sources():
    assert escapes("hw", "quick") == {"escape": []}
    with pytest.raises(ValueError, match="none of sim, hw"):
        escapes("tape", "quick")
