"""`turnpike cache …`, as an operator types it, on a folder that a replica has left."""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from prompt_cache.promise.cache_domains import CacheDomains
from prompt_cache.promise.scope_keys import ScopeKeys
from prompt_cache.tiers.identity import ScopeAccess
from storage.database.database import Database
from tests.prompt_cache.tiers.stores import key, opened, payloads, record_paths
from turnpike import cli, logs
from turnpike.admin_services import open_admin_services
from turnpike.settings import loading, secrets
from turnpike.settings.settings import Settings

Run = Callable[[str], tuple[int, str]]


class Replica:
    """Tenants `acme` and `other` with a project each, and what their replica left on disk."""

    def __init__(self, run: Run, folder: Path, settings: Settings) -> None:
        self.run, self.folder, self.settings = run, folder, settings
        self.accesses = asyncio.run(self._accesses())

    async def _accesses(self) -> dict[str, ScopeAccess]:
        made = {}
        own = secrets.load(self.settings.secrets)
        async with open_admin_services(self.settings) as admin:
            domains = CacheDomains(own.scope_secret, self._keys(admin.database), retention=3600.0)
            for name in ("acme", "other"):
                tenant = await admin.tenancy.tenant(name)
                (project,) = await admin.tenancy.list_projects(tenant.id)
                await domains.prepare(tenant.id, UUID(bytes=project.id.bytes))
                made[name] = ScopeAccess.of(domains.project(tenant.id, project.id))
        return made

    def _keys(self, database: Database) -> ScopeKeys:
        return ScopeKeys(database, secrets.load(self.settings.secrets).master_key)

    def serve(self, blocks: int = 3) -> None:
        """Write blocks of both projects."""
        with opened(self.folder) as store:
            for name, access in self.accesses.items():
                for number in range(blocks):
                    assert store.write(access, key(number), payloads(name, number), position=0)

    def found(self, name: str, blocks: int = 3) -> int:
        """How many of its blocks a replica reads right."""
        with opened(self.folder) as store:
            got = [store.read(self.accesses[name], key(number), (0, 1)) for number in range(blocks)]
        read = [number for number, one in enumerate(got) if not isinstance(one, str)]
        assert all(got[number] == payloads(name, number) for number in read)
        return len(read)


