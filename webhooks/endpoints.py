"""A tenant's webhook endpoints and their deliveries: add, list, change, remove, resend."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal
from uuid import UUID

import msgspec
from sqlalchemy import func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from storage.database.base import from_instant, new_id
from storage.database.database import Database
from storage.free_text import REASON, problem_of_text
from storage.reported_error import ReportedError
from webhooks.addresses import AddressPolicy, UrlRefused
from webhooks.signing import SecretCipher, encode_secret, new_secret
from webhooks.tables import webhook_attempt, webhook_delivery, webhook_endpoint

EndpointState = Literal["enabled", "disabled"]

MAX_ENDPOINTS = 50
MOST_TESTS = 10
"""Tests of one endpoint that wait at once."""
_MOST_PATTERNS = 50
_TEST = "webhook.test"
OVERLAP_S = 24 * 3600
"""How long after a rotation messages carry the old secret's signature beside the new one's, by default."""
REMOVED = "the endpoint was removed"
"""The error of deliveries that their endpoint's removal ended."""
_SECOND = 1_000_000
_ENDPOINT, _DELIVERY, _ATTEMPT = webhook_endpoint.c, webhook_delivery.c, webhook_attempt.c


class InvalidWebhook(ReportedError, ValueError):
    """An endpoint's setting is invalid. `field` names it, `problem` says why."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class WebhookNotFound(ReportedError, LookupError):
    """The tenant has no such endpoint or delivery."""

    def __init__(self, what: str, identity: UUID) -> None:
        super().__init__(f"there is no webhook {what} {identity}")


class WebhookEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint, without its secret. `reason` says why it is disabled. Instants are in microseconds (Unix epoch)."""

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
    """One message for one endpoint. `status` and `error` are those of the last attempt; instants as above."""

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


def matches_any(patterns: Iterable[str], topic: str) -> bool:
    """Whether one of these patterns (`invoice.paid`, `invoice.*`, `*`) matches the topic."""
    return any(p in ("*", topic) or (p.endswith(".*") and topic.startswith(p[:-1])) for p in patterns)


