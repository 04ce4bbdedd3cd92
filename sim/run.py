"""Run one scenario on the simulator and return its Records."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from simpy import Environment, Event

from artifact.control.policy import Policy
from artifact.records.schema import Records
from artifact.workload.catalog import workload
from artifact.workload.load import Group, Load, PlannedSession
from artifact.workload.plan import plan_sessions
from artifact.workload.stats import mean_position
from sim.copying import copied
from sim.driver import Driver
from sim.engine.colocated import ColocatedEngine
from sim.engine.kinds import build_engine, calibration_of, costs_of, unloaded_of
from sim.policies import lending_rules, scenario_policy
from sim.scenario import PolicyChoice, Scenario


def run(scenario: Scenario) -> Records:
    """Simulate to the end of `load.duration_s`.

    Raises `ValueError` naming what in the scenario cannot be run.
    """
    return Simulation(scenario).finish()


class Simulation:
    """A run in the making, so that an experiment can stop it, look, change something and go on.

    `fork` branches it: what follows in a branch differs from its siblings only by what the experiment changes
    (`change_load`, `change_policy`), since all go on from one engine state.
    """

    def __init__(self, scenario: Scenario, policy: Policy | None = None) -> None:
        """`policy` takes the place of the one that the scenario names, for experiments with one of their own."""
        self.scenario = scenario
        deployment = scenario.deployment
        self.costs = costs_of(deployment)
        self.unloaded = unloaded_of(deployment)
        self.env = Environment()
        self.trajectories = workload(scenario.load.workload)
        plans = plan_sessions(scenario.load, self.trajectories, scenario.seed, self.unloaded)
        self._check(plans)
        policy = policy or scenario_policy(scenario)
        late = scenario.policy.from_s > 0
        self.driver = Driver(self.env, scenario, Policy() if late else policy, plans)
        self.engine = build_engine(
            self.env,
            deployment,
            self.driver.first_token,
            self.driver.finished,
            self.driver.scheduled,
            policy.reserve_after_prefill,
            lending_rules(policy),
        )
        self.driver.start(self.engine)
        if late:
            self._at(scenario.policy.from_s, self._switch, policy)
        if scenario.end_group is not None:
            self._at(scenario.end_group.at_s, self._end, scenario.end_group.group)
        if scenario.flush is not None:
            self._at(scenario.flush.at_s, self._flush, None)

    def advance(self, to_s: float) -> None:
        """Simulate up to a time; one that has been reached changes nothing."""
        if to_s > self.env.now:
            with _collector_paused():
                self.env.run(until=to_s)

    def fork(self) -> "Simulation":
        """An independent copy in the same state; what a run never changes is shared."""
        trajectories = [session.trajectory for session in self.driver.sessions.values()]
        return copied(self, (*trajectories, self.costs, self.unloaded, self.trajectories, self.scenario))

    def change_load(self, load: Load) -> None:
        """Replace the arrivals to come by those of another load; the run's length becomes the new load's.

        Raises `ValueError` if that load differs in sessions that have arrived already.
        """
        now = self.env.now
        plans = plan_sessions(load, self.trajectories, self.scenario.seed, self.unloaded)
        past, known = _arrived(plans, now), _arrived([s.plan for s in self.driver.sessions.values()], now)
        if past != known:
            raise ValueError(f"change_load at {now} s: the loads differ before that; branch earlier, or change later")
        self.driver.replace_arrivals([plan for plan in plans if plan.arrival_s > now])
        self.scenario = self.scenario.model_copy(update={"load": load})

    def change_policy(self, choice: PolicyChoice) -> None:
        """Put another policy in charge from now on, on the same engine; `from_s` becomes this moment."""
        self.scenario = self.scenario.model_copy(update={"policy": choice.model_copy(update={"from_s": self.env.now})})
        policy = scenario_policy(self.scenario)
        self.engine.set_lending_rules(lending_rules(policy))
        self.driver.switch(policy)

    def finish(self) -> Records:
        """Simulate to the end and assemble the records."""
        self.advance(self.scenario.load.duration_s)
        driver = self.driver
        sessions = [s.row(self.unloaded(s.trajectory, s.first_call)) for s in driver.sessions.values()]
        return Records.from_rows(driver.calls + driver.unfinished_rows(), sessions, driver.samples, self._meta())

    def _check(self, plans: Any) -> None:
        """A prompt that fits no instance would wait for ever."""
        limits = calibration_of(self.scenario.deployment).context_limits()
        for t in {id(p.trajectory): p.trajectory for p in plans}.values():
            for what, room in limits.items():
                if t.peak_tokens > room:
                    raise ValueError(
                        f"trajectory {t.id!r} reaches {t.peak_tokens} tokens, more than the {what} of one instance "
                        f"({room}): leave it out or choose a larger deployment than {self.scenario.deployment}"
                    )

    def _switch(self, event: Event) -> None:
        self.driver.switch(event._value)

    def _end(self, event: Event) -> None:
        """End every session of the group that has arrived and is not over."""
        group: Group = event._value
        for session in list(self.driver.sessions.values()):
            if session.group == group and session.ended_s is None and session.plan.arrival_s <= self.env.now:
                self.driver.end(session)

    def _flush(self, event: Event) -> None:
        assert isinstance(self.engine, ColocatedEngine)  # `Scenario` sees to it
        self.engine.flush()

    def _at(self, time_s: float, then: Any, value: Any) -> None:
        self.env.timeout(time_s - self.env.now, value).callbacks.append(then)

    def _meta(self) -> dict[str, Any]:
        load = self.scenario.load
        flush = self.scenario.flush
        first = load.surges[0] if load.surges else load.burst
        end = self.scenario.end_group
        meta: dict[str, Any] = {
            "source": "sim",
            "scenario": self.scenario.model_dump(mode="json"),
            "seed": self.scenario.seed,
            "duration_s": load.duration_s,
            "itl_slo_s": self.costs.itl_slo_s,
            "capacity": {
                "prefill_cache_tokens": self.engine.capacities.prefill_cache_tokens,
                "host_cache_tokens": self.engine.capacities.host_cache_tokens,
                "decode_kv_tokens": self.engine.capacities.decode_kv_tokens,
                "saturated_prefill_tokens_per_s": self._saturated(),
            },
        }
        if first is not None:
            meta["trigger"] = {"start_s": first.start_s, "end_s": first.end_s}
        elif flush is not None:
            meta["trigger"] = {"start_s": flush.at_s, "end_s": flush.at_s}
        if end is not None:
            meta["ended_at_s"] = end.at_s
        return meta

    def _saturated(self) -> float:
        """Prefill throughput of full chunks at the workload's mean position, over all instances."""
        one = calibration_of(self.scenario.deployment).saturated_prefill_tokens_per_s(mean_position(self.trajectories))
        return one * self.scenario.deployment.prefill


def _arrived(plans: Sequence[PlannedSession], now: float) -> list[tuple[str, float, str]]:
    return [(plan.id, plan.arrival_s, plan.trajectory.id) for plan in plans if plan.arrival_s <= now]


@contextmanager
def _collector_paused() -> Iterator[None]:
    """A run leaves no cyclic garbage, and looking for it among the rows so far takes a tenth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
