"""The offered load of a run, as data, and the concrete sessions it stands for.

The same `Load` and seed give the same `PlannedSession` list to the simulator and to the replay client of real runs.
"""

from dataclasses import dataclass
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from artifact.workload.trajectory import Trajectory

Group = Literal["warm", "base", "surge", "burst"]


class Surge(BaseModel):
    """Arrivals at `factor` times the base rate in [start_s, end_s); a "+100 %" surge has factor 2."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    start_s: float = Field(ge=0)
    end_s: float = Field(gt=0)
    factor: float = Field(ge=1)


class ShortBurst(BaseModel):
    """Extra sessions at `rate_factor` times the base rate in [start_s, end_s), each short enough to end within
    `max_unloaded_s` on an idle engine (paper A §3.3: five minutes)."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    start_s: float = Field(ge=0)
    end_s: float = Field(gt=0)
    rate_factor: float = Field(gt=0)
    max_unloaded_s: float = Field(default=300.0, gt=0)


class RateChange(BaseModel):
    """From `at_s` on, base arrivals come at `factor` times the base rate (post-surge intervention, paper A §5.2)."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    at_s: float = Field(ge=0)
    factor: float = Field(ge=0)


class Shift(BaseModel):
    """Base sessions that arrive from `at_s` on come from another workload (paper B §6, a shift of the session mix)."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    at_s: float = Field(ge=0)
    workload: str


class Load(BaseModel):
    """What arrives, from which trajectories, for how long. Rates are sessions a minute."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    workload: str = "terminal-bench"
    """A synthesised workload's name, or the path of a trace file."""
    rate_per_min: float = Field(gt=0)
    duration_s: float = Field(gt=0)
    process: Literal["poisson", "bailian-coder", "bailian-a", "recorded"] = "poisson"
    arrivals_path: str | None = None
    """For "recorded": a trace file whose arrivals are taken, thinned at random to `rate_per_min`."""
    surges: tuple[Surge, ...] = ()
    burst: ShortBurst | None = None
    rate_change: RateChange | None = None
    shift: Shift | None = None
    warm_sessions: int | None = Field(default=None, ge=0)
    """Sessions that join mid-trajectory at time 0; None: the steady population, rate x mean unloaded duration."""
    warm_start: Literal["cached", "cold"] = "cached"
    """How they join. cached: from the middle of a call or gap with their contexts in the cache, as after hours of
    operation; cold: all with their next call at once and nothing cached, as clients that a replay connects to a fresh
    engine. Which of the two the papers' runs did is not published."""
    tool_time_scale: float = Field(default=1.0, gt=0)
    output_scale: float = Field(default=1.0, gt=0)

    @model_validator(mode="after")
    def _recorded_has_a_path(self) -> Self:
        if (self.process == "recorded") != (self.arrivals_path is not None):
            raise ValueError("process 'recorded' and arrivals_path, a trace that records arrivals, need each other")
        return self


@dataclass(frozen=True, slots=True)
class PlannedSession:
    """A session that will arrive at `arrival_s` and run its trajectory from call `first_call` on.

    `first_gap_s` is what is left of the gap before that call (0 for sessions that arrive at their beginning), `cached`
    whether the preceding prompt is in the cache when the session joins.
    """

    id: str
    arrival_s: float
    trajectory: Trajectory
    group: Group
    first_call: int = 0
    first_gap_s: float = 0.0
    cached: bool = False
