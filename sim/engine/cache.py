"""The prefix cache of one prefill instance: token-granular LRU on the GPU and, inclusive of it, in host memory."""

from collections import OrderedDict
from collections.abc import Hashable

from mypy_extensions import mypyc_attr

from artifact.baselines.eviction import EvictionOrder
from sim.engine.ranks import Ranks, Use

OVER = Use(0.0, float("inf"), None)
"""A session of which nothing more will come."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Line:
    """The cached prefix of one conversation, beyond the shared head. `pins` counts the calls that use it now."""

    __slots__ = ("host", "pins", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.host = 0
        self.pins = 0


@mypyc_attr(allow_interpreted_subclasses=True)
class PrefixCache:
    """Lengths of cached prefixes by line.

    The shared head is always resident and is not counted. A line in use is pinned; the GPU evicts the TAIL of the
    least recently used unpinned line first. The host tier (HiCache, write-through) takes every finished prefix and
    evicts by its own recency. Invariant: `used` = lines' tokens + tokens promised to calls in prefill <= capacity.

    A hybrid model (`end_state`) can continue a line only from its end, where its recurrent state was saved: a line
    that lost its tail or is asked for less than its length is of no use, so eviction takes lines whole.

    Another eviction `order` than by recency ranks the GPU's lines by what `note` tells of their sessions; the host
    tier keeps its own.
    """

    def __init__(
        self,
        capacity: int,
        host_capacity: int,
        slots: int,
        end_state: bool = False,
        order: EvictionOrder | None = None,
    ) -> None:
        self.capacity = capacity
        self.host_capacity = host_capacity
        self.slots = slots
        self.end_state = end_state
        self.used = 0
        self.host_used = 0
        self.lines: dict[Hashable, Line] = {}
        self._lru: OrderedDict[Hashable, Line] = OrderedDict()
        self._evictable = 0
        self._host_lru: OrderedDict[Hashable, Line] = OrderedDict()
        self._uses: dict[Hashable, Use] = {}
        self._ranks = Ranks(order) if order else None

    def peek(self, key: Hashable) -> int:
        """Tokens of this line that any tier holds; changes nothing."""
        line = self.lines.get(key)
        return 0 if line is None else max(line.tokens, line.host)

    def _usable(self, held: int, limit: int) -> int:
        return 0 if self.end_state and held > limit else min(held, limit)

    def acquire(self, key: Hashable, prompt: int, limit: int) -> tuple[int, int, int] | None:
        """Pin the line and find room for the whole prompt (sizes beyond the shared head).

        Returns (tokens cached in any tier, of those in the host only, tokens promised), or None when even evicting
        every unpinned line, and of this one what the prompt does not extend, leaves too little room; then nothing has
        changed.
        """
        line = self.lines.get(key)
        if line is None:
            line = self.lines[key] = Line()
        on_gpu = self._usable(line.tokens, limit)
        promised = prompt - on_gpu
        kept = 0 if line.pins else on_gpu
        if self.used + promised - (self._evictable - kept) > self.capacity:
            self._forget_if_empty(key, line)
            return None
        if line.tokens and not line.pins:
            del self._lru[key]
            self._evictable -= line.tokens
        while self.used + promised > self.capacity and self._lru:
            self._evict(self._victim(), self.used + promised - self.capacity)
        if (lacking := self.used + promised - self.capacity) > 0:  # the tail that a branch abandons
            cut = line.tokens if self.end_state else lacking
            line.tokens -= cut
            self.used -= cut
        self.used += promised
        line.pins += 1
        in_host = self._usable(line.host, limit) - on_gpu
        if in_host > 0:
            self._host_lru.move_to_end(key)
            return on_gpu + in_host, in_host, promised
        return on_gpu, 0, promised

    def commit(self, key: Hashable, prompt: int, promised: int, branch: bool) -> None:
        """A prefill ended: its prompt is now the line (`branch`: it replaced a longer, abandoned continuation)."""
        line = self.lines[key]
        grown = prompt if branch else max(line.tokens, prompt)
        self.used += grown - line.tokens - promised
        line.tokens = grown
        if self.host_capacity:
            self._write_through(key, line, branch)
        while len(self.lines) > self.slots and self._lru:
            self._evict(self._victim(), self.capacity)

    def release(self, key: Hashable, promised: int = 0) -> None:
        """Unpin; gives back what was promised to a call that did not finish its prefill."""
        self.used -= promised
        line = self.lines[key]
        line.pins -= 1
        if not line.pins:
            if line.tokens:
                self._lru[key] = line
                self._evictable += line.tokens
                if self._ranks:
                    self._rank(key, line)
            else:
                self._forget_if_empty(key, line)

    def read(self, key: Hashable, limit: int) -> tuple[int, int]:
        """Use a line from elsewhere: its usable tokens in any tier, and of those the host's only."""
        line = self.lines.get(key)
        if line is None:
            return 0, 0
        if key in self._lru:
            self._lru.move_to_end(key)
        on_gpu = self._usable(line.tokens, limit)
        in_host = max(self._usable(line.host, limit) - on_gpu, 0)
        return on_gpu + in_host, in_host

    @property
    def room(self) -> int:
        """Tokens that are free or can be freed."""
        return self.capacity - self.used + self._evictable

    def promise(self, tokens: int) -> None:
        """Set `room` aside for what a running request will generate."""
        while self.used + tokens > self.capacity and self._lru:
            self._evict(self._victim(), self.used + tokens - self.capacity)
        self.used += tokens

    def trim(self, key: Hashable, tokens: int) -> None:
        """Give back what an unused line holds on the GPU beyond so many tokens."""
        if key in self._lru and (beyond := self.lines[key].tokens - tokens) > 0:
            self._evict(key, beyond)

    def drop(self, key: Hashable) -> None:
        """Forget a line that nobody uses, in both tiers."""
        if key in self._lru:
            self._evict(key, self.capacity)
        if key in self._host_lru:
            self._evict_host(key, self.host_used)

    def clear(self) -> None:
        """Forget every line that nobody uses, in both tiers."""
        for key in [*self._lru, *self._host_lru]:
            self.drop(key)

    def hold(self, key: Hashable) -> bool:
        """Pin what the GPU holds of a line, until `release`; False if that is nothing."""
        line = self.lines.get(key)
        if line is None or not line.tokens:
            return False
        if not line.pins:
            del self._lru[key]
            self._evictable -= line.tokens
        line.pins += 1
        return True

    def preload(self, key: Hashable, tokens: int) -> None:
        """Place a prefix as if just used, as far as there is room (warm start)."""
        got = self.acquire(key, tokens, tokens)
        if got is not None:
            self.commit(key, tokens, got[2], branch=False)
            self.release(key)

    def note(self, key: Hashable, use: Use | None) -> None:
        """What is known of the session's next use has changed; None: it is over."""
        if use is None:
            self._uses.pop(key, None)
        else:
            self._uses[key] = use
        if (line := self.lines.get(key)) is not None:
            self._rank(key, line)

    def _rank(self, key: Hashable, line: Line) -> None:
        if self._ranks and key in self._lru:
            self._ranks.put(key, line.tokens, self._uses.get(key, OVER))

    def _victim(self) -> Hashable:
        return self._ranks.first(self._lru) if self._ranks else next(iter(self._lru))

    def _host_victim(self) -> Hashable:
        """By recency both tiers agree; under another order the host gives up what the GPU has already (HiCache)."""
        if self._ranks:
            for key, line in self._host_lru.items():
                if not line.tokens:
                    return key
        return next(iter(self._host_lru))

    def _evict(self, key: Hashable, tokens: int) -> None:
        line = self._lru[key]
        cut = line.tokens if self.end_state else min(tokens, line.tokens)
        line.tokens -= cut
        self.used -= cut
        self._evictable -= cut
        if not line.tokens:
            del self._lru[key]
            self._forget_if_empty(key, line)
        elif self._ranks:
            self._rank(key, line)

    def _write_through(self, key: Hashable, line: Line, branch: bool) -> None:
        backed = line.tokens if branch else max(line.host, line.tokens)
        self.host_used += backed - line.host
        line.host = backed
        self._host_lru[key] = line
        self._host_lru.move_to_end(key)
        while self.host_used > self.host_capacity:
            self._evict_host(self._host_victim(), self.host_used - self.host_capacity)

    def _evict_host(self, key: Hashable, tokens: int) -> None:
        line = self._host_lru[key]
        cut = line.host if self.end_state else min(tokens, line.host)
        line.host -= cut
        self.host_used -= cut
        if not line.host:
            del self._host_lru[key]
            self._forget_if_empty(key, line)

    def _forget_if_empty(self, key: Hashable, line: Line) -> None:
        if not line.tokens and not line.host and not line.pins:
            self.lines.pop(key, None)
