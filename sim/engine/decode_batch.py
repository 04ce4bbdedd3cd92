"""The requests of a colocated engine that decode together, on one clock that counts steps."""

from mypy_extensions import mypyc_attr

from sim.engine.call import EngineCall


def steps_of(call: EngineCall) -> int:
    """Decode steps of a call: its first token comes with the prompt."""
    return max(call.output - 1, 0)


def context_of(call: EngineCall) -> int:
    """Tokens of a call's prompt and of what it had generated when it last joined or left the batch."""
    return call.prompt + steps_of(call) - int(call.left)


@mypyc_attr(allow_interpreted_subclasses=True)
class DecodeBatch:
    """All advance by one token a step. `call.left` holds the steps to go of a call outside, `call.v_end` the end on the
    clock of one inside; `call.slow_at_join` is minus the slow steps so far, plus the slow clock while inside."""

    def __init__(self) -> None:
        self.clock = 0
        self.context = 0
        """Tokens of all, shared heads counted with each."""
        self._slow_clock = 0
        self._calls: dict[EngineCall, None] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def join(self, call: EngineCall) -> None:
        call.v_end = self.clock + call.left
        call.slow_at_join += self._slow_clock
        self.context += context_of(call)
        self._calls[call] = None

    def leave(self, call: EngineCall) -> int:
        """Take a call out; returns the tokens that it has generated since it joined."""
        left = self.left(call)
        del self._calls[call]
        generated = int(call.left) - left
        call.left = float(left)
        call.slow_at_join -= self._slow_clock
        self.context -= context_of(call)
        return generated

    def left(self, call: EngineCall) -> int:
        """Steps to go."""
        return int(call.v_end) - self.clock if call in self._calls else int(call.left)

    def advance(self, steps: int) -> int:
        """Returns the tokens generated."""
        grown = len(self._calls) * steps
        self.clock += steps
        self.context += grown
        return grown

    def slow(self, steps: int) -> None:
        """So many steps took longer than the ITL SLO."""
        self._slow_clock += steps

    def to_first_end(self) -> int:
        """Steps until the first is done."""
        return int(min(call.v_end for call in self._calls)) - self.clock

    def to_go(self) -> int:
        """Steps of all together."""
        return sum(int(call.v_end) for call in self._calls) - len(self._calls) * self.clock

    def due(self) -> list[EngineCall]:
        """Those that are done, in the order in which they joined."""
        return [call for call in self._calls if call.v_end <= self.clock]
