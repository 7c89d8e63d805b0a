"""`turnpike cache stats|fsck|scrub|purge|forget|policy`: the records that replicas keep on disk, and their keys."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from storage.reported_error import ReportedError
from turnpike.command_context import admin_command, print_table
from turnpike.command_line import CommandError, CommandParser

if TYPE_CHECKING:
    from prompt_cache.promise.cache_domains import CacheDomains
    from prompt_cache.promise.scope_keys import ListedKey, ScopeKeys
    from prompt_cache.tiers.inspection import Finding, Inspection
    from protocol.replicas import TierLimit
    from turnpike.admin_services import AdminServices
    from turnpike.settings.settings import Settings

_MOST_SHOWN = 1000
_DEFAULT, _NONE = "default", "none"
_HARMLESS = frozenset({"expired", "purged", "unpublished", "other_identity", "no_key", "version"})
"""Causes that are no damage: a replica deletes such files by itself."""


def add_arguments(parser: CommandParser) -> None:
    """Declare the actions on records."""
    stats = parser.add_action(
        "stats", "what lies on disk, by model and project; beside a running replica too", show_stats
    )
    fsck = parser.add_action("fsck", "find files that are no whole records; the replica has to be stopped", check_files)
    scrub = parser.add_action("scrub", "as fsck, and decrypt every record to see that it is whole", scrub_records)
    purge = parser.add_action("purge", "delete records for good; the replica has to be stopped", purge_records)
    for action in (stats, fsck, scrub, purge):
        action.add_argument(
            "--folder",
            metavar="DIR",
            help="a replica's folder of records; default: that of --disk-folder, and those of serve's other replicas",
        )
        action.add_format("json")
    for action in (fsck, scrub):
        action.add_argument("--repair", action="store_true", help="delete what is found")
    purge.add_argument("--of", nargs=2, metavar=("TENANT", "PROJECT"), help="of this project only")
    purge.add_argument("--all", action="store_true", help="of every project")
    purge.add_argument("--expired", action="store_true", help="what has expired, of every project")
    purge.add_dry_run()
    text = "destroy a project's data key: nothing that it sealed can ever be read again, on any disk or copy of one"
    forget = parser.add_action("forget", text, forget_project)
    text = "show how long and how much of a project's KV may leave the device, or set what the flags say"
    policy = parser.add_action("policy", text, set_policy)
    for action in (forget, policy):
        action.add_argument("tenant", metavar="TENANT")
        action.add_argument("project", metavar="PROJECT")
    forget.add_argument("--reason", required=True, help="why; kept for ever")
    forget.add_dry_run()
    text = f"at most 7 days; 0: never; {_DEFAULT}: that of --cache-retention again"
    policy.add_argument("--retention", metavar="SECONDS", help=text)
    text = (
        "such as nvme=1000000:5000000: bytes that others cannot take, and the most; may be repeated; "
        f"nvme={_NONE} takes the tier's limit back"
    )
    policy.add_argument("--limit", action="append", default=[], metavar="TIER=RESERVE:LIMIT", help=text)
    policy.add_dry_run()


# ---------------------------------------------------------------- records


@admin_command
async def show_stats(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike cache stats`."""
    from prompt_cache.tiers.inspection import look

    found = [one for folder in _folders(admin.settings, arguments) for one in look(folder)]
    names = await _scope_names(admin)
    if arguments.format == "json":
        rows = [
            msgspec.to_builtins(one) | {"projects": {s: names[s] for s in one.scopes if s in names}} for one in found
        ]
        print(msgspec.json.encode(rows).decode())
        return
    print_table(
        ("identity", "model", "numerics", "project", "records", "bytes", "unreadable", "unpublished"),
        [
            (
                one.identity[:8],
                one.model_digest[:8],
                one.numerics[:24],
                names.get(scope, scope),
                held.records,
                held.bytes,
                one.unreadable,
                one.unpublished,
            )
            for one in found
            for scope, held in [("all", one.held), *sorted(one.scopes.items(), key=lambda item: -item[1].bytes)]
        ],
    )


@admin_command
async def check_files(admin: AdminServices, arguments: argparse.Namespace) -> int:
    """`turnpike cache fsck`: 1 if damage was found that is not repaired."""
    with _inspections(admin, arguments) as inspections:
        return _report(inspections, [found for one in inspections for found in one.check()], arguments)


