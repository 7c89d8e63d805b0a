"""Delivers the outbox's messages to webhook endpoints: at least once, in no order, by any number of workers.

A worker locks the outbox rows and leases the deliveries that it works on; other workers skip those. A delivery that an
endpoint does not accept is retried after 5 s, 20 s, 80 s and so on up to 12 h, each delay randomised by half, until
`give_up_s` have passed.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias
from uuid import UUID

import structlog
from cryptography.exceptions import InvalidTag
from sqlalchemy import Column, ColumnElement, Select, delete, func, select, update

from audit_log.record import record_change
from storage.database.base import least_id
from storage.database.database import Database
from storage.database.outbox import outbox
from storage.database.sql_arrays import one_of
from webhooks.endpoints import REMOVED, delivery_row, fail_pending, matches_any
from webhooks.sending import TIMEOUT_S, SendResult, WebhookSender
from webhooks.signing import SecretCipher
from webhooks.tables import webhook_attempt, webhook_delivery, webhook_endpoint

CONCURRENT = 20
"""Concurrent deliveries of one worker."""
PER_ENDPOINT, PER_TENANT = 4, 8
"""Concurrent deliveries to one endpoint, and to all of a tenant, of all workers together: so slow endpoints do not
occupy the workers."""
_LOOK_S, _LOOKS = 0.25, 40
"""How long attempts are waited for before free places are given to what is due, and how often in one run."""
GIVE_UP_S = 3 * 86_400
_FIRST_US, _FACTOR, _LONGEST_US = 5_000_000, 4, 43_200_000_000
_LEASE_US = 4 * TIMEOUT_S * 1_000_000
_FAN_OUT_BATCH = 200
REMOVAL_BATCH = 1000
_ENDPOINT, _DELIVERY, _OUTBOX = webhook_endpoint.c, webhook_delivery.c, outbox.c

Payloads: TypeAlias = Callable[[Sequence[Any]], Awaitable[Mapping[UUID, str]]]
"""Outbox rows -> the payload to send for each, by its id."""

log = structlog.get_logger(__name__)


async def payloads_as_written(messages: Sequence[Any]) -> dict[UUID, str]:
    """The payloads of outbox rows, unchanged."""
    return {message.id: message.payload for message in messages}


def event_name(event_id: UUID) -> str:
    """A message's public id. All attempts and resends carry the same one, so that receivers can drop duplicates."""
    return f"evt_{event_id.hex}"


def delay_us(failures: int) -> int:
    """Microseconds until the next attempt: exponential back-off, multiplied by a random factor from 0.5 to 1.5."""
    mean: int = min(_FIRST_US * _FACTOR ** min(failures - 1, 20), _LONGEST_US)
    return mean // 2 + secrets.randbelow(mean)


