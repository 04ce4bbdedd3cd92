"""What the comparison of all controllers in one trapped state shows, in words; every judgement is computed."""

import numpy as np
import pandas as pd

from artifact.reproduce.render import text
from artifact.reproduce.rescue import NONE, Seeds, engines, medians, quiet_table, rescue_table

OURS = ("basin", "basin-suspend")
COSTLY = 0.05
"""Ours: share of the undisturbed goodput whose loss the words call a cost."""
FAIR = 1.5
"""Ours: median slowdowns of small and large sessions within this factor are called even."""


def rescue_findings(runs: Seeds) -> str:
    """Arms of `artifact.reproduce.rescue`."""
    every, quiet = rescue_table(runs), quiet_table(runs)
    lines = [_engine(name, one.title, every, medians(quiet, name)) for name, one in engines().items()]
    return "\n\n".join(filter(None, [*lines, _verdict(every), _why(every, quiet)]))


def _engine(name: str, title: str, every: pd.DataFrame, quiet: pd.DataFrame) -> str:
    found = medians(every, name)
    seeds = (
        every[every["engine"] == name]
        .groupby("policy")["recovered_min"]
        .agg(lambda minutes: int(np.isfinite(minutes).sum()))
    )
    total = int(found["seeds"].max())
    all_of_them = [system for system in found.index if seeds[system] == total]
    none_of_them = [system for system in found.index if seeds[system] == 0]
    ranked = found["goodput"].sort_values(ascending=False)
    drained = [system for system in found.index if np.isfinite(_at(found, system, "drained_min"))]
    return "\n".join(
        [
            f"**{title}**, {total} trapped seeds, medians.",
            "",
            f"- *Hit ratio back* in every seed with {_names(all_of_them)}; in none with {_names(none_of_them)}.",
            f"- *Drained* to what an undisturbed run holds, in the median: {_timed(found, drained)}.",
            f"- *Goodput* of the next 40 minutes' sessions: best `{ranked.index[0]}` {ranked.iloc[0]:.0f} an hour, "
            f"then {_ranking(ranked[1:4])}; no control {_at(found, NONE, 'goodput'):.0f}. {_places(ranked)}",
            f"- *Waiting* (held at the gateway, p90, min): {_each(found['held_p90_min'], all_of_them)}.",
            f"- *Fairness* (median slowdown, small and large third): {_fairness(found, all_of_them)}.",
            f"- *Where nothing is wrong*: {_cost(quiet)}",
        ]
    )


def _at(found: pd.DataFrame, system: str, column: str) -> float:
    return float(found[column].to_dict()[system])


def _names(systems: list[str]) -> str:
    return ", ".join(f"`{system}`" for system in systems) or "nobody"


def _timed(found: pd.DataFrame, systems: list[str]) -> str:
    order = sorted(systems, key=lambda system: _at(found, system, "drained_min"))
    return (
        ", ".join(f"`{s}` after {_at(found, s, 'drained_min'):.0f} min" for s in order) or "with nobody within the run"
    )


def _ranking(goodput: pd.Series) -> str:
    return ", ".join(f"`{system}` {value:.0f}" for system, value in goodput.items())


def _places(ranked: pd.Series) -> str:
    places = {system: int((ranked > ranked[system]).sum()) + 1 for system in OURS}
    return " ".join(f"`{system}` comes {place} of {len(ranked)}." for system, place in places.items())


def _each(values: pd.Series, systems: list[str]) -> str:
    each = [f"`{system}` {text(round(float(values[system]), 2))}" for system in systems]
    return ", ".join(each) or "nobody recovers every seed"


def _fairness(found: pd.DataFrame, systems: list[str]) -> str:
    said = []
    for system in systems:
        small, large = (_at(found, system, f"slowdown_{size}") for size in ("small", "large"))
        if not (np.isfinite(small) and np.isfinite(large)):
            word = "half of a third do not complete"
        else:
            word = (
                "even"
                if max(small / large, large / small) <= FAIR
                else "small ones pay"
                if small > large
                else "large ones pay"
            )
        said.append(f"`{system}` {text(small)} and {text(large)} ({word})")
    return "; ".join(said) or "nobody recovers every seed"


def _payer(small: float, large: float) -> str:
    return "small ones pay" if small > large else "large ones pay"


def _cost(quiet: pd.DataFrame) -> str:
    lost = 1 - quiet["goodput"] / float(quiet["goodput"][NONE])
    costly = lost[lost > COSTLY].sort_values(ascending=False)
    if costly.empty:
        return f"no controller costs more than {COSTLY:.0%} of the undisturbed goodput."
    return (
        "share of the undisturbed goodput lost: " + ", ".join(f"`{s}` {value:.0%}" for s, value in costly.items()) + "."
    )


def _verdict(every: pd.DataFrame) -> str:
    best = {name: str(medians(every, name)["goodput"].idxmax()) for name in engines()}
    gain = [
        f"{_goodput(every, name, 'basin-suspend') - _goodput(every, name, 'basin'):+.0f} an hour on {name}"
        for name in engines()
    ]
    one = len(set(best.values())) == 1
    head = "one controller is best on both engines" if one else "no controller is best on both engines"
    named = ", ".join(f"`{system}` on {name}" for name, system in best.items())
    return f"**By goodput {head}**: {named}. Suspending changes Basin's goodput by {' and '.join(gain)}."


def _why(every: pd.DataFrame, quiet: pd.DataFrame) -> str:
    """Budgets below and above the cache, if the runs show what that does."""
    calm, trapped = medians(quiet, "pd"), medians(every, "colocated")
    tight = _at(calm, "budgeter", "goodput") < (1 - COSTLY) * _at(calm, NONE, "goodput")
    loose = _at(trapped, "basin", "hit_end") < _at(trapped, "budgeter", "hit_end")
    if not (tight and loose):
        return ""
    return (
        "The two engines ask for different budgets. On the prefill-decode one LRU keeps what is called soon, so hits "
        "hold until the contexts of all sessions are well beyond the cache, and paper B's budget of three quarters of "
        "it leaves service unused. On the colocated one running requests and cached prefixes share the pool, and "
        "Basin's budget beyond the cache cannot hold the hit ratio. A rule that needs no tuning on its own engine is "
        "tuned to that engine all the same."
    )


def _goodput(every: pd.DataFrame, name: str, system: str) -> float:
    return float(medians(every, name)["goodput"][system])
