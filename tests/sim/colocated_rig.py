"""A colocated engine with round numbers, so that tests can say by hand when things happen.

Times are sums of powers of two: they are compared exactly.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from engine_rig import assert_adds_up, session
from simpy import Environment

from sim.calibration.model import colocated_calibration
from sim.engine.call import EngineCall
from sim.engine.colocated import ColocatedEngine
from sim.engine.colocated_costs import ColocatedCosts
from sim.engine.kinds import COLOCATED
from sim.scenario import Deployment

COSTS = ColocatedCosts(
    scheduler="vllm",
    pool_tokens=1000,
    chunk_tokens=64,
    max_running=100,
    fixed_s=0.5,
    request_s=0.125,
    context_s=0.0,
    prefill_token_s=1 / 64,
    prefill_position_s=0.0,
    prefill_position_context_s=0.0,
    host_load_token_s=1 / 64,
    overhead_s=0.0,
    itl_slo_s=0.7,
)
"""A full chunk alone takes 0.5 + 0.125 + 1 = 1.625 s, a decode step alone 0.625 s, 0.125 s more with each other."""

NAMES = {
    "pool_tokens": COSTS.pool_tokens,
    "chunk_tokens": COSTS.chunk_tokens,
    "max_running": COSTS.max_running,
    "fixed_s": COSTS.fixed_s,
    "per_request_s": COSTS.request_s,
    "per_context_token_s": COSTS.context_s,
    "per_token_s": COSTS.prefill_token_s,
    "per_token_position_s": COSTS.prefill_position_s,
    "per_token_position_context_s": COSTS.prefill_position_context_s,
    "host_load_tokens_per_s": 1 / COSTS.host_load_token_s,
    "call_overhead_s": COSTS.overhead_s,
    "itl_slo_s": COSTS.itl_slo_s,
}


def colocated_file(folder: Path, scheduler: str = "vllm", **values: float) -> str:
    """A calibration file like `COSTS`."""
    data = colocated_calibration("mi300x-qwen3-8b").model_dump(mode="json") | {"scheduler": scheduler}
    for name, value in (NAMES | values).items():
        data[name]["value"] = value
    path = folder / f"colocated-{len(list(folder.iterdir()))}.yaml"
    path.write_text(yaml.safe_dump(data))
    return str(path)


@dataclass
class ColocatedRig:
    """An engine on its clock, and what it has said so far: times by session, of its last call."""

    costs: ColocatedCosts = COSTS
    options: dict[str, Any] = field(default_factory=dict)
    env: Environment = field(default_factory=Environment)

    def __post_init__(self) -> None:
        self.first_token: dict[str, float] = {}
        self.finished: dict[str, float] = {}
        self.served: list[EngineCall] = []
        self.engine: ColocatedEngine = COLOCATED[self.costs.scheduler](
            self.env, Deployment(kind="colocated", **self.options), self.costs, self._first, self._finished
        )

    def submit(self, call: EngineCall, at_s: float = 0.0) -> EngineCall:
        self.at(at_s, self.engine.submit, call)
        return call

    def at(self, time_s: float, what: Any, *arguments: Any) -> None:
        self.env.timeout(time_s - self.env.now).callbacks.append(lambda _: what(*arguments))

    def run(self, until: float | None = None) -> None:
        self.env.run(until=until)

    def _first(self, call: EngineCall) -> None:
        self.first_token[call.session.id] = self.env.now

    def _finished(self, call: EngineCall) -> None:
        assert call not in self.served, "served twice"
        self.served.append(call)
        self.finished[call.session.id] = self.env.now


def rig(options: dict[str, Any] | None = None, **costs: Any) -> ColocatedRig:
    return ColocatedRig(replace(COSTS, **costs), options or {})


def turns(
    id: str, *prompts: int, output: int = 1, head: int = 0, new: tuple[int, ...] | None = None
) -> list[EngineCall]:
    """All calls of one session."""
    whole = session(id, *prompts, output=output, head=head, new=new)
    return [EngineCall(whole, i, 0.0) for i in range(len(prompts))]


def turn(id: str, prompt: int, output: int = 1, head: int = 0) -> EngineCall:
    """The only call of a session of its own."""
    return turns(id, prompt, output=output, head=head)[0]


def assert_pool_adds_up(engine: ColocatedEngine) -> None:
    """What is held is what the lines, the shared head and the running requests beyond their lines hold."""
    promised = sum(call.extra for call in engine.prefilling)
    generated = sum(int(call.left) - engine.decoding.left(call) for call in engine.running)
    lines = sum(line.tokens for line in engine.cache.lines.values())
    assert engine.cache.used == lines + promised + generated + engine.head
    assert engine.cache.used <= engine.cache.capacity
    assert_adds_up(engine.cache)


def assert_idle(engine: ColocatedEngine) -> None:
    """Nothing is held for anybody."""
    assert (engine.running, engine.prefilling, engine.preempted, len(engine.decoding)) == ({}, [], [], 0)
    assert (len(engine.waiting), engine.decoding.context, engine.outstanding_tokens()) == (0, 0, 0)
    assert all(line.pins == 0 for line in engine.cache.lines.values())
    assert_pool_adds_up(engine)
