"""Continuum's TTL pins on prefill's cache, held by the cache's own locks."""

import time
from collections.abc import Iterable
from typing import Any

from artifact.lending.hooks import Hook, after, before
from artifact.lending.pins import Pin, PinTable
from artifact.lending.runtime import RUNTIME, hint_of


class Pinner:
    """Owned by the scheduler thread of a prefill or aggregated engine."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler, self.tree = scheduler, scheduler.tree_cache
        self.table = PinTable()
        self._head: str | None = None

    def released(self, req: Any, checkpointed: bool) -> None:
        """A request gave its row back and its prompt is in the cache: pin it if it asks, end the session's pin if it
        is the last call."""
        from sglang.srt.managers.schedule_batch import FINISH_ABORT

        hint = hint_of(req)
        if hint.session is None or not req.finished():
            return
        if hint.last:
            self._unlock(self.table.end(hint.session), "session ended")
            return
        if not (hint.pin_s and checkpointed and req.kv.cache_protected_len):
            return
        if isinstance(req.finished_reason, FINISH_ABORT):
            return
        now, earlier = time.monotonic(), self.table.pins.get(hint.session)
        arrival = now if earlier is None else earlier.arrival_s
        lock = self.tree.lock(req.last_node)
        pin = Pin(hint.session, req.kv.cache_protected_len, now + hint.pin_s, arrival, lock)
        cap = RUNTIME.settings.pin_cap * self.scheduler.max_total_num_tokens
        self._unlock(self.table.put(pin, cap), "replaced or over the cap")

    def step(self) -> None:
        """Once a scheduler iteration: end what is due; when requests wait and nothing runs, give the newest up."""
        if not self.table.pins:
            return
        self._unlock(self.table.expired(time.monotonic()), "deadline")
        if self._stuck():
            self._unlock(self.table.newest(), "nothing could be scheduled")

    def _stuck(self) -> bool:
        """The same request has headed the queue through an iteration that ran nothing, and nothing is to come back."""
        scheduler = self.scheduler
        idle = scheduler.last_batch is None and not scheduler.disagg_prefill_inflight_queue
        head = scheduler.waiting_queue[0].rid if idle and scheduler.waiting_queue else None
        before, self._head = self._head, head
        return head is not None and head == before

    def forget_all(self) -> None:
        """The cache is being emptied: its locks are void."""
        self.table.pins.clear()
        self._show()

    def _unlock(self, pins: Iterable[Pin], cause: str) -> None:
        for pin in pins:
            self.tree.unlock(pin.lock)
            RUNTIME.count("pins_ended", cause=cause)
        self._show()

    def _show(self) -> None:
        RUNTIME.gauge("pinned_tokens", self.table.tokens)


def _created(queue: Any, *args: Any, **kwargs: Any) -> None:
    RUNTIME.pinner = Pinner(queue.scheduler)


def _released(tree: Any, req: Any, *, checkpointed: bool) -> None:
    if RUNTIME.pinner is not None:
        RUNTIME.pinner.released(req, checkpointed)


def _step(scheduler: Any, *args: Any, **kwargs: Any) -> None:
    if RUNTIME.pinner is not None:
        RUNTIME.pinner.step()


def _reset(tree: Any, *args: Any, **kwargs: Any) -> None:
    if RUNTIME.pinner is not None:
        RUNTIME.pinner.forget_all()


def hooks() -> list[Hook]:
    prefill, tree = "sglang.srt.disaggregation.prefill", "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"
    step = f"{prefill}.SchedulerDisaggregationPrefillMixin.get_next_disagg_prefill_batch_to_run"
    return [
        Hook(f"{prefill}.PrefillBootstrapQueue.__init__", after(_created)),
        Hook(step, before(_step)),
        Hook(f"{tree}.on_release", after(_released)),
        Hook(f"{tree}.reset", before(_reset)),
    ]
