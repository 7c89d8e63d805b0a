"""The spool: what was acknowledged is there after any crash, and damage costs only what it hit."""

# ruff: noqa: ASYNC220, ASYNC240 (these tests look at files and processes between awaits)

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.prices import PriceVersion, in_every_lane
from billing.spool import segments
from billing.spool.segments import HEADER, SpoolSegment, frame, scan
from billing.spool.spool import Spool, SpoolUnavailable
from billing.usage import Release, SpoolRecord, Usage, UsageEvent
from storage.database.base import new_id
from tests.billing.money import event, loose_request
from tests.fast import examples

VERSION = PriceVersion(1, "m", "USD", in_every_lane({"uncached": 1, "output": 1}))


def some_event() -> UsageEvent:
    return event(loose_request(new_id()), VERSION, Usage(uncached=10, read={"5m": 0}, output=1))


async def read_all(spool: Spool, limit: int = 100) -> list[SpoolRecord]:
    records: list[SpoolRecord] = []
    while (batch := await spool.read(limit)) is not None:
        assert len(batch.records) <= limit
        records += batch.records
        spool.done(batch)
    return records


async def adopted(folder: Path) -> tuple[list[SpoolRecord], Spool]:
    spool = Spool(folder, "heir")
    await spool.adopt_orphans()
    return await read_all(spool), spool


async def test_records_come_back_whole_and_in_order(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "g1")
    records: list[SpoolRecord] = [some_event(), Release(new_id(), "rejected"), some_event()]
    for record in records:
        await spool.append(record)
    assert spool.waiting == 3
    assert not spool.drained
    assert await read_all(spool, limit=2) == records
    assert (spool.waiting, spool.drained, spool.bytes_waiting) == (0, True, 0)
    more = [some_event() for _ in range(50)]
    await asyncio.gather(*map(spool.append, more))
    assert await read_all(spool) == more
    await spool.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SpoolUnavailable):
        await spool.append(some_event())


async def test_what_is_not_drained_is_adopted_by_the_next_start_alone(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "g1", rotate_bytes=1000)
    records = [some_event() for _ in range(10)]
    for record in records:
        await spool.append(record)
    assert len(list(tmp_path.iterdir())) > 2
    assert Spool.orphans(tmp_path) == []  # its owner lives
    await spool.close()
    first, second = Spool(tmp_path, "g2"), Spool(tmp_path, "g3")
    assert await first.adopt_orphans() > 2
    assert await second.adopt_orphans() == 0
    assert await read_all(first) == records
    assert list(tmp_path.iterdir()) == []
    await first.close()
    await second.close()


async def test_two_of_the_same_name_never_share_a_file(tmp_path: Path) -> None:
    one, other = Spool(tmp_path, "g1"), Spool(tmp_path, "g1")
    mine, theirs = some_event(), some_event()
    await one.append(mine)
    await other.append(theirs)
    assert len(list(tmp_path.iterdir())) == 2
    assert await read_all(one) == [mine]
    assert await read_all(other) == [theirs]
    await one.close()
    await other.close()


@pytest.mark.parametrize("name", ["", "a/b", "..", "x" * 65, "ä"])
def test_an_owner_is_a_file_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="owner"):
        Spool(tmp_path, name)


@pytest.mark.slow
async def test_a_killed_process_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    acknowledged: set[UUID] = set()
    for _ in range(2):
        command = [sys.executable, "-m", "tests.billing.spool_child", str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for _ in range(300):
                acknowledged.add(UUID(child.stdout.readline().strip()))
            child.send_signal(signal.SIGKILL)
            acknowledged |= {UUID(line.strip()) for line in child.stdout if len(line) == 37}
    assert len(acknowledged) >= 600
    records, spool = await adopted(tmp_path)
    there = [record.id for record in records if isinstance(record, UsageEvent)]
    assert acknowledged <= set(there)
    assert len(there) == len(set(there))
    assert spool.corrupt == 0
    await spool.close()


async def test_a_full_disk_is_said_and_survived(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "g1")
    kept = [some_event()]
    await spool.append(kept[0])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        for _ in range(2):
            with pytest.raises(SpoolUnavailable, match="cannot write"):
                await spool.append(some_event())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    kept.append(some_event())
    await spool.append(kept[1])
    assert await read_all(spool) == kept
    assert spool.corrupt == 0
    await spool.close()
    assert list(tmp_path.iterdir()) == []


async def test_a_disk_that_does_not_sync_acknowledges_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path, "g1")
    kept = some_event()
    await spool.append(kept)

    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", broken)
        with pytest.raises(SpoolUnavailable):
            await spool.append(some_event())
    later = some_event()
    await spool.append(later)
    assert len(list(tmp_path.iterdir())) == 2  # what failed to sync once is never appended to again
    assert await read_all(spool) == [kept, later]
    await spool.close()


