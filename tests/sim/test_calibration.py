"""Calibrations: every number has its unit and origin, and the engine uses it as it stands."""

from dataclasses import asdict
from pathlib import Path

import pytest
import yaml
from small_world import calibration_file

from artifact.reproduce.claims import load_claims
from sim.calibration.model import Calibration, calibration
from sim.engine.costs import Costs

SHIPPED = ("h100", "h200")


@pytest.mark.parametrize("name", SHIPPED)
def test_fitted_claims_are_claims(name: str) -> None:
    assert calibration(name).fitted_claims() <= set(load_claims())


@pytest.mark.parametrize("name", SHIPPED)
def test_every_number_says_where_it_comes_from(name: str) -> None:
    for place, quantity in calibration(name).quantities():
        assert quantity.source, place
        assert bool(quantity.claims) == (quantity.origin == "fitted"), place


@pytest.mark.parametrize("name", SHIPPED)
def test_units_fit_the_names(name: str) -> None:
    for place, quantity in calibration(name).quantities():
        if place.endswith("_tokens_per_s"):
            assert quantity.unit == "tokens/s", place
        elif place.endswith("_s"):
            assert quantity.unit == "s", place
        elif place.endswith("_tokens"):
            assert quantity.unit == "tokens", place


def test_published_capacities() -> None:
    """Paper A §3.1: cache and decode memory of one H100 instance; §7.1: the ITL SLO; §7.10: the transfer charge."""
    h100 = Costs.of(calibration("h100"))
    assert (h100.cache_tokens, h100.kv_tokens) == (1_090_000, 1_660_000)
    assert (h100.itl_slo_s, h100.transfer_s) == (0.05, 0.01)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_engine_uses_every_number(name: str) -> None:
    """Doubling any one number changes what the engine is run with."""
    c = calibration(name)
    costs = asdict(Costs.of(c))
    for place, quantity in c.quantities():
        data = c.model_dump()
        owner = data
        *parts, last = place.split(".")
        for part in parts:
            owner = owner[part]
        owner[last]["value"] = 2 * quantity.value or 1.0
        changed = asdict(Costs.of(Calibration.model_validate(data)))
        different = [key for key in costs if costs[key] != changed[key]]
        assert len(different) == 1, place


def test_saturated_throughput_by_hand(tmp_path: Path) -> None:
    """A chunk of 64 tokens at mean position 96 takes 1 + 64 / 64 + 64 x 96 / 4096 s."""
    small = calibration(calibration_file(tmp_path))
    assert small.saturated_prefill_tokens_per_s(96) == 64 / 3.5


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(ValueError, match="no calibration 'b200': known are cpu-vllm, h100, h200"):
        calibration("b200")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prefill": {}}, r"prefill\.cache_tokens"),
        ({"surprise": 1}, "surprise"),
        ({"transfer_s": {"value": -1, "unit": "s", "origin": "assumed", "source": ""}}, r"transfer_s\.value"),
        ({"transfer_s": {"value": 1, "unit": "s", "origin": "guessed", "source": ""}}, r"transfer_s\.origin"),
    ],
)
def test_a_file_of_ones_own_is_checked(tmp_path: Path, change: dict[str, object], message: str) -> None:
    data = yaml.safe_load(Path(calibration_file(tmp_path)).read_text())
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(data | change))
    with pytest.raises(ValueError, match=rf"(?s)own\.yaml.*{message}"):
        calibration(str(path))


def test_a_file_that_is_no_yaml_is_named(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("name: [")
    with pytest.raises(ValueError, match=r"own\.yaml"):
        calibration(str(path))
