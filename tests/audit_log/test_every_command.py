"""Every command either reads or leaves an entry: a new one has to be put into one of the lists here."""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.database.database import Database
from storage.database.public_ids import PREFIXES
from tests.billing.prices.test_litellm import FILE
from tests.prompt_cache.tiers.stores import opened
from tests.turnpike.commands.test_adapters import keep_adapter
from tests.turnpike.commands.test_batches import keep_files
from tests.turnpike.commands.test_invoices import BUYER, SELLER, Terminal, _use
from turnpike.admin_services import system_user
from turnpike.cli import build_parser

READS = frozenset(
    (
        *("audit money", "audit counts", "audit isolation", "audit log", "reconcile", "usage", "export", "models"),
        *("budgets list", "cache stats", "cache fsck", "cache scrub", "cache explain", "journals list", "keys list"),
        *(
            "invoices list",
            "invoices show",
            "invoices pdf",
            "invoices xml",
            "invoices seller show",
            "invoices buyer show",
        ),
        *(
            "periods list",
            "platform show",
            "prices show",
            "prices diff",
            "prices what-if",
            "prices history",
            "prices list",
        ),
        *("prices books", "settings", "tenants list", "tenants statement", "terms list", "webhooks list"),
        *("webhooks deliveries", "approvals list", "approvals show", "limits list", "openapi"),
        *("users list", "cache shared", "receipts days", "receipts export", "receipts keys", "verify"),
        *("batches list", "batches show", "files list", "files show"),
        *("adapters list", "adapters show", "adapters check", "adapters replicas"),
        *("recount", "replay", "tenants account", "clock show", "doctor", "replicas explain"),
    )
)
"""Commands that change nothing in the database of money, access, sharing or prices."""
WITHOUT_ENTRY = {
    "demo": "in a folder of its own: what it makes there is recorded",
    **dict.fromkeys(("serve", "gateway", "worker", "engine", "calibrate"), "a process; what it changes is recorded"),
    **dict.fromkeys(
        (
            "secrets create",
            "secrets link",
            "secrets rotate-pepper",
            "secrets rotate-receipt-key",
            "secrets add-seal-key",
        ),
        "a file; works without a database",
    ),
    "audit checkpoint": "a MAC of what stands there",
    "adapters upload": "is done at a gateway, which records it",
    **dict.fromkeys(
        (
            "payments provider",
            "payments connect",
            "payments show",
            "payments card",
            "payments portal",
            "payments top-up",
            "payments top-ups",
            "payments auto",
            "payments auto-off",
            "payments receipts",
            "payments apply",
            "payments return",
            "payments refund",
            "payments import",
            "payments disputes",
            "payments tasks",
            "payments close",
            "payments reconciliations",
            "payments invoice",
            "payments push-again",
            *("payments dunning", "payments dunning-again", "payments dunning-on", "payments dunning-off"),
        ),
        "needs a payment provider: what changes leaves entries in tests/gateway/admin/test_payments.py",
    ),
    "migrate": "the schema, and no row of it",
    **dict.fromkeys(
        ("clock start", "clock advance"), "of an empty installation: tests/billing/periods/test_sandbox_clock.py"
    ),
    **dict.fromkeys(
        ("replicas drain", "replicas resume", "replicas scale-in"), "a running gateway does it: test_every_route.py"
    ),
    **dict.fromkeys(("webhooks test", "webhooks resend"), "a message to where messages go anyway"),
}
"""Commands that leave no entry, and why."""
PROPOSED = 3
"""The exit status of a change that waits for another operator."""
_PRICES = "--uncached 0.40 --read 0.04 --output 1.60"
_MONTH = "--period 2026-10"
SCRIPT = (
    ("tenants create client", {"tenant.created", "project.created"}),
    ("keys create --tenant client --project default", {"key.created"}),
    ("keys create --tenant client --admin --name reports", {"key.created"}),
    ("keys create --operator --name ann", {"key.created"}),
    ("keys create --operator --name bob --operator-key-file {ann}", {"key.created"}),
    ("keys change {key} --role viewer", {"key.changed"}),
    ("keys rotate {key}", {"key.rotated"}),
    ("keys revoke {key}", {"key.revoked"}),
    ("keys revoke {key} --leaked", {"key.revoked"}),
    ("limits set client --requests 60", {"limits.set"}),
    ("limits remove client", {"limits.removed"}),
    ("tenants suspend client", {"tenant.suspended"}),
    ("tenants resume client", {"tenant.resumed"}),
    ("tenants credit client 1.20", {"grant.created"}),
    ("tenants grant client 5", {"grant.created"}),
    ("tenants refund client 1.20", {"refund.created"}),
    ("tenants credit-line client 7", {"credit_line.set"}),
    ("tenants adjust client {event} output=-10 --reason late", {"usage.adjusted"}),
    ("budgets set client 30", {"budget.set"}),
    ("budgets remove client {budget}", {"budget.removed"}),
    (f"prices set qwen {_PRICES}", {"price_sheet.drafted", "price_sheet.set"}),
    (f"prices draft qwen {_PRICES} --by ann", {"price_sheet.drafted"}),
    ("prices approve {sheet} --by bob", {"price_sheet.approved"}),
    (f"prices draft qwen {_PRICES} --by ann", {"price_sheet.drafted"}),
    ("prices withdraw {sheet}", {"price_sheet.withdrawn"}),
    ("prices import {litellm} --model-map gpt=big --force tried", {"price_sheet.drafted", "price_sheet.set"}),
    ("prices book own --tenant client", {"price_book.created"}),
    ("terms set client {terms}", {"terms.set"}),
    ("webhooks add https://example.com/hook --tenant client --topics *", {"webhook_endpoint.added"}),
    ("webhooks rotate {endpoint} --tenant client", {"webhook_endpoint.rotated"}),
    ("webhooks enable {endpoint} --tenant client", {"webhook_endpoint.enabled"}),
    ("webhooks remove {endpoint} --tenant client", {"webhook_endpoint.removed"}),
    ("batches cancel {batch} --tenant client", {"batch.cancelled"}),
    ("files delete {file} --tenant client", {"file.deleted"}),
    ("adapters delete {adapter} --tenant client", {"adapter.deleted"}),
    ("cache policy client default --retention 60", {"cache_policy.set"}),
    ("cache purge --all --folder {folder}", {"cache_records.purged"}),
    ("cache forget client default --reason asked", {"cache.forgotten"}),
    ("cache share {prompt} --served stdlib-qa --tenant client --reason asked", {"cache.shared"}),
    ("cache unshare {shared} --reason asked", {"cache.unshared", "cache.forgotten"}),
    ("users create eve@example.com", {"user.created", "user.sign_in_link_created"}),
    ("users invite dan@example.com --role viewer --operator-key-file {ann}", {"invitation.created"}),
    ("users role eve@example.com viewer --tenant client", {"member.added"}),
    ("users reset eve@example.com --reason asked", {"user.password_reset_link_created"}),
    ("users sessions eve@example.com --revoke --reason left", {"session.all_revoked"}),
    ("users disable eve@example.com --reason left", {"user.disabled"}),
    ("invoices seller set acme {seller}", {"seller.set"}),
    ("invoices buyer set client {buyer}", {"billing_profile.set"}),
    (f"invoices draft --tenant client {_MONTH}", {"invoice.drafted"}),
    (f"invoices finalize --tenant client {_MONTH}", {"invoice.finalized"}),
    ("invoices void {invoice} --reason asked", {"invoice.voided"}),
    (f"invoices draft --tenant client {_MONTH}", {"invoice.drafted"}),
    (f"invoices finalize --tenant client {_MONTH}", {"invoice.finalized"}),
    ("invoices uncollectible {invoice} --reason insolvent", {"invoice.marked_uncollectible"}),
    ("invoices vat-relief {invoice} --reason asked", {"invoice.vat_relieved"}),
    ("invoices pay {invoice} --reference r1", {"invoice.payment_recorded"}),
    ("invoices credit-note {invoice} --reason wrong --line 1=0.50", {"credit_note.issued"}),
    ("periods close 2026-09", {"period.closed"}),
    ("periods declare-dead lost-1 --reason gone", {"journal.gateway_declared_dead"}),
    ("journals declare-lost r9 --replicas unix:{folder}/gone.sock --reason burnt", {"journal.declared_lost"}),
    ("platform set approvals on --operator-key-file {ann}", {"platform_setting.set"}),
    ("tenants credit client 90000 --operator-key-file {ann}", {"change.proposed"}),
    ("approvals approve {change} --operator-key-file {bob}", {"change.approved", "advance.issued", "grant.created"}),
    ("tenants credit client 80000 --operator-key-file {ann}", {"change.proposed"}),
    ("approvals withdraw {change} --operator-key-file {ann}", {"change.withdrawn"}),
)
"""Commands in an order in which each can work, and what each records. Names in braces stand for `_facts`."""


