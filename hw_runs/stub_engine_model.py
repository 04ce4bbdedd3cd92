"""The engine inside the stub: the simulator's, kept in step with the real clock."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from simpy import Environment

from artifact.lending.hints import NOTHING, Hint
from sim.calibration.model import calibration
from sim.engine.call import EngineCall
from sim.engine.costs import Costs
from sim.engine.pd import PDEngine
from sim.scenario import Deployment

_SESSIONS = 20_000


@dataclass(eq=False)
class StubCall:
    """A request inside the model. `first_token` and `done` are called once each, in this order, on the model's clock.

    `repeated_tokens` of the prompt were in the session's preceding prompt. `order`: smaller is served first.
    """

    session_id: str
    prompt_tokens: int
    repeated_tokens: int
    output_tokens: int
    order: float
    first_token: Callable[[], None]
    done: Callable[[], None]
    hint: Hint = NOTHING
    details: dict[str, Any] = field(default_factory=dict)
    """Times and counts that only the engine knows, complete when `done` is called."""


class EngineModel(Protocol):
    """What a stub needs of an engine: events on a SimPy clock, whose unit is a second of the modelled engine."""

    env: Environment
    overhead_s: float
    """Time a call spends outside the modelled stages; the stub waits it out before it submits."""

    def submit(self, call: StubCall) -> None: ...

    def abort(self, call: StubCall) -> None: ...

    def preload(self, session_id: str, prompt_tokens: int) -> None:
        """Place a session's context in the prefix cache."""

    def metrics(self, role: str) -> dict[str, float]:
        """Readings under SGLang's metric names, of all `prefill` or all `decode` instances together."""


class SimulatedEngine:
    """`EngineModel` on the simulator's prefill-decode engine. `shared_head_tokens` are common to all sessions."""

    def __init__(self, deployment: Deployment, shared_head_tokens: int) -> None:
        self.env = Environment()
        self.deployment = deployment
        self.head = shared_head_tokens
        costs = Costs.of(calibration(deployment.calibration))
        self.overhead_s = costs.overhead_s
        self.engine = PDEngine(self.env, deployment, costs, self._first_token, self._finished)
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._inside: dict[StubCall, EngineCall] = {}
        self._calls: dict[EngineCall, StubCall] = {}

    def submit(self, call: StubCall) -> None:
        inner = EngineCall(*self._session(call.session_id).next_call(call), self.env.now - self.overhead_s)
        inner.order = call.order
        self.engine.lent.adopting = call.hint.retain
        self._inside[call], self._calls[inner] = inner, call
        self.engine.submit(inner)

    def abort(self, call: StubCall) -> None:
        inner = self._inside.pop(call, None)
        if inner is not None:
            del self._calls[inner]
            self.engine.abort(inner)

    def preload(self, session_id: str, prompt_tokens: int) -> None:
        session = self._session(session_id)
        session.trajectory.append(prompt_tokens, 0, 0)
        self.engine.preload(session, prompt_tokens)

    def metrics(self, role: str) -> dict[str, float]:
        now = self.engine.occupancy()
        if role == "prefill":
            return {
                "prompt_tokens_total": now.prompt_tokens,
                "cached_tokens_total": now.cached_tokens,
                "num_queue_reqs": now.prefill_calls,
                "num_running_reqs": 0,
                "max_total_num_tokens": self.engine.capacities.prefill_cache_tokens,
                "hicache_host_total_tokens": self.engine.capacities.host_cache_tokens,
            }
        return {
            "num_running_reqs": now.decode_running,
            "num_queue_reqs": 0,
            "num_decode_prealloc_queue_reqs": now.decode_waiting,
            "kv_used_tokens": now.kv_running + now.kv_idle,
            "max_total_num_tokens": self.engine.capacities.decode_kv_tokens,
            "prefill_busy_seconds_total": now.prefill_busy_s,
            "computed_tokens_total": now.computed_tokens,
            "basin_lent_tokens": now.lent,
        }

    def _session(self, session_id: str) -> "_Session":
        session = self._sessions.get(session_id)
        if session is None:
            session = self._sessions[session_id] = _Session(session_id, self.head, self.env.now)
            if len(self._sessions) > _SESSIONS:
                self._sessions.popitem(last=False)
        self._sessions.move_to_end(session_id)
        return session

    def _first_token(self, inner: EngineCall) -> None:
        call = self._calls.get(inner)
        if call is not None:
            call.details |= {
                "cached_tokens": inner.cached,
                "cached_host_tokens": inner.cached_host,
                "cached_lent_tokens": inner.cached_lent,
                "reserve_wait_s": inner.reserve_wait,
                "scheduled_after_s": (inner.scheduled or 0.0) - inner.released,
                "prefill_instance": inner.prefill.number,
                "decode_instance": inner.decode.number,
            }
            call.first_token()

    def _finished(self, inner: EngineCall) -> None:
        call = self._calls.pop(inner, None)
        if call is not None:
            del self._inside[call]
            self._keep(call, inner)
            call.details["slow_steps"] = inner.decode.slow_steps(inner)
            call.done()

    def _keep(self, call: StubCall, inner: EngineCall) -> None:
        """What the extension would do when a call is over: drop what was kept for a session, or pin its prompt."""
        if call.hint.last:
            self.engine.forget(inner.session)
        elif call.hint.pin_s > 0:
            self.engine.hold(inner, inner.session.arrival_s, call.hint.pin_s)


class _Columns:
    """The part of a trajectory that the engine has seen, in the columns that `EngineCall` reads."""

    def __init__(self, shared_head_tokens: int) -> None:
        self.shared_head_tokens = shared_head_tokens
        self.prompt_tokens: list[int] = []
        self.new_tokens: list[int] = []
        self.output_tokens: list[int] = []

    def append(self, prompt: int, repeated: int, output: int) -> None:
        self.prompt_tokens.append(prompt)
        self.new_tokens.append(prompt - repeated)
        self.output_tokens.append(output)


class _Session:
    """A session as the engine's router and cache know it."""

    def __init__(self, session_id: str, shared_head_tokens: int, arrival_s: float) -> None:
        self.id = session_id
        self.arrival_s = arrival_s
        self.home: Any = None
        self.trajectory = _Columns(shared_head_tokens)

    def next_call(self, call: StubCall) -> tuple["_Session", int]:
        self.trajectory.append(call.prompt_tokens, call.repeated_tokens, call.output_tokens)
        return self, len(self.trajectory.prompt_tokens) - 1


class Pace:
    """Runs a model's events when their time has come on the real clock, `speed` modelled seconds a real second."""

    def __init__(self, model: EngineModel, speed: float) -> None:
        self.model = model
        self.speed = speed
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def now(self) -> float:
        return (self._loop.time() - self._began) * self.speed

    async def sleep(self, modelled_s: float) -> None:
        await asyncio.sleep(modelled_s / self.speed)

    def submit(self, call: StubCall) -> None:
        self._catch_up()
        self.model.submit(call)
        self._arm()

    def abort(self, call: StubCall) -> None:
        self._catch_up()
        self.model.abort(call)
        self._arm()

    def _catch_up(self) -> None:
        env, now = self.model.env, self.now()
        while env.peek() <= now:
            env.step()
        if now > env.now:
            env.run(until=now)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.model.env.peek()
        if due != float("inf"):
            self._timer = self._loop.call_at(self._began + due / self.speed, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._catch_up()
        self._arm()
