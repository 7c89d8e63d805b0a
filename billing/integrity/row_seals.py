"""Seals: the SHA-256 of rows that never change, kept apart from them, so that one that is altered, gone or new shows.

Usage events are in a hash chain (`billing.integrity.hash_chain`), and documents' texts in one of their own. Seals are
for the rest of the books: money in and out, prices and who made them, contracts, storage, payments, closed periods, the
final fields of an invoice. A row is sealed in the transaction that writes it. Its seal covers what it consists of, such
as the entries of a ledger transaction. `billing.verification.seals` computes all seals again.

A seal is the SHA-256 of the row's digest and its instant. The two are hashed apart, since the statement that writes the
busiest of these tables also reads the instant from the database's clock, and so makes the seal itself. Where the
database has a keyring, the row's digest is its HMAC by the current key: who has the database alone cannot seal a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Table, insert, select, true
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.recorded_rows import plain_value
from billing.ledger.entries import Transaction
from billing.tables.books import billing_period, journal_loss, platform_setting, recon_run, seal
from billing.tables.invoices import einvoice, exchange_rate, invoice, invoice_payment, party_change, vat_check
from billing.tables.money import grant, ledger_entry, ledger_txn
from billing.tables.prices import (
    contract_terms,
    price,
    price_book,
    price_change,
    price_interval,
    price_resolution,
    price_row,
    price_sheet,
    price_version,
    residency_event,
    storage_event,
)
from billing.tables.receipts import receipt_day
from storage.database.database import Database
from storage.database.keyring import Keyring

INSTANT = 8
"""Bytes of an instant."""


class SealedPart(msgspec.Struct, frozen=True):
    """The rows that a sealed row consists of: those of a table whose column `of` has its key, ordered by `order`."""

    table: Table
    of: str
    order: tuple[str, ...]
    columns: tuple[str, ...]


class SealForm(msgspec.Struct, frozen=True):
    """What a seal of a table's row is made of. A form never changes: when a table gets a column, add a form of the next
    `number` behind the others, and rows from then on are sealed in it. A seal says its form (`seal.form`)."""

    table: Table
    key: tuple[str, ...]
    columns: tuple[str, ...]
    instant: str | None = None
    part: SealedPart | None = None
    final: ColumnElement[bool] = true()
    """When a row is final; until then it may change and has no seal."""
    number: int = 1

    @property
    def name(self) -> str:
        """The table's name."""
        return str(self.table.name)

    @property
    def domain(self) -> str:
        """What a digest begins with, so that no two forms have the same."""
        return self.name if self.number == 1 else f"{self.name} {self.number}"


_PRICES = ("meter", "lane", "context_from")
FORMS: dict[tuple[str, int], SealForm] = {
    (form.name, form.number): form
    for form in (
        SealForm(
            grant,
            ("id",),
            ("id", "tenant_id", "amount_pico", "currency", "kind", "reason", "priority", "expires_at", "model",
             "project_id"),
            "at",
        ),
        SealForm(
            ledger_txn,
            ("id",),
            ("id", "tenant_id", "kind", "period", "memo"),
            "posted_at",
            SealedPart(
                ledger_entry,
                "txn_id",
                ("seq",),
                ("seq", "tenant_id", "currency", "debit", "credit", "amount_pico", "grant_id"),
            ),
        ),
        SealForm(
            price_version,
            ("id",),
            ("id", "model", "currency", "effective_at", "sha256"),
            "created_at",
            SealedPart(price, "version", _PRICES, (*_PRICES, "price_micro")),
        ),
        SealForm(
            price_version,
            ("id",),
            ("id", "model", "currency", "effective_at", "sha256", "formula"),
            "created_at",
            SealedPart(price, "version", _PRICES, (*_PRICES, "price_micro")),
            number=2,
        ),
        SealForm(
            price_sheet,
            ("id",),
            ("id", "book", "model", "kind", "effective_at", "effective_until", "author", "reason", "forced", "sha256"),
            "created_at",
            SealedPart(price_row, "sheet", _PRICES, (*_PRICES, "price_micro")),
        ),
        SealForm(price_book, ("id",), ("id", "name", "currency", "base", "tenant_id"), "created_at"),
        SealForm(price_interval, ("sheet",), ("sheet", "book", "model", "effective_at", "effective_until")),
        SealForm(
            price_change,
            ("id",),
            ("id", "sheet", "action", "actor", "reason", "before_sha256", "after_sha256", "via"),
            "at",
        ),
        SealForm(platform_setting, ("id",), ("id", "name", "value", "actor", "via", "reason"), "at"),
        SealForm(price_resolution, ("sheet", "base_sheet"), ("sheet", "base_sheet", "version")),
        SealForm(contract_terms, ("id",), ("id", "tenant_id", "from_period", "body", "author", "reason"), "created_at"),
        SealForm(
            storage_event,
            ("tenant_id", "period", "hour", "project_id", "model"),
            ("tenant_id", "period", "hour", "project_id", "model", "price_version", "token_seconds", "cost_pico"),
        ),
        SealForm(
            residency_event,
            ("tenant_id", "period", "hour", "project_id", "model"),
            ("tenant_id", "period", "hour", "project_id", "model", "price_version", "millihours", "cost_pico"),
        ),
        SealForm(
            invoice_payment,
            ("id",),
            ("id", "invoice_id", "tenant_id", "amount", "currency", "usage_pico", "reference"),
            "at",
        ),
        SealForm(
            party_change, ("id",), ("id", "seller", "tenant_id", "valid_from", "facts", "reason"), "created_at"
        ),
        SealForm(
            vat_check,
            ("id",),
            ("id", "tenant_id", "vat_id", "answer", "name", "address", "consultation", "registry"),
            "at",
        ),
        SealForm(exchange_rate, ("day", "currency"), ("day", "currency", "rate", "source"), "recorded_at"),
        SealForm(
            invoice,
            ("id",),
            ("id", "kind", "seller", "tenant_id", "period", "currency", "series", "year", "n", "number", "issued",
             "due", "net", "tax", "gross", "prepaid", "payable", "usage_pico", "promo_pico", "charges_pico",
             "prepaid_pico", "carry_in", "carry_out", "prepaid_carry_in", "prepaid_carry_out", "corrects", "content",
             "sha256", "drafted_at"),
            "finalized_at",
            final=invoice.c.state != "draft",
        ),
        SealForm(
            einvoice,
            ("invoice_id", "syntax"),
            ("invoice_id", "syntax", "tenant_id", "profile", "content", "sha256"),
            "at",
        ),
        SealForm(
            journal_loss,
            ("journal",),
            ("journal", "replica", "since", "author", "reason", "events", "missing", "holds", "held_pico"),
            "at",
        ),
        SealForm(
            receipt_day,
            ("tenant_id", "day"),
            ("tenant_id", "day", "period", "link", "pending_from", "events", "late", "cost_pico", "root"),
            "closed_at",
        ),
        SealForm(
            recon_run,
            ("id",),
            ("id", "period", "events", "lost", "doubled", "unconfirmed", "late", "drift_pico", "report"),
            "at",
        ),
        SealForm(
            billing_period,
            ("period",),
            ("period", "starts_at", "ends_at", "root"),
            "closed_at",
            final=billing_period.c.state == "closed",
        ),
    )
}  # fmt: skip
"""The forms by the name of their table and their number. An invoice's has neither its state nor what was paid."""

