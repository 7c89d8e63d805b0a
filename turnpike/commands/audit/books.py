"""`turnpike audit money` and `counts`: check the books and the replicas' counts."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from storage.free_text import counted
from turnpike.command_context import long_admin_command, print_progress, print_table
from turnpike.command_line import CommandError, CommandParser

if TYPE_CHECKING:
    from turnpike.admin_services import AdminServices


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike audit money` and `counts`."""
    text = "check the books; each finding is a line of JSON; exits 1 if there is one"
    money = parser.add_action("money", text, audit_money)
    money.add_argument("--period", help="only what belongs to this billing period, such as 2026-11")
    text = "cover the seals of earlier keys, or of none, by the current one, after an audit that finds nothing else"
    parser.add_action("checkpoint", text, checkpoint_seals)
    text = "compare what replicas counted in their journals with usage events; exits 1 if they differ"
    parser.add_action("counts", text, audit_counts)


@long_admin_command
async def audit_money(admin: AdminServices, arguments: argparse.Namespace) -> int:
    """`turnpike audit money`: 1 on any finding."""
    from billing.verification import audit
    from turnpike.commands.audit.leases import audit_leases

    def progress(what: str, done: int, total: int) -> None:
        print_progress("" if done >= total else f"{what}: {done} of {total}")

    findings = await audit.audit_money(admin.database, arguments.period, progress if sys.stderr.isatty() else None)
    if arguments.period is None:
        findings += await audit_leases(admin.database)
    for finding in findings:
        print(msgspec.json.encode(finding).decode())
    print("the books are right" if not findings else counted(len(findings), "finding"), file=sys.stderr)
    return 1 if findings else 0


@long_admin_command
async def checkpoint_seals(admin: AdminServices, _arguments: argparse.Namespace) -> int:
    """`turnpike audit checkpoint`: 1 if the books are not right, and then nothing is written."""
    from billing.integrity.seal_checkpoints import write_checkpoint
    from billing.verification import audit
    from billing.verification.seals import NO_CHECKPOINT

    if not admin.database.keyring.current:
        raise CommandError("the secrets file has no key for seals: `turnpike secrets add-seal-key`")
    findings = [one for one in await audit.audit_money(admin.database) if one.what != NO_CHECKPOINT]
    for finding in findings:
        print(msgspec.json.encode(finding).decode())
    if findings:
        print(
            f"{counted(len(findings), 'finding')}: no checkpoint is written over books that are wrong", file=sys.stderr
        )
        return 1
    number = await write_checkpoint(admin.database, anew=True)
    print(f"checkpoint {number}, by key {admin.database.keyring.current}")
    return 0


@long_admin_command
async def audit_counts(admin: AdminServices, _arguments: argparse.Namespace) -> int:
    """`turnpike audit counts`: what each replica's journal counted against its usage events.

    Returns 1 if they differ, or if a replica with events was not compared and its journals are not declared lost.
    """
    from billing.replica_journals.lost_journals import known_journals
    from billing.usage import COUNTS
    from billing.verification.audit import ReplicaCounts, counts_by_replica
    from turnpike.processes.replica_probe import probe_replicas

    probes = await probe_replicas(admin.settings)
    since = {probe.hello.replica: probe.hello.since for probe in probes}
    events = {row.replica: row for row in await counts_by_replica(admin.database, since)}
    rows: list[tuple[str, str, int, int, str]] = []
    for probe in probes:
        name = probe.hello.replica
        metrics = probe.heartbeat.metrics if probe.heartbeat else {}
        billed = events.pop(name, ReplicaCounts(name, 0, {}))
        pairs = {"requests": ("requests_total", billed.requests)} | {
            count: (f"{count}_tokens_total", billed.counts.get(count, 0)) for count in COUNTS
        }
        ended = int(metrics.get("turnpike_engine_journal_requests_total", -1))
        waiting = int(metrics.get("turnpike_engine_journal_unacknowledged", 0))
        waits = 0 < ended - billed.requests <= waiting
        for what, (metric, in_events) in pairs.items():
            in_journal = int(metrics.get(f"turnpike_engine_journal_{metric}", -1))
            word = "unacknowledged in the journal" if waits and in_journal > in_events else "DIFFERENT"
            rows.append((name, what, in_journal, in_events, "equal" if in_journal == in_events else word))
    print_table(("replica", "count", "journal", "events", ""), rows)
    states: dict[str, set[str]] = defaultdict(set)
    for journal in await known_journals(admin.database):
        states[journal.replica].add(journal.state)
    not_compared = [name for name in events if states[name] != {"lost"}]
    for name in events:
        state = "does not answer" if name in not_compared else "was declared lost"
        print(f"{name} has events but {state}: not compared", file=sys.stderr)
    return 0 if rows and not not_compared and all(row[-1] == "equal" for row in rows) else 1
