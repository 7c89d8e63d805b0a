"""`turnpike doctor`: each thing that is wrong is one line, with what to do."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from sqlalchemy import text

from storage.database import migrate
from storage.database.database import Database
from tests.servers import RedisServer
from turnpike.cli import main
from turnpike.doctor import machine, parts
from turnpike.doctor.findings import Finding
from turnpike.settings import secrets
from turnpike.settings.settings import Settings


@pytest.fixture
async def settings(tmp_path: Path, fresh_sqlite_url: str) -> Settings:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    secrets.load_or_make(data / "secrets.json")
    return Settings(data_dir=str(data), database_url=fresh_sqlite_url, max_connections=10)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


async def found(settings: Settings) -> dict[str, list[Finding]]:
    """What is not as it should be, by part. Of this machine's disks nothing can be said here."""
    findings = [*machine.check_machine(settings), *[one async for one in parts.check_parts(settings)]]
    bad: dict[str, list[Finding]] = {}
    for one in findings:
        assert "\n" not in one.state + one.advice
        assert bool(one.advice) == (one.level != "ok")
        if one.level != "ok" and "disk" not in one.part:
            bad.setdefault(one.part, []).append(one)
    return bad


async def test_an_installation_whose_replica_is_down_alone(settings: Settings) -> None:
    bad = await found(settings)
    [part] = bad
    assert part.startswith("replica at unix:")
    assert bad[part][0].level == "wrong"


async def test_nothing_is_made_where_nothing_is(tmp_path: Path) -> None:
    folder = tmp_path / "nowhere"
    bad = await found(Settings(data_dir=str(folder)))
    assert {part: one.level for part, [one] in bad.items()} == dict.fromkeys(
        ("data folder", "secrets", "database", "replicas"), "wrong"
    )
    assert not folder.exists()


async def test_permissions(settings: Settings, tmp_path: Path) -> None:
    settings.data.chmod(0o755)
    headers = tmp_path / "headers"
    headers.write_text("x: y\n")
    headers.chmod(0o644)
    settings.secrets.chmod(0o644)
    bad = await found(replace(settings, otlp_headers_file=str(headers), smtp_password_file=str(tmp_path / "no")))
    assert "chmod 700" in bad["data folder"][0].advice
    assert bad["secrets"][0].level == "wrong"
    assert bad["collector's headers"][0].advice == f"chmod 600 {headers}"
    assert bad["mail password"][0].level == "wrong"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
async def test_files_of_another_user(settings: Settings) -> None:
    (settings.data / "spool").mkdir()
    os.chown(settings.data / "spool", 12345, 12345)
    [one] = (await found(settings))["data folder"]
    assert "spool" in one.state


async def test_limits_and_a_collector_that_is_away(settings: Settings, listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    assert await parts.check_collector(replace(settings, otlp_endpoint=f"http://127.0.0.1:{port}")) == Finding(
        "ok", "collector", f"http://127.0.0.1:{port} listens"
    )
    listener.close()
    bad = await found(replace(settings, otlp_endpoint=f"http://127.0.0.1:{port}", max_connections=1 << 40))
    assert bad["collector"][0].level == "warning"
    assert bad["limits"][0].level == "warning"


async def test_a_disk_without_room(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"total": 100 << 30, "free": 4 << 30})
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: usage)
    [one] = [one for one in machine.check_disks(settings) if one.part == "disk of spool and journals"]
    assert (one.level, one.state[:24]) == ("warning", "4.0 of 100.0 GiB are fre")
    assert machine.file_system(Path("/proc")) == "proc"


async def test_a_schema_of_another_version(settings: Settings) -> None:
    database = await Database.open(settings.database)
    async with database.transaction() as session:
        await session.execute(text("UPDATE alembic_version SET version_num = 'r0001'"))
    await database.close()
    [one] = (await found(settings))["schema"]
    assert one.advice == "run `turnpike migrate`"
    database = await Database.open(settings.database)
    async with database.transaction() as session:
        await session.execute(text("UPDATE alembic_version SET version_num = 'r9999'"))
    await database.close()
    [one] = (await found(settings))["schema"]
    assert one.advice == "run the newer version"
    assert migrate.head() in one.state


async def test_a_postgresql_that_may_lose_what_was_committed(settings: Settings, fresh_postgres_url: str) -> None:
    bad = await found(replace(settings, database_url=fresh_postgres_url))
    [one] = bad["database"]
    assert one.state.startswith("fsync, full_page_writes, synchronous_commit is off")


async def test_servers_that_do_not_answer(settings: Settings) -> None:
    away = "127.0.0.1:9"
    bad = await found(
        replace(settings, database_url=f"postgresql://u@{away}/x", redis_url=f"redis://{away}", replicas=f"tcp:{away}")
    )
    assert {part: one.level for part, [one] in bad.items()} == {
        "database": "wrong",
        "Redis": "wrong",
        f"replica at tcp:{away}": "wrong",
    }


async def test_redis_answers(settings: Settings, redis: RedisServer) -> None:
    assert (await parts.check_redis(replace(settings, redis_url=redis.url))).level == "ok"


async def test_a_clock_that_is_wrong(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    real = parts.time.time
    monkeypatch.setattr(parts.time, "time", lambda: real() - 5)
    [one] = (await found(settings))["clock"]
    assert one.level == "wrong"
    assert "+5.0 s off" in one.state


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--data-dir", str(tmp_path / "none"), "--quiet"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(line.startswith(("WRONG ", "warning")) and " → " in line for line in lines)
    assert main(["doctor", "--data-dir", str(tmp_path / "none"), "--format", "json"]) == 1
    assert {one["level"] for one in json.loads(capsys.readouterr().out)} >= {"ok", "wrong"}
