"""Calls of the Stripe API: errors in our terms, at most so many a second, and what is made is made once.

The SDK does not repeat calls: the queue of jobs does, with the same idempotency key (`billing.payments.jobs`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from billing.payments.provider import ProviderRefused, ProviderUnavailable
from billing.payments.stripe_api.credentials import API_VERSION, StripeCredentials
from storage.database.circuit_breaker import beside_the_database

if TYPE_CHECKING:
    from stripe import StripeClient, StripeError

    from billing.payments.stripe_api.http_client import HttpxClient

Made = TypeVar("Made")
PER_SECOND = 20
"""Calls a second of one process, below what Stripe allows (25 in a sandbox, 100 live)."""
LONGEST_WAIT_S = 5
"""How long a call may wait for its turn: whoever floods us is refused, and delays nobody for longer."""
_REVISIONS = 3
"""How many keys a creation may have: one more each time that Stripe has kept a failure under the last."""


class CardDeclined(ProviderRefused):
    """The card said no; `payment` is the payment that was made all the same."""

    def __init__(self, problem: str, code: str, payment: str) -> None:
        super().__init__(problem, code)
        self.payment = payment


class StripeCalls:
    """Makes calls."""

    def __init__(self, credentials: StripeCredentials, per_second: int = PER_SECOND) -> None:
        self.credentials = credentials
        self._interval = 1 / per_second  # not money
        self._next = 0.0  # not money
        self._http: HttpxClient | None = None

    @cached_property
    def client(self) -> StripeClient:
        """The SDK's client, which is imported here."""
        from stripe import StripeClient  # noqa: PLC0415  # 40 MB, which few processes need

        from billing.payments.stripe_api.http_client import HttpxClient  # noqa: PLC0415

        logging.getLogger("stripe").setLevel(logging.WARNING)  # it logs each request, beside our own log
        self._http = HttpxClient()
        return StripeClient(
            self.credentials.key,
            stripe_version=API_VERSION,
            base_addresses={"api": self.credentials.api},
            max_network_retries=0,
            http_client=self._http,
        )

    async def call(
        self,
        method: Callable[..., Awaitable[Any]],
        *ids: str,
        params: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> dict[str, Any]:
        """Call a method of the SDK; returns the object as Stripe sent it.

        Raises ProviderUnavailable, ProviderRefused and CardDeclined.
        """
        import stripe  # noqa: PLC0415  # as in `client`

        await self._wait_for_turn()
        options = {} if key is None else {"idempotency_key": key}
        try:
            with beside_the_database():
                made: dict[str, Any] = (await method(*ids, dict(params or {}), options)).to_dict()
        except stripe.StripeError as error:
            raise _in_our_terms(error) from error
        return made

    async def create_once(
        self, key: str, create: Callable[[str], Awaitable[Made]], find: Callable[[], Awaitable[Made | None]]
    ) -> Made:
        """Create something under a key. Where Stripe has kept a failure under it, look whether it was made all the
        same, and else create it under another key."""
        for revision in range(1, _REVISIONS + 1):
            try:
                return await create(key if revision == 1 else f"{key}:again{revision}")
            except ProviderUnavailable as error:
                if not error.replayed:
                    raise
                if (there := await find()) is not None:
                    return there
        raise ProviderUnavailable(f"Stripe fails each time that {key} is asked for", retry_after=3600)

    async def _wait_for_turn(self) -> None:
        """Wait for the next free place. Raises ProviderUnavailable where too many wait already."""
        now = time.monotonic()
        turn = max(self._next, now)
        if turn - now > LONGEST_WAIT_S:
            raise ProviderUnavailable("too many calls wait for Stripe", retry_after=LONGEST_WAIT_S)
        self._next = turn + self._interval
        if turn > now:
            with beside_the_database():
                await asyncio.sleep(turn - now)

    async def close(self) -> None:
        """Close the connections, if there ever were any."""
        if self._http is not None:
            await self._http.close_async()


def _in_our_terms(error: StripeError) -> ProviderUnavailable | ProviderRefused:
    """An error of the SDK as one of ours: busy and failing are temporary, a refusal is not."""
    import stripe  # noqa: PLC0415  # as in `client`

    said = (error.user_message or str(error))[:300]
    headers = {str(name).lower(): value for name, value in (error.headers or {}).items()}
    status = error.http_status or 0
    if isinstance(error, stripe.RateLimitError):
        after = str(headers.get("retry-after", ""))
        seconds = int(after) if after.isascii() and after.isdigit() else 0
        return ProviderUnavailable("Stripe is busy", retry_after=seconds)
    if isinstance(error, stripe.CardError):
        details = error.error
        intent = getattr(details, "payment_intent", None)
        decline = getattr(details, "decline_code", None) or error.code or ""
        code = error.code if error.code == "authentication_required" else decline
        return CardDeclined(said, str(code or "card_declined"), "" if intent is None else str(intent["id"]))
    if isinstance(error, stripe.AuthenticationError | stripe.PermissionError):
        return ProviderUnavailable(f"Stripe does not accept the key: {said}", retry_after=60)
    if isinstance(error, stripe.APIConnectionError) or status == 409 or status >= 500:
        replayed = str(headers.get("idempotent-replayed", "")).lower() == "true" and status >= 500
        return ProviderUnavailable(f"Stripe did not answer: {type(error).__name__} {status}", replayed=replayed)
    return ProviderRefused(said, str(error.code or ""), str(getattr(error, "param", "") or ""))
