"""Ordering in every queue of a prefill, decode or aggregated engine (paper A §6.3)."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from artifact.lending import order
from artifact.lending.hooks import Hook, before
from artifact.lending.runtime import RUNTIME

_arrivals = itertools.count()


def _key(req: Any) -> order.Key:
    return order.key(req.priority if RUNTIME.settings.ordering else 0, req._basin_arrival)


def _sort(queue: list[Any], name: str, req_of: Callable[[Any], Any] = lambda entry: entry) -> None:
    if len(queue) > 1 and order.sort(queue, lambda entry: _key(req_of(entry))):
        RUNTIME.count("reordered_queues", queue=name)


def _stamp(scheduler: Any, req: Any, *args: Any, **kwargs: Any) -> None:
    """Arrival at this engine; a retracted or requeued request keeps its first."""
    if not hasattr(req, "_basin_arrival"):
        req._basin_arrival = next(_arrivals)


def _sorting(queues: Callable[[Any], Iterator[tuple[list[Any], str, Callable[[Any], Any]]]]) -> Callable[..., Any]:
    def step(owner: Any, *args: Any, **kwargs: Any) -> None:
        if RUNTIME.settings.ordering:
            for queue, name, req_of in queues(owner):
                _sort(queue, name, req_of)

    return before(step)


def _same(entry: Any) -> Any:
    return entry


def _of(entry: Any) -> Any:
    return entry.req


def _bootstrap(queue: Any) -> Iterator[Any]:
    yield queue.queue, "prefill_bootstrap", _same


def _prealloc(queue: Any) -> Iterator[Any]:
    yield queue.queue, "decode_prealloc", _of


def _retracted(queue: Any) -> Iterator[Any]:
    yield queue.retracted_queue, "decode_retracted", _same


def _prebuilt(scheduler: Any) -> Iterator[Any]:
    yield scheduler.waiting_queue, "decode_prebuilt", _same


def _waiting(original: Callable[..., Any], policy: Any, waiting_queue: list[Any], *args: Any, **kwargs: Any) -> Any:
    """The engine's policy still matches prefixes; the order it leaves is ours."""
    result = original(policy, waiting_queue, *args, **kwargs)
    if RUNTIME.settings.ordering:
        _sort(waiting_queue, "waiting")
    return result


def _retraction(original: Callable[..., Any], reqs: list[Any]) -> list[int]:
    """Indices from the first to keep to the first to retract."""
    if not RUNTIME.settings.ordering:
        return original(reqs)
    return sorted(range(len(reqs)), key=lambda i: _key(reqs[i]))


def resort(scheduler: Any) -> None:
    """The switch was turned: put what waits into priority order, or back into arrival order."""
    prefill, decode = scheduler.disagg_prefill_bootstrap_queue, scheduler.disagg_decode_prealloc_queue
    queues = [_prebuilt(scheduler)]
    queues += [_bootstrap(prefill)] if prefill is not None else []
    queues += [_prealloc(decode), _retracted(decode)] if decode is not None else []
    for queue, name, req_of in itertools.chain.from_iterable(queues):
        _sort(queue, name, req_of)


def hooks() -> list[Hook]:
    scheduler, decode = "sglang.srt.managers.scheduler.Scheduler", "sglang.srt.disaggregation.decode"
    return [
        Hook(f"{scheduler}._add_request_to_queue", before(_stamp)),
        Hook("sglang.srt.managers.schedule_policy.SchedulePolicy.calc_priority", _waiting),
        Hook("sglang.srt.managers.schedule_batch.ScheduleBatch._get_decode_retraction_order", _retraction),
        Hook("sglang.srt.disaggregation.prefill.PrefillBootstrapQueue.pop_bootstrapped", _sorting(_bootstrap)),
        Hook(f"{decode}.DecodePreallocQueue.pop_preallocated", _sorting(_prealloc)),
        Hook(f"{decode}.DecodePreallocQueue.resume_retracted_reqs", _sorting(_retracted)),
        Hook(f"{decode}.SchedulerDisaggregationDecodeMixin._get_new_prebuilt_batch", _sorting(_prebuilt)),
    ]


def check(server_args: Any) -> None:
    """Raises `ValueError` where the engine's own priority scheduling would sort the same queues the other way."""
    if server_args.enable_priority_scheduling:
        raise ValueError(
            "--enable-priority-scheduling and the feature 'order' of BASIN_SGLANG both sort the engine's queues; "
            "drop the flag: the feature reads the same request field 'priority' (smaller first) and can be switched "
            "at run time"
        )
