"""Fences: a gateway run that has ended is refused by the replica, which answers what its journal holds of it."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import Mock

import pytest
import pytest_asyncio

from engine.server.journal import Journal
from engine.server.journal_records import Begun, Ended, Opened, frame
from engine.server.replica import Replica
from protocol.replicas import FENCE_VERSION, Fence, Fenced
from protocol.requests import Ack, Counts, Done
from tests.engine.conftest import SCOPES, generate
from tests.engine.fake_gateway import Client, ReplicaProcess

ALL = tuple(SCOPES.values())
OLD, NEW = "gateway-0-a", "gateway-0-b"


def _done(id: str, attempt: int = 1) -> Done:
    return Done(id, attempt, "stop", Counts(prompt=3, computed=3, output=1), 0)


# ------------------------------------------------ the journal


def test_a_journal_knows_whose_a_request_is_until_it_is_acknowledged(tmp_path: Path) -> None:
    journal = Journal(tmp_path, first_epoch=1)
    journal.begin("runs", 1, gateway_epoch=OLD)
    journal.begin("ended", 2, gateway_epoch=OLD)
    journal.end(_done("ended", 2))
    waited = journal.end(_done("waited"), gateway_epoch=OLD)
    journal.begin("another's", 1, gateway_epoch=NEW)
    assert sorted(journal.known_of(OLD)) == [("ended", 2), ("runs", 1), ("waited", 1)]
    assert journal.known_of(NEW) == [("another's", 1)]
    journal.acknowledge(waited.sequence)
    journal.sync()
    journal.close()
    for _ in range(2):  # read back, and what was read back
        journal = Journal(tmp_path, first_epoch=1)
        assert sorted(journal.known_of(OLD)) == [("ended", 2), ("runs", 1)]
        journal.close()
    journal = Journal(tmp_path, first_epoch=1)
    for done in journal.unacknowledged():
        journal.acknowledge(done.sequence)
    assert journal.known_of(OLD) == []
    journal.close()


def test_what_an_older_version_journaled_may_be_anybody_s(tmp_path: Path) -> None:
    """Its records do not say which gateway sent a request."""
    records = [Opened(7), Begun(1, "ran", 1), Ended(0, Done("ended", 1, "stop", Counts(), 7 << 32 | 1))]
    (tmp_path / "journal").write_bytes(b"".join(map(frame, records)))
    journal = Journal(tmp_path)
    assert sorted(journal.known_of(OLD)) == sorted(journal.known_of(NEW)) == [("ended", 1), ("ran", 1)]
    assert journal.since == 0, "it is older than its identity"
    journal.close()


def test_a_fence_outlives_the_process(tmp_path: Path) -> None:
    journal = Journal(tmp_path, first_epoch=1)
    journal.fence(OLD)
    journal.sync()
    journal.close()
    for _ in range(2):
        journal = Journal(tmp_path, first_epoch=1)
        assert journal.is_fenced(OLD)
        assert not journal.is_fenced(NEW)
        journal.close()


def test_a_journal_has_another_identity_where_its_file_was_lost(tmp_path: Path) -> None:
    first = Journal(tmp_path, first_epoch=1)
    first.close()
    again = Journal(tmp_path, first_epoch=1)
    assert (again.identity, again.since, again.epoch) == (first.identity, 1, 2)
    again.close()
    (tmp_path / "journal").unlink()
    other = Journal(tmp_path, first_epoch=1)
    assert other.identity != first.identity
    assert other.since == other.epoch == 3
    other.close()


@pytest.mark.parametrize("lost", ["folder", "file"])
def test_a_journal_that_is_removed_under_the_replica_is_written_again(tmp_path: Path, lost: str) -> None:
    folder = tmp_path / "journal"
    journal = Journal(folder, first_epoch=1)
    journal.begin("runs", 1, gateway_epoch=OLD)
    journal.begin("ended", 1, gateway_epoch=OLD)
    ended = journal.end(_done("ended"))
    journal.sync()
    assert not journal.restore()
    if lost == "folder":
        shutil.rmtree(folder)
    else:
        (folder / "journal").unlink()
    journal.progress([("runs", 1, Counts(prompt=3, computed=3, output=2))])
    journal.write()
    assert journal.restore()
    assert not journal.restore()
    journal.progress([("runs", 1, Counts(prompt=3, computed=3, output=3))])
    journal.write()
    with pytest.raises(Exception, match="another replica uses"):
        Journal(folder)
    journal.close()
    again = Journal(folder, first_epoch=1)
    assert (again.identity, again.epoch) == (journal.identity, journal.epoch + 1)
    known = {done.id: done for done in again.unacknowledged()}
    assert known["ended"] == ended
    assert (known["runs"].reason, known["runs"].counts.output) == ("crash", 3)
    again.close()


def test_a_journal_that_is_removed_while_its_disk_is_full_is_written_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "journal"
    journal = Journal(folder, first_epoch=1)
    journal.begin("ended", 1, gateway_epoch=OLD)
    journal.sync()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    journal.end(_done("ended"))
    shutil.rmtree(folder)
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        journal.sync()
    with pytest.raises(OSError, match="No space"):
        journal.restore()
    with pytest.raises(OSError, match="No space"):
        journal.sync()
    assert journal.full, "what was not written is still to be"
    monkeypatch.undo()
    assert journal.restore()
    assert not journal.full, "although there is nothing more to write"
    journal.close()
    again = Journal(folder, first_epoch=1)
    assert [done.id for done in again.unacknowledged()] == ["ended"]
    again.close()


# ------------------------------------------------ the replica


@pytest.mark.parametrize("full", [True, False])
async def test_a_fence_on_a_full_disk_is_not_answered_and_ends_nothing(full: bool) -> None:
    """The gateway asks again each second. Any other error of the disk ends the replica."""
    journal, link = Mock(full=full), Mock()
    journal.sync.side_effect = OSError(errno.ENOSPC if full else errno.EIO, "no")
    replica = Mock(journal=journal)
    await Replica._tell_fenced(replica, link, OLD)
    assert link.send.call_count == 0
    assert replica._fail.call_count == (0 if full else 1)


@pytest_asyncio.fixture
async def replica(tmp_path: Path, tiny_model: Path) -> AsyncIterator[ReplicaProcess]:
    process = await ReplicaProcess.start(tmp_path, tiny_model)
    yield process
    for client in Client.dialed:
        await client.close()
    Client.dialed.clear()
    if process.status is None:
        await process.kill()


async def _dial(replica: ReplicaProcess, epoch: str) -> Client:
    client = await Client.dial(replica.path, epoch=epoch)
    client.acknowledges = False
    return client


async def _fence(client: Client, epoch: str) -> Fenced:
    """What the replica answers to `Fence`."""
    client.send(Fence(epoch))
    while True:
        message = await client.hear()
        assert message is not None, "the replica hung up"
        if isinstance(message, Fenced):
            return message


@pytest.mark.e2e
@pytest.mark.slow
async def test_a_replica_fences_a_run_off_and_says_what_it_knows(replica: ReplicaProcess, tiny_model: Path) -> None:
    """Running requests are stopped; known ones are named until they are acknowledged; new ones are refused, after a
    restart too."""
    old, new = await _dial(replica, OLD), await _dial(replica, NEW)
    old.generate(generate("a", [1, 2, 3], max_tokens=40, credit=1), ALL)
    await old.until(lambda: "a" in old.began)
    assert (await _fence(new, OLD)).requests == (("a", 1),)
    while await old.hear() is not None:
        pass  # it is hung up
    again = await _dial(replica, OLD)
    assert await again.hear() is None, "its run is over"
    while (known := await _fence(new, OLD)).requests:
        assert known.requests == (("a", 1),)
        if "a" in new.done:
            new.send(Ack("a", new.done["a"].sequence))
    await replica.kill()
    restarted = await ReplicaProcess.start(Path(replica.path).parent, tiny_model)
    try:
        later = await _dial(restarted, NEW)
        assert later.hello.journal == new.hello.journal
        assert later.hello.epoch == new.hello.epoch + 1
        assert (await _fence(later, OLD)).requests == ()
        assert await (await _dial(restarted, OLD)).hear() is None
    finally:
        await restarted.kill()


@pytest.mark.e2e
@pytest.mark.slow
async def test_a_gateway_of_the_version_before_is_served(replica: ReplicaProcess) -> None:
    """It sends no epoch and does not know `Fence`; its requests belong to no other gateway."""
    client = await Client.dial(replica.path, version=FENCE_VERSION - 1)
    client.acknowledges = False
    client.generate(generate("a", [1, 2, 3], max_tokens=4), ALL)
    await client.finished("a")
    assert (await _fence(await _dial(replica, NEW), OLD)).requests == ()
