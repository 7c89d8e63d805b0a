"""Checking the seals: rows that never change must say what they said when they were written, and all must be there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import func, select

from billing.integrity.row_seals import FORMS, SealForm, key_of, parts_of, sealed
from billing.tables.prices import price_interval
from billing.tables.seals import seal
from billing.verification.findings import AuditContext
from storage.database.sql_arrays import one_of

_CHUNK = 1000
_TAKEN_BACK = (price_interval.name,)
"""Tables of which rows are taken back before they begin to count."""


async def check_seals(scope: AuditContext) -> None:
    """Each row of each form has its seal, and each seal its row. All tenants: an audit is of the whole house."""
    for form in FORMS.values():
        await _check(scope, form)


async def _check(scope: AuditContext, form: SealForm) -> None:
    query = select(form.table).where(form.final)
    there = 0
    found = await scope.session.stream(query.execution_options(yield_per=_CHUNK))
    async for rows in found.mappings().partitions(_CHUNK):
        there += await _compare(scope, form, rows)
    mine = seal.c.kind == form.name
    seals = await scope.session.scalar(select(func.count()).select_from(seal).where(mine)) or 0
    if seals != there and form.name not in _TAKEN_BACK:
        await _name_missing(scope, form)


async def _compare(scope: AuditContext, form: SealForm, rows: Sequence[Mapping[Any, Any]]) -> int:
    """Compare rows with their seals; how many have one."""
    keys = [key_of(form, row) for row in rows]
    query = select(seal.c.id, seal.c.sha256).where(seal.c.kind == form.name, one_of(scope.database, seal.c.id, keys))
    seals: dict[str, bytes] = {row.id: row.sha256 for row in await scope.session.execute(query)}
    parts = await parts_of(scope.session, form, rows)
    for key, row in zip(keys, rows, strict=True):
        if key not in seals:
            scope.found("a row of the books was never written", _subject(form, row), f"{form.name} {key} has no seal")
        elif seals[key] != sealed(form, row, parts):
            detail = f"{form.name} {key} does not say what it said when it was written"
            scope.found("a row of the books was altered", _subject(form, row), detail)
    return len(seals)


async def _name_missing(scope: AuditContext, form: SealForm) -> None:
    found = await scope.session.stream(select(form.table).where(form.final).execution_options(yield_per=_CHUNK))
    here = {key_of(form, row) async for row in found.mappings()}
    async for key in await scope.session.stream_scalars(select(seal.c.id).where(seal.c.kind == form.name)):
        if key not in here:
            scope.found("a row of the books is missing", UUID(int=0), f"{form.name} {key} was written")


def _subject(form: SealForm, row: Mapping[Any, Any]) -> UUID:
    """What a finding is about: the row, if it has an id of its own kind, else its tenant."""
    of = row[form.key[0]]
    return of if isinstance(of, UUID) else UUID(int=0)
