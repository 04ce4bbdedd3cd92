"""The answer in words for an operator, and as JSON for scripts."""

import json
import textwrap
from dataclasses import asdict
from typing import Any

from sim.risk.assess import Assessment, Load

WIDTH = 110
SHOWN_FACTOR = 20
"""Larger surges are not worth a row."""

LIMITS = (
    "The model knows means, not tails: a run of large sessions or slow tools can tip an engine earlier.",
    "It has no memory of the cache: after a collapse, reuse stays low even at working sets that were fine before, so "
    "recovery takes at least what is said here. In the paper's simulated collapses departures were 0.20 to 0.31 of the "
    "overload rate.",
    "Against the paper's 36 simulated deployments the comparison missed no cache-first one, and called 8 of the 19 "
    "decode-first ones cache-first: it errs on the side of caution.",
)


def as_json(a: Assessment) -> str:
    """One object with the fields of `Assessment`; `model` holds the terms of Eq. 1 that were used."""
    fields = {**asdict(a), "model": a.model.model_dump() if a.model else None, "limits": LIMITS}
    return json.dumps(fields, indent=2, allow_nan=False)


def as_text(a: Assessment) -> str:
    """Headed paragraphs, most important first."""
    blocks = [("First limit", _first_limit(a)), ("Cliff", _cliff(a))]
    if a.peak_per_min is not None:
        blocks.append(("Departures", _departures(a)))
    if a.load is not None:
        blocks.append(("At this load", _load(a, a.load)))
        blocks.append(("To drain afterwards", _drain(a, a.load)))
    if a.missing:
        blocks.append(("Not answered", [f"{what}: {why}" for what, why in a.missing.items()]))
    if a.assumed:
        blocks.append(("Assumed", [f"{_option(n)}: {_value(a, n)}{why}" for n, why in a.assumed.items()]))
    blocks.append(("What this cannot know", list(LIMITS)))
    title = f"Risk of a cache-driven trap: {a.name}"
    return "\n\n".join([title, *("\n".join([head, *map(_wrapped, lines)]) for head, lines in blocks)])


def _wrapped(line: str) -> str:
    return textwrap.fill(line, WIDTH, initial_indent="  ", subsequent_indent="    ")


def _first_limit(a: Assessment) -> list[str]:
    if a.first_limit is None:
        return ["unknown: the fraction of sessions in service is needed to say when decode memory fills"]
    how = "peak departures under the cache over the decode bound" if a.by_service_rates else "cliff over full decode"
    meaning = {
        "cache": "The cache fails before decode is full: a surge can leave the engine trapped.",
        "decode memory": "Decode fills before the cache fails: overload queues, and the cliff lies behind it.",
    }[a.first_limit]
    return [f"{a.first_limit} (ratio {a.ratio:.2f}: {how}; below 1, the cache comes first)", meaning]


def _cliff(a: Assessment) -> list[str]:
    lines = [f"about {a.cliff_sessions:.0f} active sessions, a working set of {_tokens(a.cliff_tokens)}"]
    if a.decode_sessions is not None:
        lines.append(f"decode memory would be full at about {a.decode_sessions:.0f} active sessions")
    return lines


def _departures(a: Assessment) -> list[str]:
    assert a.low_reuse_per_min is not None
    if a.peak_sessions is None:
        return [f"at most {a.peak_per_min:.3g} sessions/min, and they do not fall at larger populations"]
    return [
        f"at most {a.peak_per_min:.3g} sessions/min, with {a.peak_sessions:.0f} active sessions",
        f"down to {a.low_reuse_per_min:.3g} sessions/min once the cache has collapsed",
    ]


def _load(a: Assessment, load: Load) -> list[str]:
    head = f"{load.sessions_per_min:.3g} sessions/min: "
    if load.state == "overloaded":
        return [head + "above what the engine can serve at its best; sessions pile up without any surge"]
    settles = f"settles at about {load.stable_sessions:.0f} active sessions"
    if load.state == "cannot fall":
        return [head + settles, "no tipping point: prefill keeps up even when everything is recomputed"]
    if load.state == "recovers":
        return [head + settles, "no tipping point: even a collapsed engine serves more than arrives, so a surge drains"]
    rows = [f"  {m:>3} min   x{f:.2f}" for m, f in load.surges.items() if f <= SHOWN_FACTOR]
    return [
        head + settles,
        f"tips beyond about {load.tipping_sessions:.0f} active sessions; from there on they only pile up",
        "smallest surge that reaches it (arrivals over the present load):",
        *rows,
    ]


def _drain(a: Assessment, load: Load) -> list[str]:
    low = a.low_reuse_per_min
    assert low is not None
    if load.state == "cannot fall":
        return ["nothing to drain: reuse does not decide departures here"]
    if load.state == "recovers":
        return [f"arrivals are below the {low:.3g} sessions/min of a collapsed engine already"]
    return [
        f"arrivals below {low:.3g} sessions/min, {low / load.sessions_per_min:.0%} of the present load",
        f"at half of that, 100 sessions too many take about {100 / (low / 2):.0f} min to leave",
    ]


def _value(a: Assessment, name: str) -> str:
    holder: Any = a.model.hits if a.model and name in type(a.model.hits).model_fields else a.model
    value = getattr(holder, name, None)
    return "" if value is None else f"{value:.4g}, "


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _tokens(n: float) -> str:
    return f"{n / 1e6:.2f}M tokens" if n >= 1e6 else f"{n / 1e3:.0f}K tokens"
