"""What paper B's experiments show, in words: every number and every judgement is computed from the runs."""

import numpy as np

from artifact.metrics import NotObserved, paired_test, share_interval
from artifact.reproduce.colocated import collapsed, degraded, matched
from artifact.reproduce.compare import Runs
from artifact.reproduce.evaluate.colocated_pairs import BURST_END_S
from artifact.reproduce.evaluate.colocated_recovery import recovered
from artifact.reproduce.findings import obtained, value
from artifact.reproduce.plots.colocated import CONTROLLER
from artifact.reproduce.scenarios_colocated import CONTROL_32B_S, CONTROL_S, RECOVERY_ARMS, TRACE_ARMS, light_cap


def burst_findings(runs: Runs) -> str:
    """Figure 1: arms `pairs/*`, `idle/*`."""
    return "\n".join(
        [
            "- **Same load, different fate.** A twin without the burst keeps a hit ratio of "
            f"{value('B-hit-healthy', runs)} and {value('B-sessions-healthy', runs)} sessions in the system. A run "
            f"that degrades ends at a hit ratio of {value('B-hit-degraded', runs)}, {value('B-throughput', runs)} "
            f"turns/s and {value('B-backlog', runs)} sessions.",
            f"- **Why a miss is so expensive.** Prefill of a mid-session turn takes (seconds): "
            f"{value('B-turn-cost', runs)}. Speeds in tokens/s: {value('B-rates', runs)}.",
            "",
            _fate(runs),
        ]
    )


def _fate(runs: Runs) -> str:
    pairs = matched(runs["pairs/burst"], runs["pairs/none"])
    found = paired_test(*([degraded(run, BURST_END_S) for run in arm] for arm in zip(*pairs, strict=True)))
    if not found.first_only:
        return "**In no pair** does the burst decide: these loads do not show history dependence."
    return (
        f"**In {found.first_only} of {len(pairs)} pairs only the run with the burst stays degraded**, for the rest of "
        f"the run, at arrivals that its twin serves. Only the twin does in {found.second_only}."
    )


def pairs_findings(runs: Runs) -> str:
    """Table 2: arms `pairs/*` and `recovery/none`."""
    pairs = matched(runs["pairs/burst"], runs["pairs/none"])
    found = paired_test(*([degraded(run, BURST_END_S) for run in arm] for arm in zip(*pairs, strict=True)))
    low, high = share_interval(found.first_only + found.both, len(pairs))
    word = "is unlikely to be chance" if found.p < 0.05 else "could be chance with so few pairs"
    return "\n".join(
        [
            f"Of {len(pairs)} pairs, only the burst run degrades in {found.first_only}, only the twin in "
            f"{found.second_only}, both in {found.both}, neither in {found.neither}. Two-sided sign test over the "
            f"discordant pairs: p = {found.p:.3g}, so the burst's part in it {word}. The share of burst runs that "
            f"degrade lies within {low:.2f} to {high:.2f} (exact 95% interval).",
            "",
            f"- The degraded engine is busy, not stalled: {value('B-engine-busy', runs)}; of its turns "
            f"{value('B-miss-share', runs)} miss.",
            f"- In {value('B-burst-gone', runs)} of the degraded runs (share) all injected sessions have ended; "
            "there it is not they that hold the engine.",
            f"- Burst size alone decides: {_not(obtained('B-trigger-state', runs))}.",
        ]
    )


def controls_findings(runs: Runs) -> str:
    """Controls of §3: arms `nocache/*`, `cap/burst`, `quiet/none`, `flush/*`."""
    quiet = "**there is no second regime without a cache**, only work to catch up on"
    return "\n".join(
        [
            f"- **No cache.** The same burst raises the backlog to {value('B-nocache-backlog', runs)} sessions; a "
            f"proportional one leaves {value('B-nocache-small', runs)} at the end. "
            + _if(obtained("B-nocache", runs), f"Every run drains: {quiet}.", "**Not every run drains.**"),
            f"- **A cap that fits the pool.** {value('B-cap-prevents', runs)} of ten burst runs degrade.",
            f"- **No burst at 0.04/s.** A share of {value('B-quiet-04', runs)} stays healthy for half an hour.",
            f"- **A cache flush alone**, without any extra load, degrades a share of {value('B-flush-share', runs)}.",
        ]
    )


