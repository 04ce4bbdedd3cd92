"""What the hooks of one engine process share."""

from typing import TYPE_CHECKING, Any

from artifact.lending import hints
from artifact.lending.hints import Hint
from artifact.lending.settings import Settings

if TYPE_CHECKING:
    from artifact.lending.engine_decode import Lender
    from artifact.lending.engine_elastic import Lessee
    from artifact.lending.engine_metrics import Metrics
    from artifact.lending.engine_pins import Pinner
    from artifact.lending.engine_prefill import Borrower


class Runtime:
    """`settings` in force, and the roles this process plays once its scheduler exists."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.hooks_expected = self.hooks_applied = 0
        self.metrics: Metrics | None = None
        self.lender: Lender | None = None
        self.borrower: Borrower | None = None
        self.lessee: Lessee | None = None
        self.pinner: Pinner | None = None

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        if self.metrics is not None:
            self.metrics.count(name, amount, **labels)

    def gauge(self, name: str, value: float) -> None:
        if self.metrics is not None:
            self.metrics.gauge(name, value)


RUNTIME = Runtime()


def hint_of(req: Any) -> Hint:
    """The request's hint; read once, since queues are walked again and again."""
    hint = getattr(req, "_basin_hint", None)
    if hint is None:
        hint = req._basin_hint = hints.read(req.sampling_params.custom_params)
    return hint
