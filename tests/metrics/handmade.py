"""Records written by hand for tests: every column has a harmless default, in schema order."""

from typing import Any

from artifact.records.schema import CALLS, SAMPLES, SESSIONS, Records

CAPACITY = {
    "prefill_cache_tokens": 1000,
    "host_cache_tokens": 0,
    "decode_kv_tokens": 2000,
    "saturated_prefill_tokens_per_s": 100.0,
}


def call(released_s: float, ttft_s: float | None = 1.0, **columns: Any) -> tuple[Any, ...]:
    """A call of 100 prompt tokens that is scheduled at once; `ttft_s=None`: no first token within the run."""
    first = None if ttft_s is None else released_s + ttft_s
    row = dict.fromkeys(CALLS.names, None) | {
        "session_id": "s",
        "call_index": 0,
        "released_s": released_s,
        "scheduled_s": released_s,
        "first_token_s": first,
        "finished_s": first,
        "prompt_tokens": 100,
        "cached_tokens": 0,
        "output_tokens": 1,
    }
    return _row(row, columns)


def session(id: str = "s", arrival_s: float = 0.0, lasts_s: float | None = 100.0, **columns: Any) -> tuple[Any, ...]:
    """A base session of 100 s unloaded, admitted and started on arrival; `lasts_s=None`: unfinished."""
    row = {
        "session_id": id,
        "group": "base",
        "trajectory_id": "t",
        "arrival_s": arrival_s,
        "admitted_s": arrival_s,
        "started_s": arrival_s,
        "ended_s": None if lasts_s is None else arrival_s + lasts_s,
        "outcome": "unfinished" if lasts_s is None else "completed",
        "calls_planned": 1,
        "calls_done": 1,
        "peak_tokens": 100,
        "unloaded_s": 100.0,
        "decode_steps": 100,
        "slow_steps": 0,
    }
    assert list(row) == SESSIONS.names
    return _row(row, columns)


def sample(time_s: float, **columns: Any) -> tuple[Any, ...]:
    return _row(dict.fromkeys(SAMPLES.names, None) | {"time_s": time_s}, columns)


def records(
    calls: list[Any] = [],  # noqa: B006 (never changed)
    sessions: list[Any] = [],  # noqa: B006
    samples: list[Any] = [],  # noqa: B006
    duration_s: float = 3600.0,
    **meta: Any,
) -> Records:
    base = {"source": "stub", "duration_s": duration_s, "itl_slo_s": 0.05, "seed": 0, "capacity": CAPACITY}
    return Records.from_rows(calls, sessions, samples, base | meta)


def _row(row: dict[str, Any], columns: dict[str, Any]) -> tuple[Any, ...]:
    unknown = set(columns) - set(row)
    assert not unknown, unknown
    return tuple((row | columns).values())
