"""Every parameter of Basin (paper A §6.6): what the paper states, and the nine settings it does not publish."""

from collections.abc import Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class BasinParameters:
    """The controller's parameters, with the paper's symbols; raises `ValueError` naming what is out of range.

    The first nine are the paper's. The other nine are the implementation settings that §7.9 varies without
    publishing them: each is a choice of ours whose reason stands beside it.
    """

    interval_s: float = 30.0
    """Δ while nothing is going on, and the pace of budget steps and of shedding always. Engine readings (hit rate,
    lent tokens) are averaged over it."""
    busy_interval_s: float = 5.0
    """Δ while a backlog or a control persists: how often conditions are judged then."""
    margin: float = 0.9
    """m: the budget stays this far below the profiled cliff."""
    alpha_lend: float = 0.8
    """α_L: lending engages at W ≥ α_L B00."""
    alpha_order: float = 0.9
    """α_O: ordering engages at W ≥ α_O B0."""
    alpha_release: float = 0.8
    """α_R: admission releases once W < α_R B0."""
    lend_cap: float = 0.5
    """φ: largest share of decode memory held in lent units."""
    shed_after_s: float = 900.0
    """T_s: wait of the highest-priority parked session beyond which persistent excess is shed."""
    priority_tokens_per_s: float = 30.0
    """r: predicted tokens that weigh as much as one second of arrival time."""

    cooldown_s: float = 120.0
    """How long a control's condition must stay clear before it releases. Four idle intervals: longer than the lull
    between two waves of returning calls, shorter than the minutes in which a working set really drains."""
    backlog_persistence_s: float = 30.0
    """How long a backlog must last before it counts: one idle interval, so that a single burst of first calls does not
    count."""
    context_smoothing_s: float = 1800.0
    """Time constant of c̄. A surge brings many young, short contexts; c̄ must not follow them, and must follow a change
    of workload within a session generation or two. A third of the 90 minutes that the paper tests as the slow side."""
    arrival_smoothing_s: float = 1800.0
    """Time constant of the long-run arrival rate λ̄: longer than a finite surge's climb, short enough to notice an hour
    of overload in time to shed."""
    budget_range: tuple[float, float] = (0.5, 2.0)
    """B stays within these multiples of B0. Peaks are about twice mean contexts (paper A §7.1: 40K and 25.6K tokens at
    the median), so twice B0 in reservations is about B0 in contexts; the paper's wide side is (0.25, 4)."""
    budget_step: float = 0.1
    """Step of B, in B0 an interval, both ways: lower to upper end of the range in under ten minutes."""
    reopening_step: float = 0.1
    """Growth of B, in B0 an interval, after admission is released and until the parked queue is empty."""
    plateau_slack: float = 0.05
    """B rises while the hit rate is within this of the healthy plateau, and falls below twice this: the dead band
    between keeps it from reacting to noise. The cliff is an order deeper (0.95 to about 0.3)."""
    lending_headroom: float = 0.1
    """Share of decode memory that adoption leaves free beyond queued and active demand; reclamation starts at half of
    it, so that one adoption does not trigger one reclamation."""

    def __post_init__(self) -> None:
        for name in ("margin", "alpha_lend", "alpha_order", "alpha_release"):
            _require(0 < getattr(self, name) <= 1, name, getattr(self, name), "within (0, 1]")
        for name in ("lend_cap", "lending_headroom", "plateau_slack"):
            _require(0 <= getattr(self, name) < 1, name, getattr(self, name), "within [0, 1)")
        for name in ("interval_s", "busy_interval_s", "priority_tokens_per_s", "budget_step", "reopening_step"):
            _require(getattr(self, name) > 0, name, getattr(self, name), "positive")
        for name in ("context_smoothing_s", "arrival_smoothing_s"):
            _require(getattr(self, name) > 0, name, getattr(self, name), "positive")
        for name in ("cooldown_s", "backlog_persistence_s", "shed_after_s"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "at least 0")
        low, high = self.budget_range
        _require(0 < low <= 1 <= high, "budget_range", self.budget_range, "around 1, as 0 < low <= 1 <= high")


SENSITIVITY: dict[str, tuple[object, object]] = {
    "interval_s": (15.0, 60.0),
    "margin": (0.7, 1.0),
    "alpha_lend": (0.6, 0.95),
    "alpha_order": (0.7, 1.0),
    "alpha_release": (0.5, 0.95),
    "lend_cap": (0.3, 0.7),
    "shed_after_s": (450.0, 1800.0),
    "priority_tokens_per_s": (10.0, 100.0),
    "cooldown_s": (60.0, 300.0),
    "backlog_persistence_s": (10.0, 60.0),
    "context_smoothing_s": (600.0, 5400.0),
    "arrival_smoothing_s": (900.0, 3600.0),
    "budget_range": ((0.75, 1.5), (0.25, 4.0)),
    "budget_step": (0.05, 0.2),
    "reopening_step": (0.05, 0.2),
    "plateau_slack": (0.025, 0.1),
    "lending_headroom": (0.05, 0.2),
}
"""A lower and a higher value of each parameter, varied one at a time (paper A §7.9, Fig. 24a). Values of the paper's
own parameters are the figure's; the α triple shares one range there (0.5–0.7 and 0.95–1), from which we took one each.
The settings' values are ours, but for those the text names: a range of [0.25, 4] B0, smoothing over 90 minutes and
doubled steps."""


def sensitivity_variants(base: BasinParameters) -> Iterator[tuple[str, BasinParameters]]:
    """The 34 one-at-a-time variants of Fig. 24a as (name, parameters), named `field:low` and `field:high`."""
    for name, values in SENSITIVITY.items():
        for side, value in zip(("low", "high"), values, strict=True):
            yield f"{name}:{side}", replace(base, **{name: value})  # type: ignore[arg-type]


def _require(holds: bool, name: str, value: object, wanted: str) -> None:
    if not holds:
        raise ValueError(f"BasinParameters.{name}: {value} is not {wanted}")
