"""Ramps made by the fluid model itself, so that what should be found is known."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sim.fluid.equilibria import landscape
from sim.fluid.hits import HitCurve
from sim.fluid.model import FluidDeployment
from sim.risk.question import UsageError
from sim.risk.ramp import Ramp, measure, read_ramp

KAPPA = 0.8
TRUE = FluidDeployment(
    cache_tokens=1.09e6,
    decode_kv_tokens=5e6,
    prefill_tokens_per_s=31e3,
    context_tokens=30e3,
    prompt_tokens=30e3,
    new_tokens=1000,
    calls_per_session=33,
    gap_s=7.5,
    unloaded_latency_s=15.0,
    hits=HitCurve(kappa=KAPPA),
)
POPULATIONS = np.linspace(10, 120, 30)
"""The cliff is at 0.8 x 1.9 x 1.09M / 30K = 55 sessions."""


def points() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "active_sessions": POPULATIONS,
            "working_set_tokens": POPULATIONS * TRUE.context_tokens,
            "hit_rate": TRUE.hits(TRUE.working_set_ratio(POPULATIONS)),
            "calls_per_min": 60 * TRUE.throughput(POPULATIONS),
        }
    )


def samples(d: FluidDeployment = TRUE, period_s: float = 5.0) -> pd.DataFrame:
    """The counters of a run that stays ten minutes at each population."""
    n = np.repeat(POPULATIONS, int(600 / period_s))
    calls, hits = d.throughput(n), d.hits(d.working_set_ratio(n))
    prompt = calls * d.prompt_tokens * period_s
    return pd.DataFrame(
        {
            "time_s": np.arange(len(n)) * period_s,
            "active_sessions": np.round(n).astype(int),
            "working_set_tokens": (n * d.context_tokens).astype(int),
            "prompt_tokens_total": np.cumsum(prompt),
            "cached_tokens_total": np.cumsum(prompt * hits),
            "computed_tokens_total": np.cumsum(prompt * (1 - hits)),
            "calls_done_total": np.cumsum(calls * period_s),
            "prefill_queue_calls": 0 * n,
            "decode_waiting_calls": 0 * n,
            "decode_running_calls": d.in_service(n),
        }
    )


def test_settled_points_give_cliff_context_and_rates(tmp_path: Path) -> None:
    path = tmp_path / "ramp.csv"
    points().to_csv(path, index=False)
    found = measure(read_ramp(path), {"cache_tokens": 1.09e6}, path)
    assert found["kappa"] == pytest.approx(KAPPA, rel=0.03)
    assert found["plateau"] == pytest.approx(0.95, abs=0.03)
    assert found["floor"] == pytest.approx(0.27, abs=0.02)
    assert found["context_tokens"] == pytest.approx(30e3)
    assert 60 * found["active_sessions"] / found["calls_per_min"] == pytest.approx(22.5, rel=0.03)
    assert found["prefill_tokens_per_s"] == pytest.approx(31e3, rel=0.05)  # from the collapsed call rate


def test_the_samples_of_a_run_are_a_ramp(tmp_path: Path) -> None:
    path = tmp_path / "samples.parquet"
    samples().to_parquet(path)
    found = measure(read_ramp(path), {"cache_tokens": 1.09e6}, path)
    assert found["kappa"] == pytest.approx(KAPPA, rel=0.03)
    assert found["in_service"] == pytest.approx(15 / 22.5, rel=0.03)
    assert found["prefill_tokens_per_s"] == pytest.approx(31e3, rel=0.05)  # from its counter


def test_a_ramp_shows_how_calls_slow_one_another(answer, tmp_path: Path) -> None:
    """Without that the peak would be taken too high by a half, since the healthy points lie far below it."""
    slowing = TRUE.replace(unloaded_latency_s=5.0, latency_s_per_request=0.4)
    path = tmp_path / "samples.parquet"
    samples(slowing).to_parquet(path)
    found = measure(read_ramp(path), {"cache_tokens": 1.09e6}, path)
    assert found["latency_s_per_request"] == pytest.approx(0.4, rel=0.2)
    rest = {"cache_tokens": 1.09e6, "decode_kv_tokens": 5e6, "calls_per_session": 33, "new_tokens": 1000}
    peak = float(landscape(slowing).peak) * 60
    assert answer(ramp=path, **rest)["peak_per_min"] == pytest.approx(peak, rel=0.1)


def test_risk_from_a_ramp_is_risk_from_the_numbers_behind_it(answer, tmp_path: Path) -> None:
    path = tmp_path / "ramp.parquet"
    samples().to_parquet(path)
    got = answer(
        ramp=path, cache_tokens=1.09e6, decode_kv_tokens=5e6, sessions_per_min=3, calls_per_session=33, new_tokens=1000
    )
    load = got["load"]
    assert load["state"] == "vulnerable"
    assert TRUE.departures(load["stable_sessions"]) * 60 == pytest.approx(3, rel=0.05)
    assert TRUE.departures(load["tipping_sessions"]) * 60 == pytest.approx(3, rel=0.15)
    assert got["cliff_sessions"] == pytest.approx(float(TRUE.cliff_sessions), rel=0.05)
    assert "kappa" not in got["assumed"]


def test_sessions_alone_need_the_context(tmp_path: Path) -> None:
    path = tmp_path / "ramp.csv"
    points().drop(columns="working_set_tokens").to_csv(path, index=False)
    with pytest.raises(UsageError, match="--context-tokens"):
        measure(read_ramp(path), {"cache_tokens": 1.09e6}, path)
    found = measure(read_ramp(path), {"cache_tokens": 1.09e6, "context_tokens": 30e3}, path)
    assert found["kappa"] == pytest.approx(KAPPA, rel=0.03)


def test_a_ramp_that_never_falls_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ramp.csv"
    points().head(8).to_csv(path, index=False)
    with pytest.raises(UsageError, match="drive the load on"):
        measure(read_ramp(path), {"cache_tokens": 1.09e6}, path)


def test_the_cache_size_is_needed() -> None:
    with pytest.raises(UsageError, match="--cache-tokens"):
        measure(Ramp(hit_rate=np.array([0.9])), {}, Path("ramp.csv"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hit_rate\n0.9\n", "working_set_tokens or active_sessions"),
        ("active_sessions\n3\n", "hit_rate"),
        ("active_sessions,hit_rate\n", "no rows"),
        ("active_sessions,hit_rate\n3,95\n", "as a fraction"),
        ("active_sessions,hit_rate\n3,high\n", "column hit_rate"),
        ("time_s,prompt_tokens_total,cached_tokens_total,active_sessions\n0,1,1,1\n5,2,2,1\n", "too short"),
    ],
)
def test_what_is_wrong_with_a_ramp_file_is_said(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "ramp.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match=says) as error:
        read_ramp(path)
    assert str(path) in str(error.value)


def test_a_missing_ramp_exits_with_two(call, tmp_path: Path) -> None:
    code, _, err = call(ramp=tmp_path / "no.csv", cache_tokens=1e6)
    assert code == 2
    assert "no.csv" in err
