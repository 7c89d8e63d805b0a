"""Delivers an account's events to an endpoint, signed: also twice, late, and in another order."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Awaitable, Callable, Sequence

from stripe import WebhookSignature

from fake_stripe.account import Account, Object

Post = Callable[[bytes, dict[str, str]], Awaitable[int]]
"""Sends a body with headers; returns the status of the answer."""


class Deliveries:
    """The events that are to be delivered. `doubled`, `delayed`, `lost`: how many of a thousand."""

    def __init__(
        self,
        account: Account,
        post: Post,
        secrets: Sequence[str],
        *,
        doubled: int = 0,
        delayed: int = 0,
        lost: int = 0,
        shuffled: bool = False,
        seed: int = 0,
    ) -> None:
        self.waiting: list[Object] = []
        self.lost: list[Object] = []
        self._post, self._secrets = post, secrets
        self._doubled, self._delayed, self._lost, self._shuffled = doubled, delayed, lost, shuffled
        self._random = random.Random(seed)  # noqa: S311  # faults, no secrets
        account.on_event = self._take

    def _take(self, event: Object) -> None:
        if self._random.randrange(1000) < self._lost:
            self.lost.append(event)
            return
        self.waiting.append(event)
        if self._random.randrange(1000) < self._doubled:
            self.waiting.append(event)

    async def deliver(self, *, all_of_them: bool = False) -> int:
        """Deliver what is waiting; returns how many events were accepted. What is not stays."""
        batch, self.waiting = self.waiting, []
        if self._shuffled:
            self._random.shuffle(batch)
        accepted = 0
        for event in batch:
            later = not all_of_them and self._random.randrange(1000) < self._delayed
            if later or not 200 <= await self._post(*self.signed(event)) < 300:
                self.waiting.append(event)
            else:
                accepted += 1
        return accepted

    def signed(self, event: Object, *, at: int | None = None) -> tuple[bytes, dict[str, str]]:
        """An event's body and its signature by all secrets."""
        payload, seconds = json.dumps(event), int(time.time()) if at is None else at
        headers = [WebhookSignature.generate_signature_header(payload, secret, seconds) for secret in self._secrets]
        parts = [headers[0], *(header.partition(",")[2] for header in headers[1:])]
        return payload.encode(), {"stripe-signature": ",".join(parts), "content-type": "application/json"}
