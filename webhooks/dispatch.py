"""From the outbox to the endpoints: at least once, in no promised order, by any number of workers at a time.

What a worker takes it locks (the outbox's rows) or leases (deliveries), and others pass over it. What an endpoint does
not take is tried again after 5 s, 20 s, 80 s … up to half a day, each time more or less by half, until `give_up_s` are
over.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
import structlog
from cryptography.exceptions import InvalidTag
from sqlalchemy import Column, ColumnElement, Select, delete, func, select, update

from billing.events.partitions import least_id
from billing.tables.money import outbox
from billing.transaction.budget_charges import THRESHOLD, named
from storage.database.database import Database
from storage.database.sql_arrays import one_of
from webhooks.endpoints import delivery_row, fail_pending, wants
from webhooks.sending import TIMEOUT_S, SendResult, WebhookSender
from webhooks.signing import SecretCipher
from webhooks.tables import webhook_attempt, webhook_delivery, webhook_endpoint

BATCH = 20
PER_ENDPOINT = 4
"""Deliveries to one endpoint that are under way in one worker: a slow one does not take all of it."""
GIVE_UP_S = 3 * 86_400
_FIRST_US, _FACTOR, _LONGEST_US = 5_000_000, 4, 43_200_000_000
_LEASE_US = 4 * TIMEOUT_S * 1_000_000
_FANNED_OUT = 200
FORGOTTEN = 1000
_ENDPOINT, _DELIVERY, _OUTBOX = webhook_endpoint.c, webhook_delivery.c, outbox.c

NameLookup: TypeAlias = Callable[[UUID], Awaitable[dict[str, str]]]
"""What people call a tenant's projects and keys, by their ids."""

log = structlog.get_logger(__name__)


async def no_names(tenant_id: UUID) -> dict[str, str]:
    """Where nobody knows: ids stay."""
    return {}


def event_name(event_id: UUID) -> str:
    """A message's id: the same in every attempt and resend, so that a receiver can tell what it has seen."""
    return f"evt_{event_id.hex}"


def delay_us(failures: int) -> int:
    """Microseconds to wait after so many failures, drawn between half and one and a half of the doubling's."""
    usual: int = min(_FIRST_US * _FACTOR ** min(failures - 1, 20), _LONGEST_US)
    return usual // 2 + secrets.randbelow(usual)


