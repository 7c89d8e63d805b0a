"""Endpoints of a tenant, and what was delivered to them: added, listed, changed, removed, asked again."""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID

import msgspec
from sqlalchemy import func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from billing.invoices import notices
from billing.settlement.settlement import OVERDRAWN
from billing.transaction.budget_charges import THRESHOLD
from storage.database.base import from_instant, new_id
from storage.database.database import Database
from storage.free_text import REASON, problem_of_text
from storage.reported_error import ReportedError
from webhooks.addresses import AddressPolicy, UrlRefused
from webhooks.signing import SecretCipher, new_secret, shown
from webhooks.tables import webhook_attempt, webhook_delivery, webhook_endpoint

TOPICS = (
    OVERDRAWN,
    THRESHOLD,
    notices.DRAFTED,
    notices.FINALIZED,
    notices.PARTIALLY_PAID,
    notices.PAID,
    notices.VOIDED,
    notices.UNCOLLECTIBLE,
    notices.CREDITED,
)


def fits(pattern: str, topic: str) -> bool:
    """Whether a pattern (`invoice.paid`, `invoice.*`, `*`) means this topic."""
    return pattern in ("*", topic) or (pattern.endswith(".*") and topic.startswith(pattern[:-1]))


EndpointState = Literal["enabled", "disabled"]

MAX_ENDPOINTS = 50
OVERLAP_S = 24 * 3600
"""How long messages carry the old secret's signature beside the new one's."""
_SECOND = 1_000_000
_ENDPOINT, _DELIVERY, _ATTEMPT = webhook_endpoint.c, webhook_delivery.c, webhook_attempt.c


class InvalidWebhook(ReportedError, ValueError):
    """An endpoint cannot be like this; `field` says what of it is wrong."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class WebhookNotFound(ReportedError, LookupError):
    """The tenant has no such endpoint or delivery."""

    def __init__(self, what: str, identity: UUID) -> None:
        super().__init__(f"there is no webhook {what} {identity}")


class WebhookEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint without its secret; `reason` says why it is disabled."""

    id: UUID
    tenant_id: UUID
    url: str
    topics: list[str]
    description: str
    state: EndpointState
    reason: str
    created_at: int
    previous_until: int | None


class WebhookDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """One event for one endpoint; instants in microseconds since the Unix epoch."""

    id: UUID
    endpoint_id: UUID
    event_id: UUID
    topic: str
    body: str
    state: Literal["pending", "delivered", "failed"]
    attempts: int
    created_at: int
    next_at: int
    finished_at: int | None
    status: int | None
    error: str


class DeliveryAttempt(msgspec.Struct, frozen=True):
    """One attempt at a delivery."""

    number: int
    at: int
    status: int | None
    error: str
    milliseconds: int


def wants(topics: list[str], topic: str) -> bool:
    """Whether an endpoint with these patterns (`invoice.paid`, `invoice.*`, `*`) is told of this topic."""
    return any(fits(pattern, topic) for pattern in topics)


