"""Checks of seals: rows that never change still have their hash, and none is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import func, select

from audit_log.anchors import Witness
from audit_log.verification import check_witness
from billing.integrity.row_seals import CURRENT, FORMS, SealForm, key_of, parts_of, sealed
from billing.integrity.seal_checkpoints import checkpoint_message, seals_of_other_keys
from billing.tables.books import seal, seal_checkpoint
from billing.tables.invoices import einvoice, invoice, invoice_line
from billing.tables.money import grant, grant_balance
from billing.tables.prices import price, price_change, price_interval, price_row, price_sheet, price_version
from billing.verification.findings import AuditContext
from storage.database.sql_arrays import one_of

NO_CHECKPOINT = "seals have no checkpoint"
_CHUNK = 1000
_PARTS = (
    (price, price.c.version, price_version),
    (price_row, price_row.c.sheet, price_sheet),
    (grant_balance, grant_balance.c.grant_id, grant),
    (invoice_line, invoice_line.c.invoice_id, invoice),
    (einvoice, einvoice.c.invoice_id, invoice),
)
"""Tables whose rows are parts of others, and of which: foreign keys can be put aside."""
_WITHDRAWN = {price_interval.name: select(price_change.c.sheet).where(price_change.c.action == "withdraw")}
"""Tables whose rows may be deleted before they take effect, and what was withdrawn so: the keys of their rows."""


async def check_seals(audit: AuditContext) -> None:
    """Each row of each sealed table has its seal, and each seal its row."""
    # all tenants: an audit checks the whole installation
    counts = await audit.session.execute(select(seal.c.kind, func.count()).group_by(seal.c.kind))
    seals: dict[str, int] = {row[0]: row[1] for row in counts}
    for form in CURRENT.values():
        await _check(audit, form, seals.pop(form.name, 0))
    for kind in sorted(seals):
        audit.report("a seal is of nothing", UUID(int=0), f"there is no sealed table {kind}")
    await _check_checkpoints(audit)
    for child, key, parent in _PARTS:
        (owner,) = parent.primary_key
        orphans = select(key).distinct().where(~select(owner).where(owner == key).exists())
        for identity in await audit.session.scalars(orphans):
            audit.report("a row of the books belongs to nothing", UUID(int=0), f"{child.name} of {identity}")


async def _check(audit: AuditContext, form: SealForm, seals: int) -> None:
    query = select(form.table).where(form.final)
    sealed_rows = 0
    stream = await audit.session.stream(query.execution_options(yield_per=_CHUNK))
    async for rows in stream.mappings().partitions(_CHUNK):
        sealed_rows += await _compare(audit, form, rows)
    if seals != sealed_rows or form.name in _WITHDRAWN:
        await _name_missing(audit, form)


async def _compare(audit: AuditContext, form: SealForm, rows: Sequence[Mapping[Any, Any]]) -> int:
    """Compare rows with their seals; return how many have one."""
    keys = [key_of(form, row) for row in rows]
    of_rows = (seal.c.kind == form.name) & one_of(audit.database, seal.c.id, keys)
    query = select(seal.c.id, seal.c.sha256, seal.c.form, seal.c.key).where(of_rows)
    seals = {
        row.id: (row.sha256, FORMS.get((form.name, row.form)), row.key) for row in await audit.session.execute(query)
    }
    parts, unknown = await parts_of(audit.session, form, rows), set[int]()
    for key, row in zip(keys, rows, strict=True):
        if key not in seals:
            audit.report("a row of the books was never written", _subject(form, row), f"{form.name} {key} has no seal")
            continue
        sha256, sealed_as, version = seals[key]
        if version and version not in audit.database.keyring.keys:
            unknown.add(version)
        elif sealed_as is None or sha256 != sealed(sealed_as, row, parts, (audit.database.keyring, version)):
            detail = f"{form.name} {key} does not say what it said when it was written"
            audit.report("a row of the books was altered", _subject(form, row), detail)
    for version in sorted(unknown):
        detail = f"rows of {form.name} are sealed by key {version}, which the secrets file does not have"
        audit.report("a seal cannot be checked", UUID(int=0), detail)
    return len(seals)


async def _check_checkpoints(audit: AuditContext) -> None:
    """Seals of other keys than the current one are those that its last checkpoint covers; no checkpoint is missing."""
    keyring, what = audit.database.keyring, "a checkpoint of seals does not hold"
    rows = (await audit.session.execute(select(seal_checkpoint).order_by(seal_checkpoint.c.id))).mappings().all()
    for place, row in enumerate(rows, 1):
        if row["id"] != place:
            audit.report(what, UUID(int=0), f"checkpoint {row['id']} stands where {place} should")
        elif row["key"] not in keyring.keys:
            audit.report(
                what, UUID(int=0), f"checkpoint {place} is by key {row['key']}, which is not in the secrets file"
            )
        elif keyring.mac(checkpoint_message(row), row["key"]) != row["mac"]:
            audit.report(what, UUID(int=0), f"checkpoint {place} has another MAC")
    if not keyring.current:
        return
    last = next((row for row in reversed(rows) if row["key"] == keyring.current), None)
    others = await seals_of_other_keys(audit.session, keyring)
    if last is None:
        audit.report(NO_CHECKPOINT, UUID(int=0), f"of key {keyring.current}: run `turnpike audit checkpoint`")
    elif (last["others"], last["digest"]) != others:
        detail = f"it covers {last['others']} seals that were made by other keys or none, there are {others[0]}"
        audit.report(what, UUID(int=0), f"checkpoint {last['id']}: {detail}, or they are others")
    elif last["witness"]:
        for finding in await check_witness(audit.session, Witness.parse(last["witness"])):
            audit.report(finding.what, finding.tenant_id, f"checkpoint {last['id']}: {finding.detail}")


async def _name_missing(audit: AuditContext, form: SealForm) -> None:
    stream = await audit.session.stream(select(form.table).where(form.final).execution_options(yield_per=_CHUNK))
    present = {key_of(form, row) async for row in stream.mappings()}
    withdrawn = set[str]()
    if form.name in _WITHDRAWN:
        withdrawn = {str(key) for key in await audit.session.scalars(_WITHDRAWN[form.name])}
    for key in sorted(present & withdrawn):
        audit.report("a row of the books was withdrawn", UUID(int=0), f"{form.name} {key} is there again")
    async for key in await audit.session.stream_scalars(select(seal.c.id).where(seal.c.kind == form.name)):
        if key not in present and key not in withdrawn:
            audit.report("a row of the books is missing", UUID(int=0), f"{form.name} {key} was written")


def _subject(form: SealForm, row: Mapping[Any, Any]) -> UUID:
    """The subject of a finding about a row: the first UUID of its key, or no UUID."""
    first = row[form.key[0]]
    return first if isinstance(first, UUID) else UUID(int=0)
