"""The birth-death chain against passages computed by hand and drawn by chance."""

import numpy as np
import pytest

from sim.fluid.birth_death import ChainEscape, escape_time


def departures(n: np.ndarray) -> np.ndarray:
    """As many as there are up to three, and none beyond."""
    return np.where(n <= 3, n, 0.0)


def test_a_passage_by_hand() -> None:
    """λ = 1: from 1 on D is at least 1, at 4 it is 0. h_0 = 1, h_1 = 1 + 1 = 2, h_2 = 1 + 2 x 2 = 5, h_3 = 1 + 3 x 5 =
    16; from 1 to 4 it takes 2 + 5 + 16."""
    assert escape_time(departures, 1.0, most_sessions=10) == ChainEscape(1, 4.0, 23.0)


def test_from_an_empty_system() -> None:
    """D(0) = 2 serves λ = 1 where nobody is yet: 0 is healthy, and h_0 = 1 counts as well."""
    assert escape_time(lambda n: np.where(n < 2, 2.0, 0.0), 1.0, most_sessions=5) == ChainEscape(0, 2.0, 1.0 + 3.0)


def test_a_curve_that_never_falls_below_the_load_holds_for_ever() -> None:
    found = escape_time(lambda n: np.minimum(n, 2.0), 1.0, most_sessions=50)
    assert found == ChainEscape(1, float("inf"), float("inf"))


def test_a_load_beyond_the_peak_has_no_healthy_side() -> None:
    with pytest.raises(ValueError, match=r"no equilibrium: departures reach 3/s, arrivals come at 4/s"):
        escape_time(departures, 4.0, most_sessions=10)


def test_more_load_escapes_sooner() -> None:
    times = [escape_time(departures, rate, most_sessions=10).mean_s for rate in (0.5, 0.8, 1.2, 2.0)]
    assert times == sorted(times, reverse=True)


def test_passages_drawn_by_chance_have_that_mean() -> None:
    """2,000 walks of the same chain, λ = 1.5; the standard error of their mean is about 2%."""
    rng = np.random.default_rng(3)
    rate, found = 1.5, escape_time(departures, 1.5, most_sessions=10)
    times = []
    for _ in range(2000):
        n, time = found.healthy_sessions, 0.0
        while n < found.tipping_sessions:
            total = rate + float(departures(np.array(n)))
            time += rng.exponential(1 / total)
            n += 1 if rng.random() < rate / total else -1
        times.append(time)
    assert np.mean(times) == pytest.approx(found.mean_s, rel=0.1)
