"""`turnpike serve`: run everything on this machine, with nothing to set up.

The gateway and the worker's jobs run in this process, one replica in a child. Only the storage differs from production.
The port and the data folder are checked before anything is started.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import json
import os
import shlex
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import structlog

from audit_log.actors import Actor, acting_as
from model_files.model_documents import own_name
from turnpike.command_context import CURRENCY, DEFAULT_PROJECT
from turnpike.command_line import CommandParser
from turnpike.processes import listener
from turnpike.processes.children import AFTER_DRAIN_S, Child
from turnpike.processes.event_loop import run_role, tasks_beside
from turnpike.settings.data_folder import (
    DataFolderError,
    gateway_folder,
    prepare_data_folder,
    protect_data_folder,
    record_address,
    record_served,
)
from turnpike.settings.loading import to_environment
from turnpike.settings.settings import SERVE, SettingError, Settings

if TYPE_CHECKING:
    from gateway.server import GatewayServer
    from gateway.services import Gateway, GatewayServices
    from turnpike.admin_services import AdminServices
    from turnpike.processes.worker import Job

DEMO_TENANT = "demo"
DEMO_GRANT_PICO = 100 * 10**12
DEMO_QUESTION = "What does textwrap.dedent do?"
READY_POLL_S = 0.05
KEY_FILE = "api-key"
LINK_FILE = "sign-in-link"
FIRST_OWNER = "owner@localhost"
_MOST_MODELS = 8
LEAST_SILENCE_S = 30.0
"""A replica that was silent for less is not killed."""

logger = structlog.get_logger(__name__)


class Sockets(NamedTuple):
    """The sockets of the API, and of metrics and health if `--metrics-listen` names one."""

    api: socket.socket
    metrics: socket.socket | None


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike serve`."""
    parser.runs(serve, SERVE)


def serve(settings: Settings, _arguments: argparse.Namespace) -> int:
    """`turnpike serve`: run until SIGINT or SIGTERM. Raises ReportedError for what makes it impossible."""
    if len(settings.model_folders) > _MOST_MODELS:
        raise SettingError(
            f"model: serve runs at most {_MOST_MODELS} models; for more, run turnpike gateway and an engine for each"
        )
    sockets = Sockets(listener.listen(settings), listener.listen_for_metrics(settings))
    prepare_data_folder(settings)
    protect_data_folder(settings)
    with _sole_owner(settings.data), gateway_folder(settings) as own:
        record_served(own)
        return run_role(_serve(own, sockets))


