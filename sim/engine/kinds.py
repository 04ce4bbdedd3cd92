"""The engine that a deployment names: prefill-decode disaggregated or colocated."""

from collections.abc import Callable
from functools import cache

from simpy import Environment

from artifact.control.capacity import Capacities
from artifact.control.parameters import BasinParameters
from artifact.workload.trajectory import Trajectory
from sim.calibration.model import Calibration, ColocatedCalibration, calibration, colocated_calibration
from sim.engine.call import EngineCall
from sim.engine.colocated import ColocatedEngine
from sim.engine.colocated_costs import ColocatedCosts
from sim.engine.costs import Costs, capacities, unloaded_duration
from sim.engine.pd import PDEngine
from sim.engine.sglang import SGLangEngine
from sim.scenario import Deployment

Engine = PDEngine | ColocatedEngine
AnyCosts = Costs | ColocatedCosts
OfCall = Callable[[EngineCall], None]

COLOCATED = {"vllm": ColocatedEngine, "sglang": SGLangEngine}


def calibration_of(deployment: Deployment) -> Calibration | ColocatedCalibration:
    """Raises `ValueError` where the deployment names the calibration of another kind of engine."""
    pd = deployment.kind == "pd"
    return calibration(deployment.calibration) if pd else colocated_calibration(deployment.calibration)


@cache
def costs_of(deployment: Deployment) -> AnyCosts:
    """The costs of one instance."""
    found = calibration_of(deployment)
    return Costs.of(found) if isinstance(found, Calibration) else ColocatedCosts.of(found)


def capacities_of(deployment: Deployment) -> Capacities:
    """KV tokens over all instances."""
    costs = costs_of(deployment)
    return capacities(deployment, costs) if isinstance(costs, Costs) else costs.capacities(deployment)


@cache
def unloaded_of(deployment: Deployment) -> Callable[[Trajectory, int], float]:
    """Seconds that a trajectory takes from a call on, alone on the engine; see `unloaded_duration`."""
    return unloaded_duration(costs_of(deployment))


def build_engine(
    env: Environment,
    deployment: Deployment,
    on_first_token: OfCall,
    on_finished: OfCall,
    on_scheduled: OfCall,
    reserve_after_prefill: bool,
    rules: BasinParameters,
) -> Engine:
    """The deployment's engine on this clock, idle. The last two are for engines with memory of their own for decode."""
    costs = costs_of(deployment)
    if isinstance(costs, Costs):
        words = (on_first_token, on_finished, on_scheduled)
        return PDEngine(env, deployment, costs, *words, reserve_after_prefill, rules)
    return COLOCATED[costs.scheduler](env, deployment, costs, on_first_token, on_finished, on_scheduled)
