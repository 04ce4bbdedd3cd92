"""What the comparisons of systems show, in words: every number and every judgement is computed from the runs."""

from collections import Counter
from collections.abc import Mapping, Sequence

import pandas as pd

from artifact.metrics import EndState
from artifact.records.schema import Records
from artifact.reproduce.claims import load_claims
from artifact.reproduce.compare import Runs, ratio, table
from artifact.reproduce.evaluate.hardware_prototype import drained_min
from artifact.reproduce.registry import over_seeds
from artifact.reproduce.render import text
from artifact.reproduce.scenarios_policies import HARDWARE, OUTPUTS3, PROTOTYPE, SIX, SIZES, Setting, arm


def six_findings(runs: Runs) -> str:
    """Figure 14."""
    return _comparison(runs, SIX, "basin", ("wait_p90_s", "slowdown", "over_itl"))


def hardware_findings(runs: Runs) -> str:
    """Figure 12."""
    return _comparison(runs, HARDWARE, PROTOTYPE, ("completed", "wait_p50_s", "over_itl"))


def sizes_findings(runs: Runs) -> str:
    """Figure 16."""
    return _comparison(runs, SIZES, "basin", ("completed", "over_itl"))


def outputs_findings(runs: Runs) -> str:
    """Figure 15."""
    return _comparison(runs, OUTPUTS3, "basin", ("wait_p90_s", "slowdown", "over_itl"))


def surge_findings(runs: Runs) -> str:
    """Figure 13: when each system's new sessions no longer wait."""
    lines = []
    for name, seeds in runs.items():
        minute = over_seeds([drained_min(run) for run in seeds])
        when = f"from minute {minute:.0f} on" if minute < float("inf") else "not before the run's end"
        lines.append(f"- `{name}`: new sessions wait under 10 s (median of a 5-minute bin) {when}.")
    return "\n".join(lines)


def _comparison(runs: Runs, settings: Mapping[str, Setting], ours: str, more: Sequence[str]) -> str:
    found = table(runs)
    medians = found.groupby(["setting", "policy"])[["goodput", *more]].median()
    lines = [_count(found), ""]
    leads = {}
    for setting in settings:
        here = medians[medians.index.get_level_values("setting") == setting].droplevel("setting")
        rows = {str(policy): row for policy, row in here.iterrows()}
        goodput = {policy: float(row["goodput"]) for policy, row in rows.items()}
        rival = max((policy for policy in rows if policy != ours), key=goodput.__getitem__)
        leads[setting] = ratio(goodput[ours], goodput[rival])
        offered = _offered(runs[arm(setting, ours)][0], settings[setting], PUBLISHED_CRITICAL.get(setting))
        lines.append(
            f"- **{' '.join((setting, SETTING_NOTE.get(setting, ''))).strip()}**{offered}: `{ours}` "
            f"{goodput[ours]:.0f} sessions/h{_more(rows[ours], more)}; best of the others `{rival}` "
            f"{goodput[rival]:.0f}{_more(rows[rival], more)}: {text(leads[setting])} times. "
            f"Trapped: {_trapped(found[found['setting'] == setting])}."
        )
    return "\n".join([*lines, "", _verdict(ours, leads)])


SETTING_NOTE = {"1p3d": "(default)", "swe": "(SWE-bench Pro)", "out3": "(outputs ×3)"}
PUBLISHED_CRITICAL = {"1p3d": "A-lc-1p3d", "out3": "A-lc-out3"}
"""Claims of the critical rates that the paper gives."""
NAMES = {
    "wait_p50_s": ("median first-call wait", "s"),
    "wait_p90_s": ("p90 first-call wait", "s"),
    "slowdown": ("median slowdown", ""),
    "completed": ("completed", ""),
    "over_itl": ("over the ITL allowance", ""),
}


def _offered(run: Records, setting: Setting, claim_id: str | None) -> str:
    """The base load, beside what the published critical rate would make of it."""
    rate = run.meta.get("scenario", {}).get("load", {}).get("rate_per_min")
    if not rate:
        return ""
    published = f" (published: {setting.share * load_claims()[claim_id].expect:g})" if claim_id else ""
    return f", from {rate:g} sessions/min{published}"


def _more(row: pd.Series, names: Sequence[str]) -> str:
    said = (f"{NAMES[name][0]} {text(float(row[name]))} {NAMES[name][1]}".strip() for name in names)
    return f" ({', '.join(said)})"


def _trapped(found: pd.DataFrame) -> str:
    counts = Counter(found.loc[found["state"] == EndState.TRAPPED, "policy"])
    each = found.groupby("policy").size()
    return ", ".join(f"`{policy}` {count} of {each[policy]}" for policy, count in counts.items()) or "none"


def _verdict(ours: str, leads: Mapping[str, float]) -> str:
    behind = [setting for setting, lead in leads.items() if not lead >= 1]
    if not behind:
        low, high = min(leads.values()), max(leads.values())
        return f"**Nothing beats `{ours}` in any of these {len(leads)}**: {low:.2f} to {high:.2f} times the best other."
    where = ", ".join(f"{setting} ({leads[setting]:.2f})" for setting in behind)
    return f"**`{ours}` is beaten in {len(behind)} of {len(leads)}**: {where}."


def _count(found: pd.DataFrame) -> str:
    seeds = found["seed"].nunique()
    return f"Medians over {seeds} seeds; trapped by number of seeds." if seeds > 1 else "One seed."
