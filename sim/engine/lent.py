"""The lent tier: finished prompts that stay in decode memory as units, for prefill to fetch (paper A §6.2)."""

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr

from artifact.control.lending import may_adopt, reclaim_key, reclaim_tokens
from artifact.control.parameters import BasinParameters
from sim.engine.call import EngineCall

if TYPE_CHECKING:
    from sim.engine.decode import DecodeInstance


@mypyc_attr(allow_interpreted_subclasses=True)
class Unit:
    """The prompt of a session's last call, shared head included; of a hybrid model with the state at its end."""

    __slots__ = ("decode", "head", "key", "tokens", "used_s")

    def __init__(self, key: Hashable, head: int, tokens: int, decode: "DecodeInstance", used_s: float) -> None:
        self.key = key
        self.head = head
        self.tokens = tokens
        self.decode = decode
        self.used_s = used_s


@mypyc_attr(allow_interpreted_subclasses=True)
class LentTier:
    """Every session's latest unit, on whichever decode instance it is, under the rules of `artifact.control.lending`.

    Invariant: a decode instance's `lent` = tokens of the units on it <= φ of its memory. `in_prefill(key, tokens)`
    tells whether prefill holds so much of a line beyond the head.
    """

    def __init__(self, rules: BasinParameters, in_prefill: Callable[[Hashable, int], bool], end_state: bool) -> None:
        self.rules = rules
        self.in_prefill = in_prefill
        self.end_state = end_state
        self.adopting = False
        """Whether the policy has lending switched on. Units outlive a switch-off until they are reclaimed."""
        self.units: dict[Hashable, Unit] = {}

    def usable(self, call: EngineCall) -> int:
        """Prompt tokens that the session's unit covers; a hybrid model can continue it from its end only."""
        unit = self.units.get(call.key)
        if unit is None:
            return 0
        return 0 if self.end_state and unit.tokens > call.limit else min(unit.tokens, call.limit)

    def touch(self, call: EngineCall, now: float) -> None:
        """The call's unit is being fetched."""
        self.units[call.key].used_s = now

    def adopt(self, decode: "DecodeInstance", call: EngineCall) -> None:
        """Keep a finished call's prompt where it is, in place of the session's earlier unit, if the rules allow it."""
        memory = decode.memory()
        old = self.units.get(call.key)
        if old is not None and old.decode is decode:
            memory = memory._replace(lent_tokens=memory.lent_tokens - old.tokens)
        over = memory.lent_tokens + call.prompt - int(self.rules.lend_cap * memory.capacity_tokens)
        if not may_adopt(memory._replace(lent_tokens=memory.lent_tokens - max(over, 0)), call.prompt, self.rules):
            return
        self.drop(call.key)
        if over > 0:
            self._give_back(decode, over)
        self.units[call.key] = Unit(call.key, call.head, call.prompt, decode, decode.env.now)
        decode.lent += call.prompt

    def restore_margin(self, decode: "DecodeInstance") -> None:
        """Reclaim what queued and active demand have left too little room beside."""
        missing = reclaim_tokens(decode.memory(), self.rules)
        if missing:
            self._give_back(decode, missing)

    def drop(self, key: Hashable) -> None:
        """A session's unit goes, if it has one."""
        if (unit := self.units.pop(key, None)) is not None:
            unit.decode.lent -= unit.tokens

    def _give_back(self, decode: "DecodeInstance", tokens: float) -> None:
        here = [unit for unit in self.units.values() if unit.decode is decode]
        here.sort(key=lambda u: reclaim_key(self.in_prefill(u.key, u.tokens - u.head), u.used_s))
        for unit in here:
            if tokens <= 0:
                return
            tokens -= unit.tokens
            self.drop(unit.key)