class Dispatcher:
    """Delivers messages, in one worker. Every method may raise DatabaseUnavailable; unfinished work is then repeated.

    `payloads` may complete what messages say, with names that their writer does not know.
    """

    def __init__(
        self,
        database: Database,
        cipher: SecretCipher,
        sender: WebhookSender,
        give_up_s: int = GIVE_UP_S,
        payloads: Payloads = payloads_as_written,
    ) -> None:
        self._database = database
        self._cipher = cipher
        self._sender = sender
        self._give_up_us = give_up_s * 1_000_000
        self._payloads = payloads
        self._attempts: set[asyncio.Task[None]] = set()

    async def run(self) -> bool:
        """Make deliveries of new messages and attempt those due, until none is. True if more may be waiting.

        Attempts that take long do not hold up others: what is due takes the places that are free. After many looks
        it returns True while such attempts go on, which the next run takes over. No attempt outlives an error.
        """
        worked = False
        try:
            for _ in range(_LOOKS):
                fanned_out = await self._fan_out()
                leased = await self._lease_due(CONCURRENT - len(self._attempts))
                worked |= bool(leased)
                for delivery, endpoint, now in leased:
                    self._attempts.add(asyncio.create_task(self._attempt(delivery, endpoint, now)))
                if self._attempts:
                    ended, self._attempts = await asyncio.wait(self._attempts, timeout=_LOOK_S)
                    if failures := [failure for attempt in ended if (failure := attempt.exception())]:
                        raise failures[0]
                elif fanned_out < _FAN_OUT_BATCH:
                    return worked
        except BaseException:
            rest, self._attempts = self._attempts, set()
            for attempt in rest:
                attempt.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
            raise
        return True

    async def remove_old(self, keep_s: int) -> int:
        """Delete a batch of deliveries, with their attempts, and of sent messages that ended over `keep_s` ago.

        Returns the larger of the two counts; `REMOVAL_BATCH` means that there may be more.
        """
        async with self._database.transaction() as session:  # all tenants: retention is the same for each
            before = (await session.execute(select(self._database.clock))).scalar_one() - keep_s * 1_000_000
            ended = (_DELIVERY.id < least_id(before)) & (_DELIVERY.finished_at < before)
            ids = list(await session.scalars(self._oldest(_DELIVERY.id, ended)))
            sent = (_OUTBOX.id < least_id(before)) & (_OUTBOX.sent_at < before)
            messages = list(await session.scalars(self._oldest(_OUTBOX.id, sent)))
            await session.execute(
                delete(webhook_attempt).where(one_of(self._database, webhook_attempt.c.delivery_id, ids))
            )
            await session.execute(delete(webhook_delivery).where(one_of(self._database, _DELIVERY.id, ids)))
            await session.execute(delete(outbox).where(one_of(self._database, _OUTBOX.id, messages)))
        return max(len(ids), len(messages))

    def _oldest(self, key: Column[UUID], condition: ColumnElement[bool]) -> Select[Any]:
        return self._database.locked(select(key).where(condition).order_by(key).limit(REMOVAL_BATCH), skip=True)

    async def _fan_out(self) -> int:
        """Make deliveries of unsent messages, for each endpoint that subscribes. Returns how many messages."""
        async with self._database.transaction() as session:  # all tenants: the worker serves each
            unsent = select(outbox).where(_OUTBOX.sent_at.is_(None)).order_by(_OUTBOX.id).limit(_FAN_OUT_BATCH)
            events = (await session.execute(self._database.locked(unsent, skip=True))).all()
            if not events:
                return 0
            now = (await session.execute(select(self._database.clock))).scalar_one()
            tenants = list({event.tenant_id for event in events})
            enabled = (_ENDPOINT.state == "enabled") & one_of(self._database, _ENDPOINT.tenant_id, tenants)
            endpoints = (await session.execute(select(webhook_endpoint).where(enabled))).all()
            payloads = await self._payloads(events)
            rows = [
                delivery_row(
                    endpoint.id,
                    event.tenant_id,
                    event.id,
                    event.topic,
                    payloads[event.id],
                    at=event.created_at,
                    now=now,
                )
                for event in events
                for endpoint in endpoints
                if endpoint.tenant_id == event.tenant_id and matches_any(endpoint.topics.split(","), event.topic)
            ]
            if rows:
                await session.execute(self._database.insert(webhook_delivery).on_conflict_do_nothing(), rows)
            ids = [event.id for event in events]
            await session.execute(update(outbox).where(one_of(self._database, _OUTBOX.id, ids)).values(sent_at=now))
        return len(events)

    async def _lease_due(self, places: int) -> list[tuple[Any, Any, int]]:
        """Lease at most so many of the deliveries that are due: each with its endpoint, and the present instant."""
        if not places:
            return []
        async with self._database.transaction() as session:  # all tenants: the worker serves each
            now = (await session.execute(select(self._database.clock))).scalar_one()
            waits = _DELIVERY.leased_until < now
            due = (_DELIVERY.state == "pending") & (_DELIVERY.next_at <= now) & waits
            # What is leased takes the first places of its endpoint and its tenant.
            of_endpoint = func.row_number().over(
                partition_by=_DELIVERY.endpoint_id, order_by=(waits, _DELIVERY.next_at, _DELIVERY.id)
            )
            current = (_DELIVERY.state == "pending") & (_DELIVERY.next_at <= now)
            rows_of_endpoint = select(
                _DELIVERY.id, _DELIVERY.tenant_id, _DELIVERY.next_at, waits.label("waits"), of_endpoint.label("place")
            )
            by_endpoint = rows_of_endpoint.where(current).subquery().c
            of_tenant = func.row_number().over(
                partition_by=by_endpoint.tenant_id, order_by=(by_endpoint.waits, by_endpoint.next_at, by_endpoint.id)
            )
            rows_of_tenant = select(by_endpoint.id, by_endpoint.next_at, by_endpoint.waits, of_tenant.label("place"))
            by_tenant = rows_of_tenant.where(by_endpoint.place <= PER_ENDPOINT).subquery().c
            allowed = by_tenant.waits & (by_tenant.place <= PER_TENANT)
            first = select(by_tenant.id).where(allowed).order_by(by_tenant.place, by_tenant.next_at).limit(places)
            # The condition is repeated under the lock, because another worker may have leased the row since.
            query = select(webhook_delivery).where(_DELIVERY.id.in_(first), due).order_by(_DELIVERY.id)
            rows = (await session.execute(self._database.locked(query, skip=True))).all()
            if not rows:
                return []
            ids, endpoints = [row.id for row in rows], list({row.endpoint_id for row in rows})
            await session.execute(
                update(webhook_delivery)
                .where(one_of(self._database, _DELIVERY.id, ids))
                .values(leased_until=now + _LEASE_US)
            )
            query = select(webhook_endpoint).where(one_of(self._database, _ENDPOINT.id, endpoints))
            endpoint_of = {endpoint.id: endpoint for endpoint in await session.execute(query)}
            # Made or queued again by a transaction that did not see yet that its endpoint was removed.
            late = [row.id for row in rows if endpoint_of[row.endpoint_id].state == "removed"]
            if late:
                failed = {"state": "failed", "error": REMOVED, "finished_at": now, "leased_until": 0}
                of_removed = one_of(self._database, _DELIVERY.id, late)
                await session.execute(update(webhook_delivery).where(of_removed).values(failed))
        return [(row, endpoint_of[row.endpoint_id], now) for row in rows if row.id not in late]

    async def _attempt(self, delivery: Any, endpoint: Any, now: int) -> None:
        try:
            keys = self._keys(endpoint, now)
            name = event_name(delivery.event_id)
            result = await self._sender.send(endpoint.url, name, delivery.body.encode(), keys)
        except InvalidTag:
            result = SendResult(
                None, "the endpoint's secret cannot be decrypted; if the master key was changed, rotate the secret", 0
            )
        except Exception as error:  # one delivery must not end the others, and has to be given up some day
            log.exception("a webhook delivery could not be attempted", delivery=str(delivery.id))
            result = SendResult(None, f"it could not be sent ({type(error).__name__})", 0)
        failures = delivery.attempts + 1
        wait = max(delay_us(failures), result.retry_after * 1_000_000)
        give_up = result.gone or now + wait > delivery.due_since + self._give_up_us
        state = "delivered" if result.delivered else "failed" if give_up else "pending"
        await self._record(delivery, result, state, now, now + wait)
        if state == "failed":
            log.warning(
                "a webhook delivery failed for good",
                delivery=str(delivery.id),
                topic=delivery.topic,
                error=result.error,
            )

    def _keys(self, endpoint: Any, now: int) -> list[bytes]:
        encrypted = [endpoint.secret]
        if endpoint.previous_secret is not None and endpoint.previous_until > now:
            encrypted.append(endpoint.previous_secret)
        return [self._cipher.decrypt(secret, endpoint.id) for secret in encrypted]

    async def _record(self, delivery: Any, result: SendResult, state: str, now: int, next_at: int) -> None:
        async with self._database.transaction() as session:
            # Lock order is the endpoint, then its deliveries, as wherever both change: so there are no deadlocks.
            if result.gone:
                disabled = {"state": "disabled", "reason": "it answered 410 Gone"}
                own = (_ENDPOINT.tenant_id == delivery.tenant_id) & (_ENDPOINT.id == delivery.endpoint_id)
                gone = update(webhook_endpoint).where(own, _ENDPOINT.state == "enabled").values(disabled)
                if (await session.execute(gone.returning(_ENDPOINT.id))).one_or_none() is not None:
                    await record_change(
                        session,
                        "webhook_endpoint.disabled",
                        target="webhook_endpoint",
                        target_id=delivery.endpoint_id,
                        tenant_id=delivery.tenant_id,
                        reason=disabled["reason"],
                        before={"state": "enabled"},
                        after={"state": "disabled"},
                    )
                error = "the endpoint answered 410 Gone"
                await fail_pending(self._database, session, delivery.tenant_id, delivery.endpoint_id, error)
            number = delivery.attempts + 1
            row = (delivery.id, number, now, result.status, result.error, result.milliseconds)
            names = webhook_attempt.c.keys()
            attempt = self._database.insert(webhook_attempt).values(dict(zip(names, row, strict=True)))
            await session.execute(
                attempt.on_conflict_do_nothing()
            )  # a worker whose lease expired may have written this number
            values = {
                "state": state,
                "attempts": number,
                "next_at": next_at,
                "leased_until": 0,
                "finished_at": None if state == "pending" else now,
                "status": result.status,
                "error": result.error,
            }
            own_row = (_DELIVERY.tenant_id == delivery.tenant_id) & (_DELIVERY.id == delivery.id)
            if state == "pending":  # a delivery that failed meanwhile, with its endpoint, stays failed
                own_row &= _DELIVERY.state == "pending"
            await session.execute(update(webhook_delivery).where(own_row).values(values))
