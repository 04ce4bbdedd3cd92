"""Loads as the published runs begin: clients of a replay connect to a fresh engine with the steady population."""

from functools import lru_cache

import numpy as np

from artifact.workload.catalog import workload
from artifact.workload.load import Load
from sim.engine.kinds import unloaded_of
from sim.fluid.calibrated import fluid_deployment
from sim.fluid.equilibria import landscape, operating_point
from sim.fluid.model import FluidDeployment
from sim.scenario import Deployment


def replayed(deployment: Deployment, load: Load, settled: bool = True) -> Load:
    """`load` with its population joining cold: all with their next call at time 0 and nothing cached.

    Paper A starts its runs "from steady operation" without saying how; its replay driver connects to an engine that
    has served nobody. With this start Fig. 8 comes out at every tool time; with cached contexts the long tool times
    do not (REPRODUCE.md). `settled`: the steady population of this deployment. A search for the load that overloads it
    begins with the population of an idle engine instead, so that the answer is not put in.
    """
    sessions = steady_sessions(deployment, load) if settled else None
    return load.model_copy(update={"warm_sessions": sessions, "warm_start": "cold"})


def steady_sessions(deployment: Deployment, load: Load) -> int:
    """Sessions inside at `load.rate_per_min`: N_s of the fluid model (paper A §5.1), which knows how they slow one
    another down, and at least the population of an idle engine. At overload, where there is no N_s, the peak's N*."""
    rate = load.rate_per_min / 60
    fluid, unloaded_s = _models(deployment, load.workload, load.tool_time_scale, load.output_scale)
    settled = operating_point(fluid, rate).stable
    if not np.isfinite(settled):
        settled = landscape(fluid).peak_sessions
    idle = rate * unloaded_s
    return round(max(float(settled), idle) if np.isfinite(settled) else idle)


@lru_cache(maxsize=64)
def _models(deployment: Deployment, name: str, tools: float, outputs: float) -> tuple[FluidDeployment, float]:
    """The fluid model and the mean unloaded duration (s) of the workload's sessions; a sweep asks for few of them."""
    fluid = fluid_deployment(deployment, name, output_scale=outputs).scaled(tool_time=tools)
    unloaded = unloaded_of(deployment)
    return fluid, float(np.mean([unloaded(t.scaled(tools, outputs), 0) for t in workload(name)]))
