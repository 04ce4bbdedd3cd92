"""What the sweeps over policies show, in words: every number and every judgement is computed from the runs."""

from collections import Counter
from collections.abc import Mapping, Sequence

import pandas as pd

from artifact.metrics import EndState
from artifact.reproduce.claims import load_claims
from artifact.reproduce.compare import ratio
from artifact.reproduce.render import text
from artifact.reproduce.scenarios_policies import MINUTE
from artifact.reproduce.scenarios_sweeps import CONTROLS, EVICTIONS, LRU_SURGES, ROUTED, evicting
from artifact.reproduce.summaries import Summary, frame

Runs = Mapping[str, Sequence[Summary]]
COLLAPSED_SHARE = 0.1
"""Ours: of what is offered; a system that serves less has collapsed."""


def steady_findings(runs: Runs) -> str:
    """Figure 17."""
    found = _loads(frame(runs))
    lines = [seeds_said(found), ""]
    for rate, here in found.groupby("x"):
        lines.append(f"- at {rate:g} sessions/min: {_ranked(here)}.")
    basin = medians(found[found["policy"] == "basin"], "x", "goodput")
    alone = medians(found[found["policy"] == "hicache"], "x", "goodput")
    collapsed = ", ".join(f"{x:g}" for x in alone.index[alone < COLLAPSED_SHARE * 60 * alone.index]) or "no load"
    return "\n".join(
        [
            *lines,
            "",
            f"**Basin peaks at {basin.max():.0f} sessions/h, offered {basin.idxmax():g}/min, and serves "
            f"{basin.iloc[-1]:.0f} at {basin.index[-1]:g}.** HiCache serves less than a tenth of what arrives at "
            f"{collapsed}.",
        ]
    )


def bailian_findings(runs: Runs) -> str:
    """Figure 18."""
    found = _loads(frame(runs))
    kind = found["setting"].str.rsplit("-", n=1).str[0]
    lines = [seeds_said(found), ""]
    for name, words in {"coder": "coder arrivals", "a": "trace A", "coder-out3": "coder arrivals, outputs ×3"}.items():
        for rate, here in found[kind == name].groupby("x"):
            lines.append(f"- {words}, {rate:g} sessions/min: {_ranked(here)}.")
    poisson = medians(found[kind == "poisson"], "x", "goodput")
    bursty = medians(found[(kind == "coder") & (found["policy"] == "hicache")], "x", "goodput")
    shared = poisson.index.intersection(bursty.index)
    compared = ", ".join(f"{bursty[x]:.0f} for {poisson[x]:.0f} at {x:g}/min" for x in shared)
    critical = load_claims()["A-lc-1p3d"].expect
    lines += ["", f"HiCache under bursts and, for it, under Poisson arrivals: {compared} sessions/h. "
              f"The published critical rate is {critical:g} sessions/min."]  # fmt: skip
    return "\n".join(lines)


def host_findings(runs: Runs) -> str:
    """Figure 19."""
    found = frame(runs)
    lines = [seeds_said(found), ""]
    for setting, here in found[~found["setting"].str.endswith("-steady")].groupby("setting", sort=False):
        goodput = medians(here, "policy", "goodput")
        others = ", ".join(
            f"{text(ratio(goodput['basin'], float(value)))} times `{policy}`"
            for policy, value in goodput.items()
            if policy != "basin"
        )
        late = medians(here, "policy", "over_itl")
        lines.append(
            f"- **{setting}**: `basin` {goodput['basin']:.0f} sessions/h, {others}; over the ITL allowance "
            + ", ".join(f"`{policy}` {text(float(value))}" for policy, value in late.items())
            + f". Trapped: {trapped(here)}."
        )
    for setting, here in found[found["setting"].str.endswith("-steady")].groupby("setting", sort=False):
        waits = medians(here, "policy", "wait_p90_s")
        lines.append(f"- {setting}: p90 wait " + ", ".join(f"`{p}` {text(float(w))} s" for p, w in waits.items()) + ".")
    return "\n".join(lines)


def router_findings(runs: Runs) -> str:
    """Figure 20."""
    found = frame(runs)
    lines = [seeds_said(found), ""]
    for setting, here in found.groupby("setting", sort=False):
        rate = runs[f"{setting}/basin"][0].meta["scenario"]["load"]["rate_per_min"]
        surged = str(setting) in ROUTED
        lines.append(f"- **{setting}**, {'from ' if surged else ''}{rate:g} sessions/min: {_ranked(here)}.")
    return "\n".join(lines)


