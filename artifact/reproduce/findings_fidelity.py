"""What the comparison with hardware shows, in words: every number and every judgement is computed from its rows."""

import pandas as pd

from artifact.reproduce.claims import load_claims
from artifact.reproduce.compare import Runs
from artifact.reproduce.evaluate.fidelity import TRANSFERRED, mean, off, per_token
from artifact.reproduce.fidelity import by_role, label, percent
from artifact.reproduce.render import text
from artifact.reproduce.scenarios_policies import PROTOTYPE, arm

GOODPUT = "sessions/h"


def fidelity_findings(rows: pd.DataFrame, said: pd.DataFrame) -> str:
    """Calibration and validation of each paper apart, with the worst row of each; then goodput alone, and words."""
    if rows.empty:
        return "**Nothing to compare**: no published hardware figure has been simulated."
    lines = []
    summary = by_role(rows)
    for _, one in summary[summary["group"] == "all"].iterrows():
        worst = _row(rows, one["worst"])
        which = f"{str(one['role']).capitalize()}, paper {one['paper']}"
        lines.append(
            f"- **{which}, {one['rows']} numbers.** {one['within']:.0%} lie within tolerance. "
            f"The median error is {size(one['median'])}, nine in ten are at most {size(one['p90'])}. "
            f"Worst is `{one['worst']}`: {text(worst['obtained'])} {worst['unit']} for {text(worst['published'])} "
            f"({percent(one['error'])})."
        )
    goodput = rows[rows["unit"] == GOODPUT]
    if len(goodput):
        each = ", ".join(f"`{label(row)}` {percent(row['error'])}" for _, row in goodput.iterrows())
        lines.append(f"- **Goodput**, which the paper's own errors are of: {each}.")
    if len(said):
        kept = int((said["verdict"] == "reproduced").sum())
        broken = ", ".join(f"`{claim}`" for claim in said.loc[said["verdict"] != "reproduced", "claim"]) or "none"
        lines.append(f"- **In words** (end states, orderings): {kept} of {len(said)} hold; not so: {broken}.")
    return "\n".join(lines)


def size(error: float) -> str:
    """An error without its sign."""
    return percent(error).lstrip("+-")


def _row(rows: pd.DataFrame, name: str) -> "pd.Series":
    return next(row for _, row in rows.iterrows() if label(row) == name)


def transfer_findings(runs: Runs) -> str:
    """What charging transfers by the token changes, in each scenario that was run with it."""
    lines, changes = [], []
    for setting in TRANSFERRED:
        fixed, charged = runs.get(arm(setting, PROTOTYPE)), runs.get(arm(per_token(setting), PROTOTYPE))
        if not fixed or not charged:
            continue
        changes.append(off(mean(charged), mean(fixed)))
        each = ", ".join(f"{off(mean([b]), mean([a])):+.1%}" for a, b in zip(fixed, charged, strict=True))
        lines.append(
            f"- `{setting}`: {mean(fixed):.0f} sessions/h with the fixed charge, {mean(charged):.0f} by the token "
            f"({changes[-1]:+.1%}; by seed {each})."
        )
    if not changes:
        return "**Not evaluated**: no runs with transfers charged by the token."
    published = load_claims()["A-fid-transfer"].expect[1]
    verdict = f"**The charge changes the prototype's goodput by at most {max(map(abs, changes)):.1%}**"
    return "\n".join([*lines, "", f"{verdict} (published: {published:.1%})."])
