"""A colocated engine under SGLang's scheduler instead of vLLM's."""

from mypy_extensions import mypyc_attr

from sim.engine.call import EngineCall
from sim.engine.colocated import ColocatedEngine
from sim.engine.decode_batch import steps_of

NEW_TOKEN_RATIO = 0.7 * 0.14
"""Share of running requests' remaining output held back: what SGLang's estimate decays to within 600 steps."""


@mypyc_attr(allow_interpreted_subclasses=True)
class SGLangEngine(ColocatedEngine):
    """SGLang's default scheduler where it differs: prompts are computed in steps of their own, before decoding goes on;
    admission keeps room for a share of the outputs still to come; retraction takes the request with the fewest tokens
    generated; and a flush is refused while anything runs.
    """

    mixed = False
    flush_preempts = False

    def _held_back(self) -> int:
        return round(NEW_TOKEN_RATIO * self.decoding.to_go())

    def _victim(self) -> EngineCall:
        return min(self.running, key=lambda call: (steps_of(call) - self.decoding.left(call), -call.prompt))
