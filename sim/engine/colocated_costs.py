"""Costs of a colocated engine as plain floats for the hot path."""

from dataclasses import dataclass

import numpy as np

from artifact.control.capacity import Capacities
from artifact.workload.trajectory import Trajectory
from sim.calibration.model import ColocatedCalibration
from sim.scenario import Deployment


@dataclass(frozen=True, slots=True)
class ColocatedCosts:
    """The numbers of a `ColocatedCalibration`, units in the names."""

    scheduler: str
    pool_tokens: int
    chunk_tokens: int
    max_running: int
    fixed_s: float
    request_s: float
    context_s: float
    prefill_token_s: float
    prefill_position_s: float
    prefill_position_context_s: float
    host_load_token_s: float
    overhead_s: float
    itl_slo_s: float

    @classmethod
    def of(cls, c: ColocatedCalibration) -> "ColocatedCosts":
        return cls(
            scheduler=c.scheduler,
            pool_tokens=int(c.pool_tokens.value),
            chunk_tokens=int(c.chunk_tokens.value),
            max_running=int(c.max_running.value),
            fixed_s=c.fixed_s.value,
            request_s=c.per_request_s.value,
            context_s=c.per_context_token_s.value,
            prefill_token_s=c.per_token_s.value,
            prefill_position_s=c.per_token_position_s.value,
            prefill_position_context_s=c.per_token_position_context_s.value,
            host_load_token_s=1 / c.host_load_tokens_per_s.value,
            overhead_s=c.call_overhead_s.value,
            itl_slo_s=c.itl_slo_s.value,
        )

    def decode_step_s(self, requests: float, context: float) -> float:
        """Length of a step of so many requests and context tokens, without prefill."""
        return self.fixed_s + requests * self.request_s + context * self.context_s

    def chunk_s(self, position: float, tokens: float, beside: float) -> float:
        """What a chunk of a prompt that begins at `position` adds to its step, where the requests that decode in this
        step hold `beside` tokens of context."""
        attention_s = self.prefill_position_s + beside * self.prefill_position_context_s
        return tokens * (self.prefill_token_s + (position + tokens / 2) * attention_s)

    def prefill_s(self, tokens: int) -> float:
        """Seconds to prefill a context of so many tokens from nothing, alone."""
        return float(self._alone_s(np.array(tokens, float), np.array(tokens, float)))

    def capacities(self, deployment: Deployment) -> Capacities:
        """The pool serves as prefix cache and as memory of running requests."""
        return Capacities(
            prefill_cache_tokens=self.pool_tokens,
            decode_kv_tokens=self.pool_tokens,
            host_cache_tokens=int(deployment.host_ratio * self.pool_tokens),
        )

    def remaining_s(self, t: Trajectory) -> np.ndarray:
        """Unloaded seconds from before each call's gap to the end, shape (n_calls,): all of a preceding context is a
        hit."""
        prompt, output = np.array(t.prompt_tokens, float), np.array(t.output_tokens, float)
        new = np.array(t.new_tokens, float)
        new[0] -= t.shared_head_tokens
        new[1:] = np.where(new[1:] >= output[:-1], new[1:] - output[:-1], new[1:])
        new = np.maximum(new, 1)  # the last token is always computed
        steps = np.maximum(output - 1, 0)
        decode = steps * self.decode_step_s(1, prompt + steps / 2)
        per_call = np.array(t.gap_before_s) + self.overhead_s + self._alone_s(new, prompt) + decode
        return np.asarray(per_call[::-1].cumsum()[::-1])

    def _alone_s(self, new: np.ndarray, prompt: np.ndarray) -> np.ndarray:
        """Seconds to prefill the last `new` tokens of prompts, alone."""
        steps = np.ceil(new / self.chunk_tokens)
        compute = new * (self.prefill_token_s + (prompt - new / 2) * self.prefill_position_s)
        return np.asarray(steps * (self.fixed_s + self.request_s) + compute)
