"""What a replay saw, as rows in the order of `artifact.records.schema`. Null: not measured."""

from dataclasses import dataclass
from typing import Any

from artifact.workload.load import PlannedSession


@dataclass(slots=True)
class OpenCall:
    """A call that the target has accepted and not finished."""

    index: int
    released_s: float
    first_token_s: float | None = None


@dataclass(slots=True)
class Progress:
    """One session in the making of its row."""

    plan: PlannedSession
    admitted_s: float | None = None
    started_s: float | None = None
    ended_s: float | None = None
    outcome: str = "unfinished"
    calls_done: int = 0
    decode_steps: int = 0
    slow_steps: int | None = None
    open_call: "OpenCall | None" = None

    @property
    def active(self) -> bool:
        return self.admitted_s is not None and self.ended_s is None

    def row(self, unloaded_s: float | None) -> tuple[Any, ...]:
        plan, trajectory = self.plan, self.plan.trajectory
        return (
            plan.id,
            plan.group,
            trajectory.id,
            plan.arrival_s,
            self.admitted_s,
            self.started_s,
            self.ended_s,
            self.outcome,
            trajectory.n_calls - plan.first_call,
            self.calls_done,
            trajectory.peak_tokens,
            unloaded_s,
            self.decode_steps,
            self.slow_steps,
        )


def call_row(
    session_id: str,
    index: int,
    times_s: tuple[float, float, float],
    usage: dict[str, Any],
    engine: dict[str, Any],
    slow_steps: int | None,
) -> tuple[Any, ...]:
    """`times_s`: released, first token, finished. `engine` holds what the stub says of itself, otherwise nothing."""
    released_s, first_token_s, finished_s = times_s
    begun = engine.get("scheduled_after_s")
    return (
        session_id,
        index,
        released_s,
        engine.get("reserve_wait_s"),
        released_s + begun if begun is not None else None,
        first_token_s,
        finished_s,
        usage["prompt_tokens"],
        (usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        engine.get("cached_host_tokens"),
        engine.get("cached_lent_tokens"),
        usage["completion_tokens"],
        slow_steps,
        engine.get("prefill_instance"),
        engine.get("decode_instance"),
    )


def open_row(progress: Progress) -> tuple[Any, ...]:
    """The row of a call that is in the engine when the run ends: what it has found is not known yet."""
    call, trajectory = progress.open_call, progress.plan.trajectory
    assert call is not None
    prompt, output = trajectory.prompt_tokens[call.index], trajectory.output_tokens[call.index]
    times = (call.released_s, None, None, call.first_token_s, None)
    return (progress.plan.id, call.index, *times, prompt, None, None, None, output, None, None, None)


def sample_row(state: dict[str, Any], now: float, active_extra: int) -> tuple[Any, ...]:
    """From a gateway's `/sessions`. Decode's idle part and prefill's busy time are not among its readings."""
    prompt, cached = state["prompt_tokens_total"], state["cached_tokens_total"]
    return (
        now,
        state["resident"] + state["suspended"],
        active_extra,
        state["parked"],
        state["suspended"],
        state["context_tokens"],
        prompt,
        cached,
        prompt - cached,  # counted when a call is scheduled, not as its tokens are computed
        state["calls_done_total"],
        state["prefill_queue"],
        state["decode_waiting"],
        state["decode_running"],
        state["decode_kv_used_tokens"],
        None,
        state["lent_tokens"],
        None,
        state["reference_budget_tokens"],
        state["budget_tokens"],
        state["admitting"],
        state["ordering"],
        state["lending"],
    )
