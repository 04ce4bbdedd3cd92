"""Scenarios of a small engine with round numbers and sessions made by hand, written as a user's files."""

from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import yaml
from engine_rig import COSTS

from artifact.workload.formats import native
from artifact.workload.load import Load
from artifact.workload.trajectory import Trajectory
from sim.calibration.model import calibration
from sim.scenario import Deployment, Scenario

_numbers = count()

VALUES: dict[str, float] = {
    "prefill.cache_tokens": COSTS.cache_tokens,
    "prefill.chunk_tokens": COSTS.chunk_tokens,
    "prefill.fixed_s": COSTS.prefill_fixed_s,
    "prefill.per_token_s": COSTS.prefill_token_s,
    "prefill.per_token_position_s": COSTS.prefill_position_s,
    "prefill.host_load_tokens_per_s": 1 / COSTS.host_load_token_s,
    "prefill.state_slots": COSTS.cache_slots,
    "decode.kv_tokens": COSTS.kv_tokens,
    "decode.held_back_tokens": COSTS.held_back_tokens,
    "decode.fixed_s": COSTS.decode_fixed_s,
    "decode.per_request_s": COSTS.decode_request_s,
    "decode.per_context_token_s": COSTS.decode_context_s,
    "decode.state_slots": COSTS.decode_slots,
    "transfer_s": COSTS.transfer_s,
    "call_overhead_s": COSTS.overhead_s,
    "itl_slo_s": COSTS.itl_slo_s,
}


def calibration_file(folder: Path, hybrid: bool = False, **values: float) -> str:
    """A calibration like `engine_rig.COSTS`; values by dotted name with `__` for the dot."""
    data = calibration("h200").model_dump(mode="json") | {"name": "small", "hybrid": hybrid}
    for name, value in (VALUES | {key.replace("__", "."): value for key, value in values.items()}).items():
        owner: Any = data
        *parts, last = name.split(".")
        for part in parts:
            owner = owner[part]
        owner[last]["value"] = value
    path = folder / f"small-{next(_numbers)}.yaml"
    path.write_text(yaml.safe_dump(data))
    return str(path)


def scenario(
    folder: Path,
    trajectories: Sequence[Trajectory],
    arrivals_s: Sequence[float] = (0.0,),
    duration_s: float = 1000.0,
    deployment: Mapping[str, Any] | None = None,
    load: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Scenario:
    """Sessions at given times, the first at 0, each with a trajectory of the deck; nobody inside at the start."""
    path = folder / f"trace-{next(_numbers)}.jsonl"
    times = {f"arrival-{i}": time for i, time in enumerate(arrivals_s)}
    arrivals = folder / f"arrivals-{next(_numbers)}.jsonl"
    native.write(path, trajectories, {})
    native.write(arrivals, [Trajectory(id, (1,), (1,), (1,), (0.0,)) for id in times], times)
    offered = {
        "workload": str(path),
        "process": "recorded",
        "arrivals_path": str(arrivals),
        "rate_per_min": 60 * len(times) / duration_s,
        "duration_s": duration_s,
        "warm_sessions": 0,
    }
    return Scenario(
        deployment=Deployment.model_validate({"calibration": calibration_file(folder)} | dict(deployment or {})),
        load=Load.model_validate(offered | dict(load or {})),
        **fields,
    )


def trajectory(id: str, prompts: Sequence[int], output: int = 3, gap_s: float = 4.0, head: int = 0) -> Trajectory:
    """A session whose prompts extend each other."""
    new = tuple(b - a for a, b in zip((0, *prompts), prompts, strict=False))
    n = len(prompts)
    return Trajectory(id, tuple(prompts), new, (output,) * n, (0.0, *[gap_s] * (n - 1)), shared_head_tokens=head)
