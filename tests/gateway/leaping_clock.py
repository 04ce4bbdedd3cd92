"""An event loop whose clock leaps to the next timer as soon as nothing else is left to do.

Servers and clients that run in one such loop talk over real sockets, and what they wait for takes no time: hours pass
in the minutes that the work itself needs, and a busy machine changes nothing but how long that is.
"""

import asyncio
import selectors
from collections.abc import Callable
from typing import Any

_LOOKS = 8
"""For bytes between two sockets of this machine, which are there as a rule when `send` returns. Sleeping for them
instead would hand a busy processor to somebody else at every leap."""

_PAST_S = 1e-6
"""Beyond the timer: who computes the time it set from a sum of its own must not find it a rounding error away."""


class LeapingLoop(asyncio.SelectorEventLoop):
    """Use as `asyncio.Runner(loop_factory=LeapingLoop)`. What is given to an executor runs at once, in the loop."""

    def __init__(self) -> None:
        self.clock_s = 0.0
        super().__init__(_Leaping(self))

    def time(self) -> float:
        return self.clock_s

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


class _Leaping(selectors.EpollSelector):
    def __init__(self, loop: LeapingLoop) -> None:
        super().__init__()
        self.loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            return super().select(None)
        for _ in range(_LOOKS):
            if ready := super().select(0):
                return ready
        self.loop.clock_s += float(timeout) + _PAST_S  # NumPy's would spread to all who ask for the time
        return ready