@pytest.fixture
def replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Replica:
    monkeypatch.setenv("TURNPIKE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr(logs, "configure", lambda *_: None)

    def command(line: str) -> tuple[int, str]:
        status = cli.main(shlex.split(line))
        out, err = capsys.readouterr()
        return status, out + err

    assert command("migrate")[0] == 0
    for name in ("acme", "other"):
        assert command(f"tenants create {name}")[0] == 0
    settings = loading.load({"data_dir": str(tmp_path / "data")})
    made = Replica(command, tmp_path / "data" / "kv", settings)
    made.serve()
    return made


def test_stats_name_projects(replica: Replica) -> None:
    status, out = replica.run("cache stats --format json")
    assert status == 0, out
    (one,) = json.loads(out)
    assert one["held"]["records"] == 12
    assert sorted(one["projects"].values()) == ["acme/default", "other/default"]
    assert one["held"]["bytes"] == sum(held["bytes"] for held in one["scopes"].values())
    assert "acme/default" in replica.run("cache stats")[1]


def test_all_replicas_of_serve_are_looked_after(replica: Replica) -> None:
    second = Replica(replica.run, replica.settings.of_replica(1).kv_folder, replica.settings)
    second.serve()
    assert [one["held"]["records"] for one in json.loads(replica.run("cache stats --format json")[1])] == [12, 12]
    assert "24 files, 0 of no use" in replica.run("cache fsck")[1]
    with opened(second.folder):
        assert replica.run("cache purge --all")[0] == 75
    assert replica.found("acme") == 3, "nothing is purged where not all can be"
    assert "purged 12 records" in replica.run("cache purge --of acme default")[1]
    assert (replica.found("acme"), second.found("acme")) == (0, 0)
    assert "6 files" in replica.run(f"cache fsck --folder {second.folder}")[1]
    assert (replica.found("other"), second.found("other")) == (3, 3)


@pytest.mark.slow
def test_fsck_and_scrub_find_damage_and_repair_it(replica: Replica) -> None:
    assert replica.run("cache fsck")[0] == 0
    assert replica.run("cache scrub")[0] == 0
    paths, rest = record_paths(replica.folder), 7
    for place, damaged in ((0, paths[:3]), (-1, paths[3:5])):
        for path in damaged:
            content = bytearray(path.read_bytes())
            content[place] ^= 1
            path.write_bytes(content)
    status, out = replica.run("cache fsck --format json")
    assert (status, json.loads(out)["causes"]) == (1, {"damaged": 3})
    status, out = replica.run("cache scrub --format json")
    assert (status, json.loads(out)["causes"]) == (1, {"damaged": 3, "unsealed": 2})
    assert len(record_paths(replica.folder)) == 12, "nothing is deleted without --repair"
    assert replica.run("cache scrub --repair")[0] == 0
    assert len(record_paths(replica.folder)) == rest
    assert replica.run("cache scrub")[0] == 0


def test_a_repair_goes_on_after_what_cannot_be_deleted(replica: Replica) -> None:
    paths = sorted(record_paths(replica.folder))
    for path in paths[:2]:
        path.unlink()
    paths[0].mkdir()
    paths[1].symlink_to(paths[2])
    paths[-1].write_bytes(b"")
    status, out = replica.run("cache fsck --repair")
    assert (status, "2 deleted, 1 cannot be deleted" in out) == (1, True), out
    status, out = replica.run("cache fsck --format json")
    assert (status, json.loads(out)["causes"]) == (1, {"not_a_file": 1})


@pytest.mark.slow
def test_a_purge_of_a_project(replica: Replica) -> None:
    status, out = replica.run("cache purge --of acme default --dry-run")
    assert (status, "would purge 6 records" in out) == (0, True), out
    assert replica.found("acme") == 3
    kept = {path: path.read_bytes() for path in record_paths(replica.folder)}
    assert replica.run("cache purge --of acme default")[0] == 0
    for path, content in kept.items():
        path.write_bytes(content)
    assert replica.found("acme") == 0, "records that come back are purged too"
    assert replica.found("other") == 3
    assert replica.run("cache purge --all")[0] == 0
    assert not record_paths(replica.folder)
    assert replica.run("cache purge")[0] == 2


@pytest.mark.slow
def test_a_forgotten_project_cannot_be_read_by_anybody(replica: Replica) -> None:
    assert replica.run("cache forget acme default --reason 'the customer left' --dry-run")[0] == 0
    assert replica.run("cache scrub")[0] == 0
    status, out = replica.run("cache forget acme default --reason 'the customer left'")
    assert (status, "destroyed" in out) == (0, True)
    _, out = replica.run("cache scrub --format json")
    assert json.loads(out)["causes"] == {"no_key": 6}
    assert "acme/default (forgotten)" in replica.run("cache stats")[1]
    before = replica.accesses["acme"]
    after = asyncio.run(replica._accesses())["acme"]
    assert after.scope != before.scope
    assert after.data_key != before.data_key
    assert "destroyed already" not in replica.run("cache forget acme default --reason again")[1], "there is a newer one"
    assert "destroyed already" in replica.run("cache forget acme default --reason again")[1]


@pytest.mark.slow
def test_a_policy(replica: Replica) -> None:
    status, out = replica.run("cache policy acme default --retention 0 --limit nvme=10:20")
    assert (status, "never" in out) == (0, True), out
    access = asyncio.run(replica._accesses())["acme"]
    assert (access.retention, access.reserve, access.limit) == (0.0, 10, 20)
    for wrong in ("--limit nvme=20:10", "--limit tape=1:2", "--retention -1", "--retention soon"):
        assert replica.run(f"cache policy acme default {wrong}")[0] == 2, wrong
    status, out = replica.run("cache policy acme default --retention 604801")
    assert (status, "604800 s that a record may live" in out) == (2, True), out
    assert replica.run("cache policy acme nothing --retention 1")[0] == 2


@pytest.mark.slow
def test_a_policy_is_shown_and_changed_in_parts(replica: Replica) -> None:
    def policy(flags: str = "") -> str:
        status, out = replica.run(f"cache policy acme default {flags}")
        assert status == 0, out
        return out.strip().removeprefix("KV of acme/default may leave the device ")

    assert policy() == "as --cache-retention says; limits: none of its own"
    assert policy("--retention 0") == "never; limits: none of its own"
    assert policy() == "never; limits: none of its own", "to look changes nothing"
    assert policy("--limit nvme=10:20 --limit dram=1:2") == "never; limits: nvme=10:20, dram=1:2"
    assert policy("--retention 604800") == "for 604800 s; limits: nvme=10:20, dram=1:2"
    assert policy("--retention 0 --limit nvme=none --dry-run").startswith("would set: ")
    assert policy() == "for 604800 s; limits: nvme=10:20, dram=1:2"
    assert policy("--limit nvme=none") == "for 604800 s; limits: dram=1:2"
    assert policy("--retention default") == "as --cache-retention says; limits: dram=1:2"
    policy("--retention 0")
    assert replica.run("cache forget acme default --reason test")[0] == 0
    assert policy() == "never; limits: dram=1:2", "the next key has it too"


@pytest.mark.slow
def test_a_folder_that_is_no_store_is_left_as_it_is(replica: Replica, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "photos").mkdir(parents=True)
    before = sorted(tmp_path.iterdir()), sorted(other.rglob("*"))
    for action in ("stats", "fsck", "scrub", "purge --all"):
        status, out = replica.run(f"cache {action} --folder {other}")
        assert (status, "is no cache folder" in out) == (2, True), out
        assert replica.run(f"cache {action} --folder /")[0] == 2
    assert (sorted(tmp_path.iterdir()), sorted(other.rglob("*"))) == before
    shutil.copytree(replica.folder, tmp_path / "copy")
    status, out = replica.run(f"cache fsck --repair --folder {tmp_path / 'copy'}")
    assert (status, "without its state" in out) == (2, True), out
    assert replica.run(f"cache stats --folder {tmp_path / 'copy'}")[0] == 0


def test_explaining_a_day(replica: Replica) -> None:
    explain = "cache explain --tenant acme --project default --day"
    status, out = replica.run(f"{explain} 23.11")
    assert (status, "--day: '23.11' is not a day such as" in out) == (2, True), out
    assert "on 2026-11-23" in replica.run(f"{explain} 2026-11-23")[1]


def test_a_folder_in_use_or_none(replica: Replica, tmp_path: Path) -> None:
    with opened(replica.folder):
        assert replica.run("cache stats")[0] == 0
        status, out = replica.run("cache fsck")
        assert (status, "in use by a replica" in out) == (75, True)
        assert "stop it first; `turnpike cache stats` works beside it" in out
    assert replica.run(f"cache fsck --folder {tmp_path / 'nowhere'}")[0] == 2
    assert replica.run(f"cache stats --folder {tmp_path / 'nowhere'}")[0] == 2
