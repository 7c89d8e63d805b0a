"""`turnpike audit log`, as an operator types it."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from pathlib import Path

import pytest

from audit_log.anchors import anchor_chains
from storage.database.database import Database
from tests.turnpike.commands.test_invoices import Terminal
from turnpike.processes.worker import Job, repeat_jobs


def _url(folder: Path) -> str:
    return f"sqlite:///{folder}/turnpike.db"


async def _anchor(folder: Path) -> None:
    database = await Database.open(_url(folder))
    await anchor_chains(database)
    await database.close()


async def _alter(folder: Path, statement: str) -> None:
    from sqlalchemy import text

    from tests.audit_log.log_parts import unguarded

    database = await Database.open(_url(folder))
    async with unguarded(database) as session:
        await session.execute(text(statement))
    await database.close()


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    terminal = Terminal(tmp_path, capsys, monkeypatch)
    terminal.run("tenants", "create", "acme")
    terminal.run("tenants", "create", "other")
    terminal.run("tenants", "credit", "acme", "20", "--reason", "=1+1")
    return terminal


def test_formats_and_filters(desk: Terminal) -> None:
    table = desk.run("audit", "log")
    assert [line.split()[3] for line in table.splitlines()[1:]][:1] == ["grant.created"]
    rows = [json.loads(line) for line in desk.run("audit", "log", "--tenant", "acme", "--format", "json").splitlines()]
    assert [row["action"] for row in rows] == ["grant.created", "project.created", "tenant.created"]
    assert rows[0]["after"]["amount"] == "20.000000000000"
    assert rows[0]["actor"]["means"] == "command"
    (row,) = csv.DictReader(io.StringIO(desk.run("audit", "log", "--action", "grant.*", "--format", "csv")))
    assert row["reason"] == "'=1+1"
    assert len(desk.run("audit", "log", "--limit", "2", "--format", "json").splitlines()) == 2
    assert desk.run("audit", "log", "--platform", "--format", "json") == ""
    assert desk.run("audit", "log", "--actor", "nobody", "--format", "json") == ""
    assert desk.run("audit", "log", "--until", "2020-01-01", "--format", "json") == ""
    assert len(desk.run("audit", "log", "--since", "2020-01-01", "--format", "json").splitlines()) == 5
    assert "2020" in desk.run("audit", "log", "--since", "2020-13-01", status=2)
    assert "--limit" in desk.run("audit", "log", "--limit", "0", status=2)
    assert "there is no tenant" in desk.run("audit", "log", "--tenant", "nobody", status=2)
    assert "--verify" in desk.run("audit", "log", "--witness", "1:00", status=2)


def test_verifying(desk: Terminal, tmp_path: Path) -> None:
    asyncio.run(_anchor(tmp_path))
    said = desk.run("audit", "log", "--verify")
    witness = said.split()[-1]
    assert "6 entries" in said
    assert desk.run("audit", "log", "--verify", "--witness", witness) == said
    assert "NUMBER:HEAD" in desk.run("audit", "log", "--verify", "--witness", "1", status=2)
    other = f"1:{'0' * 64}"
    assert "does not end where it did" in desk.run("audit", "log", "--verify", "--witness", other, status=1)
    asyncio.run(_alter(tmp_path, "UPDATE audit_entry SET reason = 'none' WHERE action = 'grant.created'"))
    (finding,) = (json.loads(line) for line in desk.run("audit", "log", "--verify", status=1).splitlines()[:1])
    assert (finding["what"], finding["number"]) == ("an audit entry was altered", 3)
    money = [json.loads(line) for line in desk.run("audit", "money", status=1).splitlines() if line.startswith("{")]
    assert [(one["what"], one["detail"].startswith("entry 3:")) for one in money] == [
        ("an audit entry was altered", True)
    ]


async def test_a_worker_acts_as_the_system(tmp_path: Path) -> None:
    from audit_log.actors import current_actor

    seen: asyncio.Queue[str] = asyncio.Queue()

    async def job() -> bool:
        actor = current_actor()
        await seen.put(f"{actor.means} {actor.id}")
        return False

    working = asyncio.create_task(repeat_jobs([Job("sweep", 60.0, job)]))
    assert await seen.get() == "system worker/sweep"
    working.cancel()
