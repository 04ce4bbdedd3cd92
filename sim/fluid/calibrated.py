"""A fluid deployment from an engine calibration and the sessions it serves, so that both models share every number."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from artifact.workload.catalog import workload
from artifact.workload.trajectory import Trajectory
from sim.calibration.model import Calibration, calibration, colocated_calibration
from sim.engine.colocated_costs import ColocatedCosts
from sim.fluid.hits import HitCurve
from sim.fluid.model import FluidDeployment
from sim.scenario import Deployment


@dataclass(frozen=True, slots=True)
class SessionTerms:
    """Means over the calls of a workload that Eq. 1 uses; tokens, and seconds where the name says so."""

    calls_per_session: float
    prompt_tokens: float
    new_tokens: float
    """Of a prompt, not sent before by the session and not in the shared head."""
    first_prompt_tokens: float
    """Of a session's first prompt, not in the shared head."""
    output_tokens: float
    gap_s: float
    context_tokens: float
    """c̄: prompts weighted by the time a session spends at them, gaps and unloaded decode."""
    prefill_position: float
    """Mean position of a prompt token when everything is recomputed, which prefill attention grows with."""


def session_terms(trajectories: Sequence[Trajectory], token_s: float) -> SessionTerms:
    """The terms of `trajectories`, whose output tokens take `token_s` each when c̄ weights calls by duration.

    Raises `ValueError` when there is none.
    """
    if not trajectories:
        raise ValueError("session_terms: no trajectories")
    prompt, new, output, gap = (
        np.array([x for t in trajectories for x in getattr(t, column)], float)
        for column in ("prompt_tokens", "new_tokens", "output_tokens", "gap_before_s")
    )
    heads = sum(t.shared_head_tokens for t in trajectories)
    return SessionTerms(
        calls_per_session=len(prompt) / len(trajectories),
        prompt_tokens=float(prompt.mean()),
        new_tokens=float(new.sum() - heads) / len(new),
        first_prompt_tokens=sum(t.prompt_tokens[0] - t.shared_head_tokens for t in trajectories) / len(trajectories),
        output_tokens=float(output.mean()),
        gap_s=float(gap.mean()),
        context_tokens=float(np.average(prompt, weights=gap + output * token_s)),
        prefill_position=float((prompt**2).sum() / prompt.sum() / 2),
    )


def fluid_deployment(
    deployment: Deployment,
    trajectories: Sequence[Trajectory] | str = "terminal-bench",
    hits: HitCurve | None = None,
    output_scale: float = 1.0,
) -> FluidDeployment:
    """The fluid model of a simulated deployment serving `trajectories` (or a workload of that name).

    `output_scale` lengthens outputs call by call, as a load's does; a long one does not grow without end."""
    sessions = workload(trajectories) if isinstance(trajectories, str) else trajectories
    if output_scale != 1:
        sessions = [t.scaled(output=output_scale) for t in sessions]
    if deployment.kind == "colocated":
        return _colocated(deployment, sessions, hits or HitCurve())
    engine = calibration(deployment.calibration)
    terms = session_terms(sessions, engine.decode.fixed_s.value)
    step_per_request = (
        engine.decode.per_request_s.value + engine.decode.per_context_token_s.value * terms.context_tokens
    )
    tier = "GPU" if deployment.host_ratio == 0 else f"host ×{deployment.host_ratio:g}"
    return FluidDeployment(
        name=f"{deployment.calibration.upper()} {deployment.prefill}P{deployment.decode}D, {tier}",
        cache_tokens=engine.prefill.cache_tokens.value * deployment.prefill * max(1.0, deployment.host_ratio),
        decode_kv_tokens=engine.decode.kv_tokens.value * deployment.decode,
        prefill_tokens_per_s=deployment.prefill * engine.saturated_prefill_tokens_per_s(terms.prefill_position),
        context_tokens=terms.context_tokens,
        prompt_tokens=terms.prompt_tokens,
        new_tokens=terms.new_tokens,
        calls_per_session=terms.calls_per_session,
        gap_s=terms.gap_s,
        unloaded_latency_s=_outside_decode_s(engine, terms) + terms.output_tokens * engine.decode.fixed_s.value,
        latency_s_per_request=terms.output_tokens * step_per_request / deployment.decode,
        hits=hits or HitCurve(),
    )


def _colocated(deployment: Deployment, sessions: Sequence[Trajectory], hits: HitCurve) -> FluidDeployment:
    """One engine in Eq. 1's terms: D_KV is the pool, and μ_p what is left of mixed steps beside a pool full of requests
    that decode. Turns slow one another down by their decode and by the prefill of their new tokens."""
    costs = ColocatedCosts.of(colocated_calibration(deployment.calibration))
    terms = session_terms(sessions, costs.fixed_s)
    answered = sum(sum(t.output_tokens[:-1]) for t in sessions) / sum(t.n_calls for t in sessions)
    new_tokens = terms.new_tokens - answered  # the preceding answer hits, too
    slots = costs.pool_tokens / terms.context_tokens
    beside = (slots, costs.pool_tokens) if costs.scheduler == "vllm" else (1, 0)
    chunk = costs.chunk_tokens
    step_s = costs.decode_step_s(*beside) + costs.chunk_s(terms.prefill_position - chunk / 2, chunk, beside[1])
    new_s = new_tokens * (costs.prefill_token_s + terms.prompt_tokens * costs.prefill_position_s) + costs.fixed_s
    per_request = costs.request_s + costs.context_s * terms.context_tokens
    return FluidDeployment(
        name=f"{deployment.calibration}, {'GPU' if deployment.host_ratio == 0 else f'host ×{deployment.host_ratio:g}'}",
        cache_tokens=costs.pool_tokens * max(1.0, deployment.host_ratio),
        decode_kv_tokens=costs.pool_tokens,
        prefill_tokens_per_s=chunk / step_s,
        context_tokens=terms.context_tokens,
        prompt_tokens=terms.prompt_tokens,
        new_tokens=new_tokens,
        calls_per_session=terms.calls_per_session,
        gap_s=terms.gap_s,
        unloaded_latency_s=costs.overhead_s + terms.output_tokens * costs.fixed_s,
        latency_s_per_request=terms.output_tokens * per_request + new_s,
        hits=hits,
    )


def _outside_decode_s(engine: Calibration, terms: SessionTerms) -> float:
    """Call overhead, prefill of the new tokens at the end of a cached prompt, and transfer, on an idle engine."""
    prefill = engine.prefill
    per_token = prefill.per_token_s.value + terms.prompt_tokens * prefill.per_token_position_s.value
    first_token = prefill.fixed_s.value + terms.new_tokens * per_token
    return engine.call_overhead_s.value + first_token + engine.transfer_s.value
