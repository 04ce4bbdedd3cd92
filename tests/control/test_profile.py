import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifact.control.profile import (
    DeploymentProfile,
    RampPoint,
    fit_kappa,
    load_profile,
    profile_from_ramps,
    reference_hit_rate,
    save_profiles,
)

CAPACITY = 2_000_000


def ramp(
    kappa: float, noise: float = 0.0, seed: int = 0, plateau: float = 0.95, floor: float = 0.27
) -> list[RampPoint]:
    x = np.linspace(0.4, 5.0, 24)
    rng = np.random.default_rng(seed)
    hits = reference_hit_rate(x / kappa, plateau, floor) + noise * rng.standard_normal(len(x))
    return [RampPoint(float(a) * CAPACITY, float(h)) for a, h in zip(x, hits, strict=True)]


def test_reference_curve_has_the_published_landmarks() -> None:
    """Paper A §3.4: 0.95 falls to 0.80 before the drop; about 0.3 at roughly twice the cache; 0.27 in the end."""
    got = reference_hit_rate(np.array([0.5, 1.0, 1.9, 2.2, 4.0]))
    assert got == pytest.approx([0.95, 0.95, 0.80, 0.304, 0.27], abs=0.005)


@given(st.floats(0.5, 2.0))
def test_fit_recovers_an_exact_ramp(kappa: float) -> None:
    fit = fit_kappa(ramp(kappa, plateau=0.9, floor=0.1), CAPACITY)
    assert (fit.plateau, fit.floor) == pytest.approx((0.9, 0.1), abs=0.01)
    assert fit.kappa == pytest.approx(kappa, rel=0.01)


@pytest.mark.parametrize("kappa", [0.55, 0.81, 1.38])
def test_fit_withstands_noise_at_the_published_router_scales(kappa: float) -> None:
    """Paper A §7.6: least-loaded 0.55, cache-aware 0.81, affinity 1.38."""
    fit = fit_kappa(ramp(kappa, noise=0.02, seed=3), CAPACITY)
    assert fit.kappa == pytest.approx(kappa, rel=0.1)
    assert fit.rms_error < 0.03


def test_profile_takes_the_lower_quartile_over_ramps() -> None:
    kappas = [0.8, 0.9, 1.0, 1.1, 1.2]
    single = sorted(fit_kappa(ramp(k), CAPACITY).kappa for k in kappas)
    profile = profile_from_ramps([ramp(k) for k in kappas], CAPACITY, 18.5, router="affinity")
    assert profile.kappa == pytest.approx(single[1])  # the quartile of five is the second
    assert profile.critical_rate_per_s == pytest.approx(18.5 / 60)
    assert profile.plateau == pytest.approx(0.95, abs=0.01)


def test_a_ramp_without_a_cliff_is_refused() -> None:
    flat = [RampPoint(x * CAPACITY, 0.95) for x in (0.5, 1.0, 1.5, 2.0)]
    with pytest.raises(ValueError, match="shows no cliff"):
        fit_kappa(flat, CAPACITY)
    with pytest.raises(ValueError, match="without points"):
        fit_kappa([], CAPACITY)
    with pytest.raises(ValueError, match="no ramps"):
        profile_from_ramps([], CAPACITY, 10)


def test_profiles_survive_json_and_bad_files_are_named(tmp_path) -> None:
    path = tmp_path / "profile.json"
    profiles = [DeploymentProfile(0.81, 39, router="cache_aware"), DeploymentProfile(1.38, 41, router="affinity")]
    save_profiles(profiles, path)
    assert load_profile(path, "affinity") == profiles[1]
    with pytest.raises(ValueError, match=r"no router 'other'; it has affinity, cache_aware"):
        load_profile(path, "other")
    path.write_text(json.dumps({"default": {"kapa": 1}}))
    with pytest.raises(ValueError, match="unknown fields kapa"):
        load_profile(path)
    path.write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        load_profile(path)


@pytest.mark.parametrize("wrong", [{"kappa": 0}, {"critical_rate_per_min": -1}, {"plateau": 0.2, "floor": 0.3}])
def test_impossible_profiles_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        DeploymentProfile(**wrong)
