"""Run one scenario on the simulator and return its Records."""

from functools import cache
from typing import Any

from simpy import Environment

from artifact.control.policy import Policy
from artifact.records.schema import Records
from artifact.workload.catalog import workload
from artifact.workload.load import Group
from artifact.workload.plan import plan_sessions
from sim.calibration.model import calibration
from sim.driver import Driver
from sim.engine.costs import Costs, unloaded_duration
from sim.engine.pd import PDEngine
from sim.policies import lending_rules, scenario_policy
from sim.scenario import Scenario


def run(scenario: Scenario) -> Records:
    """Simulate to the end of `load.duration_s`.

    Raises `ValueError` naming what in the scenario cannot be run.
    """
    return Simulation(scenario).finish()


class Simulation:
    """A run in the making, so that an experiment can stop it, look, change something and go on."""

    def __init__(self, scenario: Scenario, policy: Policy | None = None) -> None:
        """`policy` takes the place of the one that the scenario names, for experiments with one of their own."""
        self.scenario = scenario
        deployment = scenario.deployment
        self.costs = _costs(deployment.calibration)
        self.unloaded = _unloaded(deployment.calibration)
        self.env = Environment()
        self.trajectories = workload(scenario.load.workload)
        plans = plan_sessions(scenario.load, self.trajectories, scenario.seed, self.unloaded)
        self._check(plans)
        policy = policy or scenario_policy(scenario)
        late = scenario.policy.from_s > 0
        self.driver = Driver(self.env, scenario, Policy() if late else policy, plans)
        self.engine = PDEngine(
            self.env,
            deployment,
            self.costs,
            self.driver.first_token,
            self.driver.finished,
            self.driver.scheduled,
            policy.reserve_after_prefill,
            lending_rules(policy),
        )
        self.driver.start(self.engine)
        if late:
            self._at(scenario.policy.from_s, lambda: self.driver.switch(policy))
        if (end := scenario.end_group) is not None:
            self._at(end.at_s, lambda: self._end(end.group))

    def advance(self, to_s: float) -> None:
        """Simulate up to a time."""
        self.env.run(until=to_s)

    def finish(self) -> Records:
        """Simulate to the end and assemble the records."""
        self.advance(self.scenario.load.duration_s)
        driver = self.driver
        sessions = [s.row(self.unloaded(s.trajectory, s.first_call)) for s in driver.sessions.values()]
        return Records.from_rows(driver.calls + driver.unfinished_rows(), sessions, driver.samples, self._meta())

    def _check(self, plans: Any) -> None:
        """A prompt that fits no instance would wait for ever."""
        for t in {id(p.trajectory): p.trajectory for p in plans}.values():
            for what, room in (("prefill cache", self.costs.cache_tokens), ("decode memory", self.costs.kv_tokens)):
                if t.peak_tokens > room:
                    raise ValueError(
                        f"trajectory {t.id!r} reaches {t.peak_tokens} tokens, more than the {what} of one instance "
                        f"({room}): leave it out or choose a larger deployment than {self.scenario.deployment}"
                    )

    def _end(self, group: Group) -> None:
        """End every session of the group that has arrived and is not over."""
        for session in list(self.driver.sessions.values()):
            if session.group == group and session.ended_s is None and session.plan.arrival_s <= self.env.now:
                self.driver.end(session)

    def _at(self, time_s: float, then: Any) -> None:
        self.env.timeout(time_s - self.env.now).callbacks.append(lambda _: then())

    def _meta(self) -> dict[str, Any]:
        load = self.scenario.load
        first = load.surges[0] if load.surges else load.burst
        end = self.scenario.end_group
        meta: dict[str, Any] = {
            "source": "sim",
            "scenario": self.scenario.model_dump(mode="json"),
            "seed": self.scenario.seed,
            "duration_s": load.duration_s,
            "itl_slo_s": self.costs.itl_slo_s,
            "capacity": {
                "prefill_cache_tokens": self.engine.cache_capacity,
                "host_cache_tokens": self.engine.host_capacity,
                "decode_kv_tokens": self.engine.kv_capacity,
                "saturated_prefill_tokens_per_s": self._saturated(),
            },
        }
        if first is not None:
            meta["trigger"] = {"start_s": first.start_s, "end_s": first.end_s}
        if end is not None:
            meta["ended_at_s"] = end.at_s
        return meta

    def _saturated(self) -> float:
        """Prefill throughput of full chunks at the workload's mean position, over all instances."""
        prompts = [p for t in self.trajectories for p in t.prompt_tokens]
        mean_position = sum(p * p for p in prompts) / sum(prompts) / 2
        one = calibration(self.scenario.deployment.calibration).saturated_prefill_tokens_per_s(mean_position)
        return one * self.scenario.deployment.prefill


@cache
def _costs(name: str) -> Costs:
    return Costs.of(calibration(name))


@cache
def _unloaded(name: str) -> Any:
    return unloaded_duration(_costs(name))
