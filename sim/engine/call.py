"""One call on its way through the engine, and the queue in which calls wait."""

from collections.abc import Callable
from enum import Enum, auto
from heapq import heapify, heappop, heappush
from typing import Any

from mypy_extensions import mypyc_attr


class Stage(Enum):
    """Where a call is; decides what aborting it has to undo."""

    NEW = auto()
    AWAITS_MEMORY = auto()
    PREFILL_QUEUE = auto()
    PREFILL = auto()
    TRANSFER = auto()
    ELASTIC_QUEUE = auto()
    ELASTIC = auto()
    DECODE = auto()
    RETRACTED = auto()
    DONE = auto()


@mypyc_attr(allow_interpreted_subclasses=True)
class EngineCall:
    """A call inside the engine. Times are NaN until they happen.

    `key` names the cache line its prompt belongs to. Sessions share the head and nothing else, also when they replay
    one trajectory: the published hit rate of trapped runs (0.33-0.35 with hundreds of sessions over 216 trajectories,
    paper A §7.2) leaves no room for shared replays.
    """

    __slots__ = (
        "aborted",
        "branch",
        "cached",
        "cached_host",
        "cached_lent",
        "decode",
        "elastic",
        "extra",
        "first_token",
        "head",
        "index",
        "key",
        "left",
        "limit",
        "order",
        "output",
        "position",
        "prefill",
        "prompt",
        "released",
        "remaining",
        "reserve_since",
        "reserve_wait",
        "scheduled",
        "session",
        "slow_at_join",
        "stage",
        "v_end",
    )

    prefill: Any
    decode: Any
    """The instances that serve it; a colocated engine is both."""
    extra: int
    """Tokens promised by the cache for the part of the prompt that is being computed."""
    position: int
    remaining: int
    """Prompt tokens still to compute."""
    left: float
    """Decode steps still to go while retracted."""
    reserve_since: float
    slow_at_join: float
    v_end: float
    """End on the decode batch's virtual clock."""

    def __init__(self, session: Any, index: int, released: float) -> None:
        trajectory = session.trajectory
        self.session = session
        self.index = index
        self.released = released
        self.key = session.id
        self.head: int = trajectory.shared_head_tokens
        self.prompt: int = trajectory.prompt_tokens[index]
        self.output: int = trajectory.output_tokens[index]
        repeated = self.prompt - trajectory.new_tokens[index]
        self.branch: bool = index > 0 and repeated < trajectory.prompt_tokens[index - 1]
        """The prompt does not extend its predecessor (compaction): only `repeated` tokens or the head recur."""
        self.limit = min(max(repeated, self.head), self.prompt - 1) if self.branch else self.prompt - 1
        self.order = 0.0
        self.stage = Stage.NEW
        self.reserve_wait = 0.0
        self.aborted = False
        self.elastic = False
        """Prefilled on its decode instance."""
        self.scheduled: float | None = None
        self.first_token: float | None = None
        self.cached = self.cached_host = self.cached_lent = 0


@mypyc_attr(allow_interpreted_subclasses=True)
class CallQueue:
    """Calls by (key, entry). Without an order every key is 0 and the queue is first come, first served.

    A call removed while waiting is skipped when it surfaces; `len` counts only those still waiting.
    """

    __slots__ = ("_gone", "_heap", "_seq")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, EngineCall]] = []
        self._gone: set[EngineCall] = set()
        self._seq = 0

    def __len__(self) -> int:
        return len(self._heap) - len(self._gone)

    def push(self, call: EngineCall) -> None:
        self._seq += 1
        heappush(self._heap, (call.order, self._seq, call))

    def peek(self) -> EngineCall | None:
        heap = self._heap
        if self._gone:
            while heap and heap[0][2] in self._gone:
                self._gone.discard(heappop(heap)[2])
        return heap[0][2] if heap else None

    def pop(self) -> EngineCall:
        """Take what `peek` showed."""
        return heappop(self._heap)[2]

    def remove(self, call: EngineCall) -> None:
        self._gone.add(call)

    def reorder(self, key: Callable[[EngineCall], float]) -> None:
        """Re-sort those waiting by new keys, ties by entry."""
        heap = [(key(call), seq, call) for _, seq, call in self._heap if call not in self._gone]
        for order, _, call in heap:
            call.order = order
        heapify(heap)
        self._heap = heap
        self._gone.clear()

    def waiting(self) -> list[EngineCall]:
        """Those waiting, in no particular order."""
        return [call for _, _, call in self._heap if call not in self._gone]
