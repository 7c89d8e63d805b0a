"""What lies on a disk and outlives an upgrade: journals, spools, epochs, secrets, and bytes in the database's rows."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, get_args
from uuid import UUID

import msgspec

from billing.holds.records import Hold, HoldRequest, HoldSources
from billing.spool.gateway_epochs import SUFFIX as EPOCH_SUFFIX
from billing.spool.segments import HEADER
from billing.spool.spool import SUFFIX as SPOOL_SUFFIX
from billing.spool.spool import Spool
from billing.usage import Counts as BilledCounts
from billing.usage import Release, SpoolRecord, Usage, UsageEvent
from engine.server.journal import Journal
from engine.server.journal_records import (
    Acked,
    AnyRecord,
    Begun,
    Delivered,
    Ended,
    Fenced,
    Opened,
    Progress,
    Totals,
    frame,
    read_records,
)
from gateway.metering.billable_usage import MeteringTerms, pack, unpack
from protocol.requests import Counts, Done, Refusal
from tests.goldens import golden
from tests.goldens.test_wire import fields, plain
from turnpike.settings import secrets
from turnpike.settings.secrets import Secrets

COUNTS = Counts(
    prompt=60, computed=10, read_hbm=20, read_dram=14, read_nvme=16, output=7, recomputed=3, drafted=5, accepted=4
)
EPOCH = 7
FIRST = EPOCH << 32
DONE = Done(
    id="ended",
    attempt=1,
    reason="stop",
    counts=COUNTS,
    sequence=FIRST + 1,
    delivered=6,
    error="e",
    replayed=True,
    refusal=Refusal(whose="lane", wait_s=1.5),
    reasons=("stop", "length"),
    invalid="grammar",
    claim=b"claim",
)
JOURNAL: list[AnyRecord] = [
    Opened(epoch=EPOCH, journal="the journal's identity", since=5),
    Fenced(epochs=["g-0"]),
    Ended(handle=0, done=DONE, gateway_epoch="g-1"),
    Totals(requests=3, counts=COUNTS),
    Begun(handle=1, id="live", attempt=2, claim=b"its claim", gateway_epoch="g-1"),
    Progress(counts=[(1, Counts(prompt=4, computed=4, output=2))]),
    Delivered(handle=1, delivered=1),
    Begun(handle=2, id="acknowledged", attempt=1),
    Ended(handle=2, done=Done("acknowledged", 1, "length", Counts(), FIRST + 2), gateway_epoch="g-1"),
    Acked(sequence=FIRST + 2),
]


def test_records_of_a_journal() -> None:
    kinds = {str(kind.__struct_config__.tag): fields(kind) for kind in get_args(AnyRecord)}
    golden.check("journal_records", kinds)
    assert {type(record) for record in JOURNAL} == set(get_args(AnyRecord)), "a record without an example"


def test_bytes_of_a_journal() -> None:
    golden.check_bytes("journal", b"".join(map(frame, JOURNAL)))
    assert read_records(golden.read_bytes("journal")) == (JOURNAL, 0, 0)


def test_a_journal_goes_on(tmp_path: Path) -> None:
    """A replica that finds the golden file continues it: what it then knows, and what the file then holds."""
    (tmp_path / "journal").write_bytes(golden.read_bytes("journal"))
    (tmp_path / "epoch").write_text(f"{EPOCH}\n")
    journal = Journal(tmp_path)
    assert (journal.damaged, journal.torn_bytes) == (0, 0)
    known = {
        "identity": journal.identity,
        "since": journal.since,
        "epoch": journal.epoch,
        "unacknowledged": [plain(msgspec.to_builtins(done)) for done in journal.unacknowledged()],
        "requests of g-1": [list(known) for known in journal.known_of("g-1")],
        "fenced": {gateway: journal.is_fenced(gateway) for gateway in ("g-0", "g-1")},
        "metrics": journal.metrics(),
    }
    journal.begin("next", 1, b"claim", "g-2")
    journal.progress([("next", 1, Counts(prompt=3, computed=3, output=1))])
    journal.delivered("next", 1, 1)
    journal.fence("g-1")
    journal.end(Done("next", 1, "length", Counts(prompt=3, computed=3, output=2), 0, 2), "g-2")
    journal.acknowledge(DONE.sequence)
    journal.close()
    golden.check("journal_known", known)
    golden.check_bytes("journal_continued", (tmp_path / "journal").read_bytes())
    files = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    golden.check("journal_folder", {name: f"{mode:04o}" for name, mode in files.items() if name != "epoch"})
    assert (tmp_path / "epoch").read_text() == f"{EPOCH + 1}\n"


IDS = [UUID(int=0x0190_0000_0000_7000_8000_0000_0000_0000 + n) for n in range(12)]
EVENT = UsageEvent(
    id=IDS[0],
    tenant_id=IDS[1],
    project_id=IDS[2],
    key_id=IDS[3],
    model="m",
    model_digest="d",
    lane="standard",
    price_version=4,
    admitted_at=1_795_000_000_000_000,
    finished_at=1_795_000_001_000_000,
    period="2026-11",
    status="ok",
    reason="stop",
    delivery="confirmed",
    source="gateway",
    replica="r",
    sequence=17,
    attempt=2,
    counts=BilledCounts(
        prompt=60, computed=10, read_hbm=20, read_dram=14, read_nvme=16, output=7, recomputed=3, drafted=5, accepted=4
    ),
    usage=Usage(uncached=10, read={"automatic": 20, "5m": 14}, write={"1h": 16}, output=6),
    cost_pico=123_456_789,
    context_from=32,
    hold_batch=IDS[4],
    allowance=IDS[5],
)
SETTLEMENTS: list[SpoolRecord] = [
    EVENT,
    msgspec.structs.replace(
        EVENT,
        id=IDS[6],
        status="failed",
        reason="crash",
        delivery="unconfirmed",
        source="journal",
        usage=Usage(),
        cost_pico=0,
        corrects=IDS[0],
        hold_batch=None,
        allowance=None,
    ),
    Release(request_id=IDS[7], reason="rejected", hold_batch=IDS[8]),
    Release(request_id=IDS[9], reason="lost"),
]
OWNER = "gateway-epoch"


def _files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


async def test_bytes_of_a_spool(tmp_path: Path) -> None:
    spool = Spool(tmp_path, OWNER)
    for record in SETTLEMENTS:
        await spool.append(record)
    (path,) = _files(tmp_path)
    golden.check_bytes("spool", path.read_bytes())
    assert path.name.startswith(f"{OWNER}-")
    await spool.close()
    kinds = {str(kind.__struct_config__.tag): fields(kind) for kind in get_args(SpoolRecord)}
    golden.check("spool_records", kinds)
    golden.check("spool_names", {"spool": SPOOL_SUFFIX, "epoch": EPOCH_SUFFIX, "header": HEADER.decode()})


async def test_a_spool_is_adopted(tmp_path: Path) -> None:
    shutil.copy(golden.FOLDER / "spool.bin", tmp_path / f"gone-{IDS[0].hex}.spool")
    spool = Spool(tmp_path, OWNER)
    assert await spool.adopt_orphans() == 1
    batch = await spool.read(100)
    assert batch is not None
    assert (batch.corrupt, batch.torn) == (0, 0)
    assert batch.records == SETTLEMENTS
    spool.done(batch)
    assert await spool.read(1) is None
    assert _files(tmp_path) == [], "a spool that is settled is removed"
    await spool.close()


def test_what_a_hold_keeps() -> None:
    """Bytes in rows of the database and in journals: holds that are open live through an upgrade."""
    terms = MeteringTerms("openai", 64, 60)
    asked = HoldRequest(
        request_id=IDS[0],
        tenant_id=IDS[1],
        project_id=IDS[2],
        key_id=IDS[3],
        model="m",
        lane="batch",
        price_version=4,
        amount_pico=5,
        lifetime_s=6,
        gateway_epoch="g-1",
        terms=pack(terms),
        tag="tag",
    )
    hold = Hold.of(asked, 1_795_000_000_000_000, sources=HoldSources((IDS[4],), {IDS[5]: 7}), batch=IDS[6])
    hold = msgspec.structs.replace(hold, allowance=IDS[7])
    sources = HoldSources((IDS[8], IDS[9]), {IDS[10]: 11, IDS[11]: 12})
    assert unpack(pack(terms)) == terms
    assert Hold.claimed(hold.claim) == hold
    assert HoldSources.decode(sources.encode()) == sources
    golden.check(
        "hold_bytes",
        {
            "terms": pack(terms).hex(),
            "claim": hold.claim.hex(),
            "request": msgspec.msgpack.encode(asked).hex(),
            "sources": sources.encode(),
            "request's fields": fields(HoldRequest),
            "hold's fields": fields(Hold),
        },
    )


def test_the_secrets_file(tmp_path: Path) -> None:
    path = tmp_path / "secrets.json"
    letters: Any = (bytes([65 + n]) * 32 for n in range(6))
    content = Secrets(1, 2, {1: next(letters), 2: next(letters)}, *letters)
    secrets.save(content, path)
    golden.check_bytes("secrets", path.read_bytes())
    kept = tmp_path / "kept.json"
    kept.write_bytes(golden.read_bytes("secrets"))
    kept.chmod(0o600)
    assert secrets.load(kept) == content