def traces_findings(runs: Runs) -> str:
    """Figure 2: arms `traces/*`, `32b03/quiet`, `32b03/none`."""
    return "\n".join(
        [
            f"- **0.025/s.** Of four burst and four quiet runs: {value('B-32b-025', runs)}.",
            f"- **0.03/s.** With and without a burst: {value('B-32b-03', runs)}. The quiet runs degrade in minute "
            f"{value('B-32b-03-onset', runs)}.",
            "",
            _if(
                _all_degraded(obtained("B-32b-03", runs)),
                "**0.03/s is beyond the healthy side of this engine**: it serves only to study recovery.",
                "**At 0.03/s not every run degrades here**: this engine stands the load better than the published one.",
            ),
        ]
    )


def sglang_findings(runs: Runs) -> str:
    """Figure 3: arms `sglang/*`, `small/none`."""
    return "\n".join(
        [
            "What the model of SGLang changes: prompts are computed in steps of their own before decoding goes on, "
            "admission keeps room for a share of the outputs still to come, and a flush waits until nothing runs.",
            "",
            f"- **2x for two minutes** collapses (share): {value('B-vllm-small', runs)}.",
            f"- **+1.5λ for five or ten minutes**: {value('B-sglang-large', runs)}.",
            f"- **Pairs as on vLLM**, of four: {value('B-sglang-pairs', runs)}.",
            f"- **After a flush** a share of {value('B-sglang-flush', runs)} recovers.",
            "",
            _if(
                obtained("B-sglang", runs),
                "**Engine design moves the threshold, the failure stays**: the small burst is absorbed, the large ones "
                "collapse every run.",
                "**The published threshold is not met in every run.**",
            ),
        ]
    )


def loop_findings(runs: Runs) -> str:
    """Figure 4 and the drain condition: arms `pairs/*`, `nocache/*`, `drain/*`."""
    return "\n".join(
        [
            f"- **The loop.** Demand over the pool: {value('B-demand', runs)}. Recomputed prompt tokens/s: "
            f"{value('B-recompute', runs)}. The pool holds N* = {value('B-nstar', runs)} sessions.",
            f"- **Cost of a cold turn**, from cache-off runs: {value('B-cost', runs)}; from the misses of degraded "
            f"runs: {value('B-cost-alt', runs)}. Turns/s without a cache {value('B-throughput-nocache', runs)}, "
            f"degraded with one {value('B-throughput', runs)}.",
            f"- **Drift of the remaining cold work** (engine-s/h) by arrivals: {value('B-drain-sign', runs)}.",
            "",
            _bracket(runs),
        ]
    )


def _bracket(runs: Runs) -> str:
    measured, cost = obtained("B-drain", runs), obtained("B-cost", runs)
    if measured is None or cost is None:
        return "The runs give no break-even."
    return (
        f"**The degraded regime drains below {measured:.4f} sessions/s**; the workload balance 1/S says "
        f"{1 / cost['S_engine_s']:.4f}."
    )


def recovery_findings(runs: Runs) -> str:
    """Figure 5 and Table 3: arms `recovery/*`."""
    try:
        lines = [_share_line(arm, runs) for arm in RECOVERY_ARMS]
        budgeter, admission = (recovered(runs[f"recovery/{arm}"]) for arm in ("budgeter", "admission"))
    except NotObserved as reason:
        return f"Not evaluated: {reason}."
    test = paired_test(budgeter, admission)
    return "\n".join(
        [
            *lines,
            "",
            f"Minutes to recover, of those that do so later: {value('B-recover-slow', runs)}; with the cap "
            f"{value('B-recover-cap', runs)}. Completed share of the next 20 minutes' sessions: "
            f"{value('B-recover-cohort', runs)}.",
            "",
            f"**Suspending admitted sessions against throttling new ones**: on the same {len(budgeter)} states only "
            f"the budgeter recovers {test.first_only}, only the admission cap {test.second_only} (exact paired "
            f"p = {test.p:.3g}).",
        ]
    )


def _share_line(arm: str, runs: Runs) -> str:
    flags = recovered(runs[f"recovery/{arm}"])
    low, high = share_interval(sum(flags), len(flags))
    label = CONTROLLER[arm].label
    return f"- **{label}** recovers {sum(flags)} of {len(flags)} (exact 95% interval {low:.2f} to {high:.2f})."


def thresholds_findings(runs: Runs) -> str:
    """§6's sensitivity and what follows a recovery: arms `recovery/budgeter`, `recovery/low`, `recovery/high`."""
    return "\n".join(
        [
            f"- Collapsed engines start control from: {value('B-start-state', runs)}.",
            f"- Turns/s after recovery: {value('B-thresholds-rate', runs)}. The highest makes a capacity of "
            f"{value('B-capacity', runs)}.",
            f"- Nobody waits at the gateway any more after {value('B-drain-time', runs)} min.",
            "",
            _if(
                obtained("B-thresholds", runs),
                "**The thresholds do not need tuning here**: both other pairs recover every run as the default does.",
                "**The thresholds matter here**: not every run recovers as with the default.",
            ),
        ]
    )