def controls_findings(runs: Runs) -> str:
    """§7.3: healthy controls."""
    found = frame(runs)
    lines = [seeds_said(found), ""]
    short = []
    for setting, here in found.groupby("setting", sort=False):
        per_seed = here.pivot(index="seed", columns="policy", values="goodput")
        lead = (per_seed["basin"] / per_seed.drop(columns="basin").max(axis=1)).median()
        worst_state = Counter(here.loc[here["policy"] == "basin", "state"]).most_common(1)[0][0]
        lines.append(f"- {setting}: Basin has {lead:.3f} of the best other's goodput; it ends {worst_state}.")
        if lead < load_claims()["A-sim-control"].expect[0]:
            short.append(f"{setting} ({lead:.3f})")
    count = found["setting"].nunique()
    said = f"**Basin falls short of 0.996 in {len(short)} of {count}**: {', '.join(short)}." if short else (
        f"**Basin keeps at least 0.996 of the best other's goodput in all {count} controls.**")  # fmt: skip
    missing = len(CONTROLS) - count
    return "\n".join([*lines, "", said + (f" {missing} more are left out at this profile." if missing else "")])


def sources_findings(runs: Runs) -> str:
    """§7.5: eviction orders and the charge a chunk."""
    found = medians(frame(runs), ["setting", "policy"], "goodput")
    lines = []
    for name, settings in LRU_SURGES.items():
        if (name, "hicache") not in found.index:
            continue
        lru, basin = found[name, "hicache"], found[name, "basin"]
        orders = {short: found[evicting(name, short), "hicache"] for short in EVICTIONS}
        said = ", ".join(f"{short} {text(ratio(float(value), float(lru)))}" for short, value in orders.items())
        share = text(ratio(float(orders["oracle"]), float(basin)))
        lines.append(f"- surge {settings.title}: over LRU {said}; the oracle has {share} of Basin's goodput.")
    for setting, policy in found.index:
        if policy == "crossflow-charged":
            free, charged = found[setting, "crossflow"], found[setting, policy]
            lines.append(f"- {setting}: Crossflow {free:.0f} sessions/h, with 20 ms a chunk {charged:.0f}.")
    return "\n".join(lines)


def open_findings(runs: Runs) -> str:
    """Whether what sources leave open decides a comparison."""
    found = frame(runs)
    found = found.assign(baseline=found["policy"].str.split(":").str[0])
    lines, beaten, moved = [seeds_said(found), ""], [], []
    for setting, here in found.groupby("setting", sort=False):
        goodput = medians(here, "policy", "goodput")
        for baseline, variants in here[here["policy"].str.contains(":")].groupby("baseline", sort=False):
            values = goodput.loc[list(variants["policy"].unique())] / goodput["basin"]
            ours = goodput[str(baseline)] / goodput["basin"]
            lines.append(
                f"- {setting}, `{baseline}`: {ours:.2f} of Basin's goodput as we run it, {values.min():.2f} "
                f"({_choice(str(values.idxmin()))}) to {values.max():.2f} ({_choice(str(values.idxmax()))}) otherwise."
            )
            beaten += [f"{name} on {setting} ({value:.2f})" for name, value in values.items() if value > 1]
            others = goodput[[n for n in here["policy"].unique() if ":" not in n and n not in ("basin", baseline)]]
            rank = int((others > goodput[baseline]).sum())
            moved += [f"{name} on {setting}" for name in values.index if int((others > goodput[name]).sum()) != rank]
    verdict = f"**Basin is beaten by {len(beaten)}**: {', '.join(beaten)}." if beaten else (
        "**No open choice makes a baseline beat Basin.**")  # fmt: skip
    order = f"The order among the baselines changes with {', '.join(moved)}." if moved else (
        "Nor does any change the order of the baselines.")  # fmt: skip
    return "\n".join([*lines, "", f"{verdict} {order}"])


# Parts ---------------------------------------------------------------------------------------------------------------


def medians(found: pd.DataFrame, by: str | list[str], name: str) -> pd.Series:
    """Over seeds, in the order of the rows."""
    return found.groupby(by, sort=False)[name].median()


def seeds_said(found: pd.DataFrame) -> str:
    seeds = found["seed"].nunique()
    return f"Medians over {seeds} seeds; trapped by number of seeds." if seeds > 1 else "One seed."


def trapped(found: pd.DataFrame) -> str:
    """Policies with trapped runs, and of how many."""
    counts = Counter(found.loc[found["state"] == EndState.TRAPPED, "policy"])
    each = found.groupby("policy").size()
    return ", ".join(f"`{policy}` {count} of {each[policy]}" for policy, count in counts.items()) or "none"


def _ranked(here: pd.DataFrame) -> str:
    """Goodput of every policy, best first, with p90 waits of a minute and more, and who is trapped."""
    goodput = medians(here, "policy", "goodput").sort_values(ascending=False)
    waits = medians(here, "policy", "wait_p90_s").to_dict()
    said = ", ".join(
        f"`{policy}` {value:.0f}" + (f" (p90 wait {waits[policy] / MINUTE:.0f} min)" if waits[policy] >= MINUTE else "")
        for policy, value in goodput.items()
    )
    return f"{said} sessions/h; trapped: {trapped(here)}"


def _loads(found: pd.DataFrame) -> pd.DataFrame:
    return found.assign(x=found["setting"].str.rsplit("-", n=1).str[1].astype(float))


def _choice(name: str) -> str:
    return name.split(":", 1)[1]