CURRENT: dict[str, SealForm] = {name: form for (name, _), form in FORMS.items()}
"""The form of new rows, by the name of their table."""

_encode = msgspec.msgpack.encode


def digest_of(form: SealForm, row: Mapping[Any, Any], parts: Iterable[Mapping[Any, Any]] = ()) -> bytes:
    """The digest of a row and, in their order, of the rows that it consists of; all but the row's instant."""
    of = () if form.part is None else form.part.columns
    said = [[plain_value(part[name]) for name in of] for part in parts]
    return sha256(_encode([form.domain, [plain_value(row[name]) for name in form.columns], said])).digest()


def digest_of_transaction(transaction: Transaction) -> bytes:
    """The digest of a transaction that is about to be posted."""
    same = {"tenant_id": transaction.tenant_id, "currency": transaction.currency}
    entries = [
        {"seq": seq, **same, **msgspec.structs.asdict(entry)} for seq, entry in enumerate(transaction.entries, 1)
    ]
    return digest_of(CURRENT["ledger_txn"], msgspec.structs.asdict(transaction), entries)


def keyed(digest: bytes, keyring: Keyring, version: int) -> bytes:
    """What stands for a row's digest in its seal: its MAC by the key of this version, itself for version 0. Raises
    KeyError for a key that is not here."""
    return keyring.mac(digest, version) if version else digest


def seal_of(digest: bytes, instant: int | None) -> bytes:
    """The seal of a row."""
    return sha256(digest + (b"" if instant is None else instant.to_bytes(INSTANT, "big"))).digest()


def key_of(form: SealForm, row: Mapping[Any, Any]) -> str:
    """Under what the seal of a row is kept."""
    return "/".join(str(row[name]) for name in form.key)


async def seal_rows(session: AsyncSession, table: Table, *where: ColumnElement[bool]) -> None:
    """Seal rows that this transaction has just written: as they stand in the database now."""
    form = CURRENT[table.name]
    rows = (await session.execute(select(table).where(*where))).mappings().all()
    parts, keyring = await parts_of(session, form, rows), Database.of(session).keyring
    seals = [(key_of(form, row), sealed(form, row, parts, (keyring, keyring.current))) for row in rows]
    await session.execute(insert(seal), [seal_row(form, key, sha256, keyring.current) for key, sha256 in seals])


def seal_row(form: SealForm, key: str, sha256: bytes, version: int) -> dict[str, Any]:
    """The row of a seal that was made by the key of this version."""
    return {"kind": form.name, "id": key, "sha256": sha256, "form": form.number, "key": version}


def sealed(
    form: SealForm,
    row: Mapping[Any, Any],
    parts: Mapping[Any, Sequence[Mapping[Any, Any]]],
    by: tuple[Keyring, int] = (Keyring(), 0),
) -> bytes:
    """The seal of a row by a version of a key, given the rows that rows consist of (`parts_of`). Raises KeyError for a
    key that is not here."""
    instant = None if form.instant is None else row[form.instant]
    return seal_of(keyed(digest_of(form, row, parts.get(row[form.key[0]], ())), *by), instant)


async def parts_of(
    session: AsyncSession, form: SealForm, rows: Sequence[Mapping[Any, Any]]
) -> dict[Any, list[Mapping[Any, Any]]]:
    """What each of these rows consists of, by its key."""
    part = form.part
    found: dict[Any, list[Mapping[Any, Any]]] = {}
    if part is not None:
        mine = part.table.c[part.of].in_([row[form.key[0]] for row in rows])
        query = select(part.table).where(mine).order_by(*(part.table.c[name] for name in (part.of, *part.order)))
        for row in (await session.execute(query)).mappings():
            found.setdefault(row[part.of], []).append(row)
    return found
