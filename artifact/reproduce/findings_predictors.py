"""What the predictors' scores and their worth in goodput say, in words: every number is computed from the runs."""

from collections.abc import Sequence
from math import exp

import pandas as pd

from artifact.reproduce.predictors import BY_TASK, GROWING, RIDGE, TRUE_PEAKS, VARIANTS, Foretold, gains, scores_table
from artifact.reproduce.summaries import Summaries


def scores_findings(sets: Sequence[Foretold], refused: Sequence[str]) -> str:
    """What the scores say, set by set, and what could not be scored."""
    table = scores_table(sets)
    lines = []
    for name, rows in table.groupby("set", sort=False):
        by = {(row["predictor"], row["split"]): row for _, row in rows.iterrows()}
        ridge, blend = by[RIDGE, BY_TASK], by[GROWING, BY_TASK]
        word = "better" if blend["rank_correlation"] > ridge["rank_correlation"] else "no better"
        kind, texts = rows["kind"].iloc[0], rows["with_texts"].iloc[0]
        lines.append(
            f"- **{name}** ({kind}; {texts:.0%} of {rows['sessions'].iloc[0]} sessions have a task text): on the same "
            f"folds rank correlation {ridge['rank_correlation']:.2f} by the ridge and {blend['rank_correlation']:.2f} "
            f"with trees beside it, log-error deviation {ridge['log_error_std']:.2f} and {blend['log_error_std']:.2f}: "
            f"{word} at the door."
        )
    lines += [f"- Not scored: {reason}" for reason in refused]
    if all(one.peaks.fitted for one in sets):
        lines.append(
            "- **No recorded set was given**, and none is shipped: what stands here was synthesised to score as "
            "published, so it tells predictors apart but does not show that peaks can be foretold."
        )
    return "\n".join(lines)


def growth_findings(table: pd.DataFrame) -> str:
    """How far following a session takes the error down."""
    lines = []
    for name, rows in table.groupby("set", sort=False):
        at = rows.pivot(index="fifth", columns="predictor", values="error")
        first, late = at.iloc[0], at.loc[at.index[len(at) // 2]]
        lines.append(
            f"- **{name}**: in the first fifth of a session's calls its peak is foretold to within a factor of "
            f"{exp(first['as it grows']):.2f} (kept from the door: {exp(first['at the door, kept']):.2f}), in the "
            f"middle fifth of {exp(late['as it grows']):.2f} ({exp(late['at the door, kept']):.2f})."
        )
    return "\n".join(lines)


def gains_findings(runs: Summaries) -> str:
    """What the better predictor is worth, in paired seeds, beside what exact peaks are."""
    found = gains(runs)
    count = found["seed"].nunique()
    lines = [f"Gains over the ridge with the same arrivals, {count} seed{'s' if count > 1 else ''}."]
    for policy, rows in found.groupby("policy", sort=False):
        states = ", ".join(dict.fromkeys(rows["state"]))
        spread = f" ({rows['gain'].min():.3f} to {rows['gain'].max():.3f})" if count > 1 else ""
        lines.append(
            f"- {VARIANTS[str(policy)]} (`{policy}`): {rows['goodput'].mean():.0f} sessions/h, "
            f"{rows['gain'].mean():.3f} times{spread}; {rows['active'].mean():.0f} sessions active in "
            f"minutes 60-75, p90 wait {rows['wait_p90_s'].mean():.0f} s; {states}."
        )
    return "\n".join([lines[0], "", *lines[1:], "", _verdict(found)])


def _verdict(found: pd.DataFrame) -> str:
    gain = found.groupby("policy")["gain"].agg(["mean", "min", "max"])
    ours, exact = gain.loc["basin-growing-peaks"], gain.loc[TRUE_PEAKS]
    if ours["min"] > 1:
        verdict = f"**Following sessions raises goodput in every seed**, by {ours['mean'] - 1:.1%} in the mean"
    elif ours["max"] < 1:
        verdict = f"**Following sessions lowers goodput in every seed**, by {1 - ours['mean']:.1%} in the mean"
    else:
        verdict = (
            f"**Following sessions makes no difference that all seeds agree on** ({ours['mean'] - 1:+.1%} in the mean)"
        )
    words = f"{verdict}; exact peaks, the most a predictor could be worth here, make {exact['mean'] - 1:+.1%}."
    active = found.groupby("policy")["active"].mean()
    followed, kept = active["basin-growing-peaks"], active["basin-blended-peaks"]
    if ours["max"] < 1 and followed < kept:
        words += (
            f" With predictions that follow the sessions {followed:.0f} are active, with the same ones kept from the "
            f"door {kept:.0f}: what is reserved anew for residents that outgrow their prediction is not there for "
            "others, and the order at the door, which exact peaks improve, stays as it was."
        )
    return words
