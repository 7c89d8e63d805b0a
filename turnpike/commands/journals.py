"""`turnpike journals`: list the replicas' journals, and declare one lost with its disk."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from billing.money import format_pico
from storage.free_text import counted
from turnpike.command_context import admin_command, print_table
from turnpike.command_line import CommandError, CommandParser
from turnpike.operator_identity import act_for

if TYPE_CHECKING:
    from billing.replica_journals.lost_journals import KnownJournal
    from turnpike.admin_services import AdminServices
    from turnpike.processes.replica_probe import Probe
    from turnpike.settings.settings import Settings


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike journals …`."""
    listing = parser.add_action("list", "the journals that gateways have met, and what waits for them", list_journals)
    listing.add_format("json")
    text = "stop waiting for a journal that is lost with its disk; the holds that only it may know are given back"
    lost = parser.add_action("declare-lost", text, declare_journal_lost)
    lost.add_argument("journal", metavar="REPLICA", help="the replica's name, or the journal's id from the list")
    lost.add_argument("--reason", required=True, help="what happened to it; kept for ever")
    lost.add_argument("--by", help="who says so; default: who runs the command")


@admin_command
async def list_journals(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike journals list`."""
    from billing.replica_journals.lost_journals import known_journals
    from storage.database.base import from_instant
    from turnpike.processes.replica_probe import probe_replicas

    answering = _journals(await probe_replicas(admin.settings))
    journals = [(_state(journal, answering), journal) for journal in await known_journals(admin.database)]
    if arguments.format == "json":
        rows = [msgspec.to_builtins(journal) | {"state": state} for state, journal in journals]
        print(msgspec.json.encode(rows).decode())
        return
    print_table(
        ("replica", "journal", "state", "met last", "gateway runs that wait", "open holds", "held", "reason"),
        [
            (
                journal.replica,
                journal.journal,
                state,
                from_instant(journal.seen_at).isoformat(timespec="seconds"),
                journal.epochs,
                journal.holds,
                format_pico(journal.held_pico),
                journal.reason,
            )
            for state, journal in journals
        ],
    )


@admin_command
async def declare_journal_lost(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike journals declare-lost REPLICA`.

    Raises CommandError if nobody said where the replicas are: then none could say that it has the journal.
    """
    from billing.replica_journals.lost_journals import declare_lost
    from storage.database.base import from_instant
    from turnpike.admin_services import system_user
    from turnpike.processes.replica_probe import ask_replicas

    _check_addresses(admin.settings)
    asked = await ask_replicas(admin.settings)
    for address, found in asked.items():
        print(f"asked {address}: {f'{found.hello.replica} answers' if found else 'nothing answers'}")
    loss = await declare_lost(
        admin.database,
        arguments.journal,
        author=act_for(arguments.by) or system_user(),
        reason=arguments.reason,
        answering=_journals(found for found in asked.values() if found is not None),
    )
    at = from_instant(loss.at).isoformat(timespec="seconds")
    print(
        f"journal {loss.journal} of {loss.replica} is declared lost since {at} by {loss.author}: {loss.reason}\n"
        f"requests of it that are recorded: {loss.events}; numbers without an event, whose counts nobody "
        f"will know: {loss.missing}\n"
        f"{counted(loss.holds, 'open hold')}, {format_pico(loss.held_pico)} in all, waited for it: "
        f"a gateway gives back those that no other journal knows"
    )


def _check_addresses(settings: Settings) -> None:
    """Raise CommandError where neither `--replicas` nor a `serve` of this data folder says where replicas are."""
    if not settings.replicas:
        raise CommandError(
            "--replicas: name the addresses of all replicas, that of the lost one too: they are asked whether one has "
            "the journal"
        )


def _journals(probes: Iterable[Probe]) -> set[str]:
    """The journals of the replicas that answer.

    A replica also answers for the journal that it had before journals had identities.
    """
    from gateway.fleet.replica_link import unnamed_journal

    hellos = [probe.hello for probe in probes]
    unnamed = {unnamed_journal(hello.replica) for hello in hellos if not hello.since}
    return unnamed | {hello.journal for hello in hellos if hello.journal}


def _state(journal: KnownJournal, answering: set[str]) -> str:
    if journal.journal in answering:
        return "answers"
    return "declared lost" if journal.state == "lost" else "does not answer"
