"""Engine costs as plain floats for the hot path, and the unloaded reference that slowdown is measured against."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from artifact.control.capacity import Capacities
from artifact.workload.trajectory import Trajectory
from sim.calibration.model import Calibration
from sim.scenario import Deployment

Numbers = TypeVar("Numbers", float, np.ndarray)


@dataclass(frozen=True, slots=True)
class Costs:
    """The numbers of a `Calibration`, units in the names."""

    cache_tokens: int
    chunk_tokens: int
    prefill_fixed_s: float
    prefill_token_s: float
    prefill_position_s: float
    host_load_token_s: float
    cache_slots: int
    kv_tokens: int
    held_back_tokens: int
    decode_fixed_s: float
    decode_request_s: float
    decode_context_s: float
    decode_slots: int
    transfer_s: float
    link_token_s: float
    overhead_s: float
    itl_slo_s: float
    hybrid: bool

    @classmethod
    def of(cls, c: Calibration) -> "Costs":
        return cls(
            cache_tokens=int(c.prefill.cache_tokens.value),
            chunk_tokens=int(c.prefill.chunk_tokens.value),
            prefill_fixed_s=c.prefill.fixed_s.value,
            prefill_token_s=c.prefill.per_token_s.value,
            prefill_position_s=c.prefill.per_token_position_s.value,
            host_load_token_s=1 / c.prefill.host_load_tokens_per_s.value,
            cache_slots=int(c.prefill.state_slots.value),
            kv_tokens=int(c.decode.kv_tokens.value),
            held_back_tokens=int(c.decode.held_back_tokens.value),
            decode_fixed_s=c.decode.fixed_s.value,
            decode_request_s=c.decode.per_request_s.value,
            decode_context_s=c.decode.per_context_token_s.value,
            decode_slots=int(c.decode.state_slots.value),
            transfer_s=c.transfer_s.value,
            link_token_s=1 / c.link_tokens_per_s.value,
            overhead_s=c.call_overhead_s.value,
            itl_slo_s=c.itl_slo_s.value,
            hybrid=c.hybrid,
        )

    def remaining_s(self, trajectory: Trajectory) -> np.ndarray:
        """Unloaded seconds from before each call's gap to the end, shape (n_calls,)."""
        return _remaining(trajectory, self)

    def prefill_s(self, tokens: int) -> float:
        """Seconds to prefill a context of so many tokens from nothing, alone."""
        return float(_prefill_s(self, float(tokens), float(tokens)))


def capacities(deployment: Deployment, costs: Costs) -> Capacities:
    """KV tokens over all instances of a deployment."""
    return Capacities(
        prefill_cache_tokens=costs.cache_tokens * deployment.prefill,
        decode_kv_tokens=costs.kv_tokens * deployment.decode,
        host_cache_tokens=int(deployment.host_ratio * costs.cache_tokens) * deployment.prefill,
    )


class Unhurried(Protocol):
    """Costs that know how long a session takes alone."""

    def remaining_s(self, trajectory: Trajectory) -> np.ndarray:
        """Unloaded seconds from before each call's gap to the end, shape (n_calls,)."""


def unloaded_duration(costs: Unhurried) -> Callable[[Trajectory, int], float]:
    """Seconds that a trajectory takes from call `first` on, alone on the engine (paper A §7.1, slowdown's reference):
    tool gaps (without the one before `first`), call overheads, prefill of new tokens, transfer, decode at batch one."""
    cached: dict[int, tuple[Trajectory, np.ndarray]] = {}

    def duration(trajectory: Trajectory, first: int) -> float:
        known = cached.get(id(trajectory))
        if known is None or known[0] is not trajectory:
            known = cached[id(trajectory)] = (trajectory, costs.remaining_s(trajectory))
        return float(known[1][first]) - trajectory.gap_before_s[first]

    return duration


def _remaining(t: Trajectory, costs: Costs) -> np.ndarray:
    prompt = np.array(t.prompt_tokens, float)
    new = np.array(t.new_tokens, float)
    new[0] -= t.shared_head_tokens
    steps = np.maximum(np.array(t.output_tokens, float) - 1, 0)
    prefill = _prefill_s(costs, new, prompt)
    step = costs.decode_fixed_s + costs.decode_request_s + costs.decode_context_s * (prompt + steps / 2)
    per_call = np.array(t.gap_before_s) + costs.overhead_s + prefill + costs.transfer_s + steps * step
    return per_call[::-1].cumsum()[::-1]


def _prefill_s(costs: Costs, new: Numbers, prompt: Numbers) -> Numbers:
    """Seconds to prefill the last `new` tokens of prompts, in full chunks and alone."""
    return (
        np.ceil(new / costs.chunk_tokens) * costs.prefill_fixed_s
        + new * costs.prefill_token_s
        + new * (prompt - new / 2) * costs.prefill_position_s
    )
