"""`turnpike reconcile`: a billing period's books against each other and against the replicas' journals."""

from __future__ import annotations

import argparse
import sys
import time

import msgspec

from billing.money import format_pico
from billing.replica_journals.comparison import JournalReport
from billing.verification.reconciliation import Report, reconcile
from turnpike.admin_services import AdminServices
from turnpike.commands.running import table, with_admin_services
from turnpike.processes.replica_probe import probe_replicas
from turnpike.settings.settings import Settings

_REQUESTS = "turnpike_engine_journal_requests_total"
_UNACKNOWLEDGED = "turnpike_engine_journal_unacknowledged"


def reconcile_period(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike reconcile`: 1 if anything was lost or doubled, or if the books differ."""

    period = arguments.period or time.strftime("%Y-%m", time.gmtime())

    async def work(admin: AdminServices) -> int:
        report = await reconcile(admin.database, period, await _journals(settings))
        if arguments.format == "json":
            print(msgspec.json.encode(report).decode())
        else:
            _print(report)
        print(_verdict(report), file=sys.stderr)
        return 0 if report.clean else 1

    return with_admin_services(settings, work)


def _verdict(report: Report) -> str:
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
    return [
        JournalReport(
            probe.hello.replica,
            int(probe.beat.metrics[_REQUESTS]),
            int(probe.beat.metrics.get(_UNACKNOWLEDGED, 0)),
            probe.hello.journal,
            probe.hello.since,
        )
        for probe in await probe_replicas(settings)
        if probe.beat is not None and _REQUESTS in probe.beat.metrics
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
    table(("", "found"), rows)
    for drift in report.drifts:
        invoiced = "no invoice" if drift.invoiced is None else f"invoice {drift.invoiced}"
        books = f"events {drift.events}, rollups {drift.rollups}, ledger {drift.ledger}, {invoiced}"
        print(f"tenant {drift.tenant_id}: {books} pico-units of {drift.currency}")
    for each in report.sequences:
        for first, last in each.missing:
            print(f"replica {each.replica}, epoch {each.epoch}: no event for journal sequences {first} to {last}")
        if each.repeated:
            print(f"replica {each.replica}, epoch {each.epoch}: journal sequences with several events: {each.repeated}")
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
