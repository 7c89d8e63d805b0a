"""`turnpike journals …`: replicas' journals, and the audited end of one that is lost."""

from __future__ import annotations

import argparse

import msgspec

from billing.money import format_pico
from billing.replica_journals.lost_journals import KnownJournal, declare_lost, known_journals
from gateway.fleet.replica_link import unnamed_journal
from storage.database.base import from_instant
from storage.free_text import counted
from turnpike.admin_services import AdminServices, system_user
from turnpike.commands.running import table, with_admin_services
from turnpike.processes.replica_probe import probe_replicas
from turnpike.settings.settings import Settings


def list_journals(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike journals list`."""

    async def work(admin: AdminServices) -> int:
        answering = await _answering(settings)
        found = [(_state(one, answering), one) for one in await known_journals(admin.database)]
        if arguments.format == "json":
            rows = [msgspec.to_builtins(one) | {"state": state} for state, one in found]
            print(msgspec.json.encode(rows).decode())
            return 0
        table(
            ("replica", "journal", "state", "met last", "gateway runs that wait", "open holds", "held", "reason"),
            [
                (
                    one.replica,
                    one.journal,
                    state,
                    from_instant(one.seen_at).isoformat(timespec="seconds"),
                    one.epochs,
                    one.holds,
                    format_pico(one.held_pico),
                    one.reason,
                )
                for state, one in found
            ],
        )
        return 0

    return with_admin_services(settings, work)


def declare_journal_lost(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike journals declare-lost REPLICA`."""

    async def work(admin: AdminServices) -> int:
        loss = await declare_lost(
            admin.database,
            arguments.journal,
            author=arguments.by or system_user(),
            reason=arguments.reason,
            answering=await _answering(settings),
        )
        at = from_instant(loss.at).isoformat(timespec="seconds")
        print(
            f"journal {loss.journal} of {loss.replica} is declared lost since {at} by {loss.author}: {loss.reason}\n"
            f"requests of it that are recorded: {loss.events}; numbers without an event, whose counts nobody "
            f"will know: {loss.missing}\n"
            f"{counted(loss.holds, 'open hold')}, {format_pico(loss.held_pico)} in all, waited for it: "
            f"a gateway gives back those that no other journal knows"
        )
        return 0

    return with_admin_services(settings, work)


async def _answering(settings: Settings) -> set[str]:
    """The journals of the replicas that answer, those without an identity too: a replica speaks for what its journal
    was before it had one."""
    hellos = [probe.hello for probe in await probe_replicas(settings)]
    older = {unnamed_journal(hello.replica) for hello in hellos if not hello.since}
    return older | {hello.journal for hello in hellos if hello.journal}


def _state(one: KnownJournal, answering: set[str]) -> str:
    if one.journal in answering:
        return "answers"
    return "declared lost" if one.state == "lost" else "does not answer"
