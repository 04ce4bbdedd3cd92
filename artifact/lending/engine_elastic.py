"""Crossflow's elastic prefill: decode computes whole prompts in chunks between its decode steps, under a revocable
lease that keeps the inter-token latency within its SLO (paper A §7.1).

A router places a call so by marking it (`hints.Hint.elastic`) and sending it to a decode instance alone, with any
`bootstrap_room` (the engine refuses a call without one). The engine's own scheduler for aggregated serving admits and
chunks it; this module only lends it the scheduler between two decode steps, with the chunk that the lease allows. Once
prefilled, the call is a decode request like any other. Chunks alternate with decode steps rather than share a forward,
and one that is under way keeps its pages even where decoding then has to retract a request.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from artifact.baselines.crossflow import Lease
from artifact.lending.hooks import Hook, after
from artifact.lending.runtime import RUNTIME, hint_of

SMOOTHING = 0.2


class Lessee:
    """Owned by the scheduler thread of a decode engine."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.lease = Lease(itl_slo_s=RUNTIME.settings.itl_slo_s)
        self.waiting: list[Any] = []
        self.chunked: Any = None
        self._just_prefilled = False
        self._decode_step_s = 0.0
        self._prefill_token_s: float | None = None
        self._last_result_s: float | None = None
        self._last_token_s: float | None = None

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.chunked)

    def next_batch(self, original: Callable[..., Any], running: Any) -> Any:
        """A prefill chunk if it is its turn and the lease allows one, or else what decode would run anyway."""
        running = self._merged(running)
        decoding = not running.is_empty()
        if self.busy and not (self._just_prefilled and decoding):
            tokens = self._chunk_tokens(decoding)
            plan = self._prefill(running, tokens) if tokens else None
            if plan is not None and plan.batch_to_run is not None:
                self._just_prefilled = True
                RUNTIME.count("elastic_chunks")
                RUNTIME.count("elastic_tokens", plan.batch_to_run.extend_num_tokens)
                return plan
        self._just_prefilled = False
        plan = original(self.scheduler, running_batch=running)
        if plan.batch_to_run is None:
            self._last_result_s = self._last_token_s = None
        return plan

    def _merged(self, running: Any) -> Any:
        """Decode's loop expects no prefill before it, so it leaves the requests of one where they are."""
        last = self.scheduler.last_batch
        if last is None or not last.forward_mode.is_extend():
            return running
        last.filter_batch(reqs_to_exclude=[r for r in (self.chunked, last.chunked_req) if r is not None])
        if last.is_empty():
            return running
        if running.is_empty():
            return last
        running.merge_batch(last)
        return running

    def _chunk_tokens(self, decoding: bool) -> int:
        """Whole pages. Without a request that decodes there is no latency to keep; without a measurement, the least."""
        now, page = time.monotonic(), self.scheduler.page_size
        self.lease.itl_slo_s = RUNTIME.settings.itl_slo_s
        if not decoding:
            tokens = self.lease.most_tokens
        elif self._prefill_token_s is None:
            tokens = self.lease.least_tokens if self.lease.valid(now) else 0
        else:
            tokens = self.lease.prefill_tokens(self._decode_step_s, self._prefill_token_s, now)
        RUNTIME.gauge("lease_tokens", tokens)
        return tokens // page * page

    def _prefill(self, running: Any, tokens: int) -> Any:
        with self.as_aggregated(tokens):
            self.scheduler.process_pending_chunked_abort()
            chunk = self.scheduler.chunked_req
            if chunk is not None and chunk.extend_end > chunk.prefix_len:
                self.scheduler.stash_chunked_request(chunk)
            running.filter_batch()
            running.batch_is_full = False
            return self.scheduler.get_new_batch_prefill(running)

    @contextmanager
    def as_aggregated(self, chunk_tokens: int | None = None) -> Iterator[None]:
        """The scheduler with the queue of elastic calls for its own, as it would stand in an aggregated engine."""
        from sglang.srt.disaggregation.utils import DisaggregationMode

        scheduler = self.scheduler
        kept = scheduler.waiting_queue, scheduler.chunked_prefill_size, scheduler.disaggregation_mode
        scheduler.waiting_queue, scheduler.chunked_req = self.waiting, self.chunked
        scheduler.disaggregation_mode = DisaggregationMode.NULL
        if chunk_tokens is not None:
            scheduler.chunked_prefill_size = chunk_tokens
        try:
            yield
        finally:
            self.waiting, self.chunked, scheduler.chunked_req = scheduler.waiting_queue, scheduler.chunked_req, None
            scheduler.waiting_queue, scheduler.chunked_prefill_size, scheduler.disaggregation_mode = kept

    def ran(self, batch: Any) -> None:
        """A step is over: what it took, and whether the tokens of running requests came within the SLO."""
        now = time.monotonic()
        took = None if self._last_result_s is None else now - self._last_result_s
        self._last_result_s = now
        if batch.forward_mode.is_extend():
            if took is not None and batch.extend_num_tokens:
                self._prefill_token_s = _smoothed(self._prefill_token_s, took / batch.extend_num_tokens)
        elif batch.forward_mode.is_decode():
            if took is not None:
                self._decode_step_s = _smoothed(self._decode_step_s or None, took)
            if self._last_token_s is not None:
                was_valid = self.lease.valid(now)
                self.lease.step_done(now - self._last_token_s, now)
                if was_valid and not self.lease.valid(now):
                    RUNTIME.count("lease_revocations")
            self._last_token_s = now


def _smoothed(before: float | None, new: float) -> float:
    return new if before is None else (1 - SMOOTHING) * before + SMOOTHING * new


def _created(queue: Any, *args: Any, **kwargs: Any) -> None:
    RUNTIME.lessee = Lessee(queue.scheduler)


def _add(original: Callable[..., None], scheduler: Any, req: Any, is_retracted: bool = False) -> None:
    if RUNTIME.lessee is None or is_retracted or not hint_of(req).elastic:
        original(scheduler, req, is_retracted=is_retracted)
        return
    with RUNTIME.lessee.as_aggregated():
        original(scheduler, req)
    RUNTIME.count("elastic_requests")


def _next(original: Callable[..., Any], scheduler: Any, running_batch: Any) -> Any:
    if RUNTIME.lessee is None:
        return original(scheduler, running_batch=running_batch)
    return RUNTIME.lessee.next_batch(original, running_batch)


def _ran(scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> None:
    if RUNTIME.lessee is not None:
        RUNTIME.lessee.ran(batch)


def _abort(original: Callable[..., None], scheduler: Any, request: Any) -> None:
    if RUNTIME.lessee is not None:
        with RUNTIME.lessee.as_aggregated():
            original(scheduler, request)
    original(scheduler, request)


def _idle(original: Callable[..., bool], scheduler: Any, *args: Any, **kwargs: Any) -> bool:
    return original(scheduler, *args, **kwargs) and (RUNTIME.lessee is None or not RUNTIME.lessee.busy)


def hooks() -> list[Hook]:
    scheduler, decode = "sglang.srt.managers.scheduler.Scheduler", "sglang.srt.disaggregation.decode"
    return [
        Hook(f"{decode}.DecodePreallocQueue.__init__", after(_created)),
        Hook(f"{scheduler}._add_request_to_queue", _add),
        Hook(f"{decode}.SchedulerDisaggregationDecodeMixin.get_next_disagg_decode_batch_to_run", _next),
        Hook(f"{scheduler}.process_batch_result", after(_ran)),
        Hook(f"{scheduler}.abort_request", _abort),
        Hook(f"{scheduler}.is_fully_idle", _idle),
    ]
