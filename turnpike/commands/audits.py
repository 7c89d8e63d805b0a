"""`turnpike audit …`: checks of what is promised."""

from __future__ import annotations

import argparse
import sys

import msgspec

from billing.usage import COUNTS
from billing.verification import checks as audit
from storage.free_text import counted
from turnpike.admin_services import AdminServices
from turnpike.commands.running import table, with_admin_services
from turnpike.processes.replica_probe import probe_replicas
from turnpike.settings.settings import Settings


def audit_money(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike audit money`: 1 on any finding."""

    async def work(admin: AdminServices) -> int:
        findings = await audit.check(admin.database, arguments.period, _tell if sys.stderr.isatty() else None)
        for finding in findings:
            print(msgspec.json.encode(finding).decode())
        print("the books are right" if not findings else counted(len(findings), "finding"), file=sys.stderr)
        return 1 if findings else 0

    return with_admin_services(settings, work)


def _tell(what: str, done: int, of: int) -> None:
    """Progress in one line of a terminal, which the next one overwrites."""
    print(f"\r\x1b[K{what}: {done} of {of}", end="\r" if done >= of else "", file=sys.stderr, flush=True)


def audit_counts(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike audit counts`: what each replica's journal counted against its usage events; 1 if they differ."""

    async def work(admin: AdminServices) -> int:
        probes = await probe_replicas(settings)
        since = {found.hello.replica: found.hello.since for found in probes}
        events = {row.replica: row for row in await audit.counts_by_replica(admin.database, since)}
        rows: list[tuple[str, str, int, int, str]] = []
        for found in probes:
            name = found.hello.replica
            metrics = found.beat.metrics if found.beat else {}
            mine = events.pop(name, audit.ReplicaCounts(name, 0, {}))
            pairs = {"requests": ("requests_total", mine.requests)} | {
                count: (f"{count}_tokens_total", mine.counts.get(count, 0)) for count in COUNTS
            }
            ended = int(metrics.get("turnpike_engine_journal_requests_total", -1))
            waiting = int(metrics.get("turnpike_engine_journal_unacknowledged", 0))
            waits = 0 < ended - mine.requests <= waiting
            for what, (metric, billed) in pairs.items():
                counted = int(metrics.get(f"turnpike_engine_journal_{metric}", -1))
                word = "unacknowledged in the journal" if waits and counted > billed else "DIFFERENT"
                rows.append((name, what, counted, billed, "equal" if counted == billed else word))
        table(("replica", "count", "journal", "events", ""), rows)
        for name in events:
            print(f"{name} has events, and does not answer: not compared", file=sys.stderr)
        return 0 if rows and all(row[-1] == "equal" for row in rows) else 1

    return with_admin_services(settings, work)
