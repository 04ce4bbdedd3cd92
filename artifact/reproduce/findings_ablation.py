"""What taking Basin apart shows, in words: every number and every judgement is computed from the runs."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from artifact.records.schema import Records
from artifact.reproduce.compare import done, good, state
from artifact.reproduce.evaluate.policy_recovery import FEW_SESSIONS, drained_after_min
from artifact.reproduce.evaluate.sensitivity import CLOSE, changes
from artifact.reproduce.findings_sweeps import medians, seeds_said
from artifact.reproduce.registry import over_seeds
from artifact.reproduce.render import text
from artifact.reproduce.scenarios_ablation import (
    CLIFFS,
    LATE_MIN,
    PARAMETERS,
    PRIORITY_ONLY,
    REMOVED,
    SENSITIVE,
    TRUE_PEAKS,
)
from artifact.reproduce.summaries import Summary, frame

Summaries = Mapping[str, Sequence[Summary]]


def switch_findings(runs: Mapping[str, Sequence[Records]]) -> str:
    """Figure 21."""
    lines = [f"Switched on at minute {LATE_MIN:g}, medians over {_seeds(runs['late/basin'])}:", ""]
    for name, seeds in runs.items():
        if name.startswith("late/"):
            minutes = over_seeds([drained_after_min(run) for run in seeds])
            when = f"after {minutes:.0f} min" if np.isfinite(minutes) else "not within the run"
            lines.append(
                f"- `{name.split('/')[1]}`: {over_seeds([good(run) for run in seeds]):.0f} sessions/h, "
                f"{over_seeds([done(run) for run in seeds]):.3f} completed, at most {FEW_SESSIONS} sessions present "
                f"{when}; {over_seeds([state(run) for run in seeds])}."
            )
    leads = over_seeds([good(a) - good(b) for a, b in zip(runs["late/basin"], runs["1p3d/basin"], strict=True)])
    return "\n".join([*lines, "", f"Basin switched on late has {-leads:.0f} sessions/h less than from the start."])


def after_findings(runs: Summaries) -> str:
    """Figure 22."""
    found = frame(runs)
    lines = [seeds_said(found), ""]
    parts = found["setting"].str.rsplit("-", n=1).str[0]
    for part, here in found.groupby(parts, sort=False):
        goodput = here.pivot_table(index="setting", columns="policy", values="goodput", aggfunc="median", sort=False)
        waits = medians(here, ["policy"], "wait_p90_s")
        over = {
            policy: goodput["basin"] / goodput[policy]
            for policy in goodput
            if policy not in ("basin", PRIORITY_ONLY) and (goodput[policy] > 0).all()
        }
        said = ", ".join(f"{o.min():.2f} to {o.max():.2f} times `{policy}`" for policy, o in over.items())
        only = goodput[PRIORITY_ONLY] / goodput["continuum"]
        lines.append(
            f"- **{part}**: over the later rates Basin has {said}; the priority alone has {only.min():.2f} to "
            f"{only.max():.2f} of Continuum. Median of the p90 waits over the rates: "
            + ", ".join(f"`{policy}` {text(float(wait))} s" for policy, wait in waits.items())
            + "."
        )
    return "\n".join(lines)


def ablation_findings(runs: Summaries) -> str:
    """Figure 23."""
    found = frame(runs)
    goodput = medians(found, ["setting", "policy"], "goodput").unstack(sort=False)
    share = goodput.div(goodput["basin"], axis=0)
    lines = [seeds_said(found), ""]
    for variant in (name for name in share if name != "basin"):
        kept = share[variant].dropna()
        each = ", ".join(f"{setting} {value:.2f}" for setting, value in kept.items())
        lines.append(f"- `{variant}` keeps {kept.min():.2f} to {kept.max():.2f} of Basin's goodput: {each}.")
    better = [
        f"`{variant}` in {setting} ({value:.2f})"
        for variant in REMOVED
        for setting, value in share[variant].dropna().items()
        if value > 1 + CLOSE
    ]
    words = f"Removing one gains more than {CLOSE:.0%} here: {', '.join(better)}." if better else (
        f"**Removing a mechanism never gains more than {CLOSE:.0%}.**")  # fmt: skip
    return "\n".join([*lines, "", words])


def sensitivity_findings(runs: Summaries) -> str:
    """Figure 24."""
    change = changes(runs)
    triggers = [name for name in SENSITIVE if f"{name}/interval_s:low" in runs]
    variants = [name for name in PARAMETERS if all(f"{t}/{name}" in runs for t in triggers)]
    own = pd.DataFrame({t: {v: change(v, t) for v in variants} for t in triggers})
    close = float((own.sub(1).abs() <= CLOSE).to_numpy().mean())
    lines = [
        f"{len(own)} variants, {len(triggers)} triggers, {_seeds(runs[f'{triggers[0]}/basin'])}: {close:.0%} of the "
        f"pairs stay within {CLOSE:.0%} of the default's goodput, all within {own.min().min():.2f} to "
        f"{own.max().max():.2f} of it.",
        "",
    ]
    far = own.sub(1).abs().max(axis=1).sort_values(ascending=False)
    for name in far.index[:8]:
        lines.append(f"- `{name}`: " + ", ".join(f"{t} {own.loc[name, t]:.2f}" for t in triggers) + ".")
    for name in CLIFFS:
        each = {t: change(name, t) for t in SENSITIVE if f"{t}/{name}" in runs}
        if each:
            lines.append(f"- `{name}`: " + ", ".join(f"{t} {value:.3f}" for t, value in each.items()) + ".")
    lines += ["", "Other estimates of peak contexts, goodput over the predictor's:"]
    arms = {name.split("/")[1] for name in runs} - {"basin", *PARAMETERS, *CLIFFS}
    for variant in sorted(arms):
        each = {t: change(variant, t) for t in SENSITIVE if f"{t}/{variant}" in runs}
        lines.append(f"- `{variant}`: " + ", ".join(f"{t} {value:.2f}" for t, value in each.items()) + ".")
    true = [change(TRUE_PEAKS, t) for t in SENSITIVE if f"{t}/{TRUE_PEAKS}" in runs]
    gain = "**Exact peaks would gain in every trigger.**" if min(true) > 1 else (
        f"Exact peaks do not gain in {sum(value <= 1 for value in true)} of {len(true)}.")  # fmt: skip
    return "\n".join([*lines, "", gain])


def _seeds(arm: Sequence[object]) -> str:
    return f"{len(arm)} seed{'s' if len(arm) > 1 else ''}"
