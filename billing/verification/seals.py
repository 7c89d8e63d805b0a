"""Checks of seals: rows that never change still have their hash, and none is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import func, select

from billing.integrity.row_seals import CURRENT, FORMS, SealForm, key_of, parts_of, sealed
from billing.tables.prices import price_interval
from billing.tables.seals import seal
from billing.verification.findings import AuditContext
from storage.database.sql_arrays import one_of

_CHUNK = 1000
_TAKEN_BACK = (price_interval.name,)
"""Tables whose rows may be deleted before they take effect."""


async def check_seals(audit: AuditContext) -> None:
    """Each row of each sealed table has its seal, and each seal its row."""
    # all tenants: an audit checks the whole installation
    for form in CURRENT.values():
        await _check(audit, form)


async def _check(audit: AuditContext, form: SealForm) -> None:
    query = select(form.table).where(form.final)
    sealed_rows = 0
    stream = await audit.session.stream(query.execution_options(yield_per=_CHUNK))
    async for rows in stream.mappings().partitions(_CHUNK):
        sealed_rows += await _compare(audit, form, rows)
    of_form = select(func.count()).select_from(seal).where(seal.c.kind == form.name)
    if (await audit.session.scalar(of_form) or 0) != sealed_rows and form.name not in _TAKEN_BACK:
        await _name_missing(audit, form)


async def _compare(audit: AuditContext, form: SealForm, rows: Sequence[Mapping[Any, Any]]) -> int:
    """Compare rows with their seals; return how many have one."""
    keys = [key_of(form, row) for row in rows]
    of_rows = (seal.c.kind == form.name) & one_of(audit.database, seal.c.id, keys)
    query = select(seal.c.id, seal.c.sha256, seal.c.form).where(of_rows)
    seals = {row.id: (row.sha256, FORMS.get((form.name, row.form))) for row in await audit.session.execute(query)}
    parts = await parts_of(audit.session, form, rows)
    for key, row in zip(keys, rows, strict=True):
        if key not in seals:
            audit.report("a row of the books was never written", _subject(form, row), f"{form.name} {key} has no seal")
            continue
        sha256, sealed_as = seals[key]
        if sealed_as is None or sha256 != sealed(sealed_as, row, parts):
            detail = f"{form.name} {key} does not say what it said when it was written"
            audit.report("a row of the books was altered", _subject(form, row), detail)
    return len(seals)


async def _name_missing(audit: AuditContext, form: SealForm) -> None:
    stream = await audit.session.stream(select(form.table).where(form.final).execution_options(yield_per=_CHUNK))
    present = {key_of(form, row) async for row in stream.mappings()}
    async for key in await audit.session.stream_scalars(select(seal.c.id).where(seal.c.kind == form.name)):
        if key not in present:
            audit.report("a row of the books is missing", UUID(int=0), f"{form.name} {key} was written")


def _subject(form: SealForm, row: Mapping[Any, Any]) -> UUID:
    """The subject of a finding about a row: the first UUID of its key, or no UUID."""
    first = row[form.key[0]]
    return first if isinstance(first, UUID) else UUID(int=0)
