"""What `hw_runs.first_aid` works out on recorded runs, in words, pictures and commands."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from artifact.control.parameters import BasinParameters
from artifact.metrics import windows
from artifact.records.schema import Records
from artifact.reproduce.figures import BLACK, course, panels, shade, under
from hw_runs.first_aid import AIDS, KV_ALARM, NEAR, NEAR_CLIFF, WATCHED, alarm_s, command, lent, question, risk
from hw_runs.trap import BURST_S, CONTROL_S
from hw_runs.trap_view import BIN_S, HEALTHY, STYLES, Runs, collapsed_s, folder_of, outcomes, signals
from sim.risk.assess import Assessment
from sim.risk.report import as_text


def told(runs: Runs, seed: int = 0) -> str:
    """The command and what it answers for the small pool, as a block of text."""
    return f"```\n{command(question(runs, 'twin', seed))}\n\n{as_text(risk(runs, seed)['twin'])}\n```"


def risk_findings(runs: Runs) -> str:
    """What the answer says, and what the burst then did, seed by seed, in words."""
    parts = []
    for seed, run in enumerate(runs["burst"]):
        answers = risk(runs, seed)
        for arm, trial in (("twin", "burst"), ("large-pool", "large-pool")):
            parts.append(_against(answers[arm], runs[trial][seed], STYLES[trial][0], int(run.meta["seed"])))
    return "\n".join(parts)


def figure_watch(runs: Runs, seed: int = 0) -> tuple[Figure, pd.DataFrame]:
    """Working set over the cliff and hit rate of the watched runs in 5-second windows; dotted: the alarms' levels."""
    fig, (population, hits) = panels(1, height_in=2.1)
    answers, drawn = risk(runs, seed), []
    for arm in WATCHED:
        label, color, line = STYLES[arm]
        frame = windows(runs[arm][seed], BIN_S)
        cliff = answers["large-pool" if arm == "large-pool" else "twin"].cliff_tokens
        frame["w_over_cliff"] = frame["working_set_tokens"] / cliff
        for panel, ax, name in (("a", population, "w_over_cliff"), ("b", hits, "hit_rate")):
            drawn.append(course(ax, [frame], name, color=color, ls=line, label=label).assign(panel=panel, arm=arm))
    for ax, level, letter, title in (
        (population, NEAR, "a", "Working set / cliff"),
        (hits, HEALTHY, "b", "Prefix hit rate"),
    ):
        ax.axhline(level, color=BLACK, ls=":", lw=0.8)
        shade(ax, BURST_S)
        ax.set_ylim(0, None)
        under(ax, letter, title)
    fig.legend(*population.get_legend_handles_labels(), loc="outside upper left", ncols=3)
    return fig, pd.concat(drawn, ignore_index=True)


def dashboard_findings(runs: Runs, root: Path | None = None) -> str:
    """What KV usage, queue and utilisation were when the working set rang, and at most before the collapse, in words.

    Of the first seed, whose engines' own numbers lie beside its records."""
    run, calm = runs["burst"][0], runs["large-pool"][0]
    seed = int(run.meta["seed"])
    trapped, harmless = (signals(r, folder_of(arm, seed, root)) for r, arm in ((run, "burst"), (calm, "large-pool")))
    cliff = risk(runs)["twin"].cliff_tokens
    rung, collapse = alarm_s(run, cliff)[NEAR_CLIFF], min(collapsed_s(run), CONTROL_S)
    kv = trapped[trapped["kv_usage"] >= KV_ALARM]["time_s"].min()
    when = "would never have rung" if np.isnan(kv) else f"would have rung at second {kv:.0f}"
    before = trapped[trapped["time_s"] <= (rung if np.isfinite(rung) else collapse)]
    parts = [f"- **KV usage** reached {trapped['kv_usage'].max():.2f} at most: an alarm at {KV_ALARM} {when}."]
    for name, words in (("waiting", "queue length"), ("utilisation", "utilisation of cores")):
        parts.append(
            f"- **{words.capitalize()}** had been {before[name].max():.1f} at most when the working set rang, "
            f"{harmless[name].max():.1f} in the burst that did no harm."
        )
    return "\n".join(parts)


