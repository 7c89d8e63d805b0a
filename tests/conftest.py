"""What every test may ask for: servers of our own, and a fresh database of either kind."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import shutil
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import asyncpg
import pytest
from hypothesis.internal.conjecture import engine as hypothesis_engine

from audit_log.actors import Actor, become
from storage.database import migrate
from storage.database.base import Base
from storage.database.database import Database
from tests import compiled
from tests.servers import PostgresServer, RedisServer, postgres_server, redis_server

pytest_plugins = ["tests.fast", "tests.logs", "tests.machines"]

if not Path("/dev/nvidiactl").exists():
    # Kernels run in Triton's interpreter then. Read when Triton is imported, which has kernels of its own.
    os.environ["TRITON_INTERPRET"] = "1"

# Read when torch is imported, by whichever test comes first. By default threads of torch spin while they wait for each
# other: with as many workers as cores they spend six times the CPU time of what they compute.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

SHRINKING_S = 20
"""How long hypothesis may look for a smaller example: it would for 300 s, and be cut off by our time limit of as long
before it has shown any. It says itself that this constant may be changed."""

GC_THRESHOLDS = 50_000, 20, 50
"""Those of a gateway that serves."""

MEMORY = Path("/dev/shm")
ENOUGH_MEMORY = 6 << 30
"""What has to be free there for the temporary files of a run; a container often has 64 MiB."""

_numbers = itertools.count(1)


def use_memory_for_files() -> None:
    """Put the temporary files of this process and its children in memory, where there is enough and nobody has said
    otherwise by `TMPDIR`. Each test of a gateway waited for two dozen writes to the disk: that they are on it when the
    machine fails is nothing that a test could show."""
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < ENOUGH_MEMORY:
        return
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


def pytest_configure(config: pytest.Config) -> None:
    hypothesis_engine.MAX_SHRINKING_SECONDS = SHRINKING_S
    use_memory_for_files()
    compiled.share()
    become(Actor("system", "tests", "tests"))  # every context begins as a copy of this one
    config.addinivalue_line(
        "filterwarnings",
        # An environment that is not new may still have advanced-alchemy, which Litestar imports where it finds it.
        "ignore:The declarative_mixin decorator was used only by:sqlalchemy.exc.SADeprecationWarning",
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the collector of garbage away from what was imported, and have it collect seldom, as a server does
    (`turnpike.processes.gateway`): it took 0.4 s to look at all of it, dozens of times, and 0.1 s for each application
    that a test left."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, those of each room at even distances: with several workers, whose order this is
    by `--no-loadscope-reorder`, some wait for processes while others compute, and no long file is left over for one of
    them at the end."""
    rooms: defaultdict[str, list[Path]] = defaultdict(list)
    slow = (item.path for item in items if item.get_closest_marker("slow") or item.get_closest_marker("e2e"))
    for path in dict.fromkeys(slow):
        rooms[path.relative_to(Path(__file__).parent).parts[0]].append(path)
    places = {path: number / len(room) for room in rooms.values() for number, path in enumerate(room)}
    items.sort(key=lambda item: places.get(item.path, 1.0))


@pytest.fixture
def patient_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Redis that is slow to answer is waited for, as it is on a busy machine."""
    monkeypatch.setattr("storage.bus._PUBLISH_TIMEOUT", 30.0)
    monkeypatch.setattr("storage.bus._CONNECT_TIMEOUT", 30.0)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The session's PostgreSQL server, which never waits for the disk. Do not stop it; `tests.servers.postgres_server`
    gives one for that."""
    with postgres_server(fsync="off", synchronous_commit="off", full_page_writes="off") as server:
        yield server


@pytest.fixture(scope="session")
def postgres_url(postgres: PostgresServer) -> str:
    """The URL of the session's PostgreSQL server, database `postgres`."""
    return postgres.url


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    """The session's Redis server. Do not stop it; `tests.servers.redis_server` gives one for that."""
    with redis_server() as server:
        yield server


@pytest.fixture(scope="session")
def redis_url(redis: RedisServer) -> str:
    """The URL of the session's Redis server."""
    return redis.url


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


@pytest.fixture
async def empty_postgres_url(postgres: PostgresServer) -> str:
    """The URL of an empty PostgreSQL database. It goes with the server: dropping it takes longer."""
    name = f"test_{next(_numbers)}"
    await _execute(postgres.url, f"CREATE DATABASE {name}")
    return postgres.database_url(name)


@pytest.fixture
async def fresh_postgres_url(postgres: PostgresServer) -> str:
    """The URL of a migrated PostgreSQL database without rows: the same for all tests, emptied before each."""
    return await _emptied(postgres)


async def _emptied(postgres: PostgresServer) -> str:
    url = postgres.database_url("turnpike_test")
    if not postgres.has_database:
        await _execute(postgres.url, "CREATE DATABASE turnpike_test")
        await migrate.upgrade(url)
        postgres.has_database = True
    # As a replica does, which no trigger and no foreign key stops: even immutable rows go, in any order.
    emptying = ["SET session_replication_role = replica", *(f'DELETE FROM "{name}"' for name in Base.metadata.tables)]
    numbered = [name for name, table in Base.metadata.tables.items() if table.autoincrement_column is not None]
    await _execute(url, "; ".join([*emptying, *(f"ALTER SEQUENCE {name}_id_seq RESTART" for name in numbered)]))
    return url


@pytest.fixture
async def fresh_sqlite_url(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a migrated SQLite database without rows."""
    return await sqlite_copy("fresh", migrate.upgrade, tmp_path, tmp_path_factory)


async def sqlite_copy(
    name: str, make: Callable[[str], Awaitable[None]], folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """The URL of a new copy, in this folder, of the session's SQLite database of this name: `make` makes it of its URL
    when it is first asked for."""
    template = tmp_path_factory.getbasetemp() / f"{name}.sqlite"
    if not template.exists():
        await make(f"sqlite:///{template}")
        with sqlite3.connect(template) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
    path = folder / f"turnpike-{next(_numbers)}.sqlite"
    shutil.copy(template, path)
    return f"sqlite:///{path}"


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """The URL of a migrated database without rows: each test runs on both kinds."""
    name = "fresh_sqlite_url" if request.param == "sqlite" else "fresh_postgres_url"
    return str(request.getfixturevalue(name))


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_again(
    request: pytest.FixtureRequest, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], str]:
    """What gives the URL of a migrated database without rows whenever it is called, outside any event loop; on
    PostgreSQL it is the same one. Each test runs on both kinds."""
    if request.param == "sqlite":
        return lambda: asyncio.run(sqlite_copy("fresh", migrate.upgrade, tmp_path, tmp_path_factory))
    postgres = request.getfixturevalue("postgres")
    return lambda: asyncio.run(_emptied(postgres))


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """An open, migrated database without rows: each test runs on both kinds."""
    opened = await Database.open(database_url)
    yield opened
    await opened.close()
