"""Colocated calibrations: origins, published numbers, and that the engine uses every number."""

from dataclasses import asdict
from pathlib import Path

import pytest
import yaml
from colocated_rig import colocated_file

from artifact.reproduce.claims import load_claims
from sim.calibration.model import ColocatedCalibration, calibration, colocated_calibration
from sim.engine.colocated_costs import ColocatedCosts

SHIPPED = ("mi300x-qwen3-8b", "mi300x-qwen3-32b", "mi300x-qwen3-8b-sglang")
every = pytest.mark.parametrize("name", SHIPPED)


@every
def test_every_number_says_where_it_comes_from(name: str) -> None:
    c = colocated_calibration(name)
    assert c.name == name
    assert c.fitted_claims() <= set(load_claims())
    for place, quantity in c.quantities():
        assert quantity.source, place
        assert bool(quantity.claims) == (quantity.origin == "fitted"), place
        unit = "tokens/s" if place.endswith("_tokens_per_s") else "s" if place.endswith("_s") else None
        assert unit in (None, quantity.unit), place


@every
def test_the_engine_uses_every_number(name: str) -> None:
    """Doubling any one number changes one number that the engine is run with."""
    c = colocated_calibration(name)
    costs = asdict(ColocatedCosts.of(c))
    for place, quantity in c.quantities():
        data = c.model_dump()
        data[place]["value"] = 2 * quantity.value
        changed = asdict(ColocatedCosts.of(ColocatedCalibration.model_validate(data)))
        assert len([key for key in costs if costs[key] != changed[key]]) == 1, place


def test_published_pools() -> None:
    """Paper B §3: 400K tokens by choice, about 365K as the engine sizes it."""
    assert [int(colocated_calibration(name).pool_tokens.value) for name in SHIPPED] == [400_000, 365_000, 400_000]


def test_published_speeds_of_a_lone_request() -> None:
    """Paper B §2: up to 190 tokens/s of decode; cold prefill of 20-36K contexts at 10-13K tokens/s, here within the
    claim's 20%; a mid-session turn of 21.6K takes about 2 s if it misses."""
    costs = ColocatedCosts.of(colocated_calibration("mi300x-qwen3-8b"))
    assert 1 / costs.decode_step_s(1, 6_000) == pytest.approx(190, rel=0.02)
    for context in (20_000, 36_000):
        assert 0.8 * 10_000 < context / costs.prefill_s(context) < 1.2 * 13_000
    assert costs.prefill_s(21_600) == pytest.approx(2.0, rel=0.1)


def test_the_second_engine_differs_by_its_scheduler() -> None:
    """What SGLang tolerates more is not bought with faster numbers."""
    vllm, sglang = (asdict(ColocatedCosts.of(colocated_calibration(name))) for name in (SHIPPED[0], SHIPPED[2]))
    assert {key for key in vllm if vllm[key] != sglang[key]} == {"scheduler"}


def test_saturated_throughput_by_hand(tmp_path: Path) -> None:
    """A chunk of 64 tokens at mean position 96 takes 0.5 + 64 / 64 + 64 x 96 / 4096 s."""
    small = colocated_calibration(colocated_file(tmp_path, per_token_position_s=1 / 4096))
    assert small.saturated_prefill_tokens_per_s(96) == 64 / 3.0


def test_kinds_are_not_confused() -> None:
    with pytest.raises(ValueError, match="of a colocated engine"):
        calibration("mi300x-qwen3-8b")
    with pytest.raises(ValueError, match="of a prefill-decode engine"):
        colocated_calibration("h200")


def test_a_file_of_ones_own_is_checked(tmp_path: Path) -> None:
    path = Path(colocated_file(tmp_path))
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"scheduler": "trtllm"}))
    with pytest.raises(ValueError, match=r"(?s)colocated-0\.yaml.*scheduler"):
        colocated_calibration(str(path))