@contextlib.contextmanager
def _sole_owner(folder: Path) -> Iterator[None]:
    """Hold the data folder's lock. Raises DataFolderError when another `serve` has it."""
    with (folder / "serve.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DataFolderError(f"data_dir: another turnpike serve runs in {folder}") from error
        yield


async def _serve(settings: Settings, sockets: Sockets) -> int:
    from turnpike.demonstration.stand_in import with_stand_in

    async with with_stand_in(settings, listener.url(sockets.api)) as own:
        return await _serve_with(own, sockets)


async def _serve_with(settings: Settings, sockets: Sockets) -> int:
    from gateway.served_models.registry import ModelRegistry
    from turnpike.admin_services import open_admin_services, read_secrets_of_serve
    from turnpike.processes.gateway import open_gateway_services
    from turnpike.processes.worker import job_database, jobs

    registry = ModelRegistry.load(settings.model_folders, settings.aliases)
    (settings.data / "run").mkdir(mode=0o700, exist_ok=True)
    secrets = await read_secrets_of_serve(settings)
    replicas = _replicas(settings)
    # Replicas take longest to start, so they start first, beside the migration.
    running = [asyncio.create_task(replica.run()) for replica in replicas]
    try:
        async with open_admin_services(settings, "always") as admin, job_database(admin) as database:
            all_jobs = jobs(admin, database)  # before anything is made: a setting may be wrong
            with acting_as(_starter()):
                await _provide_demo(admin)
            async with open_gateway_services(settings, admin, secrets, registry) as services:
                # Longer than its own watchdog waits, which logs where the replica stands.
                longest_silence_s = max(2 * settings.stall_timeout, LEAST_SILENCE_S)
                watching = [
                    asyncio.create_task(kill_when_silent(replica, link, longest_silence_s))
                    for replica, link in zip(replicas, services.fleet.links, strict=True)
                ]
                try:
                    await _run(admin, services, all_jobs, sockets, running)
                finally:
                    for task in watching:
                        task.cancel()
    finally:
        await asyncio.gather(*(replica.stop(settings.drain_timeout + AFTER_DRAIN_S) for replica in replicas))
        await asyncio.wait(running)
    for ran in running:
        ran.result()  # raises ChildFailed when a replica could not start
    return 0


def _replicas(settings: Settings) -> list[Child]:
    """A replica of each model."""
    several = len(settings.model_folders) > 1
    children = []
    for at, (folder, address) in enumerate(zip(settings.model_folders, settings.own_replica_addresses, strict=True)):
        environment = to_environment(settings.of_replica(at)) | {
            "TURNPIKE_SECRETS_FILE": str(settings.secrets),  # the file that was just made
            "TURNPIKE_MODEL": str(folder),
            "TURNPIKE_DRAFT_MODEL": str(settings.draft_folder(at) or ""),
            "TURNPIKE_ATTENTION": settings.attention_of(at),
            "TURNPIKE_SPECULATION": ",".join(settings.drafters_of(at)) or "off",
        }
        name = f"replica of {own_name(folder)}" if several else "replica"
        children.append(Child(name, ["engine", "--listen", address, "--replica-name", f"replica-{at}"], environment))
    return children


async def _run(
    admin: AdminServices,
    services: GatewayServices,
    all_jobs: Sequence[Job],
    sockets: Sockets,
    replicas: list[asyncio.Task[None]],
) -> None:
    """Answer requests and do the worker's jobs until a signal, or until one of them or a replica cannot be kept
    running."""
    from gateway.app import create_app, gateway_of
    from gateway.server import GatewayServer
    from turnpike.processes.gateway import serve_until_signal
    from turnpike.processes.worker import repeat_jobs

    app = create_app(services)
    gateway_of(app).start_problem = "the first API key is not written yet"
    server = GatewayServer(app, internal=sockets.metrics)

    def leave() -> None:
        server.should_exit = True

    for replica in replicas:
        replica.add_done_callback(lambda _: leave())
    announcement = _announce(admin, gateway_of(app), server, listener.url(sockets.api))
    async with tasks_beside(announcement, repeat_jobs(all_jobs), on_failure=leave):
        await serve_until_signal(server, sockets.api)


class LinkLiveness(Protocol):
    """What a link to a replica tells of whether the replica lives."""

    @property
    def up(self) -> bool:
        """Whether the link is open."""

    @property
    def silent_for(self) -> float:
        """Seconds since the last message."""


async def kill_when_silent(replica: Child, link: LinkLiveness, longest_s: float, every_s: float = 1.0) -> None:
    """Kill a replica that was heard since it started, and then not for `longest_s` seconds. It is started again.

    A replica whose steps stand still ends itself (`engine.server.watchdog`). One whose process stands still cannot.
    """
    heard_pid: int | None = None
    while True:
        await asyncio.sleep(every_s)
        silent_s = link.silent_for
        if link.up and silent_s <= longest_s:
            heard_pid = replica.pid
            replica.proven = True
        elif heard_pid is not None and heard_pid == replica.pid and silent_s > longest_s:
            logger.error("the replica's process stands still; it is killed", pid=heard_pid, silent_s=round(silent_s, 1))
            replica.kill()
            heard_pid = None


def _starter() -> Actor:
    """Who started this: what is made for them at the first start is their doing."""
    from turnpike.admin_services import system_user

    return Actor("command", system_user(), system_user(), through="turnpike serve")


async def _provide_demo(admin: AdminServices) -> None:
    """At the first start: make a tenant with a project and money, and set the model's own prices."""
    from billing.prices.sheets import PriceProposal
    from tenancy.repositories import NoSuchRecord
    from turnpike.commands.prices.cells import folder_prices

    for folder in admin.settings.model_folders:
        if prices := folder_prices(folder):
            name, currency, rows = prices
            if name not in await admin.prices.models():
                proposal = PriceProposal(model=name, rows=rows, currency=currency)
                await admin.sheets.put(proposal, by="turnpike serve", reason="the model folder's own prices")
                admin.prices.forget()
    try:
        await admin.tenancy.tenant(DEMO_TENANT)
    except NoSuchRecord:
        tenant = await admin.tenancy.create_tenant(DEMO_TENANT)
        await admin.tenancy.create_project(tenant.id, DEFAULT_PROJECT)
        await admin.balances.grant(tenant.id, DEMO_GRANT_PICO, CURRENCY, kind="promo", reason="demo money")


def write_key(file: Path, key: str) -> None:
    """Write a key to a new file that its owner alone can read, in place of an earlier one. Raises OSError."""
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as content:
        content.write(key + "\n")


async def _announce(admin: AdminServices, gateway: Gateway, server: GatewayServer, base_url: str) -> None:
    """Wait until a request would be answered, then say how to send one. The API key is made then, and only when it lies
    where scripts look for it does the gateway count as ready."""
    settings, services = admin.settings, gateway.services
    models = [model.name for model in services.models]
    model = models[0]
    served = f"model {model}" if len(models) == 1 else f"models {', '.join(models)}"
    while not (server.started and all(map(services.fleet.healthy, models))):  # noqa: ASYNC110  # nothing signals either
        await asyncio.sleep(READY_POLL_S)
    key, about = await provide_key(admin)
    record_address(settings, base_url)
    sign_in = await provide_owner_link(admin, base_url)
    gateway.start_problem = None
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": DEMO_QUESTION}], "temperature": 0})
    _print(
        f"\nTurnpike is ready at {base_url} with the {served}.\n\n{about}\n\nAsk it something:\n"
        f'    curl -sS {base_url}/v1/chat/completions -H "Authorization: Bearer {key}"'
        f" -H 'Content-Type: application/json' -d '{body}'\n\n"
        f"What it cost:\n    {_command()} usage --data-dir {settings.data_dir}\n\n{sign_in}Stop with Ctrl-C.",
    )


def _command() -> str:
    """How this program is called: in a checkout it is .venv/bin/turnpike, which is not in PATH."""
    return sys.argv[0] if Path(sys.argv[0]).name == "turnpike" else "turnpike"


async def provide_key(admin: AdminServices) -> tuple[str, str]:
    """The demo project's API key, as a shell reads it, and what to say of it; made if the project never had one.

    A terminal shows a new key once. Anything else may keep what is written to it, so the key goes to a file of its own
    there. The file may be older than the database, and its key may be revoked: it is named only while its key is valid.
    """
    from storage.database.base import from_instant
    from tenancy.keys import parse_key

    tenant = await admin.tenancy.tenant(DEMO_TENANT)
    project = await admin.tenancy.project(tenant.id, DEFAULT_PROJECT)
    keys = [key for key in await admin.tenancy.list_keys(tenant.id) if key.project_id == project.id]
    owner = f"API key of tenant {DEMO_TENANT}, project {DEFAULT_PROJECT}"
    file = admin.settings.data.absolute() / KEY_FILE
    in_file = f"$(cat {shlex.quote(str(file))})"
    if not keys:
        with acting_as(_starter()):
            issued = (await admin.tenancy.create_key(tenant.id, project.id, "made at the first start")).key
        if sys.stdout.isatty():
            return issued, f"{owner} (shown once; keep it):\n    {issued}"
        write_key(file, issued)
        return in_file, f"{owner}: written to the file (mode 0600)\n    {file}"
    now = from_instant(await admin.database.now())
    valid = {key.public_id for key in keys if not (key.revoked_at or (key.expires_at and key.expires_at <= now))}
    kept = parse_key(file.read_text().strip()) if file.exists() else None
    if kept is not None and kept.public_id in valid:
        return in_file, f"{owner}: in the file\n    {file}"
    return "$TURNPIKE_API_KEY", (
        "The API key was shown at the first start. Another one:\n"
        f"    export TURNPIKE_API_KEY=$({_command()} keys create --tenant {DEMO_TENANT} --project {DEFAULT_PROJECT}"
        f" --data-dir {admin.settings.data_dir})"
    )


async def provide_owner_link(admin: AdminServices, base_url: str) -> str:
    """At the first start: make the platform's first owner, and say how to sign in, once, within 24 hours. In a
    demonstration there is an owner, and at each start another link. Neither once an operator has a key: making, or
    becoming, an owner takes it.

    The link is shown as the API key is: on a terminal, else in a file of its own.
    """
    from tenancy.administration.operators import anybody_appoints
    from tenancy.rights.principals import Membership
    from turnpike.demonstration.folder import read_mark

    users = admin.users
    if anybody_appoints(await admin.tenancy.list_operator_keys()):
        return ""
    with acting_as(_starter()):
        if not await users.accounts.any_exist():
            user = await users.accounts.create(FIRST_OWNER, "Owner", users.clock(), (Membership("owner"),))
        elif read_mark(admin.settings.data) is not None:
            user = await users.accounts.find(FIRST_OWNER)
        else:
            return ""
        link = f"{base_url}{(await users.links.create(user.id, 'sign_in', users.clock())).path}"
        others = await _links_of_others(admin, base_url)
    about = f"Sign in as the platform's first owner, {FIRST_OWNER} (once, within 24 hours)"
    if sys.stdout.isatty():
        return f"{about}:\n    {link}\n\n{others}"
    file = admin.settings.data.absolute() / LINK_FILE
    write_key(file, link)
    return f"{about}: written to the file (mode 0600)\n    {file}\n\n{others}"


async def _links_of_others(admin: AdminServices, base_url: str) -> str:
    """In a demonstration: write a sign-in link for each of its people, and say where."""
    from turnpike.demonstration.folder import read_mark
    from turnpike.demonstration.people import LINKS_FILE, sign_in_links

    if read_mark(admin.settings.data) is None:
        return ""
    links = await sign_in_links(admin, base_url)
    file = admin.settings.data.absolute() / LINKS_FILE
    write_key(file, links)
    return f"Sign in as others, each with another role: links in the file (mode 0600)\n    {file}\n\n"


def _print(text: str) -> None:
    """Print; if the reader of the output is gone, as in `turnpike serve | head`, go on without it."""
    try:
        print(text, flush=True)
    except OSError as error:
        logger.warning("nobody reads the output", cause=error.strerror)
        # What is left in the buffer would fail again when the process ends.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