def aid_findings(runs: Runs) -> str:
    """Which control is the cheapest that got the engine out, in words, against doing nothing."""
    table, none = outcomes(runs), outcomes({"burst": runs["burst"]})
    share = table[table["arm"].isin([aid.arm for aid in AIDS])].groupby("arm")["met"].mean()
    working = [aid for aid in AIDS if share.get(aid.arm, 0) > 0.5]
    left = ", ".join(aid.name for aid in AIDS if aid.arm in share.index and aid not in working)
    idle = f"Left alone, the engine completed {none['completed'].median():.0f} sessions after second {CONTROL_S:.0f}"
    if not working:
        return f"{idle}. None of the controls brought the hit rate back within a minute in most seeds ({left})."
    best = table[table["arm"] == working[0].arm]
    words = f"{idle}; under {working[0].name} from then on {best['completed'].median():.0f}, "
    words += f"with a hit rate of {best['hit_last'].median():.2f} in the end: the cheapest that got it out."
    return words + (f" Too slow or too weak once the engine had collapsed: {left}." if left else "")


def orders(runs: Runs, seed: int = 0) -> str:
    """The commands of the first aid, with the numbers of this deployment, as a block of text."""
    answer = risk(runs, seed)["twin"]
    load = answer.load
    admit = int(answer.cliff_sessions * BasinParameters().margin)
    tells = {"policy": "admission-only", "options": {"admit": admit}}
    lines = [
        f"# beyond {answer.cliff_tokens:,.0f} tokens of working set ({answer.cliff_sessions:.0f} sessions): "
        f"let new sessions wait while {admit} are inside",
        f"curl -X PUT $GATEWAY/admin/policy -H \"X-Basin-Admin-Token: $TOKEN\" -d '{json.dumps(tells)}'",
    ]
    if load is not None and load.tipping_sessions is not None:
        tells = {"policy": "budgeter", "options": {}}
        lines += [
            f"# beyond {load.tipping_sessions:.0f} active sessions it does not come back by itself: "
            "sessions inside must stand aside, too",
            f"curl -X PUT $GATEWAY/admin/policy -H \"X-Basin-Admin-Token: $TOKEN\" -d '{json.dumps(tells)}'",
        ]
    return "```\n" + "\n".join(lines) + "\n```"


def lending_findings(runs: Runs, seed: int = 0) -> str:
    """What lending would move, in words."""
    asked = question(runs, "twin", seed)
    found = lent(asked)
    before, after = (_tipping(a) for a in (found.without, found.lending))
    return (
        "This engine computes prompts and outputs over one pool: it has no idle decode memory to lend, and only a "
        f"larger pool does what lending does. On a pair with the same pool on either side decode could lend "
        f"{found.tokens:,.0f} tokens in health; the cliff would move from {found.without.cliff_sessions:.0f} to "
        f"{found.lending.cliff_sessions:.0f} active sessions and the tipping point from {before} to {after} "
        "(computed by `basin risk` from the recorded numbers, not measured)."
    )


def _against(answer: Assessment, run: Records, label: str, seed: int) -> str:
    most = windows(run, BIN_S).query("end_s <= @CONTROL_S")["active_sessions"].max()
    collapse = collapsed_s(run)
    load = answer.load
    if load is None or load.tipping_sessions is None:
        state = "unknown" if load is None else load.state
        said = f"the model finds no tipping point ({state})"
    else:
        beyond = "beyond" if most > load.tipping_sessions else "within"
        said = f"{beyond} the tipping point of {load.tipping_sessions:.1f} that the model finds"
    ended = f"collapsed at second {collapse:.0f}" if np.isfinite(collapse) else "did not collapse for good"
    return f"- **{label}**, seed {seed}: up to {most:.1f} active sessions, {said}; the engine {ended}."


def _tipping(answer: Assessment) -> str:
    load = answer.load
    return "none" if load is None or load.tipping_sessions is None else f"{load.tipping_sessions:.0f}"
