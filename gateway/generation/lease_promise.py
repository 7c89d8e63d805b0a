"""What leases promise to one running request: decided at admission, confirmed before its client hears of it."""

from __future__ import annotations

from billing.holds.records import Hold
from gateway.admission.lease_confirmations import LeaseConfirmations
from gateway.admission.prepared_request import PreparedRequest
from gateway.errors import NotCached
from gateway.generation.outcome import outcome_of
from gateway.generation.request_state import Outcome
from protocol.requests import Began, Counts, Done


class LeasePromise:
    """`stands`: what is promised holds for good, or leases have no say: it may be told. `settled`: that, or it is known
    that nothing is cached."""

    def __init__(self, confirmations: LeaseConfirmations | None, prepared: PreparedRequest) -> None:
        self._confirmations = confirmations
        self.stands = self.settled = confirmations is None or not confirmations.needed(prepared)

    async def refusal(self, prepared: PreparedRequest) -> NotCached | None:
        """As `LeaseConfirmations.refusal`."""
        return None if self._confirmations is None or self.settled else await self._confirmations.refusal(prepared)

    async def settle(
        self, prepared: PreparedRequest, hold: Hold, reach: int | None = None
    ) -> tuple[PreparedRequest, Hold, NotCached | None]:
        """The request and its hold with what is promised for good; and the error, if nothing is cached after all that
        was to be. `reach`: as for `LeaseConfirmations.confirm`."""
        if self._confirmations is None or self.settled:
            return prepared, hold, None
        refusal: NotCached | None = None
        try:
            prepared, hold = await self._confirmations.confirm(prepared, hold, reach)
            self.stands = True
        except NotCached as error:
            refusal = error
        self.settled = True
        return prepared, hold, refusal


def computed_prompt(done: Done | None, began: Began | None, outcome: Outcome | None) -> int:
    """How many tokens of the prompt are billed to a request that ends with this `outcome`, or with what `done` means:
    0 if nothing is."""
    counts: Counts | None = done.counts if done is not None else began.counts if began is not None else None
    ended = outcome or outcome_of(done)
    return 0 if counts is None or ended.status == "failed" else counts.prompt
