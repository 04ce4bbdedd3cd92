"""What the extension does in an engine: chosen once through `BASIN_SGLANG`, switched at run time through the engine's
`/set_internal_state`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from artifact.control.parameters import BasinParameters

VARIABLE = "BASIN_SGLANG"
FEATURES = ("order", "late", "lend", "pin", "elastic")
_PAPER = BasinParameters()


@dataclass(frozen=True, slots=True)
class Settings:
    """`features` decide which hooks exist at all; the rest may change at run time, except where it says at start.

    Raises `ValueError` naming the setting, its value and the values it can take.
    """

    features: frozenset[str] = frozenset()
    """order: sort every queue; late: reserve decode memory at prefill completion; lend: retain and fetch units; pin:
    TTL pins on prefill's cache; elastic: decode prefills what it is sent alone. At start."""
    ordering: bool = True
    """Sort by the request's priority, smaller first (needs the feature `order`)."""
    lending: bool = True
    """Adopt new units (needs the feature `lend`); switching it off also gives back every unit held."""
    phi: float = _PAPER.lend_cap
    """Cap of lent tokens as a share of a decode instance's memory (paper A §6.6)."""
    headroom: float = _PAPER.lending_headroom
    """Share of decode memory that adoption leaves spare beyond queued and active demand; reclamation starts at half
    of it."""
    min_gain_tokens: int = 32
    """A fetch must save at least this much recomputation."""
    layers_per_group: int = 1
    """Layers whose arrival one flag announces. At start."""
    fetch_timeout_s: float = 5.0
    """After this long a fetch is given up and its prefix recomputed."""
    quarantine_s: float = 30.0
    """How long an abandoned fetch's pages are kept from reuse when its decode instance never says that it stopped."""
    pin_cap: float = 0.5
    """Cap of pinned tokens as a share of prefill's memory; beyond it the pin that ends first goes."""
    itl_slo_s: float = 0.05
    """Inter-token latency that elastic prefill must leave to the requests that decode (paper A §7.1)."""
    drop_wait: bool = field(default=False, metadata={"test": True})
    """For negative controls only: run layers without waiting for their pages."""
    drop_state: bool = field(default=False, metadata={"test": True})
    """For negative controls only: fetch KV pages without the recurrent state."""
    layer_delay_s: float = field(default=0.0, metadata={"test": True})
    """For tests only: hold back each layer group this long on decode."""

    def __post_init__(self) -> None:
        unknown = self.features - set(FEATURES)
        if unknown:
            raise ValueError(f"{VARIABLE}: features {sorted(unknown)} unknown; choose from {', '.join(FEATURES)}")
        if {"lend", "elastic"} <= self.features:
            raise ValueError(f"{VARIABLE}: lend and elastic both take decode's idle memory; choose one of them")
        for name in ("phi", "headroom", "pin_cap"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value < 1:
                raise ValueError(f"{VARIABLE}: {name}={value!r} is not a share within [0, 1)")
        for name in ("layers_per_group", "min_gain_tokens", "fetch_timeout_s", "quarantine_s", "itl_slo_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{VARIABLE}: {name}={getattr(self, name)!r} must be positive")

    def has(self, feature: str) -> bool:
        return feature in self.features

    @property
    def rules(self) -> BasinParameters:
        return BasinParameters(lend_cap=self.phi, lending_headroom=self.headroom)

    def switched(self, changes: Mapping[str, float]) -> "Settings":
        """A copy with run-time settings changed; the engine's endpoint carries numbers only, so 0 and 1 stand for
        off and on. Raises `ValueError` for a setting that is unknown or fixed at start."""
        for name in changes:
            if name not in RUNTIME:
                raise ValueError(f"basin: {name!r} cannot be switched at run time; choose from {', '.join(RUNTIME)}")
        values: dict[str, Any] = {name: type(getattr(self, name))(value) for name, value in changes.items()}
        return replace(self, **values)


RUNTIME = tuple(f.name for f in fields(Settings) if f.name not in ("features", "layers_per_group"))


def parse(text: str) -> Settings:
    """`order,late,lend` or a JSON object of settings with `features` as a list; empty: nothing is enabled.

    Raises `ValueError` saying what is wrong with which setting.
    """
    text = text.strip()
    if not text.startswith("{"):
        return Settings(features=frozenset(filter(None, (word.strip() for word in text.split(",")))))
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{VARIABLE}: not valid JSON: {error}") from error
    unknown = set(values) - {f.name for f in fields(Settings)}
    if unknown:
        raise ValueError(f"{VARIABLE}: settings {sorted(unknown)} unknown")
    return Settings(**{**values, "features": frozenset(values.get("features", ()))})
