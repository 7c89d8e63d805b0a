"""The declarative base of all tables, and column types that mean the same on PostgreSQL and SQLite.

Tables are `STRICT` on SQLite, so that an integer that does not fit is an error there too instead of becoming a
floating-point number.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import uuid_utils
from asyncpg.pgproto import pgproto  # type: ignore[import-untyped]
from sqlalchemy import BigInteger, Dialect, Integer, LargeBinary, MetaData, Numeric
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.types import TypeDecorator, TypeEngine

from storage.database import clock

STRICT: dict[str, Any] = {"sqlite_strict": True}
"""The option of all tables."""

_Id: Callable[[bytes], UUID] = pgproto.UUID
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Base(DeclarativeBase):
    """The base class of all tables. Constraints have the same names on both databases."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


def new_id() -> UUID:
    """A fresh UUIDv7: unique, and ordered by time."""
    made = clock.made_id()
    return id_of(uuid_utils.uuid7().bytes if made is None else made.bytes)


def id_of(raw: bytes) -> UUID:
    """The id of these 16 bytes, of the driver's UUID class, which hashes and compares many times faster than the
    standard library's."""
    return _Id(raw)


def least_id(instant: int) -> UUID:
    """The least UUIDv7 of this instant (microseconds since the Unix epoch): none made then or later is below it."""
    return UUID(int=instant // 1000 << 80)


def to_instant(moment: datetime) -> int:
    """Microseconds since the Unix epoch of an aware datetime. Raises ValueError for a naive one."""
    if moment.tzinfo is None:
        raise ValueError("an instant needs a time zone")
    return (moment - _EPOCH) // _MICROSECOND


def from_instant(instant: int) -> datetime:
    """The aware datetime, in UTC, of microseconds since the Unix epoch."""
    return _EPOCH + instant * _MICROSECOND


class Id(TypeDecorator[UUID]):
    """A UUID: native on PostgreSQL, 16 bytes on SQLite."""

    impl = LargeBinary(16)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(postgresql.UUID() if dialect.name == "postgresql" else LargeBinary(16))

    def process_bind_param(self, value: UUID | None, dialect: Dialect) -> UUID | bytes | None:
        return value if value is None or dialect.name == "postgresql" else value.bytes

    def process_result_value(self, value: Any, dialect: Dialect) -> UUID | None:
        return value if value is None or dialect.name == "postgresql" else _Id(value)


class Count(TypeDecorator[int]):
    """A 64-bit integer; also an instant (microseconds since the Unix epoch) in tables that are read as plain rows."""

    impl = BigInteger
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(BigInteger() if dialect.name == "postgresql" else Integer())


class Instant(TypeDecorator[datetime]):
    """An aware datetime, stored as microseconds since the Unix epoch."""

    impl = BigInteger
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(BigInteger() if dialect.name == "postgresql" else Integer())

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        return None if value is None else to_instant(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        return None if value is None else from_instant(value)


class Pico(TypeDecorator[int]):
    """A sum of money in pico-units of its currency: NUMERIC(38,0) on PostgreSQL, 64 bits on SQLite."""

    impl = Numeric(38, 0)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(Numeric(38, 0) if dialect.name == "postgresql" else Integer())

    def process_bind_param(self, value: int | None, dialect: Dialect) -> int | Decimal | None:
        return value if value is None or dialect.name != "postgresql" else Decimal(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> int | None:
        return None if value is None else int(value)