@admin_command
async def scrub_records(admin: AdminServices, arguments: argparse.Namespace) -> int:
    """`turnpike cache scrub`: 1 if damage was found that is not repaired."""
    from prompt_cache.tiers.identity import ScopeAccess

    keys, domains = _keys_and_domains(admin)
    accesses: dict[str, ScopeAccess] = {}
    for one in await keys.listed():
        if one.key is not None:
            root = domains.root(one.tenant_id, one.project_id)
            name = domains.name(one.tenant_id, one.project_id, one.generation)
            accesses[name] = ScopeAccess(name, one.key.derive(root), float("inf"))
    with _inspections(admin, arguments) as inspections:
        return _report(inspections, [found for one in inspections for found in one.check(accesses.get)], arguments)


@admin_command
async def purge_records(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike cache purge`."""
    from audit_log.record import record_change

    if sum(map(bool, (arguments.of, arguments.all, arguments.expired))) != 1:
        raise CommandError("say what to purge: --of TENANT PROJECT, --all or --expired")
    scopes = tenant_id = project_id = None
    if arguments.of:
        _, domains = _keys_and_domains(admin)
        tenant_id, project_id = await _project(admin, *arguments.of)
        listed = [one for one in await _listed(admin) if one.project_id == project_id]
        scopes = [domains.name(tenant_id, project_id, one.generation) for one in listed]
    with _inspections(admin, arguments) as inspections:
        purged = {
            one.folder: one.purge(scopes, expired_only=arguments.expired, dry_run=arguments.dry_run)
            for one in inspections
        }
    if not arguments.dry_run:
        async with admin.database.transaction() as session:  # the records lie on this machine, not in the database
            for folder, told in purged.items():
                await record_change(
                    session,
                    "cache_records.purged",
                    target="kv_folder",
                    target_id=str(folder),
                    tenant_id=tenant_id,
                    project_id=project_id,
                    before={"records": told["records"], "bytes": told["bytes"], "expired_only": arguments.expired},
                )
    records, size = (sum(told[name] for told in purged.values()) for name in ("records", "bytes"))
    if arguments.format == "json":
        print(msgspec.json.encode({"records": records, "bytes": size}).decode())
    else:
        print(f"{'would purge' if arguments.dry_run else 'purged'} {records} records, {size} bytes")


def _report(inspections: Sequence[Inspection], found: list[Finding], arguments: argparse.Namespace) -> int:
    """Print what was found, and delete it if that was asked for."""
    checked, tombstones = sum(one.checked for one in inspections), sum(one.tombstones for one in inspections)
    causes = Counter(finding.cause for finding in found)
    left = [finding for finding in found if not (arguments.repair and _deleted(finding.file))]
    if arguments.format == "json":
        shown = [msgspec.to_builtins(finding) for finding in found[:_MOST_SHOWN]]
        told = {"checked": checked, "tombstones": tombstones, "causes": causes, "found": shown}
        print(msgspec.json.encode(told).decode())
    else:
        print_table(("cause", "files"), sorted(causes.items()))
        deleted = f"{len(found) - len(left)} deleted, {len(left)} cannot be deleted" if left else "all deleted"
        repaired = f", {deleted}" if arguments.repair and found else ""
        print(f"{checked} files, {len(found)} of no use{repaired}; {tombstones} purges remembered")
    return 1 if {finding.cause for finding in left} - _HARMLESS else 0


def _deleted(file: str) -> bool:
    """Delete a file; whether it is gone. A folder is not deleted: nobody knows whose it is."""
    try:
        Path(file).unlink(missing_ok=True)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _inspections(admin: AdminServices, arguments: argparse.Namespace) -> Iterator[list[Inspection]]:
    """The folders, all held alone before anything is done in one of them."""
    from prompt_cache.tiers.inspection import Inspection
    from prompt_cache.tiers.store_state import StoreLocked

    with contextlib.ExitStack() as held:
        try:
            yield [held.enter_context(Inspection(folder)) for folder in _folders(admin.settings, arguments)]
        except StoreLocked as error:
            raise StoreLocked(f"{error}: stop it first; `turnpike cache stats` works beside it") from error


def _folders(settings: Settings, arguments: argparse.Namespace) -> list[Path]:
    """The folder that is named; else that of a replica alone, and what further replicas of `serve` have left."""
    if arguments.folder:
        return [Path(os.path.abspath(arguments.folder))]
    first, *further = (one.kv_folder for one in settings.own_replicas)
    return [first, *(folder for folder in further if folder.is_dir())]


# ---------------------------------------------------------------- keys


@admin_command
async def forget_project(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike cache forget TENANT PROJECT --reason WHY`."""
    tenant_id, project_id = await _project(admin, arguments.tenant, arguments.project)
    whose = f"the data key of {arguments.tenant}/{arguments.project}"
    if arguments.dry_run:
        living = [one for one in await _listed(admin) if one.project_id == project_id and one.destroyed_at is None]
        print(f"would destroy {whose}" if living else f"{whose} does not exist, or is destroyed already")
        return
    keys, _ = _keys_and_domains(admin)
    generation = await keys.destroy(tenant_id, project_id, arguments.reason)
    if generation:
        print(f"destroyed {whose} (generation {generation}); gateways tell replicas within seconds, or when they start")
    else:
        print(f"{whose} does not exist, or is destroyed already")


@admin_command
async def set_policy(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike cache policy TENANT PROJECT`: show the policy, or change the parts that flags name."""
    tenant_id, project_id = await _project(admin, arguments.tenant, arguments.project)
    keys, _ = _keys_and_domains(admin)
    retention, limits = await keys.policy(tenant_id, project_id)
    if arguments.retention is not None:
        retention = _retention(arguments.retention)
    by_tier = {limit.tier: limit for limit in limits} | dict(map(_limit, arguments.limit))
    limits = tuple(limit for limit in by_tier.values() if limit is not None)
    changes = arguments.retention is not None or bool(arguments.limit)
    if changes and not arguments.dry_run:
        changed_retention = msgspec.UNSET if arguments.retention is None else retention
        changed_limits = limits if arguments.limit else msgspec.UNSET
        await keys.set_policy(tenant_id, project_id, retention=changed_retention, limits=changed_limits)
    how_long = "as --cache-retention says" if retention is None else f"for {retention} s" if retention else "never"
    told = ", ".join(f"{limit.tier}={limit.reserve}:{limit.limit}" for limit in limits) or "none of its own"
    print(
        f"{'would set: ' if changes and arguments.dry_run else ''}"
        f"KV of {arguments.tenant}/{arguments.project} may leave the device {how_long}; limits: {told}"
    )


def _retention(text: str) -> int | None:
    from prompt_cache.tiers.record_io import LONGEST_RETENTION_S

    if text == _DEFAULT:
        return None
    if not text.isdecimal():
        raise CommandError(f"--retention: {text!r} is neither a number of seconds nor {_DEFAULT!r}")
    if len(text) > 18 or int(text) > LONGEST_RETENTION_S:
        raise CommandError(
            f"--retention: {text} s are more than the {LONGEST_RETENTION_S:.0f} s that a record may live"
        )
    return int(text)


def _limit(text: str) -> tuple[str, TierLimit | None]:
    """A tier and its limit, None to take it back."""
    from protocol.replicas import TIERS, TierLimit

    tier, _, numbers = text.partition("=")
    if tier in TIERS and numbers == _NONE:
        return tier, None
    reserve, _, most = numbers.partition(":")
    if tier not in TIERS or not reserve.isdecimal() or not most.isdecimal() or int(reserve) > int(most):
        forms = f"TIER=RESERVE:LIMIT or TIER={_NONE}"
        raise CommandError(f"--limit: {text!r} is not {forms} with a tier of {', '.join(TIERS)}")
    return tier, TierLimit(tier, int(reserve), int(most))


async def _project(admin: AdminServices, tenant: str, project: str) -> tuple[UUID, UUID]:
    owner = await admin.tenancy.tenant(tenant)
    ids = {one.name: one.id for one in await admin.tenancy.list_projects(owner.id)}
    if project not in ids:
        raise CommandError(f"tenant {tenant} has no project {project!r}")
    return owner.id, ids[project]


async def _listed(admin: AdminServices) -> list[ListedKey]:
    return await _keys_and_domains(admin)[0].listed()


async def _scope_names(admin: AdminServices) -> dict[str, str]:
    """Scope → TENANT/PROJECT, of destroyed keys too."""
    _, domains = _keys_and_domains(admin)
    shown = await admin.display_names()
    try:
        listed = await _listed(admin)
    except ReportedError:  # another master key: the files can be counted all the same
        return {}
    return {
        domains.name(one.tenant_id, one.project_id, one.generation): "/".join(
            (shown.tenants.get(one.tenant_id, "?"), shown.projects.get(one.project_id, "?"))
        )
        + ("" if one.destroyed_at is None else " (forgotten)")
        for one in listed
    }


def _keys_and_domains(admin: AdminServices) -> tuple[ScopeKeys, CacheDomains]:
    from prompt_cache.promise.cache_domains import CacheDomains
    from prompt_cache.promise.scope_keys import ScopeKeys
    from turnpike.settings.data_folder import read_secrets

    secrets = read_secrets(admin.settings)
    keys = ScopeKeys(admin.database, secrets.master_key)
    return keys, CacheDomains(secrets.scope_secret, keys)
