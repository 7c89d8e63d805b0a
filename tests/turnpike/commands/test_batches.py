"""`turnpike batches …` and `turnpike files …`: listed, shown, cancelled, deleted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import select

from batch_store.records import Line, LineResult, NewBatch, Tokens
from batch_store.running import BatchWork
from batch_store.store import BatchStore
from file_store.blobs import FolderBlobs
from file_store.store import FileStore, NewFile
from prompt_cache.promise.scope_keys import ScopeKeys
from storage.database.base import new_id
from storage.database.database import Database
from storage.database.public_ids import public_id
from tenancy.tables import Project
from tests.turnpike.commands.test_invoices import Terminal
from turnpike.settings import secrets

_QUOTA = 10**9


async def keep_files(folder: Path) -> tuple[str, str]:
    """Let a project have a file, and a batch of ten lines of which four have ended; the ids of both."""
    database = await Database.open(f"sqlite:///{folder}/turnpike.db")
    try:
        async with database.reading() as session:
            project: Project = (await session.scalars(select(Project))).first()  # type: ignore[assignment]
        keys = ScopeKeys(database, secrets.load(folder / "secrets.json").master_key)
        files = FileStore(database, keys, FolderBlobs(folder / "files"), _QUOTA)
        kept = []
        for name in ("a.jsonl", "own.jsonl"):
            id_, writer = await files.begin(project.tenant_id, project.id)
            await writer.append(b"{}")
            await writer.commit()
            kept.append(
                NewFile(
                    id=id_,
                    tenant_id=project.tenant_id,
                    project_id=project.id,
                    purpose="batch",
                    filename=name,
                    bytes=writer.size,
                    lifetime_s=None,
                )
            )
        file = await files.save(kept[0])
        new = NewBatch(
            id=new_id(),
            tenant_id=project.tenant_id,
            project_id=project.id,
            key="k7WmXq2ZpR4t",
            surface="openai",
            endpoint="/v1/chat/completions",
            input_file_id=kept[1].id,
            output_lifetime_s=3600,
        )
        store = BatchStore(files)
        lines = [Line(number=number, offset=0, length=2, place=b"") for number in range(10)]
        batch = await store.order(new, kept[1], lines)
        work = BatchWork(store, "worker")
        (waiting,) = await work.waiting(10.0, 1)
        taken = await work.take(waiting, 10.0)
        assert taken is not None
        ends = [
            LineResult(number=line.number, end="completed", kind="output", content=b"{}", tokens=Tokens(7, 3, 2, 0))
            for line in (await work.take_lines(taken, 4))
        ]
        await work.write(taken, ends, await files.seal_of(project.tenant_id, project.id))
        return public_id("file", file.id), public_id("batch", batch.id)
    finally:
        await database.close()


def test_batches_and_files_are_listed_shown_cancelled_and_deleted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal(tmp_path / "data", capsys, monkeypatch)
    terminal.run("tenants", "create", "acme")
    terminal.run("tenants", "create", "other")
    assert terminal.run("batches", "list", "--tenant", "acme").strip() == "none"
    assert terminal.run("files", "list", "--tenant", "acme").strip() == "none"
    file, batch = asyncio.run(keep_files(tmp_path / "data"))

    header, row = terminal.run("batches", "list", "--tenant", "acme").splitlines()
    assert header.split()[:4] == ["id", "project", "state", "progress"]
    assert (batch in row, "in_progress" in row, "########............ 40 %" in row) == (True, True, True)
    assert terminal.run("batches", "list", "--tenant", "acme", "--state", "ended").strip() == "none"
    shown = terminal.run("batches", "show", batch, "--tenant", "acme")
    assert "10 total, 6 left, 4 completed, 0 failed" in shown
    assert "28 input, 12 cached, 8 output" in shown
    assert "is cancelling" in terminal.run("batches", "cancel", batch, "--tenant", "acme")
    assert batch in terminal.run("audit", "log", "--action", "batch.cancelled")

    assert "a.jsonl" in terminal.run("files", "list", "--tenant", "acme")
    assert "kept     until it is deleted" in terminal.run("files", "show", file, "--tenant", "acme")
    assert "is deleted" in terminal.run("files", "delete", file, "--tenant", "acme")
    assert file in terminal.run("audit", "log", "--action", "file.deleted")
    assert not list((tmp_path / "data" / "files").glob(f"*/{file.removeprefix('file_')}"))
    for words in (("batches", "show", batch), ("files", "show", file)):
        assert "There is no" in terminal.run(*words, "--tenant", "other", status=2)
