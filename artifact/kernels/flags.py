"""Flags by which a layer learns that its pages have arrived (paper A §6.2: transfer in layer order, overlapping
execution).

`flags` is an int32 tensor (slots, groups): one row a fetch in flight, one column a layer group. Whoever delivers the
pages writes the fetch's epoch (> 0, never reused while its row is) into a column after the group's bytes are visible;
a monitor writes `FAILED` to release waiters of a fetch it gave up.

Memory order: `publish` stores with release semantics at system scope, so all writes that precede it in the publishing
thread are visible to a waiter that has seen the epoch. A waiter spins on volatile loads, which never write the word
(an atomic add of 0 would write back a stale value over a network card's store), and then performs one acquire at
system scope on the same word, so no later load of the consumer can be served from before the flag.

Spinning is bounded: after `max_spins` loads a waiter reports `TIMED_OUT` and lets the stream run on, since a kernel
that never ends cannot be cancelled. What ran on incomplete pages must then be discarded by the caller.
"""

import time
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

FAILED = -1
READY, GIVEN_UP, TIMED_OUT = 1, 2, 3
POLL_S = 50e-6


def publish_reference(flags: torch.Tensor, slot: int, group: int, epoch: int) -> None:
    flags[slot, group] = epoch


def wait_reference(
    flags: torch.Tensor, slots: Sequence[int], group: int, epochs: Sequence[int], timeout_s: float
) -> list[int]:
    """Block the calling thread until each fetch's group has its epoch or `FAILED`; a status for each fetch."""
    deadline = time.monotonic() + timeout_s
    column = flags.numpy()[:, group]
    status = []
    for slot, epoch in zip(slots, epochs, strict=True):
        while column[slot] not in (epoch, FAILED) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        status.append({epoch: READY, FAILED: GIVEN_UP}.get(int(column[slot]), TIMED_OUT))
    return status


def publish(flags: torch.Tensor, slot: int, group: int, epoch: int) -> None:
    """Publish on the current stream, after all work queued on it."""
    _kernels().publish[(1,)](flags, slot * flags.stride(0) + group, epoch)


def wait(
    flags: torch.Tensor,
    slots: torch.Tensor,
    group: int,
    epochs: torch.Tensor,
    status: torch.Tensor,
    max_spins: int = 1 << 26,
) -> None:
    """Hold the current stream until every fetch's group has its epoch or `FAILED`, or spun `max_spins` times.

    slots, epochs, status: int32 (fetches,) on the flags' device; a status other than `READY`, once written, stays
    (one tensor serves all layers of a forward), so the caller reads it once at the end.
    """
    if len(slots):
        _kernels().wait[(len(slots),)](
            flags, slots, epochs, status, flags.stride(0), group, max_spins, FAILED, READY, GIVEN_UP, TIMED_OUT
        )


class _Kernels:
    """Compiled on first use: importing this module needs no Triton."""

    def __init__(self) -> None:
        import triton
        import triton.language as tl

        # The kernels' bodies resolve `tl` as a global of this module.
        globals()["tl"] = tl
        self.publish: Any = triton.jit(_publish)
        self.wait: Any = triton.jit(_wait)


@cache
def _kernels() -> _Kernels:
    return _Kernels()


def _publish(flags, index, epoch):  # type: ignore[no-untyped-def]
    tl.atomic_xchg(flags + index, epoch, sem="release", scope="sys")  # noqa: F821


def _wait(flags, slots, epochs, status, stride, group, max_spins, failed, ready, given_up, timed_out):  # type: ignore[no-untyped-def]
    me = tl.program_id(0)  # noqa: F821
    word = flags + tl.load(slots + me) * stride + group  # noqa: F821
    epoch = tl.load(epochs + me)  # noqa: F821
    seen = tl.load(word, volatile=True)  # noqa: F821
    spins = 0
    while (seen != epoch) & (seen != failed) & (spins < max_spins):
        seen = tl.load(word, volatile=True)  # noqa: F821
        spins += 1
    seen = tl.atomic_add(word, 0, sem="acquire", scope="sys")  # noqa: F821
    outcome = tl.where(seen == epoch, ready, tl.where(seen == failed, given_up, timed_out))  # noqa: F821
    before = tl.load(status + me)  # noqa: F821
    tl.store(status + me, tl.where((before == given_up) | (before == timed_out), before, outcome))  # noqa: F821
