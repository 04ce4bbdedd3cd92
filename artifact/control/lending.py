"""When decode memory may hold finished prompts, and which of them go first (paper A §6.2).

The controller decides whether lending is on at all; these rules are what each decode instance applies to its own
memory, in the simulator and in the engine extension alike. All amounts are KV tokens of one instance.
"""

from typing import NamedTuple

from artifact.control.parameters import BasinParameters


class DecodeMemory(NamedTuple):
    """One decode instance's KV memory at a moment."""

    capacity_tokens: int
    active_tokens: int
    """Running and reserved, growth held back included."""
    queued_tokens: int
    """Demand of requests that wait for decode memory."""
    lent_tokens: int

    @property
    def spare_tokens(self) -> int:
        """Free beyond queued and active demand and lent units; negative when they exceed the memory."""
        return self.capacity_tokens - self.active_tokens - self.queued_tokens - self.lent_tokens


def may_adopt(memory: DecodeMemory, unit_tokens: int, p: BasinParameters) -> bool:
    """Whether a finished prompt may stay as a unit: nobody waits for memory, cap φ holds, the headroom stays free."""
    return (
        memory.queued_tokens == 0
        and memory.lent_tokens + unit_tokens <= p.lend_cap * memory.capacity_tokens
        and memory.spare_tokens - unit_tokens >= p.lending_headroom * memory.capacity_tokens
    )


def reclaim_tokens(memory: DecodeMemory, p: BasinParameters) -> int:
    """Lent tokens to take back now: what restores the reclaim margin, half the adoption headroom; at most all."""
    missing = int(p.lending_headroom / 2 * memory.capacity_tokens) - memory.spare_tokens
    return min(max(missing, 0), memory.lent_tokens)


def reclaim_key(held_by_prefill: bool, last_used_s: float) -> tuple[bool, float]:
    """Order of reclamation, smallest first: units that prefill also holds, then the least recently used."""
    return (not held_by_prefill, last_used_s)


def has_spare_memory(waiting: int, used_tokens: int, capacity_tokens: int, p: BasinParameters) -> bool:
    """Whether decode as a whole has memory to lend: nobody waits for it and running requests leave the headroom."""
    return waiting == 0 and used_tokens <= (1 - p.lending_headroom) * capacity_tokens
