"""A change that waits cannot be altered in the database: what is made is what was proposed, or nothing is."""

from __future__ import annotations

import pytest
from sqlalchemy import insert, select, text, update

from billing.accounts.balances import Balances
from billing.approvals.approvals import Approvals
from billing.pending_changes import AlteredChange, PendingChange
from billing.prices import PriceCatalog
from billing.tables.books import pending_change
from billing.verification.audit import audit_money
from storage.database.base import new_id
from storage.database.database import Database
from tests.billing.approvals.test_approvals import DOLLAR, _pending, _turn_on, by, may
from tests.billing.money import Tenant


async def _propose(database: Database, dollars: int = 800) -> tuple[Tenant, PendingChange]:
    tenant = await Tenant.rich(database, 0)
    await _turn_on(database)
    with by("Ann"):
        return tenant, await _pending(Balances(database).grant(tenant.id, dollars * DOLLAR, "USD", reason="agreed"))


async def _forge(database: Database, **values: str) -> None:
    async with database.transaction() as session:
        await session.execute(update(pending_change).values(values))


async def _findings(database: Database) -> set[str]:
    return {finding.what for finding in await audit_money(database)}


@pytest.mark.parametrize("column", ["arguments", "kind", "summary", "reason", "author", "author_person"])
async def test_what_was_altered_is_not_carried_out(database: Database, column: str) -> None:
    tenant, change = await _propose(database)
    assert await audit_money(database) == []
    async with database.reading() as session:
        before = str(await session.scalar(select(pending_change.c[column])))
    forged = {
        "arguments": before.replace(f"{800 * DOLLAR}", f"{8000 * DOLLAR}"),
        "kind": "credit_line.set",
        "summary": "a grant of 1 USD",
        "reason": "somebody else's",
        "author": "Eve",
        "author_person": "eve",
    }[column]
    assert forged != before
    await _forge(database, **{column: forged})
    assert await _findings(database) == {"a row is not what was recorded"}
    with by("bob"), pytest.raises(AlteredChange, match=change.id):
        await Approvals(database, PriceCatalog(database)).approve(change.id, may)
    assert await Balances(database).grants(tenant.id) == []
    await _forge(database, **{column: before})
    assert await audit_money(database) == []
    with by("bob"):
        await Approvals(database, PriceCatalog(database)).approve(change.id, may)
    assert sum(grant.remaining for grant in await Balances(database).grants(tenant.id)) == 800 * DOLLAR
    await _forge(database, **{column: forged})
    assert await _findings(database) == {"a row is not what was recorded"}


async def test_a_change_that_nobody_proposed_is_not_carried_out(database: Database) -> None:
    tenant, _ = await _propose(database)
    forged = new_id()
    async with database.transaction() as session:
        row = dict((await session.execute(select(pending_change))).mappings().one())
        await session.execute(insert(pending_change).values(row | {"id": forged, "sha256": "another"}))
    assert await _findings(database) == {"a row was never recorded"}
    with by("bob"), pytest.raises(AlteredChange):
        await Approvals(database, PriceCatalog(database)).approve(f"change_{forged.hex}", may)
    assert await Balances(database).grants(tenant.id) == []
    async with database.transaction() as session:
        await session.execute(text("DELETE FROM pending_change"))
    assert await _findings(database) == {"a recorded row is missing"}


async def test_withdrawing_a_forged_change_does_not_hide_it(database: Database) -> None:
    _, change = await _propose(database)
    async with database.reading() as session:
        arguments = str(await session.scalar(select(pending_change.c.arguments)))
    await _forge(database, arguments=arguments.replace(f"{800 * DOLLAR}", f"{8000 * DOLLAR}"))
    with by("Ann"):
        await Approvals(database, PriceCatalog(database)).withdraw(change.id, may)
    assert await _findings(database) == {"a change was decided that is not what was proposed"}
