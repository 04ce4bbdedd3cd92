"""What the extension does in an engine: chosen once through `BASIN_SGLANG`, switched at run time through the engine's
`/set_internal_state`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

VARIABLE = "BASIN_SGLANG"
FEATURES = ("order", "late", "lend", "pin")


@dataclass(frozen=True, slots=True)
class Settings:
    """`features` decide which hooks exist at all; the rest may change at run time, except where it says at start.

    Raises `ValueError` naming the setting, its value and the values it can take.
    """

    features: frozenset[str] = frozenset()
    """order: sort every queue; late: reserve decode memory at prefill completion; lend: retain and fetch units; pin:
    TTL pins on prefill's cache. At start."""
    ordering: bool = True
    """Sort by the request's priority, smaller first (needs the feature `order`)."""
    lending: bool = True
    """Adopt new units (needs the feature `lend`); switching it off also gives back every unit held."""
    phi: float = 0.5
    """Cap of lent tokens as a share of a decode instance's memory (paper A §6.6)."""
    adopt_margin: float = 0.10
    """Share of decode memory that must stay spare, beyond queued and active demand, after a unit is adopted."""
    reclaim_margin: float = 0.05
    """Spare share below which units are given back; lower than `adopt_margin` (paper A §6.2)."""
    busy: float = 0.85
    """No adoption once running requests occupy this share of decode memory."""
    min_gain_tokens: int = 32
    """A fetch must save at least this much recomputation."""
    layers_per_group: int = 1
    """Layers whose arrival one flag announces. At start."""
    fetch_timeout_s: float = 5.0
    """After this long a fetch is given up and its prefix recomputed."""
    pin_cap: float = 0.5
    """Cap of pinned tokens as a share of prefill's memory; beyond it the pin that ends first goes."""
    drop_wait: bool = field(default=False, metadata={"test": True})
    """For negative controls only: run layers without waiting for their pages. At start."""
    drop_state: bool = field(default=False, metadata={"test": True})
    """For negative controls only: fetch KV pages without the recurrent state. At start."""
    layer_delay_s: float = field(default=0.0, metadata={"test": True})
    """For tests only: hold back each layer group this long on decode. At start."""

    def __post_init__(self) -> None:
        unknown = self.features - set(FEATURES)
        if unknown:
            raise ValueError(f"{VARIABLE}: features {sorted(unknown)} unknown; choose from {', '.join(FEATURES)}")
        for name in ("phi", "adopt_margin", "reclaim_margin", "busy", "pin_cap"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value <= 1:
                raise ValueError(f"{VARIABLE}: {name}={value!r} is not a share between 0 and 1")
        if self.reclaim_margin > self.adopt_margin:
            raise ValueError(
                f"{VARIABLE}: reclaim_margin={self.reclaim_margin} exceeds adopt_margin={self.adopt_margin}; "
                "a unit would be given back as soon as it is adopted"
            )
        if self.layers_per_group < 1 or self.fetch_timeout_s <= 0 or self.min_gain_tokens < 1:
            raise ValueError(f"{VARIABLE}: layers_per_group, min_gain_tokens and fetch_timeout_s must be positive")

    def has(self, feature: str) -> bool:
        return feature in self.features

    def switched(self, changes: Mapping[str, float]) -> "Settings":
        """A copy with run-time settings changed; the engine's endpoint carries numbers only, so 0 and 1 stand for
        off and on. Raises `ValueError` for a setting that is unknown or fixed at start."""
        for name in changes:
            if name not in RUNTIME:
                raise ValueError(f"basin: {name!r} cannot be switched at run time; choose from {', '.join(RUNTIME)}")
        values: dict[str, Any] = {name: type(getattr(self, name))(value) for name, value in changes.items()}
        return replace(self, **values)


RUNTIME = tuple(
    f.name
    for f in fields(Settings)
    if f.name not in ("features", "layers_per_group", "drop_wait", "drop_state", "layer_delay_s")
)


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
