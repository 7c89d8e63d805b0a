"""Changes that take two people: kept with their arguments, made by another's approval as a whole, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import func, select

from audit_log.actors import Actor, acting_as
from audit_log.tables import audit_entry
from billing.accounts import lone_grants
from billing.accounts.balances import Balances, InvalidGrant
from billing.approvals.approvals import Approvals
from billing.approvals.kinds import SettingArguments
from billing.invoices.credit_notes import credit
from billing.invoices.errors import AmountRefused
from billing.pending_changes import (
    ApprovalRefused,
    ChangePending,
    NotAllowedToDecide,
    NotPending,
    OwnChange,
    PendingChange,
    UnknownChange,
    propose,
)
from billing.platform_settings import APPROVALS, GRANT_OVER, InvalidPlatformSetting, PlatformSettings
from billing.prices import PriceCatalog
from billing.prices.approval import BY_KEY, PriceSheets
from billing.prices.errors import SamePerson
from billing.prices.sheets import PriceProposal
from billing.rating.contract_store import Contracts
from billing.rating.terms import ContractTerms, Discount, InvalidTerms, parse_terms
from billing.tables.prices import contract_terms
from billing.usage import Usage
from billing.verification.audit import audit_money
from storage.database.base import new_id
from storage.database.database import Database
from tests.billing.invoices.customers import Customer, set_clock
from tests.billing.invoices.test_invoices import USAGE
from tests.billing.money import Tenant

DOLLAR = 10**12
OFF = ContractTerms(discounts=(Discount(basis_points=500),))


@contextmanager
def by(name: str, means: str = "operator_key", user: str = "") -> Iterator[None]:
    with acting_as(Actor(means, f"key-of-{name}", name, user=user)):  # type: ignore[arg-type]
        yield


def may(_permission: str) -> bool:
    return True


@pytest.fixture
async def approvals(database: Database) -> Approvals:
    return Approvals(database, PriceCatalog(database))


async def _turn_on(database: Database) -> None:
    await PlatformSettings(database).set(APPROVALS, "on", by="Ann and bob", via="test")


async def _pending(work: object) -> PendingChange:
    with pytest.raises(ChangePending) as pending:
        await work  # type: ignore[misc]
    return pending.value.change


async def test_a_grant_waits_for_another_person_and_is_made_once(approvals: Approvals, database: Database) -> None:
    tenant, balances = await Tenant.rich(database, 0), Balances(database)
    await _turn_on(database)
    with by("Ann"):
        change = await _pending(balances.grant(tenant.id, 25 * DOLLAR, "USD", kind="promo", reason="goodwill"))
        with pytest.raises(OwnChange):
            await approvals.approve(change.id, may)
    assert await balances.grants(tenant.id) == []
    for same in (" ann ", "ＡＮＮ", "\U0001d41ann", "\u0410nn", "\u0391nn"):  # the last two: Cyrillic, Greek
        with by(same), pytest.raises(OwnChange):
            await approvals.approve(change.id, may)
    with by("bob"):
        assert (await approvals.approve(change.id, may, dry_run=True)).state == "approved"
        assert [waiting.id for waiting in await approvals.list()] == [change.id]
        done = await approvals.approve(change.id, may, "as agreed")
        assert (done.state, done.author, done.decider, done.decision_reason) == ("approved", "Ann", "bob", "as agreed")
        with pytest.raises(NotPending):
            await approvals.approve(change.id, may)
    (given,) = await balances.grants(tenant.id)
    assert (given.remaining, done.result) == (25 * DOLLAR, f"grant {given.id}")
    assert await approvals.list() == []
    assert await audit_money(database) == []
    async with database.reading() as session:
        rows = await session.execute(select(audit_entry.c.action, audit_entry.c.actor_name).order_by(audit_entry.c.at))
        recorded = [tuple(row) for row in rows if row.actor_name != "tests"]
    assert sorted(recorded) == [("change.approved", "bob"), ("change.proposed", "Ann"), ("grant.created", "bob")]


async def test_small_grants_and_our_own_jobs_need_nobody(approvals: Approvals, database: Database) -> None:
    tenant, balances = await Tenant.rich(database, 0), Balances(database)
    await _turn_on(database)
    await PlatformSettings(database).set(GRANT_OVER, "100.00", by="Ann and bob", via="test")
    with by("Ann"):
        await balances.grant(tenant.id, 100 * DOLLAR, "USD")
        await _pending(balances.grant(tenant.id, 100 * DOLLAR + 1, "USD"))
        await balances.grant(tenant.id, 500 * DOLLAR, "USD", dry_run=True)
    await balances.grant(tenant.id, 500 * DOLLAR, "USD")  # the tests act as a job of ours
    with by("root@host", "command"), pytest.raises(ApprovalRefused):
        await balances.grant(tenant.id, 500 * DOLLAR, "USD")
    for wrong in ("-1", "much", ""):
        with pytest.raises(InvalidPlatformSetting):
            await PlatformSettings(database).set(GRANT_OVER, wrong, by="Ann", via="test")
    await PlatformSettings(database).set(APPROVALS, "off", by="Ann and bob", via="test")
    with by("Ann"):
        await balances.grant(tenant.id, 900 * DOLLAR, "USD")


async def test_small_grants_within_a_day_count_together(
    approvals: Approvals, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant, other, balances = await Tenant.rich(database, 0), await Tenant.rich(database, 0), Balances(database)
    await _turn_on(database)
    await PlatformSettings(database).set(GRANT_OVER, "100.00", by="Ann and bob", via="test")
    with by("Ann"):
        first = await balances.grant(tenant.id, 40 * DOLLAR, "USD")
        await balances.grant(tenant.id, 40 * DOLLAR, "USD", kind="promo")
        assert await balances.grant(tenant.id, 40 * DOLLAR, "USD", grant_id=first) == first, "a repetition"
        change = await _pending(balances.grant(tenant.id, 30 * DOLLAR, "USD"))
    assert "after 80.000000000000 USD within 24 hours" in change.summary
    with by("bob"):
        await _pending(balances.grant(tenant.id, 21 * DOLLAR, "USD"))  # whoever it is
        await balances.grant(tenant.id, 20 * DOLLAR, "USD")
        await balances.grant(other.id, 100 * DOLLAR, "USD")
        await approvals.approve(change.id, may)
    assert sum(one.remaining for one in await balances.grants(tenant.id)) == 130 * DOLLAR
    monkeypatch.setattr(lone_grants, "WINDOW_US", 0)  # a day later
    with by("Ann"):
        await balances.grant(tenant.id, 100 * DOLLAR, "USD")


async def test_small_grants_at_the_same_time_count_together(approvals: Approvals, database: Database) -> None:
    tenant, balances = await Tenant.rich(database, 0), Balances(database)
    await _turn_on(database)
    await PlatformSettings(database).set(GRANT_OVER, "100.00", by="Ann and bob", via="test")
    with by("Ann"):
        asked = (balances.grant(tenant.id, (30 + n) * DOLLAR, "USD") for n in range(6))
        results = await asyncio.gather(*asked, return_exceptions=True)
    waiting = [one for one in results if isinstance(one, ChangePending)]
    given = await balances.grants(tenant.id)
    assert len(given) + len(waiting) == 6
    assert len(given) == len([one for one in results if not isinstance(one, BaseException)])
    assert 0 < sum(one.remaining for one in given) <= 100 * DOLLAR
    assert await audit_money(database) == []


async def test_the_same_change_asked_for_often_waits_once(approvals: Approvals, database: Database) -> None:
    tenant, balances = await Tenant.rich(database, 0), Balances(database)
    await _turn_on(database)

    async def propose_it(dollars: int = 1, reason: str = "as agreed") -> str:
        return (await _pending(balances.grant(tenant.id, dollars * DOLLAR, "USD", reason=reason))).id

    with by("Ann"):
        first, *others = await asyncio.gather(*(propose_it() for _ in range(6)))
        assert set(others) == {first}
        assert len({await propose_it(2), await propose_it(1, "another"), first}) == 3
    with by("bob"):
        assert await propose_it() != first, "another person's"
        await approvals.approve(first, may)
    assert len(await balances.grants(tenant.id)) == 1
    with by("Ann"):
        assert await propose_it() != first, "a new one, now that the first is made"


async def test_a_person_is_no_name(approvals: Approvals, database: Database) -> None:
    tenant, balances = await Tenant.rich(database, 0), Balances(database)
    await _turn_on(database)
    sheets = PriceSheets(database, via="session of " + _user("a"))
    (before,) = await sheets.history()
    sheet = await sheets.draft(PriceProposal(model=before.model, rows=before.rows), "ann@x.com", "contract 7")
    with by("ann@x.com", "session", _user("a")):
        change = await _pending(balances.grant(tenant.id, DOLLAR, "USD"))
    same: tuple[tuple[str, str, str], ...] = (
        ("other@x.com", "session", _user("a")),  # renamed
        ("ann's", "operator_key", _user("a")),
        ("ann", "operator_key", ""),  # nobody says whose key it is
        ("bob", "operator_key", ""),
    )
    for who in same:
        with by(*who):
            with pytest.raises(OwnChange):
                await approvals.approve(change.id, may)
            with pytest.raises(SamePerson):
                await approvals.approve(f"price_sheet_{sheet.id}", may)
    with by("bob's", "operator_key", _user("b")):
        assert (await approvals.approve(f"price_sheet_{sheet.id}", may)).state == "approved"
    with by("bob@x.com", "session", _user("b")):
        assert (await approvals.approve(change.id, may)).state == "approved"


async def test_a_decision_takes_the_permission_of_its_kind(approvals: Approvals, database: Database) -> None:
    tenant, balances = await Tenant.rich(database, 0), Balances(database)
    await _turn_on(database)
    with by("Ann"):
        change = await _pending(balances.grant(tenant.id, DOLLAR, "USD"))
    with by("bob"):
        for lacking in ("approvals.decide", "balance.write"):
            with pytest.raises(NotAllowedToDecide):
                await approvals.approve(change.id, lambda needed, lacking=lacking: needed != lacking)
        with pytest.raises(NotAllowedToDecide):
            await approvals.withdraw(change.id, lambda needed: needed != "balance.write")
    with by("Ann"):
        assert (await approvals.withdraw(change.id, lambda _: False)).state == "withdrawn"


@pytest.mark.slow
async def test_many_approvals_at_once_wait_for_no_second_connection(approvals: Approvals, database: Database) -> None:
    tenant, balances = await Tenant.rich(database, 0), Balances(database)
    await _turn_on(database)
    contracts, period, later = Contracts(database, PriceCatalog(database)), "2999-01", 2**52
    with by("Ann"):
        ids = [
            (
                await _pending(
                    contracts.put(tenant.id, ContractTerms(discounts=(Discount(basis_points=n),)), period, "Ann")
                )
            ).id
            for n in range(1, 41)
        ]
        ids += [
            (await _pending(balances.grant(tenant.id, n * DOLLAR, "USD", kind="promo", expires_at=later))).id
            for n in range(1, 41)
        ]
    with by("bob"):
        await asyncio.wait_for(asyncio.gather(*(approvals.approve(one, may) for one in ids)), 60)
    assert (len(await contracts.list()), len(await balances.grants(tenant.id))) == (40, 40)


async def test_a_credit_line_above_the_amount_waits(approvals: Approvals, database: Database) -> None:
    tenant, balances = await Tenant.rich(database, 0), Balances(database)
    await _turn_on(database)
    await PlatformSettings(database).set(GRANT_OVER, "100.00", by="Ann and bob", via="test")
    with by("Ann"):
        assert (await balances.set_credit_line(tenant.id, 100 * DOLLAR, "USD")).credit_line == 100 * DOLLAR
        change = await _pending(balances.set_credit_line(tenant.id, 101 * DOLLAR, "USD"))
    with by("bob"):
        done = await approvals.approve(change.id, may)
        assert (done.kind, done.result) == ("credit_line.set", "credit line 101.000000000000 USD")
        assert (await balances.set_credit_line(tenant.id, 100_5 * DOLLAR // 10, "USD")).credit_line < 101 * DOLLAR
    assert await audit_money(database) == []


def _user(letter: str) -> str:
    return f"user_{letter * 32}"


async def test_the_same_change_waits_once_and_can_be_withdrawn(approvals: Approvals, database: Database) -> None:
    tenant, balances, same = await Tenant.rich(database, 0), Balances(database), new_id()
    await _turn_on(database)
    with by("Ann"):
        first, second = [
            await _pending(balances.grant(tenant.id, DOLLAR, "USD", grant_id=same)) for _ in range(2)
        ]  # fmt: skip
        assert first.id == second.id
        withdrawn = await approvals.withdraw(first.id, may, "a slip")
        assert (withdrawn.state, withdrawn.decider) == ("withdrawn", "Ann")
    with by("bob"):
        with pytest.raises(NotPending):
            await approvals.approve(first.id, may)
        for unknown in ("change_0", f"change_{new_id().hex}", "price_sheet_99", "price_sheet_x"):
            with pytest.raises(UnknownChange):
                await approvals.approve(unknown, may)
    assert await balances.grants(tenant.id) == []


async def test_checks_run_anew_and_a_change_that_fails_still_waits(approvals: Approvals, database: Database) -> None:
    tenant, balances = await Tenant.rich(database, 0), Balances(database)
    await _turn_on(database)
    contracts = Contracts(database, PriceCatalog(database))
    set_clock(database, "2026-10-15")
    with by("Ann"):
        terms = await _pending(contracts.put(tenant.id, OFF, "2026-10", "Ann"))
        expires = 1_793_000_000_000_000  # 26 October 2026
        grant = await _pending(balances.grant(tenant.id, DOLLAR, "USD", kind="promo", expires_at=expires))
    set_clock(database, "2026-11-01")
    with by("bob"):
        with pytest.raises(InvalidTerms):
            await approvals.approve(terms.id, may)
        with pytest.raises(InvalidGrant):
            await approvals.approve(grant.id, may)
    assert {change.id for change in await approvals.list()} == {terms.id, grant.id}
    assert await contracts.list() == []
    set_clock(database, "2026-10-16")
    with by("bob"):
        assert (await approvals.approve(terms.id, may)).result == "terms 1"
    (contract,) = await contracts.list(tenant.id)
    assert (contract.terms, contract.author) == (OFF, "Ann")


async def test_two_approvals_at_once_make_it_once(approvals: Approvals, database: Database) -> None:
    tenant = await Tenant.rich(database, 0)
    await _turn_on(database)
    contracts = Contracts(database, PriceCatalog(database))
    period = "2999-01"
    with by("Ann"):
        change = await _pending(contracts.put(tenant.id, OFF, period, "Ann"))
    with by("bob"):
        ends = await asyncio.gather(*(approvals.approve(change.id, may) for _ in range(4)), return_exceptions=True)
    assert sorted(type(end).__name__ for end in ends) == ["NotPending"] * 3 + ["PendingChange"]
    async with database.reading() as session:
        assert await session.scalar(select(func.count()).select_from(contract_terms)) == 1


async def test_a_credit_note_waits(approvals: Approvals, database: Database) -> None:
    customer = await Customer.make(database)
    await customer.use("2026-10-03", USAGE)
    october = await customer.invoice("2026-10")
    await _turn_on(database)
    with by("Ann"):
        change = await _pending(credit(database, october, "A gesture", request="1", amounts={4: 1000}))
        twin = await _pending(credit(database, october, "Another", request="2"))
    assert october.name in change.summary
    with by("bob"):
        assert (await approvals.approve(twin.id, may)).result.startswith("credit note ")  # type: ignore[union-attr]
        with pytest.raises(AmountRefused):  # nothing is left of the invoice
            await approvals.approve(change.id, may)
    with by("Ann"):  # repeated, it answers with what was issued
        note, _ = await credit(database, october, "Another", request="2")
    assert note is not None
    assert await audit_money(database) == []


@pytest.mark.slow
async def test_a_payment_for_a_commitment_waits_and_is_checked_anew(approvals: Approvals, database: Database) -> None:
    customer = await Customer.make(database)
    contracts = Contracts(database, PriceCatalog(database))

    def terms(*amounts: str) -> ContractTerms:
        payments = [{"amount": one, "reference": "bank 4711", "reason": "before the contract"} for one in amounts]
        months = {"first": "2026-10", "last": "2026-12"}
        return parse_terms({"commitment": {"amount": "8", "invoiced": False, "payments": payments, **months}})

    await contracts.put(customer.id, terms(), "2026-10", "Ann")
    await _turn_on(database)
    with by("Ann"):
        waits = await _pending(contracts.put(customer.id, terms("7"), "2026-10", "Ann"))
        other = await _pending(contracts.put(customer.id, terms("6"), "2026-11", "Ann"))
        with pytest.raises(OwnChange):
            await approvals.approve(waits.id, may)
    assert waits.summary == (
        "contract terms from 2026-10 on, with a commitment of 8.00 for 2026-10 to 2026-12, 7.00 paid by bank 4711"
    )
    assert len(await contracts.list()) == 1
    with by("bob"):
        await approvals.approve(waits.id, may)
        with pytest.raises(InvalidTerms, match="the payment 'bank 4711' was recorded before"):
            await approvals.approve(other.id, may)
    await customer.use("2026-10-03", Usage(output=6_250_000))
    october = await customer.invoice("2026-10")
    assert october.net == 300, "of 10.00 the payment pays 7.00, though the commitment is of 8.00"
    assert await audit_money(database) == []


async def test_settings_and_price_sheets_are_in_the_same_list(approvals: Approvals, database: Database) -> None:
    tenant = await Tenant.rich(database, 0)
    await _turn_on(database)
    sheets = PriceSheets(database, via=BY_KEY)
    (before,) = await sheets.history()
    sheet = await sheets.draft(PriceProposal(model=before.model, rows=before.rows), "Ann", "contract 7")
    with by("Ann"):
        setting = await _pending(
            propose(database, "platform_setting.set", SettingArguments(APPROVALS, "off"), "approvals: off")
        )
    assert {change.id for change in await approvals.list()} == {f"price_sheet_{sheet.id}", setting.id}
    with by("bob"):
        active = await approvals.approve(f"price_sheet_{sheet.id}", may)
        assert (active.state, active.decider) == ("approved", "bob")
        assert (await approvals.approve(setting.id, may)).result == "approvals: off"
    (*_, last) = await PlatformSettings(database).history()
    assert (last.value, last.actor) == ("off", "Ann and bob")
    with by("Ann"):
        await Balances(database).grant(tenant.id, DOLLAR, "USD")
    assert await audit_money(database) == []