class WebhookEndpoints:
    """The endpoints in one database; every method is for one tenant and may raise DatabaseUnavailable.

    `topics` are all topics of messages: patterns must match at least one of them.
    """

    def __init__(self, database: Database, cipher: SecretCipher, policy: AddressPolicy, topics: Sequence[str]) -> None:
        self._database = database
        self._cipher = cipher
        self._policy = policy
        self._topics = topics

    async def add(
        self, tenant_id: UUID, url: str, topics: list[str], description: str = ""
    ) -> tuple[WebhookEndpoint, str]:
        """Add an endpoint. Returns it and its secret, which is not shown again. Raises InvalidWebhook."""
        patterns = self._check_patterns(topics)
        try:
            self._policy.check_url(url)
        except UrlRefused as error:
            raise InvalidWebhook("url", str(error)) from error
        if problem := problem_of_text(description, REASON, empty=True):
            raise InvalidWebhook("description", problem)
        endpoint_id, secret = new_id(), new_secret()
        async with self._database.transaction() as session:
            await self._database.lock_rows_of(session, webhook_endpoint, tenant_id)
            present = (_ENDPOINT.tenant_id == tenant_id) & (_ENDPOINT.state != "removed")
            if (await session.scalar(select(func.count()).select_from(webhook_endpoint).where(present)) or 0) >= (
                MAX_ENDPOINTS
            ):
                raise InvalidWebhook(
                    "url", f"the tenant already has {MAX_ENDPOINTS} endpoints, the most allowed; remove one first"
                )
            await session.execute(
                insert(webhook_endpoint).values(
                    id=endpoint_id,
                    tenant_id=tenant_id,
                    url=url,
                    topics=",".join(patterns),
                    description=description,
                    state="enabled",
                    reason="",
                    secret=self._cipher.encrypt(secret, endpoint_id),
                    created_at=self._database.clock,
                )
            )
            after = {"url": url, "topics": patterns, "description": description}
            await _record(session, "added", tenant_id, endpoint_id, after=after)
        return await self.get(tenant_id, endpoint_id), encode_secret(secret)

    async def list_all(self, tenant_id: UUID) -> list[WebhookEndpoint]:
        """The tenant's endpoints, the oldest first."""
        async with self._database.reading() as session:
            own = (_ENDPOINT.tenant_id == tenant_id) & (_ENDPOINT.state != "removed")
            rows = await session.execute(select(webhook_endpoint).where(own).order_by(_ENDPOINT.id))
            return [_endpoint(row) for row in rows]

    async def get(self, tenant_id: UUID, endpoint_id: UUID) -> WebhookEndpoint:
        """The tenant's endpoint. Raises WebhookNotFound."""
        async with self._database.reading() as session:
            return _endpoint(await self._row(session, tenant_id, endpoint_id))

    async def remove(self, tenant_id: UUID, endpoint_id: UUID) -> None:
        """Remove an endpoint and destroy its secret; its deliveries stay on record. Raises WebhookNotFound."""
        async with self._database.transaction() as session:
            row = await self._row(session, tenant_id, endpoint_id, lock=True)
            removed = {"state": "removed", "secret": b"", "previous_secret": None, "previous_until": None}
            await session.execute(update(webhook_endpoint).where(_ENDPOINT.id == endpoint_id).values(removed))
            await fail_pending(self._database, session, tenant_id, endpoint_id, REMOVED)
            before = {"url": row.url, "topics": row.topics.split(","), "description": row.description}
            await _record(session, "removed", tenant_id, endpoint_id, before=before)

    async def enable(self, tenant_id: UUID, endpoint_id: UUID) -> WebhookEndpoint:
        """Enable a disabled endpoint: it gets the messages from now on. Raises WebhookNotFound."""
        async with self._database.transaction() as session:
            row = await self._row(session, tenant_id, endpoint_id, lock=True)
            values = {"state": "enabled", "reason": ""}
            await session.execute(update(webhook_endpoint).where(_ENDPOINT.id == endpoint_id).values(values))
            before = {"state": row.state, "reason": row.reason}
            await _record(session, "enabled", tenant_id, endpoint_id, before=before, after=values)
        return await self.get(tenant_id, endpoint_id)

    async def rotate(self, tenant_id: UUID, endpoint_id: UUID, overlap_s: int = OVERLAP_S) -> str:
        """Replace the secret. Returns the new one, which is not shown again; the old one also signs for `overlap_s`.

        With `overlap_s` 0, all old secrets stop signing at once. Raises WebhookNotFound; InvalidWebhook while an
        earlier overlap lasts, because only one old secret is kept and its time was promised.
        """
        secret = new_secret()
        async with self._database.transaction() as session:
            row = await self._row(session, tenant_id, endpoint_id, lock=True)
            now = (await session.execute(select(self._database.clock))).scalar_one()
            if overlap_s and row.previous_until is not None and row.previous_until > now:
                until = from_instant(row.previous_until).isoformat(timespec="seconds")
                raise InvalidWebhook(
                    "overlap_s",
                    f"the previous secret signs until {until}; wait until then, or rotate with an overlap of 0",
                )
            values = {
                "secret": self._cipher.encrypt(secret, endpoint_id),
                "previous_secret": row.secret if overlap_s else None,
                "previous_until": now + overlap_s * _SECOND if overlap_s else None,
            }
            await session.execute(update(webhook_endpoint).where(_ENDPOINT.id == endpoint_id).values(values))
            after = {"overlap_s": overlap_s}
            await _record(session, "rotated", tenant_id, endpoint_id, after=after)
        return encode_secret(secret)

    async def send_test(self, tenant_id: UUID, endpoint_id: UUID) -> UUID:
        """Queue a `webhook.test` message for this endpoint only. Returns the delivery's id. Raises WebhookNotFound;
        InvalidWebhook while MOST_TESTS wait."""
        async with self._database.transaction() as session:
            await self._row(session, tenant_id, endpoint_id, lock=True)
            own = (_DELIVERY.tenant_id == tenant_id) & (_DELIVERY.endpoint_id == endpoint_id)
            waiting = own & (_DELIVERY.state == "pending") & (_DELIVERY.topic == _TEST)
            if (await session.scalar(select(func.count()).select_from(webhook_delivery).where(waiting)) or 0) >= (
                MOST_TESTS
            ):
                raise InvalidWebhook("endpoint", f"{MOST_TESTS} tests of it wait to be delivered, the most allowed")
            now = (await session.execute(select(self._database.clock))).scalar_one()
            row = delivery_row(endpoint_id, tenant_id, new_id(), _TEST, "{}", at=now, now=now)
            await session.execute(insert(webhook_delivery).values(row))
            return UUID(str(row["id"]))

    async def deliveries(
        self, tenant_id: UUID, endpoint_id: UUID | None = None, *, limit: int = 20, after: UUID | None = None
    ) -> list[WebhookDelivery]:
        """The tenant's deliveries, or those to one endpoint, newest first. `after`: only those older than this one."""
        query = select(webhook_delivery).where(_DELIVERY.tenant_id == tenant_id)
        if endpoint_id is not None:
            query = query.where(_DELIVERY.endpoint_id == endpoint_id)
        if after is not None:
            query = query.where(_DELIVERY.id < after)
        async with self._database.reading() as session:
            return [_delivery(row) for row in await session.execute(query.order_by(_DELIVERY.id.desc()).limit(limit))]

    async def delivery(self, tenant_id: UUID, delivery_id: UUID) -> tuple[WebhookDelivery, list[DeliveryAttempt]]:
        """A delivery and its attempts, in their order. Raises WebhookNotFound."""
        async with self._database.reading() as session:
            own = (_DELIVERY.tenant_id == tenant_id) & (_DELIVERY.id == delivery_id)
            row = (await session.execute(select(webhook_delivery).where(own))).one_or_none()
            if row is None:
                raise WebhookNotFound("delivery", delivery_id)
            delivery = _delivery(row)
            query = select(webhook_attempt).where(_ATTEMPT.delivery_id == delivery_id).order_by(_ATTEMPT.number)
            attempts = [DeliveryAttempt(*row[1:]) for row in await session.execute(query)]
        return delivery, attempts

    async def resend(self, tenant_id: UUID, delivery_id: UUID) -> WebhookDelivery:
        """Queue a delivery again, whatever its state: the same message with the same id.

        Raises WebhookNotFound; InvalidWebhook if its endpoint is disabled.
        """
        delivery, _ = await self.delivery(tenant_id, delivery_id)
        if (await self.get(tenant_id, delivery.endpoint_id)).state != "enabled":
            raise InvalidWebhook("endpoint", "the endpoint is disabled; enable it first")
        async with self._database.transaction() as session:
            now = (await session.execute(select(self._database.clock))).scalar_one()
            values = {"state": "pending", "due_since": now, "next_at": now, "leased_until": 0, "finished_at": None}
            own = (_DELIVERY.tenant_id == tenant_id) & (_DELIVERY.id == delivery_id)
            await session.execute(update(webhook_delivery).where(own).values(values))
        return (await self.delivery(tenant_id, delivery_id))[0]

    async def _row(self, session: AsyncSession, tenant_id: UUID, endpoint_id: UUID, *, lock: bool = False) -> Any:
        own = (_ENDPOINT.tenant_id == tenant_id) & (_ENDPOINT.id == endpoint_id) & (_ENDPOINT.state != "removed")
        query = select(webhook_endpoint).where(own)
        row = (await session.execute(self._database.locked(query) if lock else query)).one_or_none()
        if row is None:
            raise WebhookNotFound("endpoint", endpoint_id)
        return row

    def _check_patterns(self, patterns: list[str]) -> list[str]:
        unique = list(dict.fromkeys(patterns))
        if not 1 <= len(unique) <= _MOST_PATTERNS:
            raise InvalidWebhook("topics", f"name 1 to {_MOST_PATTERNS} topics, such as invoice.* or *")
        for pattern in unique:
            if not any(matches_any([pattern], topic) for topic in self._topics):
                raise InvalidWebhook(
                    "topics",
                    f"{pattern[:100]!r} matches no topic; use one of {', '.join(self._topics)}, or a pattern such as "
                    "invoice.* or *",
                )
        return unique