class Dispatcher:
    """One worker's part of it. Raises DatabaseUnavailable; what was under way is then done again."""

    def __init__(
        self,
        database: Database,
        sealer: SecretCipher,
        sender: WebhookSender,
        give_up_s: int = GIVE_UP_S,
        names: NameLookup = no_names,
    ) -> None:
        self._database = database
        self._sealer = sealer
        self._sender = sender
        self._give_up_us = give_up_s * 1_000_000
        self._names = names

    async def run(self) -> bool:
        """Take what is new and what is due, once; whether there may be more."""
        fanned_out = await self._fan_out()
        taken = await self._take()
        async with asyncio.TaskGroup() as attempts:
            for delivery, endpoint, now in taken:
                attempts.create_task(self._attempt(delivery, endpoint, now))
        return fanned_out == _FANNED_OUT or bool(taken)

    async def remove_old(self, keep_s: int) -> int:
        """Forget a batch of deliveries that ended, with their attempts, and of messages that were handed on, so many
        seconds ago; how many. A full batch (`FORGOTTEN`) of either says that there is more."""
        async with self._database.transaction() as session:  # all tenants: it is the same for everybody
            before = (await session.execute(select(self._database.clock))).scalar_one() - keep_s * 1_000_000
            ended = (_DELIVERY.id < least_id(before)) & (_DELIVERY.finished_at < before)
            ids = list(await session.scalars(self._oldest(_DELIVERY.id, ended)))
            told = (_OUTBOX.id < least_id(before)) & (_OUTBOX.sent_at < before)
            messages = list(await session.scalars(self._oldest(_OUTBOX.id, told)))
            await session.execute(
                delete(webhook_attempt).where(one_of(self._database, webhook_attempt.c.delivery_id, ids))
            )
            await session.execute(delete(webhook_delivery).where(one_of(self._database, _DELIVERY.id, ids)))
            await session.execute(delete(outbox).where(one_of(self._database, _OUTBOX.id, messages)))
        return max(len(ids), len(messages))

    def _oldest(self, key: Column[UUID], which: ColumnElement[bool]) -> Select[Any]:
        return self._database.locked(select(key).where(which).order_by(key).limit(FORGOTTEN), skip=True)

    async def _fan_out(self) -> int:
        """Make deliveries of the outbox's unsent rows; how many rows."""
        async with self._database.transaction() as session:  # all tenants: the worker works for everybody
            unsent = select(outbox).where(_OUTBOX.sent_at.is_(None)).order_by(_OUTBOX.id).limit(_FANNED_OUT)
            events = (await session.execute(self._database.locked(unsent, skip=True))).all()
            if not events:
                return 0
            now = (await session.execute(select(self._database.clock))).scalar_one()
            tenants = list({event.tenant_id for event in events})
            enabled = (_ENDPOINT.state == "enabled") & one_of(self._database, _ENDPOINT.tenant_id, tenants)
            endpoints = (await session.execute(select(webhook_endpoint).where(enabled))).all()
            said = await self._payloads(events)
            rows = [
                delivery_row(
                    endpoint.id, event.tenant_id, event.id, event.topic, said[event.id], at=event.created_at, now=now
                )
                for event in events
                for endpoint in endpoints
                if endpoint.tenant_id == event.tenant_id and wants(endpoint.topics.split(","), event.topic)
            ]
            if rows:
                await session.execute(self._database.insert(webhook_delivery).on_conflict_do_nothing(), rows)
            ids = [event.id for event in events]
            await session.execute(update(outbox).where(one_of(self._database, _OUTBOX.id, ids)).values(sent_at=now))
        return len(events)

    async def _payloads(self, events: Sequence[Any]) -> dict[UUID, str]:
        """What each event says, a budget's with names for its ids: who counts money knows none."""
        payloads = {event.id: event.payload for event in events}
        of: dict[UUID, dict[str, str]] = {}
        for event in events:
            if event.topic == THRESHOLD and (subject := msgspec.json.decode(event.payload)["subject"]):
                if event.tenant_id not in of:
                    of[event.tenant_id] = await self._names(event.tenant_id)
                payloads[event.id] = named(event.payload, of[event.tenant_id].get(subject, subject))
        return payloads

    async def _take(self) -> list[tuple[Any, Any, int]]:
        """Deliveries that are due, leased to us, each with its endpoint and the time."""
        async with self._database.transaction() as session:  # all tenants: the worker works for everybody
            now = (await session.execute(select(self._database.clock))).scalar_one()
            due = (_DELIVERY.state == "pending") & (_DELIVERY.next_at <= now) & (_DELIVERY.leased_until < now)
            place = func.row_number().over(
                partition_by=_DELIVERY.endpoint_id, order_by=(_DELIVERY.next_at, _DELIVERY.id)
            )
            ranked = select(_DELIVERY.id, _DELIVERY.next_at, place.label("place")).where(due).subquery()
            first = select(ranked.c.id).where(ranked.c.place <= PER_ENDPOINT).order_by(ranked.c.next_at).limit(BATCH)
            # Asked again under the lock: another worker may have leased it since.
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
            of = select(webhook_endpoint).where(one_of(self._database, _ENDPOINT.id, endpoints))
            found = {endpoint.id: endpoint for endpoint in await session.execute(of)}
        return [(row, found[row.endpoint_id], now) for row in rows]

    async def _attempt(self, delivery: Any, endpoint: Any, now: int) -> None:
        try:
            keys = self._keys(endpoint, now)
        except InvalidTag:
            outcome = SendResult(None, "its secret cannot be opened: was the master key changed? rotate the secret", 0)
        else:
            name = event_name(delivery.event_id)
            outcome = await self._sender.send(endpoint.url, name, delivery.body.encode(), keys)
        failures = delivery.attempts + 1
        wait = max(delay_us(failures), outcome.retry_after * 1_000_000)
        give_up = outcome.gone or now + wait > delivery.due_since + self._give_up_us
        state = "delivered" if outcome.delivered else "failed" if give_up else "pending"
        await self._record(delivery, outcome, state, now, now + wait)
        if state == "failed":
            log.warning("a webhook is given up", delivery=str(delivery.id), topic=delivery.topic, error=outcome.error)

    def _keys(self, endpoint: Any, now: int) -> list[bytes]:
        sealed = [endpoint.secret]
        if endpoint.previous_secret is not None and endpoint.previous_until > now:
            sealed.append(endpoint.previous_secret)
        return [self._sealer.open(each, endpoint.id) for each in sealed]

    async def _record(self, delivery: Any, outcome: SendResult, state: str, now: int, next_at: int) -> None:
        async with self._database.transaction() as session:
            # The endpoint is locked before its deliveries, as by all who change both: no two wait for each other.
            if outcome.gone:
                off = {"state": "disabled", "reason": "it answered 410 Gone"}
                of = (_ENDPOINT.tenant_id == delivery.tenant_id) & (_ENDPOINT.id == delivery.endpoint_id)
                await session.execute(update(webhook_endpoint).where(of, _ENDPOINT.state == "enabled").values(off))
                error = "the endpoint answered 410 Gone"
                await fail_pending(self._database, session, delivery.tenant_id, delivery.endpoint_id, error)
            number = delivery.attempts + 1
            row = (delivery.id, number, now, outcome.status, outcome.error, outcome.milliseconds)
            names = webhook_attempt.c.keys()
            attempt = self._database.insert(webhook_attempt).values(dict(zip(names, row, strict=True)))
            await session.execute(attempt.on_conflict_do_nothing())  # one whose lease ran out may have been as far
            values = {
                "state": state,
                "attempts": number,
                "next_at": next_at,
                "leased_until": 0,
                "finished_at": None if state == "pending" else now,
                "status": outcome.status,
                "error": outcome.error,
            }
            mine = (_DELIVERY.tenant_id == delivery.tenant_id) & (_DELIVERY.id == delivery.id)
            if state == "pending":  # what was given up meanwhile, with its endpoint, stays so
                mine &= _DELIVERY.state == "pending"
            await session.execute(update(webhook_delivery).where(mine).values(values))