def mix_findings(runs: Runs) -> str:
    """Figure 6: arms `mix/*`."""
    return "\n".join(
        [
            f"- Share of runs that collapse after the shift: {value('B-mix-collapse', runs)}.",
            f"- First turns wait before it (p90, min): {value('B-mix-wait', runs)}.",
            "",
            _if(
                obtained("B-mix", runs),
                "**No fixed count fits both mixes**: what is loose enough for the short sessions collapses under the "
                "long ones. The budgeter and the adaptive cap need no tuning.",
                "**The published trade-off of a fixed cap does not show in every run.**",
            ),
        ]
    )


def trace_recovery_findings(runs: Runs) -> str:
    """Figure 7: arms `32b03/*`, `32b025/*`."""
    counts = {arm: _counted(runs, arm) for arm in TRACE_ARMS[1:]}
    said = ", ".join(f"{CONTROLLER[arm].label} {count}" for arm, count in counts.items())
    return "\n".join(
        [
            f"The session cap is K = {light_cap()}, from a lighter load's sessions.",
            "",
            f"- **0.03/s**, collapsed runs recovered: {said}.",
            f"- **0.025/s after a stronger burst**: end hit ratios {value('B-32b-long-hit', runs)}; completed share of "
            f"the next 20 minutes' sessions {value('B-32b-long-cohort', runs)}; sessions "
            f"{value('B-32b-long-queue', runs)}.",
            "",
            _growth(runs),
        ]
    )


def _counted(runs: Runs, arm: str) -> str:
    try:
        flags = recovered(runs[f"32b03/{arm}"], CONTROL_32B_S)
    except NotObserved:
        return "none collapsed"
    return f"{sum(flags)} of {len(flags)}"


def _growth(runs: Runs) -> str:
    found = obtained("B-32b-long-queue", runs)
    if found is None:
        return "No run at 0.025/s was collapsed when control began."
    if found["growth_per_10min"][0] > 0:
        return (
            "**The queue does not drain**: controllers restore the engine's efficiency, not capacity that is not there."
        )
    return "**The queue drains in some runs here**, other than in the published ones."


def users_findings(runs: Runs) -> str:
    """Figure 8: arms `recovery/*`, `32b03/*`."""
    collapsed_8b = len(collapsed(runs["recovery/none"], CONTROL_S)) if runs["recovery/none"] else 0
    return "\n".join(
        [
            f"Sessions arriving in the 20 minutes after control began, of {collapsed_8b} collapsed 8B runs:",
            "",
            f"- Median minutes from arrival to completion: {value('B-latency', runs)}; {value('B-latency-p90', runs)}.",
            f"- Never completed (share): {value('B-unfinished', runs)}.",
            f"- On 32B, completed by minute 90: {value('B-users-32b', runs)}.",
            "",
            _delay(runs),
        ]
    )


def _delay(runs: Runs) -> str:
    found = obtained("B-latency", runs)
    if found is None:
        return "The runs do not tell what waiting costs."
    factor = found["budgeter"] / found["never_collapsed"]
    return f"**Parking is not free**: the median session takes {factor:.1f} times as long as where nothing collapsed."


def prevention_findings(runs: Runs) -> str:
    """Prevention and offload (§6): arms `small|flush|traces/budgeter`, `offload*`, `pairs/burst`."""
    return "\n".join(
        [
            f"- **Budgeter from the start**: {value('B-prevent', runs)} collapses, whatever the trigger.",
            f"- **Host tier**: a share of {value('B-offload', runs)} of the burst runs degrades; "
            f"{value('B-offload-state', runs)}. First degraded window, minute: {value('B-offload-onset', runs)}.",
            f"- **Host tier at 0.04/s**, collapsed of three: {value('B-offload-prevent', runs)}.",
            "",
            _later(obtained("B-offload-onset", runs)),
        ]
    )


def _later(found: dict[str, list[float]] | None) -> str:
    if found is None:
        return "With the host tier no run degrades, so there is no onset to compare."
    delay = np.mean(found["host"]) - np.mean(found["none"])
    return f"**A host tier delays the collapse** by {delay:.0f} min (middle of the ranges), it does not remove it."


def _if(holds: bool | None, yes: str, no: str) -> str:
    return "The runs cannot tell." if holds is None else yes if holds else no


def _not(holds: bool | None) -> str:
    return "the runs cannot tell" if holds is None else "no" if holds else "yes, in these runs"


def _all_degraded(found: dict[str, object] | None) -> bool | None:
    return None if found is None else found["degraded"] == 1.0
