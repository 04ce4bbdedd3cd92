"""First aid for a team whose engine may fall into the trap, worked out on recorded runs: is it at risk, what tells in
time, and what to do first. The runs are the arms of `hw_runs.trap`."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from artifact.control.parameters import BasinParameters
from artifact.metrics import capacity, duration_s, windows
from artifact.records.schema import Records
from hw_runs.trap_view import BIN_S, COLLAPSED, HEALTHY, STYLES, Runs, collapsed_s, outcomes
from sim.risk.assess import Assessment, assess
from sim.risk.question import Question, ask
from sim.risk.ramp import Ramp, measure

NEAR_CLIFF = "working set near the cliff"
WATCHED = ("twin", "large-pool", "burst")
POOLS = {"twin": "the recorded engine", "large-pool": "the recorded engine with four times the pool"}
NEAR = 0.9
"""Share of the cliff from which the shipped alert rules warn (`artifact/gateway/operations/alerts.yml`)."""
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
    load = {"sessions_per_min": _arrivals_per_min(healthy), "name": POOLS[arm]} | _saturated(collapsed)
    return ask({"ramp": found, "option": fields | load | {"cache_tokens": capacity(own, "prefill_cache_tokens")}})


def risk(runs: Runs, seed: int = 0) -> dict[str, Assessment]:
    """The answers of `basin risk` for the small pool and for the large one."""
    return {arm: assess(question(runs, arm, seed)) for arm in ("twin", "large-pool")}


def command(asked: Question) -> str:
    """The same question as a person would give it on the command line."""
    given = asked.model_dump(include=asked.model_fields_set, exclude={"name"})
    return "basin risk " + " ".join(f"--{name.replace('_', '-')} {value:.6g}" for name, value in given.items())


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


def _saturated(run: Records) -> dict[str, float]:
    """Prefill rate while the engine recomputes nearly everything, so that it is never idle: the median window, for a
    single one of five seconds may end just behind a long prompt."""
    table = windows(run, BIN_S)
    rates = table[table["hit_rate"] <= COLLAPSED]["computed_tokens_per_s"]
    return {"prefill_tokens_per_s": float(rates.median())} if len(rates) else {}


def _ramp(runs: list[Records]) -> Ramp:
    """Windows of runs as the points of a load ramp."""
    table = pd.concat([windows(run, BIN_S) for run in runs], ignore_index=True)
    table = table[table["hit_rate"].notna() & (table["active_sessions"] > 0)]
    columns = {name: table[name].to_numpy(float) for name in NUMBERS}
    return Ramp(**columns, in_service=table[list(IN_CALL)].sum(axis=1).to_numpy(float))


# Step 2: what to watch ------------------------------------------------------------------------------------------------


def alarm_s(run: Records, cliff_tokens: float) -> dict[str, float]:
    """End of the second of two 5-second windows in a row with the working set near the cliff or beyond, and of two with
    a hit rate that is not healthy; infinite if there are none."""
    bins = windows(run, BIN_S)
    ill = {
        NEAR_CLIFF: bins["working_set_tokens"] > NEAR * cliff_tokens,
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
