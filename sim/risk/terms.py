"""From what an operator measured to the terms of the fluid model, noting every number that had to be assumed."""

from dataclasses import dataclass, field

from sim.fluid.hits import HitCurve
from sim.fluid.model import FluidDeployment
from sim.risk.question import Question, UsageError

MISMATCH = 0.1
"""Two ways to the same number may differ by this share before they count as contradicting each other."""


@dataclass
class Terms:
    """`model` is None while `missing` names what Eq. 1 still lacks; `in_service` and the cliff need less."""

    in_service: float | None
    model: FluidDeployment | None
    rate_per_min: float | None
    """Present arrivals, sessions/min."""
    assumed: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def derive(q: Question) -> Terms:
    """Fill in what follows from what is given. Raises `UsageError` where numbers contradict each other."""
    if not q.floor < q.plateau:
        raise UsageError(
            f"--floor is {q.floor:g}, not below --plateau {q.plateau:g}: give the collapsed hit rate as floor"
        )
    assumed = _defaults(q)
    cycle = _cycle(q)
    in_service = cycle[0] / sum(cycle) if cycle else q.in_service
    calls, rate = _flow(q)
    missing: dict[str, str] = {}
    if in_service is None:
        missing["--in-service"] = "or both --latency-s and --gap-s, to say when decode memory fills"
    if cycle is None:
        missing["--latency-s and --gap-s"] = "or one of them with --in-service, or --active-sessions, --calls-per-min"
    if calls is None:
        missing["--calls-per-session"] = "or both --calls-per-min and --sessions-per-min"
    if q.prefill_tokens_per_s is None:
        missing["--prefill-tokens-per-s"] = "the rate when prefill is saturated, which bounds a cold cache"
    model = None
    if cycle and calls is not None and q.prefill_tokens_per_s is not None:
        prompt = q.prompt_tokens or q.context_tokens
        model = FluidDeployment(
            name=q.name,
            cache_tokens=q.cache_tokens,
            decode_kv_tokens=q.decode_kv_tokens,
            prefill_tokens_per_s=q.prefill_tokens_per_s,
            context_tokens=q.context_tokens,
            prompt_tokens=prompt,
            new_tokens=_new_tokens(q, prompt),
            calls_per_session=calls,
            gap_s=cycle[1],
            unloaded_latency_s=_unloaded(q, *cycle),
            latency_s_per_request=q.latency_s_per_request,
            hits=HitCurve(plateau=q.plateau, floor=q.floor, kappa=q.kappa),
        )
    if rate is None:
        missing["--sessions-per-min"] = "the present load, to place it between healthy and trapped"
    return Terms(in_service, model, rate, assumed, missing)


def _defaults(q: Question) -> dict[str, str]:
    given = q.model_fields_set
    notes = {
        "kappa": "the cliff stands where it did on the paper's H100 (1.9 times the cache); a load ramp measures yours",
        "plateau": "hit rate of the paper's healthy H100 run",
        "floor": "hit rate of the paper's trapped H100 run",
        "latency_s_per_request": "calls do not slow one another on decode, which makes the healthy side look better",
        "prompt_tokens": "a call's prompt is as long as the mean context",
        "new_tokens": "as many as the plateau of the hit rate leaves uncached",
    }
    return {name: note for name, note in notes.items() if name not in given}


def _new_tokens(q: Question, prompt: float) -> float:
    new = q.new_tokens if q.new_tokens is not None else max(1.0, (1 - q.plateau) * prompt)
    if new > prompt:
        raise UsageError(f"--new-tokens is {new:g}, more than the whole prompt ({prompt:g}): check --prompt-tokens")
    return new


def _cycle(q: Question) -> tuple[float, float] | None:
    """Latency and gap of a call in health, s, from any two of them, their ratio and the time of both together."""
    whole = 60 * q.active_sessions / q.calls_per_min if q.active_sessions and q.calls_per_min else None
    latency, gap, share = q.latency_s, q.gap_s, q.in_service
    if share == 1 and gap:
        raise UsageError(f"--in-service is 1 while --gap-s is {gap:g}: a session whose tool runs is not in service")
    if latency is None and gap is None and whole and share:
        latency, gap = share * whole, (1 - share) * whole
    elif latency is None and gap is not None:
        latency = whole - gap if whole else gap * share / (1 - share) if share and gap else None
    elif gap is None and latency is not None:
        gap = whole - latency if whole else latency * (1 - share) / share if share else None
    if latency is None or gap is None:
        return None
    if latency <= 0 or gap < 0:
        raise UsageError(
            f"--active-sessions over --calls-per-min is {whole:.3g} s for a call and its gap together, which leaves "
            f"{latency:.3g} s for the call and {gap:.3g} s for the gap: check the units of the three"
        )
    _agree(q, latency, gap, whole)
    return latency, gap


def _agree(q: Question, latency: float, gap: float, whole: float | None) -> None:
    share = latency / (latency + gap)
    if q.in_service is not None and abs(share - q.in_service) > MISMATCH * q.in_service:
        raise UsageError(
            f"--in-service is {q.in_service:g}, but --latency-s {latency:.3g} and --gap-s {gap:.3g} make it "
            f"{share:.2g}: correct one, or leave --in-service out"
        )
    if whole is not None and abs(latency + gap - whole) > MISMATCH * whole:
        raise UsageError(
            f"--active-sessions over --calls-per-min is {whole:.3g} s a call, but --latency-s and --gap-s make it "
            f"{latency + gap:.3g} s: correct one, or leave the active sessions out"
        )


def _flow(q: Question) -> tuple[float | None, float | None]:
    """Calls a session, and sessions/min, from either and the call rate."""
    calls, rate = q.calls_per_session, q.sessions_per_min
    if q.calls_per_min and calls is None and rate:
        calls = q.calls_per_min / rate
        if calls < 1:
            raise UsageError(
                f"--calls-per-min is {q.calls_per_min:g}, fewer than --sessions-per-min {rate:g}: a session makes at "
                "least one call; check the units"
            )
    if q.calls_per_min and rate is None and calls:
        rate = q.calls_per_min / calls
    return calls, rate


def _unloaded(q: Question, latency: float, gap: float) -> float:
    """L0: the measured latency less what the requests in service at that time added."""
    if not q.latency_s_per_request:
        return latency
    if not q.active_sessions:
        raise UsageError("--latency-s-per-request needs --active-sessions, to know how many requests slowed the calls")
    others = q.active_sessions * latency / (latency + gap)
    unloaded = latency - q.latency_s_per_request * others
    if unloaded <= 0:
        raise UsageError(
            f"--latency-s-per-request is {q.latency_s_per_request:g}: {others:.3g} requests in service would make the "
            f"whole latency of {latency:.3g} s; check both"
        )
    return unloaded
