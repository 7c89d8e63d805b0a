"""`turnpike audit money` on a database that is large: its statements have a limit of their own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest

from tests.e2e.processes import command


async def test_an_audit_s_statements_may_take_longer_than_a_request_s(
    fresh_postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("secrets", "create", str(tmp_path / "secrets.json")).returncode == 0
    audit = ("audit", "money", "--data-dir", str(tmp_path), "--database-url", fresh_postgres_url)
    monkeypatch.setattr("storage.database.database.LONG_STATEMENT_S", 0.3)
    other = await asyncpg.connect(fresh_postgres_url)
    try:
        async with other.transaction():
            await other.execute("LOCK TABLE balance IN ACCESS EXCLUSIVE MODE")
            waited = await asyncio.to_thread(command, *audit)
    finally:
        await other.close()
    assert waited.returncode != 0
    assert "took longer than it may" in waited.stderr + waited.stdout
