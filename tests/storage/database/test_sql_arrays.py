"""Arrays as text: whatever the values, the database reads back the same."""

from __future__ import annotations

from uuid import UUID

import asyncpg
import pytest

from storage.database.sql_arrays import array_literal

NASTY = ["", " ", "a,b", "{}", '"', "\\", '\\"', "NULL", "null", "é\u2028\t\n", "\x1f", "'; --", "{{a}}", "a b"]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("text", NASTY),
        ("text", []),
        ("uuid", [UUID(int=0), UUID(int=2**128 - 1)]),
        ("bytea", [b"", b"\\x00", bytes(range(256)), b'"']),
        ("bigint", [0, -1, 2**63 - 1]),
        ("numeric", [10**37, -(10**37)]),
    ],
)
async def test_the_database_reads_what_was_written(postgres_url: str, kind: str, values: list[object]) -> None:
    connection = await asyncpg.connect(postgres_url)
    try:
        found = await connection.fetchval(f"SELECT $1::text::{kind}[]", array_literal(kind, values))
    finally:
        await connection.close()
    assert found == values
