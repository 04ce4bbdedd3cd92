"""An engine with round numbers, so that tests can say by hand when things happen.

Times are sums of powers of two: they are compared exactly.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from simpy import Environment

from artifact.workload.trajectory import Trajectory
from sim.calibration.model import calibration
from sim.engine.call import EngineCall
from sim.engine.costs import Costs
from sim.engine.pd import PDEngine
from sim.scenario import Deployment

COSTS = replace(
    Costs.of(calibration("h200")),
    cache_tokens=1000,
    chunk_tokens=64,
    prefill_fixed_s=1.0,
    prefill_token_s=1 / 64,
    prefill_position_s=1 / 4096,
    host_load_token_s=1 / 256,
    cache_slots=100,
    kv_tokens=1000,
    held_back_tokens=0,
    decode_fixed_s=0.125,
    decode_request_s=0.125,
    decode_context_s=0.0,
    decode_slots=100,
    transfer_s=0.5,
    overhead_s=0.0,
    itl_slo_s=0.3,
    hybrid=False,
)
"""A decode step takes 0.25 s alone, 0.375 s with one other (over the SLO), 0.125 s more with each further one."""


@dataclass(eq=False)
class Session:
    """What the engine sees of a session."""

    id: str
    trajectory: Trajectory
    home: Any = None


def session(id: str, *prompts: int, output: int = 1, new: tuple[int, ...] | None = None, head: int = 0) -> Session:
    """A session of these prompts, each extending the one before unless `new` says how little was repeated."""
    grown = tuple(b - a for a, b in zip((0, *prompts), prompts, strict=False))
    columns = (new or grown, (output,) * len(prompts), (0.0,) * len(prompts))
    return Session(id, Trajectory(id, prompts, *columns, shared_head_tokens=head))


def call(id: str, prompt: int, output: int = 1, head: int = 0) -> EngineCall:
    """The only call of a session of its own."""
    return EngineCall(session(id, prompt, output=output, head=head), 0, 0.0)


@dataclass
class Rig:
    """An engine on its clock, and what it has said so far: times by session, of its last call."""

    costs: Costs = COSTS
    deployment: Deployment = field(default_factory=Deployment)
    env: Environment = field(default_factory=Environment)

    def __post_init__(self) -> None:
        self.first_token: dict[str, float] = {}
        self.finished: dict[str, float] = {}
        self.served: set[EngineCall] = set()
        self.engine = PDEngine(self.env, self.deployment, self.costs, self._first, self._finished)

    @property
    def prefill(self) -> Any:
        return self.engine.prefills[0]

    @property
    def decode(self) -> Any:
        return self.engine.decodes[0]

    def at(self, time_s: float, what: Any, *arguments: Any) -> None:
        self.env.timeout(time_s - self.env.now).callbacks.append(lambda _: what(*arguments))

    def submit(self, call: EngineCall, at_s: float | None = None) -> EngineCall:
        if at_s is None:
            self.engine.submit(call)
        else:
            self.at(at_s, self.engine.submit, call)
        return call

    def run(self, until: float | None = None) -> None:
        self.env.run(until=until)

    def _first(self, call: EngineCall) -> None:
        self.first_token[call.session.id] = self.env.now

    def _finished(self, call: EngineCall) -> None:
        assert call not in self.served, "served twice"
        self.served.add(call)
        self.finished[call.session.id] = self.env.now


def assert_idle(engine: PDEngine) -> None:
    """Nothing is held for anybody: no reservation, no queue, no pin, and the caches add up."""
    for decode in engine.decodes:
        held = (decode.running, decode.reserved, decode.kv_running, decode.kv_idle, len(decode.waiting))
        assert (*held, list(decode.retracted)) == (0, 0, 0, 0, 0, [])
    for prefill in engine.prefills:
        assert (prefill.load, len(prefill.queue), prefill.outstanding_tokens()) == (0, 0, 0)
        assert_adds_up(prefill.cache)
        assert all(line.pins == 0 for line in prefill.cache.lines.values())
        assert prefill.cache.used == sum(line.tokens for line in prefill.cache.lines.values())


def assert_adds_up(cache: Any) -> None:
    """Occupancy is within capacity and is what the lines hold, with what is promised on top."""
    assert sum(line.tokens for line in cache.lines.values()) <= cache.used <= cache.capacity
    assert sum(line.host for line in cache.lines.values()) == cache.host_used <= cache.host_capacity
