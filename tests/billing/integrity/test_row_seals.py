"""Seals of several forms of one table, side by side."""

from __future__ import annotations

import msgspec
import pytest
from sqlalchemy import select, text

from billing.integrity import row_seals
from billing.platform_settings import PlatformSettings
from billing.tables.books import platform_setting, seal
from billing.verification.audit import audit_money
from storage.database.database import Database
from tests.billing.verification.test_alterations import unguarded


async def test_rows_sealed_in_an_earlier_form_verify_in_that_form(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A made-up form 2 says what form 1 does not; each row is compared in the form that its seal names."""
    settings = PlatformSettings(database)
    form_2 = row_seals.CURRENT["platform_setting"]
    form_1 = msgspec.structs.replace(form_2, columns=form_2.columns[:-1])  # without the reason
    form_2 = msgspec.structs.replace(form_2, number=2)
    monkeypatch.setitem(row_seals.FORMS, (form_1.name, 1), form_1)
    monkeypatch.setitem(row_seals.FORMS, (form_2.name, 2), form_2)
    for form in (form_1, form_2):
        monkeypatch.setitem(row_seals.CURRENT, form.name, form)
        await settings.set("approvals", "on", by="ada", via="test", reason="first")
    async with database.reading() as session:
        first, second = await session.scalars(select(platform_setting.c.id).order_by(platform_setting.c.id))
        forms = {row.id: row.form for row in await session.execute(select(seal))}
    assert forms == {str(first): 1, str(second): 2}
    assert await audit_money(database) == []
    async with unguarded(database) as session:
        await session.execute(text("UPDATE platform_setting SET reason = 'another'"))
    (finding,) = await audit_money(database)
    assert finding.what == "a row of the books was altered"
    assert f"platform_setting {second} " in finding.detail
