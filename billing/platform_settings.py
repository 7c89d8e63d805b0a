"""Platform settings: what holds for everybody who works on this database, whatever their environment says.

A setting is never changed, only followed by another, with who set it and how that is known.
"""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from billing.integrity.row_seals import seal_rows
from billing.money import InvalidMoney, parse_amount
from billing.tables.books import platform_setting
from storage.database.database import Database
from storage.free_text import NAME, REASON, check_text
from storage.reported_error import ReportedError

APPROVALS = "approvals"
"""Whether it takes two operators to change prices, contract terms and these settings, to issue credit notes, to grant
money and to raise credit lines: "on" or "off"."""
GRANT_OVER = "grant_approval_over"
"""Grants of more than this, and credit lines raised above it, take two operators while approvals are on: an amount in
the tenant's own currency."""
VALUES: dict[str, tuple[str, ...]] = {APPROVALS: ("off", "on")}
"""The values that each setting can have; the first applies until somebody sets it."""
AMOUNTS: dict[str, str] = {GRANT_OVER: "0"}
"""Settings that are decimal amounts, and what applies until somebody sets them."""
NAMES = (*VALUES, *AMOUNTS)


class InvalidPlatformSetting(ReportedError, ValueError):
    """A platform setting that there is not, or a value that it cannot have."""


class PlatformChange(msgspec.Struct, frozen=True):
    """Who set what, how that is known, when and why."""

    name: str
    value: str
    actor: str
    via: str
    reason: str
    at: int


class PlatformSettings:
    """The settings of a platform. Raises DatabaseUnavailable, all of it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def value(self, name: str) -> str:
        """What a setting is now."""
        async with self._database.reading() as session:
            return await value_of(session, name)

    async def history(self) -> list[PlatformChange]:
        """Every change, the first first."""
        columns = [platform_setting.c[name] for name in PlatformChange.__struct_fields__]
        async with self._database.reading() as session:
            rows = await session.execute(select(*columns).order_by(platform_setting.c.id))
            return [PlatformChange(*row) for row in rows]

    async def set(self, name: str, value: str, *, by: str, via: str, reason: str = "") -> None:
        """Set it. Raises InvalidPlatformSetting, InvalidText."""
        check_platform_setting(name, value)
        check_text("by", by, NAME)
        check_text("reason", reason, REASON, empty=True)
        row = {"name": name, "value": value, "actor": by, "via": via, "reason": reason, "at": self._database.clock}
        async with self._database.transaction() as session:
            await self._write(session, row)

    async def set_in(self, session: AsyncSession, name: str, value: str, *, by: str, via: str, reason: str) -> None:
        """As `set`, in this transaction."""
        check_platform_setting(name, value)
        row = {"name": name, "value": value, "actor": by, "via": via, "reason": reason, "at": self._database.clock}
        await self._write(session, row)

    async def _write(self, session: AsyncSession, row: dict[str, Any]) -> None:
        before = await value_of(session, row["name"])
        made = await session.execute(insert(platform_setting).values(row).returning(platform_setting.c.id))
        number: int = made.scalar_one()
        await seal_rows(session, platform_setting, platform_setting.c.id == number)
        await record_change(session, "platform_setting.set", target="platform_setting", target_id=row["name"],
                            reason=row["reason"], before={"value": before}, after={"value": row["value"]})  # fmt: skip


def check_platform_setting(name: str, value: str) -> None:
    """Raise InvalidPlatformSetting unless there is such a setting and it can have the value."""
    if name not in NAMES:
        raise InvalidPlatformSetting(f"there is no platform setting {name!r}, only {', '.join(NAMES)}")
    if name in AMOUNTS:
        _check_amount(name, value)
        return
    if value not in VALUES[name]:
        raise InvalidPlatformSetting(f"{name}: {value!r} is not one of {', '.join(VALUES[name])}")


def _check_amount(name: str, value: str) -> None:
    try:
        if value.strip("0.") or not value.strip("."):
            parse_amount(value)
    except InvalidMoney as error:
        raise InvalidPlatformSetting(f"{name}: {error}") from error


async def value_of(session: AsyncSession, name: str) -> str:
    """What a setting is, in this transaction."""
    query = select(platform_setting.c.value).where(platform_setting.c.name == name)
    found: str | None = await session.scalar(query.order_by(platform_setting.c.id.desc()).limit(1))
    if found is not None:
        return found
    return AMOUNTS[name] if name in AMOUNTS else VALUES[name][0]
