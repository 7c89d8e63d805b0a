"""`turnpike audit isolation`: attack the prompt cache of a running gateway as two projects of its own."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from turnpike.command_context import long_admin_command, print_table
from turnpike.command_line import CommandError, CommandParser
from turnpike.commands.audit.isolation_places import DRAFTS, TIERS

if TYPE_CHECKING:
    from turnpike.admin_services import AdminServices
    from turnpike.commands.audit.isolation_audit import Asked
    from turnpike.commands.audit.isolation_probe import Oracle, Report, Timing

_SAMPLES, _WORDS = 250, 1000
_TIMEOUT_S = 120.0
_PROJECTS = ("isolation-audit-victim", "isolation-audit-attacker")


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike audit isolation`."""
    text = "try to tell one project's prompts from another; exits 1 if that succeeds, or if the control fails"
    action = parser.add_action("isolation", text, audit_isolation)
    action.add_argument("--tenant", required=True, metavar="NAME", help="who pays; gets two projects of their own")
    action.add_argument("--served-model", required=True, metavar="NAME", help="which one to ask")
    action.add_argument("--url", help="the gateway's; default: as in the settings")
    action.add_argument("--samples", type=int, default=_SAMPLES, metavar="N", help="of each kind; default: %(default)s")
    action.add_argument("--words", type=int, default=_WORDS, metavar="N", help="of a prompt; default: %(default)s")
    action.add_argument("--seed", type=int, metavar="N", help="of the prompts; default: random")
    text = "attack prompts that lie in this tier alone, driven there by others; may be repeated; default: as they lie"
    action.add_argument("--tier", action="append", default=[], choices=TIERS, help=text)
    text = "measure again after this shell command, such as restart=COMMAND; may be repeated"
    action.add_argument("--after", action="append", default=[], metavar="NAME=COMMAND", help=text)
    text = "attack what replicas remember of outputs: does an answer come quicker that the other project had?"
    action.add_argument("--drafts", action="store_true", help=text)
    action.add_argument(
        "--json", metavar="FILE", help="write the report with all times, now and then before the end too"
    )
    text = "go on with the audit that was interrupted and had begun to write its report to --json"
    action.add_argument("--resume", action="store_true", help=text)


@long_admin_command
async def audit_isolation(admin: AdminServices, arguments: argparse.Namespace) -> int:
    """`turnpike audit isolation`: 1 if a project can tell what another has sent, or the audit could not tell."""
    import httpx

    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request
    from turnpike.commands.audit.isolation_audit import IsolationAudit, interrupted
    from turnpike.commands.audit.isolation_probe import IsolationProbe

    url = arguments.url or f"http://{admin.settings.host}:{admin.settings.port}"
    steps = [_step(text) for text in arguments.after]
    asked = _asked(arguments, url, steps)
    path = Path(arguments.json) if arguments.json else None
    if arguments.resume and (path is None or arguments.seed is not None):
        raise CommandError("--resume: name its report with --json, and no --seed, which would draw its prompts again")
    kept = await asyncio.to_thread(interrupted, path, asked) if arguments.resume and path else ()
    async with (
        _keys(admin, arguments.tenant) as keys,
        httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_S) as client,
    ):
        probe = IsolationProbe(client, arguments.served_model, *keys, prompt_words=arguments.words, seed=arguments.seed)
        audit = IsolationAudit(probe, asked, path, kept)
        try:
            report = await audit.run(steps)
        except httpx.HTTPError as error:
            raise CommandError(f"the gateway at {url} did not answer the audit: {error}") from error
    return _print(report)


def _asked(arguments: argparse.Namespace, url: str, steps: list[tuple[str, str]]) -> Asked:
    from turnpike.commands.audit.isolation_audit import Asked

    tiers, names = tuple(arguments.tier), tuple(name for name, _ in steps)
    places = (*tiers, *names, *([DRAFTS.name] if arguments.drafts else []))
    if len(set(places)) < len(places):
        raise CommandError("--tier, --after: two steps have one name")
    of = (url, arguments.tenant, arguments.served_model, arguments.samples, arguments.words, tiers, names)
    return Asked(*of, drafts=arguments.drafts)


@asynccontextmanager
async def _keys(admin: AdminServices, tenant: str) -> AsyncIterator[tuple[str, str]]:
    """Keys of the two projects, which are made once; the keys are revoked at the end."""
    owner = await admin.tenancy.tenant(tenant)
    projects = {project.name: project for project in await admin.tenancy.list_projects(owner.id)}
    issued = []
    try:
        for name in _PROJECTS:
            project = projects.get(name) or await admin.tenancy.create_project(owner.id, name)
            issued.append(await admin.tenancy.create_key(owner.id, project.id))
        yield issued[0].key, issued[1].key
    finally:
        for key in issued:
            await admin.tenancy.revoke(key.public_id, owner.id)


def _step(text: str) -> tuple[str, str]:
    name, equals, command = text.partition("=")
    if not (name and equals and command):
        raise CommandError(f"--after {text[:80]!r} is not NAME=COMMAND")
    return name, command


def _print(report: Report) -> int:
    head = ("place", "samples", "other project: p", "shared, new ms", "same project: p", "shared, new ms", "read there",
            "cached told", "oracles", "")  # fmt: skip
    places = list(dict.fromkeys(timing.place for timing in report.timings))
    print_table(head, [_row(report, place) for place in places])
    print()
    asked = dict.fromkeys(oracle.name for oracle in report.oracles)
    answers = {(oracle.name, oracle.place): oracle for oracle in report.oracles}
    print_table(
        ("the attacker asks", *(place or "as it lies" for place in places)),
        [(name, *(_answer(answers.get((name, place))) for place in places)) for name in asked],
    )
    if report.leaks:
        print("a project can tell what another has sent", file=sys.stderr)
    elif not report.has_power:
        print(
            "the control was not detected, or prompts did not lie where they should, so this says nothing: take more "
            "samples or longer prompts",
            file=sys.stderr,
        )
    else:
        print("no project can tell what another has sent", file=sys.stderr)
    return 1 if report.leaks or not report.has_power else 0


def _row(report: Report, place: str) -> tuple[object, ...]:
    """The line of a place: both attacks on it, and what the oracles told."""
    same, other = (
        next(timing for timing in report.timings if (timing.place, timing.same_project) == (place, whose))
        for whose in (True, False)
    )
    oracles = [oracle for oracle in report.oracles if oracle.place == place]
    leaking = sum(oracle.leaks for oracle in oracles)
    alone = [timing for timing in (same, other) if timing.looked]
    verdict = "LEAKS" if other.detected or leaking else "isolated"
    return (
        place or "as it lies",
        f"{len(other.shared)} + {len(other.new)}",
        f"{other.test.p:.2g}",
        _medians(other),
        f"{same.test.p:.2g}",
        _medians(same),
        " / ".join(f"{timing.there} of {timing.looked}" for timing in alone),
        other.cached,
        f"{leaking} leak" if leaking else f"{len(oracles)} silent",
        verdict if report.has_power_at(place) else f"{verdict}, as far as can be told",
    )


def _answer(oracle: Oracle | None) -> str:
    return "" if oracle is None else f"{oracle.answer}{', LEAKS' if oracle.leaks else ''}"


def _medians(timing: Timing) -> str:
    return ", ".join(f"{_median_ms(seconds):.1f}" for seconds in (timing.shared, timing.new))


def _median_ms(seconds: tuple[float, ...]) -> float:
    return 1000 * sorted(seconds)[len(seconds) // 2]
