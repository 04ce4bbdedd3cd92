"""First aid for a team whose engine may fall into the trap, worked out on recorded runs: is it at risk, what tells in
time, and what to do first. The runs are the arms of `hw_runs.trap`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from artifact.control.parameters import BasinParameters
from artifact.metrics import capacity, duration_s, windows
from artifact.records.schema import Records
from artifact.reproduce.figures import BLACK, course, panels, shade, under
from hw_runs.trap import BURST_S, CONTROL_S
from hw_runs.trap_view import BIN_S, HEALTHY, STYLES, Runs, collapsed_s, folder_of, outcomes, signals
from sim.risk.assess import Assessment, assess
from sim.risk.question import Question, ask
from sim.risk.ramp import Ramp, measure
from sim.risk.report import as_text

WATCHED = ("twin", "large-pool", "burst")
POOLS = {"twin": "the recorded engine", "large-pool": "the recorded engine with four times the pool"}
KV_ALARM = 0.9
"""Share of KV in use at which dashboards usually warn."""
IN_CALL = ("prefill_queue_calls", "decode_waiting_calls", "decode_running_calls")
NUMBERS = ("hit_rate", "working_set_tokens", "active_sessions", "calls_per_min", "computed_tokens_per_s")


class Aid(NamedTuple):
    """A control that was put in charge late, and what a team needs for it."""

    arm: str
    name: str
    needs: str


AIDS = (
    Aid("admission-only", "admission only", "one number in the gateway: new sessions wait while so many are inside"),
    Aid("budgeter", "the budgeter", "a token budget in the gateway; sessions inside wait between two turns, too"),
    Aid("basin", "Basin", "the gateway with Basin's budget, and priorities that the engine follows"),
    Aid("basin-suspend", "Basin, suspending", "the same, and sessions inside wait between two turns, too"),
)
"""By what they ask of a team, the cheapest first."""


# Step 1: at risk? -----------------------------------------------------------------------------------------------------


def question(runs: Runs, arm: str = "twin", seed: int = 0) -> Question:
    """What `basin risk` has to be told of the engine of an arm, measured: load and calls from the healthy run, cliff,
    floor and prefill rate from that and the collapsed one, the cache from the arm's own run.

    Raises `UsageError` where the runs hold no cliff."""
    healthy, collapsed, own = runs["twin"][seed], runs["burst"][seed], runs[arm][seed]
    small = capacity(healthy, "prefill_cache_tokens")
    fields = {"cache_tokens": small, "decode_kv_tokens": capacity(own, "decode_kv_tokens"), **_calls(healthy)}
    found = measure(_ramp([healthy, collapsed]), fields, Path("the recorded runs"))
    load = {"sessions_per_min": _arrivals_per_min(healthy), "name": POOLS[arm]}
    return ask({"ramp": found, "option": fields | load | {"cache_tokens": capacity(own, "prefill_cache_tokens")}})


def risk(runs: Runs, seed: int = 0) -> dict[str, Assessment]:
    """The answers of `basin risk` for the small pool and for the large one."""
    return {arm: assess(question(runs, arm, seed)) for arm in ("twin", "large-pool")}


def command(asked: Question) -> str:
    """The same question as a person would give it on the command line."""
    given = asked.model_dump(include=asked.model_fields_set, exclude={"name"})
    return "basin risk " + " ".join(f"--{name.replace('_', '-')} {value:.6g}" for name, value in given.items())


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


def _against(answer: Assessment, run: Records, label: str, seed: int) -> str:
    most = windows(run, BIN_S).query("end_s <= @CONTROL_S")["active_sessions"].max()
    collapse = collapsed_s(run)
    load = answer.load
    if load is None or load.tipping_sessions is None:
        state = "unknown" if load is None else load.state
        said = f"the model finds no tipping point ({state})"
    else:
        beyond = "beyond" if most > load.tipping_sessions else "within"
        said = f"{beyond} the tipping point of {load.tipping_sessions:.0f} that the model finds"
    ended = f"collapsed at second {collapse:.0f}" if np.isfinite(collapse) else "did not collapse for good"
    return f"- **{label}**, seed {seed}: up to {most:.0f} active sessions, {said}; the engine {ended}."


def _calls(run: Records) -> dict[str, float]:
    """Mean prompt and mean part of it that misses, of completed calls; mean calls of a session."""
    done = run.calls.to_pandas().dropna(subset=["finished_s", "cached_tokens"])
    return {
        "prompt_tokens": float(done["prompt_tokens"].mean()),
        "new_tokens": float((done["prompt_tokens"] - done["cached_tokens"]).mean()),
        "calls_per_session": float(run.sessions.to_pandas()["calls_planned"].mean()),
    }


def _arrivals_per_min(run: Records) -> float:
    arrived = run.sessions.to_pandas().query("group == 'base'")
    return len(arrived) / duration_s(run) * 60


def _ramp(runs: list[Records]) -> Ramp:
    """Windows of runs as the points of a load ramp."""
    table = pd.concat([windows(run, BIN_S) for run in runs], ignore_index=True)
    table = table[table["hit_rate"].notna() & (table["active_sessions"] > 0)]
    columns = {name: table[name].to_numpy(float) for name in NUMBERS}
    return Ramp(**columns, in_service=table[list(IN_CALL)].sum(axis=1).to_numpy(float))


# Step 2: what to watch ------------------------------------------------------------------------------------------------


def alarm_s(run: Records, cliff_tokens: float) -> dict[str, float]:
    """End of the second of two 5-second windows in a row with the working set beyond the cliff, and of two with a hit
    rate that is not healthy; infinite if there are none."""
    bins = windows(run, BIN_S)
    ill = {
        "working set beyond the cliff": bins["working_set_tokens"] > cliff_tokens,
        f"hit rate below {HEALTHY}": bins["hit_rate"] < HEALTHY,
    }
    return {name: _twice(bins["end_s"], told) for name, told in ill.items()}


def alarms(runs: Runs, seed: int = 0) -> pd.DataFrame:
    """A row a watched run: when each alarm would have rung, and when the hit rate collapsed for good; seconds."""
    rows, answers = [], risk(runs, seed)
    for arm in WATCHED:
        run = runs[arm][seed]
        cliff = answers["large-pool" if arm == "large-pool" else "twin"].cliff_tokens
        rows.append({"run": STYLES[arm][0], **alarm_s(run, cliff), "collapsed": collapsed_s(run)})
    return pd.DataFrame(rows).set_index("run")


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
        (population, 1.0, "a", "Working set / cliff"),
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
    rung, collapse = alarm_s(run, cliff)["working set beyond the cliff"], min(collapsed_s(run), CONTROL_S)
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


def _twice(end_s: pd.Series, told: pd.Series) -> float:
    again = told & told.shift(1, fill_value=False)
    return float(end_s[again].iloc[0]) if again.any() else float("inf")


# Step 3: what to do ---------------------------------------------------------------------------------------------------


def aids(runs: Runs) -> pd.DataFrame:
    """A row a control, the cheapest first; medians over seeds. `back_s`: until the hit rate is healthy again."""
    table = outcomes(runs)
    rows = []
    for aid in AIDS:
        of = table[table["arm"] == aid.arm]
        if len(of):
            medians = of[["back_s", "hit_last", "completed", "calls_after", "waiting_at_door"]].median()
            met = f"{int(of['met'].sum())} of {len(of)}"
            rows.append({"control": aid.name, **medians, "healthy within a minute": met, "needs": aid.needs})
    return pd.DataFrame(rows).set_index("control")


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


# Step 4: lending ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lent:
    """What lending could add to a prefill-decode pair: its idle decode memory within Basin's rules, and the answers of
    `basin risk` without and with it."""

    tokens: float
    without: Assessment
    lending: Assessment


def lent(asked: Question, rules: BasinParameters | None = None) -> Lent:
    """Computed, not measured: a pair whose decode holds, in health, what the sessions in a call need. Lending takes
    from the rest all but the headroom, and at most the cap (paper A §6.2).

    Raises `ValueError` for a question without the sessions and the share of them in a call."""
    rules = rules or BasinParameters()
    if asked.active_sessions is None or asked.in_service is None:
        raise ValueError("lending: needs active_sessions and in_service, to know what decode holds in health")
    used = asked.in_service * asked.active_sessions * asked.context_tokens
    idle = asked.decode_kv_tokens * (1 - rules.lending_headroom) - used
    tokens = max(0.0, min(idle, rules.lend_cap * asked.decode_kv_tokens))
    more = asked.model_copy(update={"cache_tokens": asked.cache_tokens + tokens})
    return Lent(tokens, assess(asked), assess(more))


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


def _tipping(answer: Assessment) -> str:
    load = answer.load
    return "none" if load is None or load.tipping_sessions is None else f"{load.tipping_sessions:.0f}"
