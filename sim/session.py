"""A session that is alive in a run."""

from typing import Any

from mypy_extensions import mypyc_attr

from artifact.workload.load import PlannedSession
from sim.engine.call import EngineCall


@mypyc_attr(allow_interpreted_subclasses=True)
class LiveSession:
    """Closed loop: the next call is released when the response and the tool gap of the one before are over."""

    __slots__ = (
        "active",
        "admitted_s",
        "calls_done",
        "context",
        "current",
        "decode_steps",
        "ended_s",
        "first_call",
        "group",
        "home",
        "id",
        "next_call",
        "outcome",
        "plan",
        "slow_steps",
        "started_s",
        "suspended",
        "trajectory",
    )

    def __init__(self, plan: PlannedSession) -> None:
        self.plan = plan
        self.id = plan.id
        self.group = plan.group
        self.trajectory = plan.trajectory
        self.first_call = self.next_call = plan.first_call
        self.context = plan.trajectory.prompt_tokens[plan.first_call]
        self.active = False
        self.suspended = False
        self.current: EngineCall | None = None
        self.home: Any = None
        self.admitted_s: float | None = None
        self.started_s: float | None = None
        self.ended_s: float | None = None
        self.outcome = "unfinished"
        self.calls_done = self.decode_steps = self.slow_steps = 0

    @property
    def extra(self) -> bool:
        """Brought by a surge or a burst."""
        return self.group in ("surge", "burst")

    def row(self, unloaded_s: float) -> tuple[Any, ...]:
        """In the order of `artifact.records.schema.SESSIONS`."""
        return (
            self.id,
            self.group,
            self.trajectory.id,
            self.plan.arrival_s,
            self.admitted_s,
            self.started_s,
            self.ended_s,
            self.outcome,
            self.trajectory.n_calls - self.first_call,
            self.calls_done,
            self.trajectory.peak_tokens,
            unloaded_s,
            self.decode_steps,
            self.slow_steps,
        )
