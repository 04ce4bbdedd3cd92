"""The trap and three ways out of it on a real engine on this machine's CPU, in a quarter of an hour.

A burst of sessions pushes the working set past a small KV pool; the engine then recomputes prompts it had, and stays
so when the load is back to what it was. The same burst does no harm to a pool four times as large. Late in the
collapse, a control is put in charge of the gateway.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from artifact.records.schema import Records
from artifact.workload.load import Load, Surge
from hw_runs import provenance
from hw_runs.checks import Machine
from hw_runs.deployment import Deployment, load_deployment
from hw_runs.experiment import Planned, results_root, simulated
from hw_runs.run import empty_caches, one_run, reference_of
from hw_runs.serve import Say, Served, serving, with_pool
from hw_runs.speed import Speed, measure
from sim.scenario import PolicyChoice, Scenario

DEPLOYMENT = "cpu-vllm"
FOLDER = "trap"
BIG = 4
"""The larger pool over the small one."""
TYPICAL_TOKENS = 3500
MISS_S = 0.55
"""Seconds to compute a typical prompt from nothing on the machine for which `RATE_PER_S` was found."""
RATE_PER_S, BURST_SESSIONS = 0.28, 23
BURST_S = (20.0, 28.0)
CONTROL_S = 55.0
SHORT_S, LONG_S = 60.0, 115.0
"""Of runs that stay healthy, and of the others: a control has a minute."""
SAMPLE_S = 1.0
LATE_S = 0.05
"""A client that wakes later than this, on average, offers less than was planned: gaps last two seconds."""
SLOWEST, FASTEST = 0.45, 3.0
ALIKE = 0.15
"""A machine this close to the reference machine runs the same sizes: measuring it is no more exact."""
CONTROLS = ("budgeter", "basin", "basin-suspend", "admission-only")


class TooSlow(RuntimeError):
    """The machine is too slow or too busy for the demonstration."""


@dataclass(frozen=True, slots=True)
class Size:
    """The demonstration on a machine: `factor` times the sessions and the pool it was found with, over the same time.

    On a slower machine fewer sessions saturate the engine; with a pool smaller in proportion all ratios stay."""

    factor: float
    pool_tokens: int

    @classmethod
    def of(cls, speed: Speed, pool_tokens: int) -> "Size":
        """Raises `TooSlow`, naming what was measured and what is needed."""
        factor = round(MISS_S / speed.seconds(TYPICAL_TOKENS, TYPICAL_TOKENS), 1)
        if factor < SLOWEST:
            raise TooSlow(
                f"a prompt of {TYPICAL_TOKENS} tokens takes {speed.seconds(TYPICAL_TOKENS, TYPICAL_TOKENS):.2f} s to "
                f"compute; needed are {MISS_S / SLOWEST:.2f} s. Wait until the machine is idle, or take a faster one"
            )
        factor = 1.0 if abs(factor - 1) <= ALIKE else min(factor, FASTEST)
        return cls(factor, round(factor * pool_tokens))


class Arm(NamedTuple):
    """`pool` over the small one; a control from `CONTROL_S` on."""

    burst: bool = True
    control: str | None = None
    pool: int = 1
    duration_s: float = LONG_S


ARMS: Mapping[str, Arm] = {
    "twin": Arm(burst=False, duration_s=SHORT_S),
    "burst": Arm(),
    **{name: Arm(control=name) for name in CONTROLS},
    "large-pool": Arm(pool=BIG, duration_s=SHORT_S),
}


EXTRA = ("basin-suspend",)
"""Run on request only: six arms are what a quarter of an hour holds."""
SIX = tuple(name for name in ARMS if name not in EXTRA)


def trap_load(size: Size, arm: Arm) -> Load:
    """What arrives. The burst adds its sessions to the same base arrivals."""
    rate = RATE_PER_S * size.factor
    factor = 1 + BURST_SESSIONS / RATE_PER_S / (BURST_S[1] - BURST_S[0])
    surges = (Surge(start_s=BURST_S[0], end_s=BURST_S[1], factor=factor),) if arm.burst else ()
    return Load(workload="laptop", rate_per_min=60 * rate, duration_s=arm.duration_s, surges=surges)


def trap_scenario(name: str, size: Size, seed: int) -> Scenario:
    """An arm as data, so that the simulator can be asked the same."""
    deployment, arm = load_deployment(DEPLOYMENT), ARMS[name]
    policy = PolicyChoice()
    if arm.control is not None:
        options = dict(deployment.policy(arm.control).options) | _sized(arm.control, size)
        policy = PolicyChoice(name=arm.control, parameters=options, from_s=CONTROL_S)
    return Scenario(
        deployment=simulated(deployment),
        load=trap_load(size, arm),
        policy=policy,
        seed=seed,
        sample_s=SAMPLE_S,
    )


def _sized(control: str, size: Size) -> dict[str, float]:
    """The cap of admission only is a number of sessions: as many as fill three quarters of the pool."""
    return {"admit": round(0.75 * size.pool_tokens / TYPICAL_TOKENS)} if control == "admission-only" else {}


def run_trap(
    seed: int = 0,
    arms: Sequence[str] = SIX,
    root: Path | None = None,
    say: Say = print,
    machine: Machine | None = None,
) -> None:
    """Run the arms of one seed that are not recorded yet, to `hw_runs/results/trap/<arm>/seed<k>`.

    Raises `TooSlow` where the machine cannot, `CannotServe` where the engine cannot be started, and `ValueError` for an
    unknown arm, naming those there are."""
    if unknown := set(arms) - set(ARMS):
        raise ValueError(f"no arm {sorted(unknown)}; there are {', '.join(ARMS)}")
    paths = {name: results_root(root) / FOLDER / name / f"seed{seed}" for name in arms}
    todo = {name: path for name, path in paths.items() if not path.is_dir()}
    small = {name: path for name, path in todo.items() if ARMS[name].pool == 1}
    nominal, machine = load_deployment(DEPLOYMENT), machine or Machine()
    size = _recorded_size(paths.values()) if todo else None
    if todo and size is None:
        with serving(nominal, "none", machine=machine, say=say) as served:
            size = Size.of(reference_speed(nominal), nominal.capacities().prefill_cache_tokens)
            say(f"{size.factor:g} times the reference machine's sessions, a pool of {size.pool_tokens:,} tokens")
            if size.factor == 1:
                _arms(served, small, size, seed, say, machine)
                todo = {name: path for name, path in todo.items() if name not in small}
    for pool in sorted({ARMS[name].pool for name in todo}):
        assert size is not None
        with serving(with_pool(nominal, pool * size.pool_tokens), "none", machine=machine, say=say) as served:
            chosen = {name: path for name, path in todo.items() if ARMS[name].pool == pool}
            _arms(served, chosen, size, seed, say, machine)


def reference_speed(deployment: Deployment) -> Speed:
    """Of the idle engine, over the lengths that the sessions' prompts have."""
    empty_caches(deployment)
    return measure(deployment)


def _arms(served: Served, paths: Mapping[str, Path], size: Size, seed: int, say: Say, machine: Machine) -> None:
    if not paths:
        return
    about = provenance.of_engines(served, machine) | {"size": {"factor": size.factor, "pool_tokens": size.pool_tokens}}
    reference = reference_of(served.deployment)
    for name, path in paths.items():
        scenario = trap_scenario(name, size, seed)
        say(f"{name}, seed {seed}: {scenario.load.duration_s:g} s")
        records = one_run(served, Planned(DEPLOYMENT, scenario.policy.name, path, scenario), about, reference, say)
        for line in caution(name, records):
            say(line)


def caution(name: str, records: Records) -> list[str]:
    """What speaks against a run: its client kept time badly, since other work kept the machine busy."""
    late_s = records.meta["late_s"]
    return [f"{name}: the client woke {late_s:.2f} s late on average; repeat it when idle"] if late_s > LATE_S else []


def _recorded_size(paths: Iterable[Path]) -> Size | None:
    """Of the seed's arms that are there: all must be of one size to be comparable."""
    for path in paths:
        if path.is_dir():
            return Size(**Records.load(path).meta["size"])
    return None
