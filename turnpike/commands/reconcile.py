"""`turnpike reconcile`: compare the books of a period with each other and with journals."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

import msgspec

from billing.money import format_pico
from turnpike.command_context import long_admin_command, print_table, this_month
from turnpike.command_line import CommandParser

if TYPE_CHECKING:
    from billing.replica_journals.comparison import JournalReport
    from billing.verification.reconciliation import Report
    from turnpike.admin_services import AdminServices
    from turnpike.settings.settings import Settings

_REQUESTS = "turnpike_engine_journal_requests_total"
_UNACKNOWLEDGED = "turnpike_engine_journal_unacknowledged"


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike reconcile`."""
    parser.runs(reconcile_period)
    parser.add_argument("--period", help="such as 2026-11; default: this month (UTC)")
    parser.add_format("json")


@long_admin_command
async def reconcile_period(admin: AdminServices, arguments: argparse.Namespace) -> int:
    """`turnpike reconcile`: 1 if anything was lost or doubled, if books differ, or if a journal was not compared."""
    from billing.verification.reconciliation import reconcile

    report = await reconcile(admin.database, arguments.period or this_month(), await _journals(admin.settings))
    if arguments.format == "json":
        print(msgspec.json.encode(report).decode())
    else:
        _print(report)
    print(_verdict(report), file=sys.stderr)
    return 0 if report.clean and not report.not_compared else 1


def _verdict(report: Report) -> str:
    if report.clean and report.not_compared:
        away = ", ".join(sorted({journal.replica for journal in report.not_compared}))
        advice = "name all replicas with --replicas; for one that will not come back, see `turnpike journals list`"
        return f"not compared: the journals of {away} do not answer; {advice}"
    if report.clean:
        lost = f"; {report.declared_lost} in journals that were declared lost" if report.declared_lost else ""
        return f"nothing lost, nothing doubled, no drift{lost}"
    if report.lost or report.doubled or report.drift_pico:
        return "the books differ"
    if report.gone:
        return "a journal is gone: bring it back, or see `turnpike journals list`"
    return "not all is settled: some requests are unacknowledged in a journal"


async def _journals(settings: Settings) -> list[JournalReport]:
    """What the replicas that answer say of their journals."""
    from billing.replica_journals.comparison import JournalReport
    from turnpike.processes.replica_probe import probe_replicas

    return [
        JournalReport(
            probe.hello.replica,
            int(probe.heartbeat.metrics[_REQUESTS]),
            int(probe.heartbeat.metrics.get(_UNACKNOWLEDGED, 0)),
            probe.hello.journal,
            probe.hello.since,
        )
        for probe in await probe_replicas(settings)
        if probe.heartbeat is not None and _REQUESTS in probe.heartbeat.metrics
    ]


_STATES = {
    "away": "does not answer",
    "gone": "is gone, another one answers in its place",
    "lost": "was declared lost",
}


def _print(report: Report) -> None:
    percent = f"{1000 * report.unconfirmed // max(1, report.events) / 10} %"
    cost = ", ".join(f"{format_pico(pico)} {currency}" for currency, pico in sorted(report.cost_pico.items()))
    rows: list[tuple[str, object]] = [
        ("period", f"{report.period} ({report.state})"),
        ("requests", report.events),
        ("cost", cost or "nothing"),
        ("adjustments", report.adjustments),
        ("attempts lost", report.lost_attempts),
        ("lost", report.lost),
        ("unacknowledged in a journal", report.unacknowledged),
        ("declared lost", report.declared_lost),
        ("doubled", report.doubled),
        ("late", report.late),
        ("unconfirmed", f"{report.unconfirmed} ({percent})"),
        ("drift, pico-units", report.drift_pico),
        ("tenants invoiced", f"{report.invoiced} of {report.tenants}"),
    ]
    print_table(("", "found"), rows)
    for drift in report.drifts:
        invoiced = "no invoice" if drift.invoiced is None else f"invoice {drift.invoiced}"
        books = f"events {drift.events}, rollups {drift.rollups}, ledger {drift.ledger}, {invoiced}"
        print(f"tenant {drift.tenant_id}: {books} pico-units of {drift.currency}")
    for run in report.sequences:
        for first, last in run.missing:
            print(f"replica {run.replica}, epoch {run.epoch}: no event for journal sequences {first} to {last}")
        if run.repeated:
            print(f"replica {run.replica}, epoch {run.epoch}: journal sequences with several events: {run.repeated}")
    for journal in report.journals:
        if journal.state == "answers" and journal.requests != journal.events:
            print(
                f"replica {journal.replica}: requests in its journal {journal.requests}, with events "
                f"{journal.events}, unacknowledged {journal.unacknowledged}"
            )
        elif journal.state != "answers":
            print(
                f"replica {journal.replica}: journal {journal.journal} {_STATES[journal.state]}; "
                f"requests of it with events: {journal.events}"
            )
