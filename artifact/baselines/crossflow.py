"""Crossflow (arXiv 2609.27085) as ported in paper A §7.1: decode prefills under a lease that yields to the ITL SLO."""

from artifact.control.policy import Policy


class Lease:
    """One decode instance's revocable token budget for prefill chunks mixed into its decode steps.

    A chunk takes what the budget allows and what the fitted step model says still fits the ITL SLO. A step over the
    SLO halves the budget and revokes the lease for `revoke_s`; any other step raises the budget by `raise_tokens`.
    The paper A port gives the SLO and the shared budget; the numbers are ours, since the source publishes none:
    a full chunk at most, one page at least, back from a halving within half a second of steps.
    """

    def __init__(
        self,
        itl_slo_s: float = 0.05,
        chunk_charge_s: float = 0.0,
        most_tokens: int = 8192,
        least_tokens: int = 64,
        raise_tokens: int = 256,
        revoke_s: float = 0.5,
    ) -> None:
        if not 0 < least_tokens <= most_tokens:
            raise ValueError(f"crossflow: least_tokens {least_tokens} is not within 1..most_tokens {most_tokens}")
        self.itl_slo_s = itl_slo_s
        self.chunk_charge_s = chunk_charge_s
        self.most_tokens = self.budget_tokens = most_tokens
        self.least_tokens = least_tokens
        self.raise_tokens = raise_tokens
        self.revoke_s = revoke_s
        self._revoked_until = 0.0

    def valid(self, now: float) -> bool:
        """Whether the router may place a prefill here."""
        return now >= self._revoked_until

    def prefill_tokens(self, decode_step_s: float, prefill_token_s: float, now: float) -> int:
        """As in `PrefillLease`; 0 while revoked or when less than the least chunk fits the SLO."""
        if not self.valid(now):
            return 0
        fitting = int((self.itl_slo_s - decode_step_s - self.chunk_charge_s) / prefill_token_s)
        tokens = min(self.budget_tokens, fitting)
        return tokens if tokens >= self.least_tokens else 0

    def step_done(self, step_s: float, now: float) -> None:
        if step_s > self.itl_slo_s:
            self.budget_tokens = max(self.budget_tokens // 2, self.least_tokens)
            self._revoked_until = now + self.revoke_s
        else:
            self.budget_tokens = min(self.budget_tokens + self.raise_tokens, self.most_tokens)


class Leases:
    """One lease an instance, made with the same settings when first asked for."""

    def __init__(self, **settings: float) -> None:
        self._settings = settings
        self._leases: dict[int, Lease] = {}
        Lease(**settings)  # type: ignore[arg-type]  # so that a wrong setting is told now

    def of(self, instance: int) -> Lease:
        if instance not in self._leases:
            self._leases[instance] = Lease(**self._settings)  # type: ignore[arg-type]
        return self._leases[instance]


class Crossflow(Policy):
    """Nobody is held back; decode instances prefill under their leases. Keywords are those of `Lease`."""

    def __init__(self, **lease: float) -> None:
        super().__init__()
        self._leases = Leases(**lease)

    def lease(self, instance: int) -> Lease:
        return self._leases.of(instance)
