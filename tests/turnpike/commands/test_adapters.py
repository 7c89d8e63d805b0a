"""`turnpike adapters`: a folder is checked; adapters are listed, shown and deleted on the data folder."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import select

from file_store.adapters import AdapterFacts, AdapterStore, StoredAdapter
from file_store.blobs import FolderBlobs
from file_store.store import FileStore
from prompt_cache.promise.scope_keys import ScopeKeys
from storage.database.database import Database
from storage.database.public_ids import public_id
from tenancy.tables import Project
from tests import adapter_files
from tests.turnpike.commands.test_invoices import Terminal
from turnpike.settings import secrets

_MODEL = Path(__file__).resolve().parents[3] / "models" / "stdlib-qa"


async def keep_adapter(folder: Path) -> str:
    """Let a project have an adapter; its id."""
    database = await Database.open(f"sqlite:///{folder}/turnpike.db")
    try:
        async with database.reading() as session:
            project: Project = (await session.scalars(select(Project))).first()  # type: ignore[assignment]
        keys = ScopeKeys(database, secrets.load(folder / "secrets.json").master_key)
        files = FileStore(database, keys, FolderBlobs(folder / "files"), 1 << 30)
        id_, writer = await files.begin(project.tenant_id, project.id)
        await writer.append(b"an adapter")
        await writer.commit()
        facts = AdapterFacts(rank=8, alpha=16.0, targets=("q_proj", "v_proj"), layers=2)
        new = StoredAdapter(
            id=id_, tenant_id=project.tenant_id, project_id=project.id, model="tiny", name="support", digest="ab" * 32,
            facts=facts, bytes=writer.size, created_at=0,
        )  # fmt: skip
        return public_id("adapter", (await AdapterStore(files).save(new)).id)
    finally:
        await database.close()


def a_folder(folder: Path, rank: int = 8) -> Path:
    """A folder as PEFT saves one."""
    folder.mkdir()
    (folder / "adapter_config.json").write_bytes(adapter_files.config(8, 16))
    tensors = adapter_files.safetensors(adapter_files.matrices(rank))
    (folder / "adapter_model.safetensors").write_bytes(tensors)
    return folder


def test_adapters_are_listed_shown_and_deleted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal(tmp_path / "data", capsys, monkeypatch)
    terminal.run("tenants", "create", "acme")
    terminal.run("tenants", "create", "other")
    assert terminal.run("adapters", "list", "--tenant", "acme").strip() == "none"
    adapter = asyncio.run(keep_adapter(tmp_path / "data"))
    _, row = terminal.run("adapters", "list", "--tenant", "acme").splitlines()
    assert (adapter in row, "tiny:support" in row) == (True, True)
    shown = terminal.run("adapters", "show", adapter, "--tenant", "acme")
    assert "rank     8, alpha 16" in shown
    assert "q_proj, v_proj in 2 layers of tiny" in shown
    assert "There is no" in terminal.run("adapters", "show", adapter, "--tenant", "other", status=2)
    assert "no replica" in terminal.run("adapters", "replicas")
    assert "is deleted" in terminal.run("adapters", "delete", adapter, "--tenant", "acme")
    assert adapter in terminal.run("audit", "log", "--action", "adapter.deleted")
    assert not list((tmp_path / "data" / "files").glob("*/*"))


def test_a_folder_is_checked_before_anything_is_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal(tmp_path / "data", capsys, monkeypatch)
    good, bad = a_folder(tmp_path / "good"), a_folder(tmp_path / "bad", rank=9)
    assert "can be served" in terminal.run("adapters", "check", str(good))
    other = terminal.run("adapters", "check", str(good), "--base", str(_MODEL), status=2)
    assert "the base model 768 and 256" in other
    assert "rank" in terminal.run("adapters", "check", str(bad), status=2)
    assert "adapter_config.json" in terminal.run("adapters", "check", str(tmp_path), status=2)
    upload = ("adapters", "upload", str(good), "--base", "tiny", "--name", "support")
    assert "--url URL" in terminal.run(*upload, status=2)