class WebhookEndpoints:
    """One database's endpoints. Every method is of one tenant. Raises DatabaseUnavailable, all of it."""

    def __init__(self, database: Database, sealer: SecretCipher, policy: AddressPolicy) -> None:
        self._database = database
        self._sealer = sealer
        self._policy = policy

    async def add(
        self, tenant_id: UUID, url: str, topics: list[str], description: str = ""
    ) -> tuple[WebhookEndpoint, str]:
        """Add one; it and its secret, which is not shown again. Raises InvalidWebhook."""
        checked = _check_topics(topics)
        try:
            self._policy.check_url(url)
        except UrlRefused as error:
            raise InvalidWebhook("url", str(error)) from error
        if problem := problem_of_text(description, REASON, empty=True):
            raise InvalidWebhook("description", problem)
        identity, secret = new_id(), new_secret()
        async with self._database.transaction() as session:
            present = (_ENDPOINT.tenant_id == tenant_id) & (_ENDPOINT.state != "removed")
            if (await session.scalar(select(func.count()).select_from(webhook_endpoint).where(present)) or 0) >= (
                MAX_ENDPOINTS
            ):
                raise InvalidWebhook("url", f"the tenant has {MAX_ENDPOINTS} endpoints already; remove one first")
            await session.execute(
                insert(webhook_endpoint).values(
                    id=identity,
                    tenant_id=tenant_id,
                    url=url,
                    topics=",".join(checked),
                    description=description,
                    state="enabled",
                    reason="",
                    secret=self._sealer.seal(secret, identity),
                    created_at=self._database.clock,
                )
            )
        return await self.get(tenant_id, identity), shown(secret)

    async def known(self, tenant_id: UUID) -> list[WebhookEndpoint]:
        """The tenant's endpoints, the oldest first."""
        async with self._database.reading() as session:
            mine = (_ENDPOINT.tenant_id == tenant_id) & (_ENDPOINT.state != "removed")
            rows = await session.execute(select(webhook_endpoint).where(mine).order_by(_ENDPOINT.id))
            return [_endpoint(row) for row in rows]

    async def get(self, tenant_id: UUID, endpoint_id: UUID) -> WebhookEndpoint:
        """The tenant's endpoint. Raises WebhookNotFound."""
        async with self._database.reading() as session:
            return _endpoint(await self._row(session, tenant_id, endpoint_id))

    async def remove(self, tenant_id: UUID, endpoint_id: UUID) -> None:
        """Tell it nothing more, and destroy its secret. What was delivered stays on record. Raises WebhookNotFound."""
        async with self._database.transaction() as session:
            await self._row(session, tenant_id, endpoint_id)
            gone = {"state": "removed", "secret": b"", "previous_secret": None, "previous_until": None}
            await session.execute(update(webhook_endpoint).where(_ENDPOINT.id == endpoint_id).values(gone))
            await fail_pending(self._database, session, tenant_id, endpoint_id, "the endpoint was removed")

    async def enable(self, tenant_id: UUID, endpoint_id: UUID) -> WebhookEndpoint:
        """Tell a disabled one again of what happens from now on. Raises WebhookNotFound."""
        async with self._database.transaction() as session:
            await self._row(session, tenant_id, endpoint_id)
            values = {"state": "enabled", "reason": ""}
            await session.execute(update(webhook_endpoint).where(_ENDPOINT.id == endpoint_id).values(values))
        return await self.get(tenant_id, endpoint_id)

    async def rotate(self, tenant_id: UUID, endpoint_id: UUID, overlap_s: int = OVERLAP_S) -> str:
        """A new secret, which is not shown again; the old one signs too for `overlap_s`.

        Raises WebhookNotFound, InvalidWebhook while an earlier overlap lasts: its secret would stop signing before the
        time that was promised for it. Without an overlap all old ones stop at once.
        """
        secret = new_secret()
        async with self._database.transaction() as session:
            row = await self._row(session, tenant_id, endpoint_id, lock=True)
            now = (await session.execute(select(self._database.clock))).scalar_one()
            if overlap_s and row.previous_until is not None and row.previous_until > now:
                until = from_instant(row.previous_until).isoformat(timespec="seconds")
                raise InvalidWebhook(
                    "overlap_s", f"the secret before this one signs until {until}; wait, or rotate with an overlap of 0"
                )
            values = {
                "secret": self._sealer.seal(secret, endpoint_id),
                "previous_secret": row.secret if overlap_s else None,
                "previous_until": now + overlap_s * _SECOND if overlap_s else None,
            }
            await session.execute(update(webhook_endpoint).where(_ENDPOINT.id == endpoint_id).values(values))
        return shown(secret)

    async def test(self, tenant_id: UUID, endpoint_id: UUID) -> UUID:
        """Queue a `webhook.test` message for this endpoint alone; the delivery's id. Raises WebhookNotFound."""
        async with self._database.transaction() as session:
            await self._row(session, tenant_id, endpoint_id)
            now = (await session.execute(select(self._database.clock))).scalar_one()
            row = delivery_row(endpoint_id, tenant_id, new_id(), "webhook.test", "{}", at=now, now=now)
            await session.execute(insert(webhook_delivery).values(row))
            return UUID(str(row["id"]))

    async def deliveries(
        self, tenant_id: UUID, endpoint_id: UUID | None = None, *, limit: int = 20, after: UUID | None = None
    ) -> list[WebhookDelivery]:
        """What was, or is to be, delivered: the newest first."""
        query = select(webhook_delivery).where(_DELIVERY.tenant_id == tenant_id)
        if endpoint_id is not None:
            query = query.where(_DELIVERY.endpoint_id == endpoint_id)
        if after is not None:
            query = query.where(_DELIVERY.id < after)
        async with self._database.reading() as session:
            return [_delivery(row) for row in await session.execute(query.order_by(_DELIVERY.id.desc()).limit(limit))]

    async def delivery(self, tenant_id: UUID, delivery_id: UUID) -> tuple[WebhookDelivery, list[DeliveryAttempt]]:
        """One delivery, and each attempt at it. Raises WebhookNotFound."""
        async with self._database.reading() as session:
            mine = (_DELIVERY.tenant_id == tenant_id) & (_DELIVERY.id == delivery_id)
            row = (await session.execute(select(webhook_delivery).where(mine))).one_or_none()
            if row is None:
                raise WebhookNotFound("delivery", delivery_id)
            of = select(webhook_attempt).where(_ATTEMPT.delivery_id == delivery_id).order_by(_ATTEMPT.number)
            attempts = [DeliveryAttempt(*each[1:]) for each in await session.execute(of)]
        return _delivery(row), attempts

    async def resend(self, tenant_id: UUID, delivery_id: UUID) -> WebhookDelivery:
        """Send it again as soon as possible, whatever became of it: the same message with the same id.

        Raises WebhookNotFound, InvalidWebhook if its endpoint is not enabled.
        """
        found, _ = await self.delivery(tenant_id, delivery_id)
        if (await self.get(tenant_id, found.endpoint_id)).state != "enabled":
            raise InvalidWebhook("endpoint", "it is disabled; enable it first")
        async with self._database.transaction() as session:
            now = (await session.execute(select(self._database.clock))).scalar_one()
            values = {"state": "pending", "due_since": now, "next_at": now, "leased_until": 0, "finished_at": None}
            mine = (_DELIVERY.tenant_id == tenant_id) & (_DELIVERY.id == delivery_id)
            await session.execute(update(webhook_delivery).where(mine).values(values))
        return (await self.delivery(tenant_id, delivery_id))[0]

    async def _row(self, session: AsyncSession, tenant_id: UUID, endpoint_id: UUID, *, lock: bool = False) -> Any:
        mine = (_ENDPOINT.tenant_id == tenant_id) & (_ENDPOINT.id == endpoint_id) & (_ENDPOINT.state != "removed")
        query = select(webhook_endpoint).where(mine)
        row = (await session.execute(self._database.locked(query) if lock else query)).one_or_none()
        if row is None:
            raise WebhookNotFound("endpoint", endpoint_id)
        return row


