"""`verify` names what is wrong: a receipt that is dropped, doubled, altered, moved or another tenant's, and each other
thing that whoever gives out the files might try."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from billing.prices import PriceCatalog
from billing.receipts import verifier
from billing.receipts.answer_receipts import AnswerDigests, ReceiptIssuer
from billing.receipts.files import file_lines
from billing.receipts.merkle import MerkleRoot, leaf_hash
from billing.receipts.signing_keys import ReceiptKeys, to_base64
from billing.usage import Usage, UsageEvent
from storage.database.database import Database
from storage.database.migrate import upgrade
from tests.billing.invoices.customers import Customer, set_clock
from tests.billing.receipts.test_day_files import KEYS, invoice_of

EVENTS = int(os.environ.get("RECEIPT_EVENTS", "600"))
"""How many events the month has: `make test-long` has 100,000."""
DAYS = 3
START = 1_790_985_600_000_000
"""2026-10-03, in microseconds since the Unix epoch."""
BATCH = 5000


class Month(msgspec.Struct):
    """A tenant's month: its invoice, the lines of its files, and the receipts of its answers."""

    invoice: bytes
    lines: list[bytes]
    receipts: list[bytes]

    def findings(self, change: Callable[[list[Any]], None] | None = None, keys: ReceiptKeys = KEYS) -> list[str]:
        """What `verify` finds if the lines are changed so."""
        lines = self.lines
        if change is not None:
            values = [json.loads(line) for line in lines]
            change(values)
            lines = [verifier.canonical(value) for value in values]
        files = [("file", lines), ("mine", self.receipts)]
        return verifier.verify(self.invoice, files, msgspec.json.encode(keys.key_set())).findings

    def place(self, n: int, day: str = "2026-10-04") -> int:
        """Where the line of an event is."""
        text = f'"kind":"event","n":{n}'.encode()
        return next(at for at, line in enumerate(self.lines) if text in line and f'"day":"{day}"'.encode() in line)


@pytest.fixture(scope="module")
def month(tmp_path_factory: pytest.TempPathFactory) -> Month:
    return asyncio.run(_month(f"sqlite:///{tmp_path_factory.mktemp('month')}/month.sqlite"))


async def _month(url: str) -> Month:
    await upgrade(url)
    database = await Database.open(url)
    try:
        return await made(database)
    finally:
        await database.close()


async def made(database: Database) -> Month:
    """A month of EVENTS events, a tenth of which have receipts that came with their answers."""
    customer, issuer = await Customer.make(database), ReceiptIssuer(KEYS)
    receipts = []
    for first in range(0, EVENTS, BATCH):
        events = [an_event(customer, n) for n in range(first, min(first + BATCH, EVENTS))]
        pending = [issuer.prepare(event, AnswerDigests("ab", ("cd",))) for event in events[::10]]
        receipts += [msgspec.json.encode(receipt.issue()) for receipt in pending]
        set_clock(database, "2026-10-03")
        await customer.settle(events)
    invoice = await invoice_of(customer)
    lines = [line async for line in file_lines(database, PriceCatalog(database), KEYS, customer.id, "2026-10")]
    return Month(invoice, lines, receipts)


def an_event(customer: Customer, n: int) -> UsageEvent:
    at = START + n * DAYS * 86_400_000_000 // EVENTS
    usage = Usage(uncached=100 + n % 7, read={"automatic": n % 3}, output=n % 50)
    event = customer.tenant.event(customer.tenant.request(0, _id(at, n)), usage)
    return msgspec.structs.replace(event, admitted_at=at, finished_at=at + 1000, period="2026-10")


