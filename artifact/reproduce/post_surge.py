"""Post-surge interventions (paper A §5.2, Fig. 10): arrivals change at minute 25 in branches of one engine state."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from artifact.metrics import EndState, end_state, hit_rate
from artifact.metrics.states import final_windows
from artifact.records.schema import Records
from artifact.reproduce.outcomes import Outcome, Resources, kept, outcome
from artifact.reproduce.scenarios import TRIGGER
from artifact.workload.load import Load, RateChange, Surge

if TYPE_CHECKING:
    from sim.run import Simulation
    from sim.scenario import Deployment, Scenario

BASE_SHARE = 0.5
"""Base rate before the change, over the reference overload rate (§5.2)."""
SURGES = {"none": 1.0, "plus100": 2.0, "plus300": 4.0}
"""The histories by name and their rate in minutes 15-25 over the base rate; `none` is the control."""


class Branch(NamedTuple):
    """One run of the experiment: rates are shares of the reference overload rate."""

    surge: str
    share: float
    """Of arrivals from minute 25 on."""
    state: EndState
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Intervention:
    """What one seed of one deployment goes through."""

    scenario: "Scenario"
    """Half the reference rate, without a surge."""
    shares: tuple[float, ...]


def interventions(
    deployment: "Deployment", reference_per_min: float, shares: Sequence[float], seeds: Sequence[int]
) -> list[Intervention]:
    """One a seed, at the published base rate and two hours long."""
    from sim.scenario import Scenario
    from sim.steady import replayed

    load = replayed(deployment, Load(rate_per_min=BASE_SHARE * reference_per_min, duration_s=7200))
    return [Intervention(Scenario(deployment=deployment, load=load, seed=s), tuple(shares)) for s in seeds]


def branches(jobs: Sequence[Intervention], resources: Resources, label: str) -> list[list[Branch]]:
    """The branches of each intervention: every history with every share."""
    from sim.sweep import determinants

    described = [({**determinants(job.scenario), "shares": job.shares, "surges": SURGES}, job) for job in jobs]
    found = kept(intervene, described, resources, label)
    return [
        [Branch(row["surge"], row["share"], EndState(row["state"]), Outcome(**row["outcome"])) for row in rows]
        for rows in found
    ]


def intervene(job: Intervention) -> list[dict[str, Any]]:
    """Simulate each history to minute 25 once, branch that state for every share, and label each branch against the
    no-surge branch with the same arrivals."""
    shared = {name: _history(job.scenario, factor) for name, factor in SURGES.items()}
    rows = []
    for share in job.shares:
        runs = {name: _branch(simulation, share) for name, simulation in shared.items()}
        rows += [_row(name, share, run, runs["none"]) for name, run in runs.items()]
    return rows


def _history(scenario: "Scenario", factor: float) -> "Simulation":
    from sim.run import Simulation

    surges = (Surge(**TRIGGER, factor=factor),) if factor > 1 else ()
    load = scenario.load.model_copy(update={"surges": surges})
    simulation = Simulation(scenario.model_copy(update={"load": load}))
    simulation.advance(TRIGGER["end_s"])
    return simulation


def _branch(shared: "Simulation", share: float) -> Records:
    simulation = shared.fork()
    load = simulation.scenario.load
    change = RateChange(at_s=TRIGGER["end_s"], factor=share / BASE_SHARE)
    simulation.change_load(load.model_copy(update={"rate_change": change}))
    return simulation.finish()


def _row(name: str, share: float, run: Records, control: Records) -> dict[str, Any]:
    """The hit rate that a trapped run has lost is that of the control in the same final windows."""
    windows = final_windows(run)
    kept_hits = hit_rate(control, (windows[0][0], windows[1][1]))
    state = end_state(run, hit_before=None if run is control else kept_hits)
    return {"surge": name, "share": share, "state": str(state), "outcome": asdict(outcome(run))}
