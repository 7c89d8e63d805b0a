"""The kinds of changes that take two people: the permission that each needs, and how it is made when approved."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct
from sqlalchemy.ext.asyncio import AsyncSession

from billing.accounts.balances import Balances, CreditLine
from billing.invoices.advances import top_ups
from billing.invoices.credit_notes import CreditArguments, credit_in
from billing.invoices.parties.store import Parties, SellerArguments
from billing.money import format_pico
from billing.pending_changes import ApprovalRefused, ChangeKind, PendingChange
from billing.platform_settings import PlatformSettings
from billing.prices import PriceCatalog
from billing.rating.contract_store import Contracts, TermsArguments
from billing.transaction.money_transaction import Grant
from storage.database.database import Database

Needed: TypeAlias = Literal[
    "approvals.decide",
    "terms.write",
    "balance.write",
    "invoices.write",
    "sellers.write",
    "platform.write",
    "prices.approve",
]
"""A permission, at the platform, of whoever approves."""


class SettingArguments(Struct, frozen=True):
    """A change of a platform setting."""

    name: str
    value: str


class Makers(Struct, frozen=True):
    """What makes the changes."""

    database: Database
    contracts: Contracts
    balances: Balances
    platform: PlatformSettings
    parties: Parties

    @classmethod
    def of(cls, database: Database, prices: PriceCatalog) -> Makers:
        """Those that work on this database."""
        return cls(database, Contracts(database, prices), top_ups(database), PlatformSettings(database),
                   Parties(database))  # fmt: skip


class Kind(Struct, frozen=True):
    """`make` makes the change in the session's transaction, with its checks, and returns what came of it. `check` is
    for what is checked by other connections, before the transaction: within it they could wait for each other."""

    permission: Needed
    arguments: type[Struct]
    make: Callable[[Makers, AsyncSession, PendingChange, Any], Awaitable[str]]
    check: Callable[[Makers, Any], Awaitable[None]] | None = None


async def _check_terms(makers: Makers, arguments: TermsArguments) -> None:
    await makers.contracts.check(arguments.tenant_id, arguments.terms, arguments.from_period)


async def _set_terms(makers: Makers, session: AsyncSession, change: PendingChange, arguments: TermsArguments) -> str:
    number = await makers.contracts.put_in(session, arguments, change.author, change.reason)
    return f"terms {number}"


async def _grant(makers: Makers, session: AsyncSession, change: PendingChange, made: Grant) -> str:
    await makers.balances.grant_in(session, made)
    return f"grant {made.id}"


async def _set_line(makers: Makers, session: AsyncSession, change: PendingChange, arguments: CreditLine) -> str:
    after = await makers.balances.set_credit_line_in(session, arguments)
    return f"credit line {format_pico(after.credit_line)} {after.currency}"


async def _credit(makers: Makers, session: AsyncSession, change: PendingChange, arguments: CreditArguments) -> str:
    note, _ = await credit_in(makers.database, session, arguments)
    return f"credit note {note.number}"


async def _set(makers: Makers, session: AsyncSession, change: PendingChange, arguments: SettingArguments) -> str:
    names = f"{change.author} and {change.decider}"
    via = f"{change.author_via}; {change.decider_via}"
    await makers.platform.set_in(session, arguments.name, arguments.value, by=names, via=via, reason=change.reason)
    return f"{arguments.name}: {arguments.value}"


async def _set_seller(makers: Makers, session: AsyncSession, change: PendingChange, arguments: SellerArguments) -> str:
    await makers.parties.set_seller_in(session, arguments, change.reason)
    return f"seller {arguments.seller.id}"


KINDS: Mapping[ChangeKind, Kind] = {
    "terms.set": Kind("terms.write", TermsArguments, _set_terms, _check_terms),
    "grant.create": Kind("balance.write", Grant, _grant),
    "credit_line.set": Kind("balance.write", CreditLine, _set_line),
    "credit_note.issue": Kind("invoices.write", CreditArguments, _credit),
    "seller.set": Kind("sellers.write", SellerArguments, _set_seller),
    "platform_setting.set": Kind("platform.write", SettingArguments, _set),
}
"""Every kind. One more is an entry here, and a call of `propose_if_needed` where the change is made."""


async def make(makers: Makers, session: AsyncSession, change: PendingChange) -> str:
    """Make a change that was approved, in this transaction; what came of it. Raises what its checks raise."""
    kind = _kind_of(change)
    return await kind.make(makers, session, change, _arguments(kind, change))


async def check(makers: Makers, change: PendingChange) -> None:
    """Check, before the transaction, what is checked by other connections. Raises what its checks raise."""
    kind = _kind_of(change)
    if kind.check is not None:
        await kind.check(makers, _arguments(kind, change))


def _kind_of(change: PendingChange) -> Kind:
    """Raises ApprovalRefused for a kind that we do not know."""
    for name, kind in KINDS.items():
        if name == change.kind:
            return kind
    raise ApprovalRefused(f"{change.id} is of the kind {change.kind!r}, which a newer version knows: approve it there")


def _arguments(kind: Kind, change: PendingChange) -> Any:
    return msgspec.convert(change.arguments, kind.arguments, strict=False)