def _commands(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[str]:
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        yield " ".join(path)
    for group in groups:
        for name, child in group.choices.items():
            yield from _commands(child, (*path, name))


def test_every_command_is_known() -> None:
    walked = {name for line, _ in SCRIPT for name in ALL if line.startswith(f"{name} ")}
    assert set(ALL) == walked | READS | WITHOUT_ENTRY.keys()
    assert not walked & (READS | WITHOUT_ENTRY.keys())


ALL = tuple(_commands(build_parser()))


class _Desk(Terminal):
    """A terminal, and what is in its database."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, capsys, monkeypatch)
        self.folder = folder
        self.facts: dict[str, str] = {}

    def query(self, sql: str) -> list[tuple[object, ...]]:
        connection = sqlite3.connect(self.folder / "turnpike.db")
        try:
            with connection:
                return connection.execute(sql).fetchall()
        finally:
            connection.close()

    def type_in(self, line: str, status: int = 0) -> list[tuple[object, ...]]:
        """Run a command; the entries that it left."""
        words = [self._word(word) for word in line.split()]
        known = len(self.query("SELECT 1 FROM audit_entry"))
        out = self.run(*(part for word in words for part in word), status=status)
        if line.startswith("keys create --operator"):
            name = line.partition("--name ")[2].partition(" ")[0]
            (self.folder / name).write_text(out)
            self.facts[name] = str(self.folder / name)
        if line.startswith("keys create --tenant client --admin"):
            self.facts["key"] = out.strip()
        columns = "action, actor_means, actor_id, actor_name"
        return self.query(f"SELECT {columns} FROM audit_entry ORDER BY rowid")[known:]  # columns

    def _word(self, word: str) -> list[str]:
        if not word.startswith("{"):
            return [word]
        name = word.strip("{}")
        found = {
            "event": "SELECT lower(hex(id)) FROM usage_event",
            "budget": "SELECT lower(hex(budget_id)) FROM budget",
            "sheet": "SELECT max(id) FROM price_sheet",
            "change": "SELECT 'change_' || lower(hex(id)) FROM pending_change WHERE state = 'pending'",
            "shared": "SELECT lower(hex(id)) FROM shared_prefix",
            "endpoint": "SELECT lower(hex(id)) FROM webhook_endpoint",
            "invoice": "SELECT number FROM invoice WHERE kind = 'invoice' ORDER BY finalized_at DESC",
        }
        if name in found:
            return [str(self.query(found[name])[0][0])]
        lists = {"seller": [*SELLER, "--rate", "FR=20"], "buyer": BUYER}
        return lists[name] if name in lists else [self.facts[name]]


@pytest.mark.slow
def test_every_change_by_a_command_leaves_an_entry(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = _Desk(tmp_path, capsys, monkeypatch)
    terms, folder = tmp_path / "terms.toml", tmp_path / "kv"
    (tmp_path / "litellm.json").write_text(FILE)
    terms.write_text('[minimum]\namount = "10.00"\n')
    with opened(folder):
        pass  # as a replica leaves it that has kept nothing
    (tmp_path / "prompt.txt").write_text("You answer questions on Python. " * 200)
    desk.facts = {
        "prompt": str(tmp_path / "prompt.txt"),
        "litellm": str(tmp_path / "litellm.json"),
        "terms": str(terms),
        "folder": str(folder),
    }
    for line, actions in SCRIPT:
        left = desk.type_in(line, PROPOSED if actions == {"change.proposed"} else 0)
        assert {action for action, *_ in left} == actions, f"{line}: {left}"
        if "--operator-key-file" in line:
            whose = Path(desk.facts[line.rpartition("{")[2].rstrip("}")]).name
            assert {(means, name) for _, means, _, name in left} == {("operator_key", whose)}, line
        else:
            assert {(means, who) for _, means, who, _ in left} == {("command", system_user())}, line
            named = line.partition("--by ")[2].split()[:1] or [system_user()]
            assert {name for *_, name in left} == set(named), line
        if line.startswith("keys create --tenant client --project"):
            asyncio.run(_use(f"sqlite:///{tmp_path}/turnpike.db"))
            desk.facts["file"], desk.facts["batch"] = asyncio.run(keep_files(tmp_path))
            desk.facts["adapter"] = asyncio.run(keep_adapter(tmp_path))
            asyncio.run(_meet(f"sqlite:///{tmp_path}/turnpike.db"))
    targets = desk.query("SELECT target, target_id FROM audit_entry")
    plain = [(kind, name) for kind, name in targets if not str(name).startswith(PREFIXES.get(str(kind), ""))]
    assert plain == [], "ids that are not in their public form"
    assert {"tenant", "project", "budget", "balance", "invoice", "usage_event"} <= {kind for kind, _ in targets}
    assert "the audit log says what it said" in desk.run("audit", "log", "--verify")
    for line in READS & {"budgets list client", "keys list", "prices list", "tenants list", "platform show"}:
        assert desk.type_in(line) == []


async def _meet(url: str) -> None:
    """Let there be a journal and a gateway that are long gone."""
    database = await Database.open(url)
    async with database.transaction() as session:
        from sqlalchemy import insert

        from billing.tables.books import gateway_epoch, replica_journal

        await session.execute(insert(replica_journal).values(journal="j9", replica="r9", since=1, seen_at=1))
        epoch = {"epoch": "lost-1", "gateway": "lost", "started_at": 1, "seen_at": 1, "watermark": 2**51}
        await session.execute(insert(gateway_epoch).values(**epoch, state="live", reason="", folder=""))
    await database.close()