def delivery_row(
    endpoint_id: UUID, tenant_id: UUID, event_id: UUID, topic: str, payload: str, *, at: int, now: int
) -> dict[str, Any]:
    """A new delivery of what happened `at`, due `now`. `payload` is JSON."""
    body = {"type": topic, "timestamp": from_instant(at).isoformat(), "data": msgspec.Raw(payload.encode())}
    return {
        "id": new_id(),
        "tenant_id": tenant_id,
        "endpoint_id": endpoint_id,
        "event_id": event_id,
        "topic": topic,
        "body": msgspec.json.encode(body).decode(),
        "state": "pending",
        "attempts": 0,
        "created_at": now,
        "due_since": now,
        "next_at": now,
        "leased_until": 0,
        "finished_at": None,
        "status": None,
        "error": "",
    }


async def fail_pending(
    database: Database, session: AsyncSession, tenant_id: UUID, endpoint_id: UUID, error: str
) -> None:
    """Give up what waits for an endpoint."""
    waiting = (_DELIVERY.tenant_id == tenant_id) & (_DELIVERY.endpoint_id == endpoint_id)
    values = {"state": "failed", "error": error, "finished_at": database.clock}
    await session.execute(update(webhook_delivery).where(waiting, _DELIVERY.state == "pending").values(values))


def _check_topics(topics: list[str]) -> list[str]:
    unique = list(dict.fromkeys(topics))
    if not 1 <= len(unique) <= 50:
        raise InvalidWebhook("topics", "name one to 50 topics, such as invoice.* or *")
    for pattern in unique:
        if not any(fits(pattern, topic) for topic in TOPICS):
            raise InvalidWebhook(
                "topics", f"{pattern[:100]!r} is none of {', '.join(TOPICS)}, nor a pattern such as invoice.* or *"
            )
    return unique


def _endpoint(row: Any) -> WebhookEndpoint:
    return WebhookEndpoint(
        id=row.id,
        tenant_id=row.tenant_id,
        url=row.url,
        topics=row.topics.split(","),
        description=row.description,
        state=row.state,
        reason=row.reason,
        created_at=row.created_at,
        previous_until=row.previous_until,
    )


def _delivery(row: Any) -> WebhookDelivery:
    return WebhookDelivery(**{name: getattr(row, name) for name in WebhookDelivery.__struct_fields__})
