"""A replica whose process stands still is killed and started again, and the key that a start names is a valid one."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tenancy.keys import parse_key
from tests.turnpike.processes.test_children import SECONDS, assert_stops, child
from turnpike.admin_services import open_admin_services
from turnpike.commands import serve
from turnpike.commands.serve import (
    DEMO_TENANT,
    KEY_FILE,
    LINK_FILE,
    kill_when_silent,
    provide_key,
    provide_owner_link,
    write_key,
)
from turnpike.settings import secrets
from turnpike.settings.settings import Settings


@dataclass
class Link:
    up: bool = False
    silent_for: float = 1000.0


async def test_a_replica_that_was_heard_and_then_stands_still_is_started_again(tmp_path: Path) -> None:
    replica, link = child(tmp_path, "import time; time.sleep(60)"), Link()
    running = asyncio.create_task(replica.run())
    minding = asyncio.create_task(kill_when_silent(replica, link, longest_s=10.0, every_s=0.01))
    async with asyncio.timeout(SECONDS):
        while replica.pid is None:  # noqa: ASYNC110  # nothing tells of it
            await asyncio.sleep(0.01)
    first = replica.pid
    await asyncio.sleep(0.1)
    assert replica.pid == first, "it has not been heard yet: it still loads its model"
    link.up, link.silent_for = True, 0.5
    await asyncio.sleep(0.1)
    os.kill(first, signal.SIGSTOP)
    link.up, link.silent_for = False, 9.0
    await asyncio.sleep(0.1)
    assert replica.pid == first
    link.silent_for = 11.0
    async with asyncio.timeout(SECONDS):
        while replica.pid in (None, first):  # noqa: ASYNC110  # nothing tells of it
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert replica.restarts == 1, "the new one is given its time"
    minding.cancel()
    await assert_stops(replica, running)


async def test_the_key_in_the_file_is_named_only_while_it_is_one_of_this_database(tmp_path: Path) -> None:
    file = tmp_path / KEY_FILE
    file.write_text("tp_live_of_the_database_before\n")
    settings = Settings(data_dir=str(tmp_path))
    secrets.load_or_make(settings.secrets)
    async with open_admin_services(settings, "always") as admin:
        tenant = await admin.tenancy.create_tenant(DEMO_TENANT)
        await admin.tenancy.create_project(tenant.id, "default")
        key, about = await provide_key(admin)
        assert (key, "written to the file" in about) == (f"$(cat {file})", True)
        assert file.stat().st_mode & 0o777 == 0o600
        made = parse_key(file.read_text().strip())
        assert made is not None
        await admin.tenancy.key(made.public_id, tenant.id)
        key, about = await provide_key(admin)
        assert (key, "in the file" in about) == (f"$(cat {file})", True)

        await admin.tenancy.revoke(made.public_id, tenant.id, "left in a log")
        key, about = await provide_key(admin)
        assert (key, "keys create" in about, str(file) in about) == ("$TURNPIKE_API_KEY", True, False)
        assert len(await admin.tenancy.list_keys(tenant.id)) == 1, "a person took it away: none is made instead"


@pytest.mark.parametrize("has_key", [False, True])
async def test_a_start_makes_no_owner_beside_operators_who_have_keys(tmp_path: Path, has_key: bool) -> None:
    settings = Settings(data_dir=str(tmp_path))
    secrets.load_or_make(settings.secrets)
    async with open_admin_services(settings, "always") as admin:
        if has_key:
            await admin.tenancy.create_operator_key("ann")
        said = await provide_owner_link(admin, "http://here")
        assert ("first owner" in said) is not has_key
        assert (tmp_path / LINK_FILE).exists() is not has_key
        assert await admin.users.accounts.any_exist() is not has_key


async def test_serve_is_ready_only_when_the_first_key_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scripts wait for /readyz, and read the files then."""
    settings = Settings(data_dir=str(tmp_path))
    secrets.load_or_make(settings.secrets)
    written: dict[str, str | None] = {}

    def write(file: Path, content: str) -> None:
        written[file.name] = gateway.start_problem
        write_key(file, content)

    monkeypatch.setattr(serve, "write_key", write)
    async with open_admin_services(settings, "always") as admin:
        tenant = await admin.tenancy.create_tenant(DEMO_TENANT)
        await admin.tenancy.create_project(tenant.id, "default")
        services = SimpleNamespace(models=[SimpleNamespace(name="tiny")], fleet=SimpleNamespace(healthy=lambda _: True))
        gateway: Any = SimpleNamespace(services=services, start_problem="not yet")
        server: Any = SimpleNamespace(started=True)
        await serve._announce(admin, gateway, server, "http://127.0.0.1:1")
    assert written == {KEY_FILE: "not yet", serve.LINK_FILE: "not yet"}
    assert gateway.start_problem is None