async def _file(folder: Path, records: list[SpoolRecord]) -> Path:
    spool = Spool(folder, "g1")
    for record in records:
        await spool.append(record)
    await spool.close()
    (path,) = folder.glob("*.spool")
    return path


async def test_a_torn_tail_is_cut_at_every_length(tmp_path: Path) -> None:
    records: list[SpoolRecord] = [some_event() for _ in range(3)]
    whole = (await _file(tmp_path, records)).read_bytes()
    ends = [len(HEADER)]
    for payload in scan(whole[len(HEADER) :], limit=9, last=True)[0]:
        ends.append(ends[-1] + len(frame(payload)))
    for length in range(len(HEADER), len(whole), 7):
        (path,) = tmp_path.glob("*.spool")
        path.write_bytes(whole[:length])
        (segment,) = Spool.orphans(tmp_path)
        read = segment.read(100)
        complete = sum(end <= length for end in ends) - 1
        assert len(read.payloads) == complete
        assert read.corrupt == 0
        assert read.torn == length - ends[complete]
        assert read.position == length
        segment.release()


async def test_a_damaged_record_is_counted_and_its_file_kept(tmp_path: Path) -> None:
    records: list[SpoolRecord] = [some_event() for _ in range(5)]
    path = await _file(tmp_path, records)
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 0x10
    path.write_bytes(damaged)
    found, spool = await adopted(tmp_path)
    assert found == records[:2] + records[3:]
    assert spool.corrupt == 1
    await spool.close()
    assert [p.suffix for p in tmp_path.iterdir()] == [".corrupt"]


async def test_a_whole_record_without_sense_is_counted(tmp_path: Path) -> None:
    segment = SpoolSegment.create(tmp_path / "g1-x.spool")
    segment.append(frame(b"\x81\xa4type\xa4what"))
    segment.release()
    found, spool = await adopted(tmp_path)
    assert (found, spool.corrupt) == ([], 1)
    await spool.close()


async def test_a_damaged_header_costs_no_record(tmp_path: Path) -> None:
    records: list[SpoolRecord] = [some_event() for _ in range(3)]
    path = await _file(tmp_path, records)
    damaged = bytearray(path.read_bytes())
    damaged[3] ^= 1
    path.write_bytes(damaged)
    found, spool = await adopted(tmp_path)
    assert (found, spool.corrupt) == (records, 1)
    await spool.close()


def test_a_record_longer_than_a_chunk_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_CHUNK", 64)
    segment = SpoolSegment.create(tmp_path / "x.spool")
    payloads = [bytes([n]) * (n * 50) for n in range(20)]
    for payload in payloads:
        segment.append(frame(payload))
    found = []
    while not segment.drained:
        read = segment.read(3)
        found += read.payloads
        segment.position = read.position
        assert (read.corrupt, read.torn) == (0, 0)
    assert found == payloads
    segment.release()


@settings(max_examples=examples(150), deadline=None)
@given(
    payloads=st.lists(st.binary(max_size=60), min_size=1, max_size=8),
    flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 7)), min_size=1, max_size=4),
    chunk=st.sampled_from([16, 200, 10**6]),
)
def test_flipped_bits_cost_only_the_records_they_hit(
    tmp_path_factory: pytest.TempPathFactory, payloads: list[bytes], flips: list[tuple[int, int]], chunk: int
) -> None:
    data = bytearray(b"".join(map(frame, payloads)))
    ends = [0]
    for payload in payloads:
        ends.append(ends[-1] + len(frame(payload)))
    for place, bit in flips:
        data[place % len(data)] ^= 1 << bit
    original = b"".join(map(frame, payloads))
    intact = [p for p, a, b in zip(payloads, ends, ends[1:], strict=False) if data[a:b] == original[a:b]]
    path = tmp_path_factory.mktemp("flips") / "x.spool"
    path.write_bytes(HEADER + data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "_CHUNK", chunk)
        segment = SpoolSegment.adopt(path)
        assert segment is not None
        found: list[bytes] = []
        lost = 0
        while not segment.drained:
            read = segment.read(3)
            found += read.payloads
            lost += read.corrupt + (read.torn > 0)
            segment.position = read.position
        segment.release()
    assert found == intact
    assert (lost > 0) == (len(intact) < len(payloads))
