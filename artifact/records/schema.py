"""Records: what every run writes, simulated or real, and the only thing that metrics, claims and notebooks read.

Units stand in the column names. Times are seconds since the run's start. A null means "did not happen" or
"not measured here", never zero.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

CALLS = pa.schema(
    [
        ("session_id", pa.string()),
        ("call_index", pa.int32()),
        ("released_s", pa.float64()),  # ready for the engine: gap over and let through by the policy
        ("reserve_wait_s", pa.float64()),  # time spent waiting for decode memory, before or after prefill
        ("scheduled_s", pa.float64()),  # first prefill batch began
        ("first_token_s", pa.float64()),
        ("finished_s", pa.float64()),
        ("prompt_tokens", pa.int32()),
        ("cached_tokens", pa.int32()),  # of the prompt, found in any tier
        ("cached_host_tokens", pa.int32()),  # of those, loaded back from the host tier
        ("cached_lent_tokens", pa.int32()),  # of those, fetched from lent units on decode
        ("output_tokens", pa.int32()),
        ("slow_steps", pa.int32()),  # decode steps longer than the ITL SLO
        ("prefill_instance", pa.int16()),
        ("decode_instance", pa.int16()),
    ]
)

SESSIONS = pa.schema(
    [
        ("session_id", pa.string()),
        ("group", pa.string()),  # warm, base, surge, burst
        ("trajectory_id", pa.string()),
        ("arrival_s", pa.float64()),
        ("admitted_s", pa.float64()),  # first call let through
        ("started_s", pa.float64()),  # first token of the first call
        ("ended_s", pa.float64()),
        ("outcome", pa.string()),  # completed, shed, ended (by intervention), unfinished
        ("calls_planned", pa.int32()),
        ("calls_done", pa.int32()),
        ("peak_tokens", pa.int32()),
        ("unloaded_s", pa.float64()),  # duration of the same calls on an idle engine
        ("decode_steps", pa.int32()),
        ("slow_steps", pa.int32()),
    ]
)

SAMPLES = pa.schema(
    [
        ("time_s", pa.float64()),
        ("active_sessions", pa.int32()),  # admitted and not ended, tools running included
        ("active_extra_sessions", pa.int32()),  # of those, brought by a surge or a burst
        ("parked_sessions", pa.int32()),
        ("suspended_sessions", pa.int32()),
        ("working_set_tokens", pa.int64()),  # whole contexts of the active sessions
        ("prompt_tokens_total", pa.int64()),  # counters, over calls scheduled so far
        ("cached_tokens_total", pa.int64()),
        ("computed_tokens_total", pa.int64()),  # prefilled so far
        ("calls_done_total", pa.int64()),
        ("prefill_queue_calls", pa.int32()),
        ("decode_waiting_calls", pa.int32()),
        ("decode_running_calls", pa.int32()),
        ("decode_kv_running_tokens", pa.int64()),
        ("decode_kv_idle_tokens", pa.int64()),  # reserved for calls that are not decoding yet
        ("lent_tokens", pa.int64()),
        ("prefill_busy_s_total", pa.float64()),
        ("reference_budget_tokens", pa.float64()),
        ("budget_tokens", pa.float64()),
        ("admitting", pa.bool_()),
        ("ordering", pa.bool_()),
        ("lending", pa.bool_()),
    ]
)

COLOCATED_SAMPLES = SAMPLES.append(pa.field("preemptions_total", pa.int64()))
"""Samples of a colocated engine (paper B), whose one batch and one pool stand in these columns: `prefill_queue_calls`
the requests that wait for the first time, `decode_waiting_calls` those preempted, `decode_running_calls` the running
ones, in prefill or decoding; `decode_kv_running_tokens` + `decode_kv_idle_tokens` the pool that they use."""

TABLES: Mapping[str, pa.Schema] = {"calls": CALLS, "sessions": SESSIONS, "samples": SAMPLES}


@dataclass(frozen=True)
class Records:
    """One run. `meta` holds provenance: `source` ("sim", "hw", "stub"), the scenario, capacities, versions, seed."""

    calls: pa.Table
    sessions: pa.Table
    samples: pa.Table
    meta: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, schema in TABLES.items():
            got = getattr(self, name).schema.remove_metadata()
            if not got.equals(schema) and not (name == "samples" and got.equals(COLOCATED_SAMPLES)):
                raise ValueError(f"records table {name!r}: columns {got.names} do not match the schema {schema.names}")

    @classmethod
    def from_rows(
        cls,
        calls: Sequence[tuple[Any, ...]],
        sessions: Sequence[tuple[Any, ...]],
        samples: Sequence[tuple[Any, ...]],
        meta: dict[str, Any],
    ) -> "Records":
        """Build from row tuples in schema order."""
        rows = {"calls": calls, "sessions": sessions, "samples": samples}
        colocated = bool(samples) and len(samples[0]) == len(COLOCATED_SAMPLES)
        schemas = {**TABLES, "samples": COLOCATED_SAMPLES if colocated else SAMPLES}
        return cls(**{name: _table(rows[name], schema) for name, schema in schemas.items()}, meta=meta)

    @property
    def simulated(self) -> bool:
        return self.meta.get("source") == "sim"

    def save(self, folder: Path) -> None:
        """Write one Parquet file a table; the provenance goes into each file's metadata."""
        folder.mkdir(parents=True, exist_ok=True)
        meta = {b"basin": json.dumps(self.meta, sort_keys=True).encode()}
        for name in TABLES:
            pq.write_table(getattr(self, name).replace_schema_metadata(meta), folder / f"{name}.parquet")

    @classmethod
    def load(cls, folder: Path) -> "Records":
        """Read a saved run. Raises `FileNotFoundError` naming the missing table."""
        tables = {name: pq.read_table(folder / f"{name}.parquet") for name in TABLES}
        meta = json.loads(tables["calls"].schema.metadata[b"basin"])
        return cls(**{name: table.replace_schema_metadata(None) for name, table in tables.items()}, meta=meta)


def _table(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    columns: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return pa.table([pa.array(c, type=f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)