async def _record(
    session: AsyncSession, verb: str, tenant_id: UUID, endpoint_id: UUID, *, before: Any = None, after: Any = None
) -> None:
    """Record what becomes of an endpoint; never its secrets."""
    await record_change(session, f"webhook_endpoint.{verb}", target="webhook_endpoint", target_id=endpoint_id,
                        tenant_id=tenant_id, before=before, after=after)  # fmt: skip


def delivery_row(
    endpoint_id: UUID, tenant_id: UUID, event_id: UUID, topic: str, payload: str, *, at: int, now: int
) -> dict[str, Any]:
    """A new row of `webhook_delivery`: a message written at `at`, due at `now`. `payload` is JSON."""
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
    """Mark the pending deliveries of an endpoint as failed."""
    own = (_DELIVERY.tenant_id == tenant_id) & (_DELIVERY.endpoint_id == endpoint_id)
    values = {"state": "failed", "error": error, "finished_at": database.clock}
    await session.execute(update(webhook_delivery).where(own, _DELIVERY.state == "pending").values(values))


async def disabled_endpoints(
    database: Database, tenant_ids: Collection[UUID] | None, most: int
) -> list[WebhookEndpoint]:
    """The disabled endpoints of these tenants (None: of all), at most so many. Raises DatabaseUnavailable."""
    query = select(webhook_endpoint).where(webhook_endpoint.c.state == "disabled")
    if tenant_ids is not None:
        query = query.where(webhook_endpoint.c.tenant_id.in_(tenant_ids))
    async with database.reading() as session:
        rows = await session.execute(query.order_by(webhook_endpoint.c.id.desc()).limit(most))
        return [_endpoint(row) for row in rows]


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
