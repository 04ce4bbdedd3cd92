"""Closed-loop replay: the sessions of a plan as real HTTP clients of a gateway or an engine; Records out.

The simulator and this client take the same `PlannedSession` list, so a scenario can be run on both and compared. At
`speed` s, a second of the plan lasts 1/s seconds; all times in the records are the plan's.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import aiohttp
from anyio.from_thread import start_blocking_portal

from artifact.records.schema import Records
from artifact.workload.load import Group, PlannedSession
from hw_runs.prompts import SessionPrompts
from hw_runs.replay_rows import OpenCall, Progress, call_row, open_row, sample_row

_TRIES = 4
_SETTLE_S = 120.0
_UNLIMITED = aiohttp.ClientTimeout(total=None, sock_connect=30)


class Switch(NamedTuple):
    """A policy that is put in charge of the gateway at a time, or (named again) given other options."""

    at_s: float
    policy: str
    options: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Target:
    """Where and how to replay. `preload_url` is a stub engine that takes the contexts of sessions that join `cached`;
    with `warm_calls` they are put into a real engine's cache by one call each before the clock starts. Warm sessions
    are handed to the gateway as already inside if `admin_token` is given, otherwise they arrive like all others. Those
    of `switches` at time 0 come when the plan's clock starts, so that a controller has not run on an idle engine before
    that."""

    base_url: str
    model: str = "stub"
    speed: float = 1.0
    bytes_per_token: int = 4
    gateway: bool = True
    admin_token: str | None = None
    preload_url: str | None = None
    warm_calls: bool = False
    switches: tuple[Switch, ...] = ()
    itl_slo_s: float | None = None
    """Count events further apart than this as slow steps; None where events are not tokens (a stub counts itself)."""


async def replaying(
    plans: Sequence[PlannedSession],
    target: Target,
    duration_s: float,
    *,
    meta: Mapping[str, Any] | None = None,
    unloaded_s: Callable[[PlannedSession], float] | None = None,
    end_group: tuple[float, Group] | None = None,
    sample_s: float = 5.0,
    on_start: Callable[[], None] = lambda: None,
) -> Records:
    """Run the plan for `duration_s` seconds of it and return what happened.

    `meta` is the records' provenance; its `source` ("stub" or "hw") is the caller's to state, its `capacity` is
    filled in from the gateway's readings unless given, its `late_s` is how late in the plan's seconds the client woke
    on average. What only an engine knows is null unless it is the stub.
    `on_start` is called when the plan's clock starts, after warm sessions have been put in place.
    Raises `aiohttp.ClientError` when the gateway cannot be reached at all.
    """
    running = _Replay(plans, target, duration_s, unloaded_s, end_group, sample_s, on_start)
    return await running.run(dict(meta or {}))


def replay(plans: Sequence[PlannedSession], target: Target, duration_s: float, **options: Any) -> Records:
    """`replaying`, with its options, in an event loop of its own. A notebook's thread has a loop already, so the loop
    runs in another thread, which ends with this call however it ends."""
    with start_blocking_portal() as portal:
        return portal.call(partial(replaying, plans, target, duration_s, **options))


class _Stopped(Exception):
    """The session is over: shed, or the target refused for good."""


class _Replay:
    def __init__(
        self,
        plans: Sequence[PlannedSession],
        target: Target,
        duration_s: float,
        unloaded_s: Callable[[PlannedSession], float] | None,
        end_group: tuple[float, Group] | None,
        sample_s: float,
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        self.on_start = on_start
        self.target, self.duration_s, self.unloaded_s = target, duration_s, unloaded_s
        self.end_group, self.sample_s = end_group, sample_s
        self.progress = [Progress(plan) for plan in plans]
        self.calls: list[tuple[Any, ...]] = []
        self.samples: list[tuple[Any, ...]] = []
        self.errors: dict[str, int] = {}
        self.capacity: dict[str, int] = {}
        self._client: aiohttp.ClientSession
        self._began = 0.0
        self._late_s, self._waits = 0.0, 0

    def now(self) -> float:
        return (asyncio.get_running_loop().time() - self._began) * self.target.speed

    async def until(self, time_s: float) -> None:
        await asyncio.sleep(max(0.0, time_s - self.now()) / self.target.speed)
        self._late_s += max(0.0, self.now() - time_s)
        self._waits += 1

    async def run(self, meta: dict[str, Any]) -> Records:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)
        async with aiohttp.ClientSession(connector=connector, timeout=_UNLIMITED) as self._client:
            self._began = asyncio.get_running_loop().time()
            await self._warm()
            await self._put_in_charge([switch for switch in self.target.switches if switch.at_s <= 0])
            counted = await self._settled() if self.target.gateway else {}
            self.on_start()
            self._began = asyncio.get_running_loop().time()
            tasks = {asyncio.create_task(self._session(p)): p for p in self.progress}
            helpers = [asyncio.create_task(self._sample(counted)), asyncio.create_task(self._end(tasks))]
            helpers.append(asyncio.create_task(self._switch()))
            await self.until(self.duration_s)
            for task in (*tasks, *helpers):
                task.cancel()
            for failure in await asyncio.gather(*tasks, *helpers, return_exceptions=True):
                if isinstance(failure, Exception):
                    raise failure
        meta.setdefault("capacity", self.capacity)
        meta |= {"duration_s": self.duration_s, "speed": self.target.speed, "errors": self.errors}
        meta["late_s"] = self._late_s / self._waits
        return Records.from_rows(
            self.calls + [open_row(p) for p in self.progress if p.open_call is not None],
            [p.row(self.unloaded_s(p.plan) if self.unloaded_s else None) for p in self.progress],
            self.samples,
            meta,
        )

    # Sessions ------------------------------------------------------------------------------------------------
    async def _session(self, progress: Progress) -> None:
        plan, trajectory = progress.plan, progress.plan.trajectory
        prompts = SessionPrompts(plan.id, trajectory, self.target.bytes_per_token)
        with suppress(_Stopped):
            await self.until(plan.arrival_s + plan.first_gap_s)
            for index in range(plan.first_call, trajectory.n_calls):
                if index > plan.first_call:
                    await self.until(self.now() + trajectory.gap_before_s[index])
                await self._call(progress, index, prompts.messages(index))
                progress.calls_done += 1
            progress.ended_s, progress.outcome = self.now(), "completed"

    async def _call(self, progress: Progress, index: int, messages: list[dict[str, Any]]) -> None:
        trajectory = progress.plan.trajectory
        content = json.dumps(self._body(messages, max(trajectory.output_tokens[index], 1))).encode()
        final = index + 1 == trajectory.n_calls
        for attempt in range(_TRIES):
            wait_s = await self._attempt(progress, index, content, final)
            if wait_s is None:
                return
            if attempt + 1 < _TRIES:
                await asyncio.sleep(wait_s / self.target.speed)
        raise _Stopped

    def _body(self, messages: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
        return {
            "model": self.target.model,
            "messages": messages,
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    async def _attempt(self, progress: Progress, index: int, content: bytes, final: bool) -> float | None:
        """One try; None when it succeeded, else seconds to wait before the next. Raises `_Stopped` when shed."""
        headers = {"content-type": "application/json", "x-session-id": progress.plan.id}
        if final:
            headers |= {"x-basin-session-id": progress.plan.id, "x-basin-session-final": "true"}
        sent_s = self.now()
        try:
            async with self._client.post(
                self.target.base_url + "/v1/chat/completions", data=content, headers=headers
            ) as response:
                if response.status == 429:
                    progress.ended_s, progress.outcome = self.now(), "shed"
                    raise _Stopped
                if response.status == 200:
                    await self._read(progress, index, response, sent_s)
                    return None
                reason = response.headers.get("x-basin-reason", str(response.status))
                retry_s = float(response.headers.get("retry-after", 1.0))
        except (aiohttp.ClientError, ConnectionError) as error:
            reason, retry_s = type(error).__name__, 1.0
            progress.open_call = None
        self.errors[reason] = self.errors.get(reason, 0) + 1
        return retry_s

    async def _read(self, progress: Progress, index: int, response: aiohttp.ClientResponse, sent_s: float) -> None:
        released_s = sent_s + float(response.headers.get("x-basin-wait-s", 0.0))
        progress.open_call = OpenCall(index, released_s)
        first_s: float | None = None
        last_s = 0.0
        slow = 0
        ending: dict[str, Any] = {}
        async for line in response.content:
            if not line.startswith(b"data:") or line.startswith(b"data: [DONE]"):
                continue
            now = self.now()
            if first_s is None:
                first_s = progress.open_call.first_token_s = now
                progress.admitted_s = released_s if progress.admitted_s is None else progress.admitted_s
                progress.started_s = now if progress.started_s is None else progress.started_s
            elif self.target.itl_slo_s is not None and now - last_s > self.target.itl_slo_s:
                slow += 1
            last_s = now
            if b'"usage"' in line:
                ending = json.loads(line[5:])
        if first_s is None or not ending.get("usage"):
            raise aiohttp.ClientPayloadError("the stream ended without usage")
        engine = ending.get("stub", {})
        measured = slow if self.target.itl_slo_s is not None else engine.get("slow_steps")
        progress.decode_steps += max(ending["usage"]["completion_tokens"] - 1, 0)
        if measured is not None:
            progress.slow_steps = (progress.slow_steps or 0) + measured
        progress.open_call = None
        times_s = (released_s, first_s, self.now())
        self.calls.append(call_row(progress.plan.id, index, times_s, ending["usage"], engine, measured))

    # Beside the sessions -------------------------------------------------------------------------------------
    async def _warm(self) -> None:
        """Put sessions that join mid-trajectory where a long run would have them: inside, `cached` ones in cache."""
        warm = [p.plan for p in self.progress if p.plan.group == "warm"]
        if self.target.preload_url is not None:
            for plan in (p for p in warm if p.cached):
                prompts = SessionPrompts(plan.id, plan.trajectory, self.target.bytes_per_token)
                body = {"messages": prompts.messages(plan.first_call - 1)}
                await self._ask("POST", self.target.preload_url + "/preload", body, {"x-session-id": plan.id})
        if self.target.warm_calls:
            await asyncio.gather(*(self._warm_call(plan) for plan in warm if plan.cached))
        if self.target.gateway and self.target.admin_token is not None and warm:
            inside = [
                {
                    "id": plan.id,
                    "context_tokens": plan.trajectory.prompt_tokens[plan.first_call],
                    "first_prompt_tokens": plan.trajectory.prompt_tokens[0],
                    "task_text": plan.trajectory.task_text,
                }
                for plan in warm
            ]
            await self._administer("POST", "/admin/adopt", {"sessions": inside})

    async def _warm_call(self, plan: PlannedSession) -> None:
        """The session's preceding prompt, with the shortest answer."""
        prompts = SessionPrompts(plan.id, plan.trajectory, self.target.bytes_per_token)
        body = self._body(prompts.messages(plan.first_call - 1), 1) | {"stream": False}
        del body["stream_options"]
        await self._ask("POST", self.target.base_url + "/v1/chat/completions", body, {"x-session-id": plan.id})

    async def _put_in_charge(self, switches: Sequence[Switch]) -> None:
        for switch in switches:
            choice = {"policy": switch.policy, "options": dict(switch.options)}
            await self._administer("PUT", "/admin/policy", choice)

    async def _switch(self) -> None:
        for switch in sorted(switch for switch in self.target.switches if switch.at_s > 0):
            await self.until(switch.at_s)
            await self._put_in_charge([switch])

    async def _administer(self, method: str, path: str, body: object) -> None:
        token = {"x-basin-admin-token": self.target.admin_token or ""}
        await self._ask(method, self.target.base_url + path, body, token)

    async def _ask(self, method: str, url: str, body: object, headers: dict[str, str]) -> Any:
        async with self._client.request(method, url, json=body, headers=headers) as response:
            if response.status != 200:
                raise RuntimeError(f"{url}: {response.status} {(await response.text())[:300]}")
            return await response.json()

    async def _end(self, tasks: dict[asyncio.Task[None], Progress]) -> None:
        """The intervention of a scenario: end every live session of a group."""
        if self.end_group is None:
            return
        at_s, group = self.end_group
        await self.until(at_s)
        for task, progress in tasks.items():
            if progress.plan.group == group and progress.plan.arrival_s <= at_s and progress.ended_s is None:
                task.cancel()
                progress.ended_s, progress.outcome = self.now(), "ended"
                progress.open_call = None

    async def _state(self) -> dict[str, Any]:
        async with self._client.get(self.target.base_url + "/sessions?limit=0") as response:
            state: dict[str, Any] = await response.json()
            return state

    async def _settled(self) -> dict[str, Any]:
        """The gateway's view once it has read the engines after whatever was done before the clock started.

        Raises `RuntimeError` where it cannot read them."""
        since_s = self.now()
        state = await self._state()
        warmed = self.target.warm_calls and any(p.plan.cached for p in self.progress)
        while warmed and (state["signal_age_s"] or 0.0) > self.now() - since_s:
            if self.now() - since_s > _SETTLE_S * self.target.speed:
                raise RuntimeError(
                    f"{self.target.base_url}: the gateway has not read its engines' metrics for {_SETTLE_S:g} s after "
                    "the warm calls; see /sessions and the gateway's log for the endpoint that fails"
                )
            await asyncio.sleep(0.5)
            state = await self._state()
        return state

    async def _sample(self, before: Mapping[str, Any]) -> None:
        """The gateway's own view, every `sample_s`, its counters from the clock's start on (`before`: the view then);
        without a gateway there are no samples."""
        due_s = 0.0
        while self.target.gateway:
            state = await self._state()
            if state["policy_errors"]:
                self.errors["policy"] = state["policy_errors"]
            self.capacity |= {name: tokens for name, tokens in state["capacity"].items() if tokens is not None}
            extra = sum(p.active for p in self.progress if p.plan.group in ("surge", "burst"))
            counted = {name: state[name] - before[name] for name in state if name.endswith("_total")}
            self.samples.append(sample_row({**state, **counted}, self.now(), extra))
            due_s += self.sample_s
            await self.until(due_s)
