"""What the figures show, in words: every number and every judgement is computed from the runs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from artifact.metrics import EndState, NotObserved, end_state
from artifact.records.schema import Records
from artifact.reproduce.evaluate.trap_h100 import FOLLOWING_HOUR, hit_base
from artifact.reproduce.registry import evaluate, evaluators, over_seeds
from artifact.reproduce.render import text
from artifact.workload.stats import WorkloadStats

Runs = Mapping[str, Sequence[Records]]

UNKNOWN = "not observed"
SATURATED = 0.9
"""Ours: share of prefill capacity from which the words call it saturated."""


def workload_findings(stats: WorkloadStats) -> str:
    """Why the sessions depend on their prefixes (Figure 3)."""
    return (
        f"A session makes {stats.calls_per_session_mean:.0f} calls on average. The median call sends "
        f"{stats.prompt_p50 / 1000:.1f}K tokens, {stats.repeat_share:.1%} of a returning call's prompt was there "
        f"before, and the median returning call adds {stats.new_p50:,.0f} tokens: finding the prefix cached saves up "
        f"to {stats.reuse_gain:.0f}x of its prefill. For that the prefix has to outlast the gap before the call: "
        f"{stats.gap_p50_s:.2g} s at the median, {stats.gap_mean_s:.1f} s in the mean."
    )


def trap_findings(runs: Runs) -> str:
    """Figure 4: arms `none`, `plus33`, `plus100`."""
    hit_none = text(over_seeds([hit_base(run) for run in runs["none"]]))
    hour = "-".join(f"{bound / 60:.0f}" for bound in FOLLOWING_HOUR)
    return "\n".join(
        [
            _seeds(runs),
            "",
            f"- **No surge.** Median TTFT {value('A-trap-ttft-base', runs)} s, hit rate {hit_none} in minutes 5-15, "
            f"prefill at {value('A-trap-util-base', runs)} of its saturated throughput. "
            f"End states: {_states(runs['none'])}.",
            f"- **+33%.** Back within the no-surge band {_minutes('A-trap-33-recovers', runs)}. "
            f"End states: {_states(runs['plus33'])}.",
            f"- **+100%.** From minute 60 on the median TTFT is {value('A-trap-ttft', runs)} s and the hit rate "
            f"{value('A-trap-hit', runs)}; from minute 25 on {value('A-trap-calls', runs)} times as many calls "
            f"complete as without the surge. Sessions arriving in minutes {hour} achieve a goodput of "
            f"{value('A-trap-goodput-hour', runs)} sessions/h against {value('A-trap-goodput-ctrl', runs)}. "
            f"End states: {_states(runs['plus100'])}.",
            "",
            _trap_verdict(_labels(runs["none"]), _labels(runs["plus100"])),
        ]
    )


def _trap_verdict(control: list[str], surged: list[str]) -> str:
    if UNKNOWN in control + surged:
        return "The runs end too early for an end state (paper A §7.1), so they cannot tell a trap."
    if 2 * control.count(EndState.HEALTHY) <= len(control):
        return (
            "**The engine does not stay healthy at this load even without a surge.** What follows a surge cannot be "
            "told from that; choose a lower `rate_per_min` to look for a trap."
        )
    trapped = surged.count(EndState.TRAPPED)
    if not trapped:
        return "**No trap at this load**: in no seed is the engine trapped after +100%."
    return (
        f"**In {trapped} of {len(surged)} seeds the engine is trapped** by a surge that has long ended, at arrivals "
        "that it serves without the surge: the failure outlives its trigger."
    )


def residual_findings(runs: Runs) -> str:
    """Figure 5: arms `none`, `burst`, `burst_ended`."""
    return "\n".join(
        [
            _seeds(runs),
            "",
            f"- **At minute 25** {value('A-kill-active', runs)} sessions are active, "
            f"{value('A-kill-burst-left', runs)} of them the burst's, and the 2-minute median TTFT is "
            f"{value('A-kill-ttft', runs)} s.",
            f"- **Burst sessions ended.** Back within the no-burst band {_minutes('A-kill-recovers', runs)}. "
            f"End states: {_states(runs['burst_ended'])}.",
            f"- **Left in place.** The last burst session leaves {value('A-kill-stay', runs)} min after minute 25. "
            f"Active base sessions are {value('A-kill-base-50', runs)} times those without a burst at minute 50 and "
            f"{value('A-kill-base-90', runs)} times at minute 90. End states: {_states(runs['burst'])}.",
            "",
            _residual_verdict(_labels(runs["burst"]), _labels(runs["burst_ended"])),
        ]
    )


def _residual_verdict(left: list[str], ended: list[str]) -> str:
    if UNKNOWN in left + ended:
        return "The runs end too early for an end state (paper A §7.1)."
    both = sum(a == EndState.TRAPPED and b == EndState.HEALTHY for a, b in zip(left, ended, strict=True))
    if not both:
        return "**In no seed** does ending the residual sessions separate a trapped run from a healthy one."
    return (
        f"**In {both} of {len(left)} seeds** ending the residual sessions is what separates a trapped run from a "
        "healthy one. The base arrivals are the same in both, so in these seeds it is the sessions left behind by the "
        "burst that hold the engine in the failure."
    )


def loop_findings(runs: Runs) -> str:
    """Figure 6: all arms of the trap."""
    uncached, capacity = obtained("A-loop-uncached", runs), obtained("A-loop-saturation", runs)
    return "\n".join(
        [
            _seeds(runs),
            "",
            "- **Population.** With the burst left in place, active base sessions are "
            f"{value('A-kill-base-50', runs)} times those without a burst at minute 50 and "
            f"{value('A-kill-base-90', runs)} times at minute 90.",
            f"- **Cliff.** The binned median hit rate falls from {value('A-cliff-shoulder', runs)} to "
            f"{value('A-cliff-floor', runs)}, most steeply at W/C = {value('A-cliff', runs)}.",
            f"- **Recomputation.** Prefill computes {value('A-loop-uncached-0', runs)} missed tokens/s before the "
            f"surge and {value('A-loop-uncached', runs)} (10th to 90th percentile of the windows) from minute 60 on, "
            f"+100%. {_saturation(uncached, capacity)}",
            f"- **Decode memory.** From minute 60 on {value('A-loop-kv-full', runs)} of decode KV is in use, "
            f"{value('A-loop-kv-idle', runs)} by calls that are not decoding; {value('A-loop-decoding', runs)} times "
            f"as many calls decode as without the surge, and a call waits {value('A-loop-resv-wait', runs)} s for its "
            "reservation.",
        ]
    )


def _saturation(uncached: Any, capacity: Any) -> str:
    if uncached is None or capacity is None:
        return ""
    share = uncached[0] / capacity
    word = "is saturated" if share >= SATURATED else "is not always saturated"
    return f"That is at least {share:.0%} of the {capacity:,.0f} tokens/s it computes while busy: prefill {word}."


# Words for values --------------------------------------------------------------------------------------------------


def obtained(claim_id: str, runs: Runs) -> Any:
    """What a claim is judged on; None where the runs cannot tell."""
    try:
        found = evaluate(evaluators()[claim_id], runs).obtained
    except NotObserved:
        return None
    return None if _undefined(found) else found


def _undefined(found: Any) -> bool:
    entries = found.values() if isinstance(found, dict) else [found]
    return any(bool(np.any(np.isnan(entry))) for entry in entries)


def value(claim_id: str, runs: Runs) -> str:
    """The same in words."""
    found = obtained(claim_id, runs)
    return UNKNOWN if found is None else text(found)


def _minutes(claim_id: str, runs: Runs) -> str:
    minutes = obtained(claim_id, runs)
    if minutes is None:
        return UNKNOWN
    return f"after {minutes:.0f} min" if minutes < float("inf") else "not before the run's end in most seeds"


def _labels(seeds: Sequence[Records]) -> list[str]:
    return [_label(run) for run in seeds]


def _label(run: Records) -> str:
    try:
        return str(end_state(run))
    except NotObserved:
        return UNKNOWN


def _states(seeds: Sequence[Records]) -> str:
    return ", ".join(f"{label} {count}" for label, count in Counter(_labels(seeds)).most_common())


def _seeds(runs: Runs) -> str:
    count = len(next(iter(runs.values())))
    return f"Medians over {count} seeds; end states by their number of seeds." if count > 1 else "One seed."
