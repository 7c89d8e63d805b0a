"""Proofs of payments below /admin/v1: what a tenant pays with, and what finance decides."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from audit_log.actors import Actor, acting_as
from billing.integrity.recorded_tables import PAYMENT_REMINDERS, PUSHED_DOCUMENTS
from billing.payments.cash import CashBook, receipt_id
from billing.payments.customers import Customers
from billing.payments.provider import MoneyIn, PaymentProvider
from billing.payments.recording import insert_recorded
from billing.payments.tasks import FinanceTasks, add_task
from billing.payments.top_ups import TopUps
from storage.database.base import new_id
from tests.gateway.access.proofs import Call, proof
from tests.gateway.access.proofs_admin import fresh
from tests.gateway.access.proofs_invoices import _invoice, _path
from tests.gateway.access.world import Place, World

_WORKER = Actor("system", "worker", "worker")


def _provider(world: World) -> PaymentProvider:
    provider = world.stack.gateway.services.payments
    assert provider is not None
    return provider


async def _connected(world: World, place: Place) -> str:
    """The tenant's customer at the provider."""
    customers = Customers(world.stack.database)
    with acting_as(_WORKER):
        await customers.connect(place.tenant_id, _provider(world).name)
        await customers.save_at_provider(_provider(world), place.tenant_id, old=False)
    return (await customers.get(place.tenant_id))[1]


async def _top_up(world: World, place: Place) -> tuple[UUID, str]:
    customer = await _connected(world, place)
    with acting_as(_WORKER):
        made = await TopUps(world.stack.database).create(place.tenant_id, _provider(world).name, 2500, "USD")
    return made.id, customer


async def _money(world: World, identity: str) -> MoneyIn:
    at = await world.stack.database.now()
    return MoneyIn(provider=_provider(world).name, id=identity, amount=2500, currency="USD", at=at)


async def _unapplied(world: World) -> UUID:
    money = await _money(world, fresh("pi"))
    with acting_as(_WORKER):
        await CashBook(world.stack.database).suspend(money, "a proof")
    return receipt_id(money.provider, money.id)


@proof("admin_set_payment_connection", "admin_create_card_page", "admin_create_payment_portal")
async def _(world: World, place: Place) -> Call:
    await _connected(world, place)
    return Call({"tenant": place.tenant_name}, body={})


@proof("admin_create_top_up")
async def _(world: World, place: Place) -> Call:
    await _connected(world, place)
    return Call({"tenant": place.tenant_name}, body={"amount": "25.00"})


@proof("admin_set_auto_top_up")
async def _(world: World, place: Place) -> Call:
    await _connected(world, place)
    return Call({"tenant": place.tenant_name}, body={"threshold": "1.00", "amount": "25.00"})


@proof("admin_list_top_ups")
async def _(world: World, place: Place) -> Call:
    made, _ = await _top_up(world, place)
    return Call({"tenant": place.tenant_name}, query={"limit": 100}, tells=(str(made),))


@proof("admin_retrieve_top_up")
async def _(world: World, place: Place) -> Call:
    made, _ = await _top_up(world, place)
    return Call({"tenant": place.tenant_name, "top_up": str(made)}, tells=(str(made),))


@proof("admin_refund_top_up")
async def _(world: World, place: Place) -> Call:
    made, customer = await _top_up(world, place)
    balance = await world.stack.balances.get(place.tenant_id)
    owed = 0 if balance is None else max(0, balance.debit - balance.credit)
    with acting_as(_WORKER):
        await world.stack.balances.grant(place.tenant_id, owed + 5 * 10**12, "USD")
        await CashBook(world.stack.database).take_top_up(await _money(world, fresh("pi")), made, customer)
    return Call({"tenant": place.tenant_name, "top_up": str(made)}, body={"reason": "a proof", "amount": "1.00"})


@proof("admin_apply_receipt")
async def _(world: World, place: Place) -> Call:
    body = {"tenant": place.tenant_name, "reason": "a proof"}
    return Call({"receipt": str(await _unapplied(world))}, body=body)


@proof("admin_return_receipt")
async def _(world: World, place: Place) -> Call:
    return Call({"receipt": str(await _unapplied(world))}, body={"reason": "a proof"})


@proof("admin_close_finance_task")
async def _(world: World, place: Place) -> Call:
    database, subject = world.stack.database, fresh("task")
    with acting_as(_WORKER):
        async with database.transaction() as session:
            await add_task(database, session, "dispute", subject, "a proof")
    (task,) = [one for one in await FinanceTasks(database).list(limit=100) if one.subject == subject]
    return Call({"task": str(task.id)}, body={"reason": "a proof"})


@proof("admin_retrieve_invoice_collection")
async def _(world: World, place: Place) -> Call:
    return Call(_path(place, await _invoice(world, place)))


@proof("admin_push_invoice_again", by="operator_key")
async def _(world: World, place: Place) -> Call:
    record, database = await _invoice(world, place), world.stack.database
    row = {"document_id": record.id, "tenant_id": place.tenant_id, "provider": "stripe", "state": "refused"}
    with acting_as(_WORKER):
        async with database.transaction() as session:
            await insert_recorded(session, PUSHED_DOCUMENTS, "document.refused", row | {"updated_at": database.clock})
    return Call(_path(place, record), body={"reason": "a proof"})


@proof("admin_list_reminders")
async def _(world: World, place: Place) -> Call:
    made = await _reminder(world, place, "sent")
    return Call({"tenant": place.tenant_name}, query={"limit": 100}, tells=(str(made),))


@proof("admin_send_reminder_again")
async def _(world: World, place: Place) -> Call:
    return Call({"reminder": str(await _reminder(world, place, "unknown"))}, body={"reason": "a proof"})


@proof("admin_set_reminder_policy")
async def _(world: World, place: Place) -> Call:
    return Call({"tenant": place.tenant_name}, body={"enabled": False, "reason": "a proof"})


async def _reminder(world: World, place: Place, state: str) -> UUID:
    record, database = await _invoice(world, place), world.stack.database
    now = database.clock
    row: dict[str, Any] = {
        "id": new_id(),
        "tenant_id": place.tenant_id,
        "invoice_id": record.id,
        "level": 1,
        "state": state,
    }
    row |= {"recipient": "ap@example.com", "subject": "a proof", "problem": "", "attempts": 1, "due_at": 0}
    row |= {"sent_at": now if state == "sent" else None, "created_at": now, "updated_at": now}
    with acting_as(_WORKER):
        async with database.transaction() as session:
            await insert_recorded(session, PAYMENT_REMINDERS, f"payment_reminder.{state}", row)
    return UUID(str(row["id"]))