def _id(at: int, n: int) -> UUID:
    """A UUIDv7 of an instant."""
    return UUID(int=at // 1000 << 80 | 7 << 76 | 2 << 62 | n)


def test_a_month_holds(month: Month) -> None:
    assert month.findings() == []
    assert sum(b'"kind":"event"' in line for line in month.lines) == EVENTS


def test_a_dropped_receipt_is_named(month: Month) -> None:
    at = month.place(17)
    assert "2026-10-04: number 17 is missing" in month.findings(lambda lines: lines.pop(at))


def test_a_doubled_receipt_is_named(month: Month) -> None:
    at = month.place(17)
    findings = month.findings(lambda lines: lines.insert(at, lines[at]))
    assert "2026-10-04: number 17 is there 2 times" in findings
    findings = month.findings(lambda lines: lines.insert(at, lines[at] | {"n": EVENTS + 1}))
    event = json.loads(month.lines[at])["event"]["id"]
    assert any(f"event {event}" in finding and "is there twice" in finding for finding in findings)


@pytest.mark.parametrize("told", [False, True])
def test_an_altered_receipt_is_named(month: Month, told: bool) -> None:
    """Also where its digest says what it says now: then by what it costs, and by its day."""
    at = month.place(17)
    event = json.loads(month.lines[at])["event"]["id"]

    def alter(lines: list[Any]) -> None:
        lines[at]["event"]["units"]["uncached"] += 1
        if told:
            lines[at]["digest"] = sha256(verifier.canonical(lines[at]["event"])).hexdigest()

    findings = month.findings(alter)
    named = [finding for finding in findings if f"number 17, event {event}" in finding]
    assert any("recomputes to" in finding for finding in named)
    assert any("was altered" in finding for finding in named) != told
    root = "2026-10-04: its events have another root than its head: one was altered or moved"
    assert (root in findings) == told
    assert any("units, the events have" in finding for finding in findings), "the invoice's line is another sum"


def test_moved_receipts_are_named(month: Month) -> None:
    at = month.place(17)

    def swap(lines: list[Any]) -> None:
        lines[at], lines[at + 1] = lines[at + 1], lines[at]

    def swap_numbers(lines: list[Any]) -> None:
        swap(lines)
        lines[at]["n"], lines[at + 1]["n"] = 17, 18

    assert "2026-10-04: number 17 stands after number 18" in month.findings(swap)
    root = "2026-10-04: its events have another root than its head: one was altered or moved"
    assert root in month.findings(swap_numbers)


def test_a_receipt_of_another_tenant_is_named(month: Month) -> None:
    at = month.place(17)
    stranger = "01934f6e-0d2a-7b3c-8e51-a9c4d7f60b12"

    def exchange(lines: list[Any]) -> None:
        lines[at]["event"] |= {"tenant": stranger, "id": stranger}
        lines[at]["digest"] = sha256(verifier.canonical(lines[at]["event"])).hexdigest()

    findings = month.findings(exchange)
    assert any(f"event {stranger}" in finding and "is another tenant's" in finding for finding in findings)


def test_files_that_are_made_anew_are_not_those_of_the_invoice(month: Month) -> None:
    """Whoever has the signing key can sign other files. The invoice has the roots, and the tenant its receipts."""
    at = month.place(17)
    event = json.loads(month.lines[at])["event"]

    def forge(lines: list[Any]) -> None:
        day = next(line for line in lines if line["kind"] == "day" and line["day"] == "2026-10-04")
        lines[at]["event"]["units"]["output"] = lines[at]["event"]["units"].get("output", 0) + 1
        cost = int(lines[at]["event"]["cost_pico"]) + 1_600_000
        day["cost_pico"] = str(int(day["cost_pico"]) + 1_600_000)
        lines[at]["event"]["cost_pico"] = str(cost)
        lines[at]["digest"] = sha256(verifier.canonical(lines[at]["event"])).hexdigest()
        tree = MerkleRoot()
        for line in lines:
            if line["kind"] == "event" and line["day"] == "2026-10-04":
                tree.append(leaf_hash(line["n"].to_bytes(8, "big") + bytes.fromhex(line["digest"])))
        day["root"] = tree.root.hex()
        resign([line for line in lines if line["kind"] == "day"])

    findings = month.findings(forge)
    assert any(
        "2026-10-04: " in f and "has another root, number of events or cost than its head" in f for f in findings
    )
    assert all("signature" not in finding for finding in findings)
    held = any(event["id"].encode() in receipt for receipt in month.receipts)
    assert any(f"the receipt of event {event['id']}" in finding for finding in findings) == held


def resign(heads: list[Any]) -> None:
    """Chain and sign heads as whoever has the key can."""
    previous = ""
    for head in heads:
        head["previous"] = previous
        unsigned = {name: value for name, value in head.items() if name not in ("key", "sig")}
        previous = sha256(verifier.canonical(unsigned)).hexdigest()
        head["sig"] = to_base64(KEYS.sign(verifier.canonical(unsigned | {"key": head["key"]})))


def test_what_a_head_says_is_signed(month: Month) -> None:
    def alter(lines: list[Any]) -> None:
        next(line for line in lines if line["kind"] == "day" and line["day"] == "2026-10-05")["events"] += 1

    findings = month.findings(alter)
    assert "the head of 2026-10-05 has a wrong signature" in findings
    assert any("is missing" in finding for finding in findings)
    assert "the head of 2026-10-06 does not follow that of the day before" in findings


def test_a_missing_day_is_named(month: Month) -> None:
    def drop(lines: list[Any]) -> None:
        lines[:] = [line for line in lines if line.get("day") != "2026-10-05"]

    findings = month.findings(drop)
    assert any(f.startswith("2026-10-05 is on ") and f.endswith("and not in the files") for f in findings)


def test_other_prices_are_named(month: Month) -> None:
    def dearer(lines: list[Any]) -> None:
        prices = next(line for line in lines if line["kind"] == "prices")
        prices["rows"] = [[*cell, micro + 1] for *cell, micro in prices["rows"]]

    findings = month.findings(dearer)
    assert any("recomputes to" in finding for finding in findings)
    assert any("it is not its units at the price that events have" in finding for finding in findings)


def test_a_receipt_of_an_answer_that_is_in_no_file(month: Month) -> None:
    mine = json.loads(month.receipts[3])
    event = mine["event"]["id"]

    def forget(lines: list[Any]) -> None:
        lines[:] = [line for line in lines if line.get("event", {}).get("id") != event]

    assert any(f"the receipt of event {event}" in f and "is in no file" in f for f in month.findings(forget))


@pytest.mark.parametrize(
    "line",
    [b"{", b"[]", b"null", b'{"kind":"day"}', b'{"kind":"event","day":"x","n":"1","digest":1,"event":{}}', b"[" * 9999],
)
def test_what_is_no_line_is_said_by_its_place(month: Month, line: bytes) -> None:
    with pytest.raises(verifier.Unreadable, match=r"^mine:2: "):
        verifier.verify(month.invoice, [("mine", [month.lines[0], line])], None)


def test_the_file_alone(month: Month, tmp_path: Path) -> None:
    """As a tenant runs it: another Python process, none of our packages, none of anybody's."""
    program = tmp_path / "verifier.py"
    program.write_bytes(Path(verifier.__file__).read_bytes())
    (tmp_path / "invoice.json").write_bytes(month.invoice)
    (tmp_path / "receipts.jsonl").write_bytes(b"".join(month.lines))
    (tmp_path / "keys.json").write_bytes(msgspec.json.encode(KEYS.key_set()))
    command = [sys.executable, "-I", "-S", "verifier.py", "invoice.json", "receipts.jsonl", "--keys", "keys.json"]
    right = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (right.returncode, right.stdout.splitlines()[-1], right.stderr) == (0, "all of it holds", "")
    lines = month.lines[: month.place(17)] + month.lines[month.place(18) :]
    (tmp_path / "receipts.jsonl").write_bytes(b"".join(lines))
    wrong = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert wrong.returncode == 1
    assert "2026-10-04: number 17 is missing" in wrong.stdout
    (tmp_path / "receipts.jsonl").write_bytes(b"{")
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 2
