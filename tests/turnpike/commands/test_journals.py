"""`turnpike journals declare-lost`: nobody's word counts who asked no replica."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import insert

from billing.tables.books import replica_journal
from storage.database.database import Database
from tests.turnpike.commands.test_invoices import Terminal


async def _meet(url: str) -> None:
    database = await Database.open(url)
    async with database.transaction() as session:
        await session.execute(insert(replica_journal).values(journal="j1", replica="r1", since=1, seen_at=1))
    await database.close()


def test_a_journal_is_lost_only_when_its_replica_was_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal(tmp_path, capsys, monkeypatch)
    asyncio.run(_meet(f"sqlite:///{tmp_path / 'turnpike.db'}"))
    declare = ("journals", "declare-lost", "r1", "--reason", "the disk burned")
    assert "--replicas: name the addresses" in terminal.run(*declare, status=2)
    gone = f"unix:{tmp_path / 'gone.sock'}"
    said = terminal.run(*declare, "--replicas", gone)
    assert f"asked {gone}: nothing answers" in said
    assert "journal j1 of r1 is declared lost" in said
