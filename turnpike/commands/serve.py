"""`turnpike serve`: everything on one machine with nothing to set up.

The gateway and the worker's loop run in this process, one replica in a child; only the storage differs from production.
What can be wrong is looked for before anything is started, the port and the data folder first.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shlex
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, TypeAlias

import structlog
import uvloop

from billing.prices.sheets import PriceProposal
from gateway.app import create_app
from gateway.served_models.registry import ModelRegistry
from gateway.server import GatewayServer
from gateway.services import GatewayServices
from tenancy.repositories import NoSuchRecord
from turnpike.admin_services import AdminServices, open_admin_services, read_secrets_of_serve
from turnpike.commands.price_words import folder_prices
from turnpike.commands.running import CURRENCY, DEFAULT_PROJECT
from turnpike.processes import listener as listening
from turnpike.processes.children import AFTER_DRAIN_S, Child
from turnpike.processes.gateway import serve_until_signal, services
from turnpike.processes.worker import work
from turnpike.settings.data_folder import DataFolderError, gateway_folder, prepare_data_folder, protect_data_folder
from turnpike.settings.settings import SettingError, Settings, to_environment

DEMO_TENANT = "demo"
DEMO_GRANT_PICO = 100 * 10**12
DEMO_QUESTION = "What does textwrap.dedent do?"
READY_POLL_S = 0.05
KEY_FILE = "api-key"
LEAST_S = 30.0
"""The least time without a word of the replica after which it is killed."""

Sockets: TypeAlias = tuple[socket.socket, socket.socket | None]
"""The API's, and that of metrics and health if there is one."""

logger = structlog.get_logger(__name__)


def serve(settings: Settings) -> int:
    """Run until SIGINT or SIGTERM. Raises what makes it impossible, each with one clear line."""
    if len(settings.model_folders) != 1:
        raise SettingError("model: serve runs one model; for several, run turnpike gateway and an engine for each")
    sockets = listening.listen(settings), listening.listen_for_metrics(settings)
    prepare_data_folder(settings)
    protect_data_folder(settings)
    with _sole_owner(settings.data), gateway_folder(settings) as own:
        registry = ModelRegistry.load(own.model_folders)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(own, sockets, registry))


@contextlib.contextmanager
def _sole_owner(folder: Path) -> Iterator[None]:
    """Hold the data folder's lock. Raises DataFolderError when another `serve` has it."""
    with (folder / "serve.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DataFolderError(f"data_dir: another turnpike serve runs in {folder}") from error
        yield


async def _serve(settings: Settings, sockets: Sockets, registry: ModelRegistry) -> int:
    run_folder = settings.data / "run"
    run_folder.mkdir(mode=0o700, exist_ok=True)
    known = await read_secrets_of_serve(settings)
    replica = Child(
        "replica",
        ["engine", "--listen", settings.own_replica_address, "--replica-name", "replica-0"],
        # The child reads the secrets file that was just made.
        to_environment(settings) | {"TURNPIKE_SECRETS_FILE": str(settings.secrets)},
    )
    # The replica takes longest to start, so it starts first, beside the migration.
    running = asyncio.create_task(replica.run())
    try:
        async with open_admin_services(settings, "always") as admin:
            await _provide_demo(admin, settings)
            async with services(settings, admin, known, registry) as built:
                # Later than its own watchdog, which says where it stands.
                patience = max(2 * settings.stall_timeout, LEAST_S)
                minding = asyncio.create_task(kill_when_silent(replica, built.fleet.links[0], patience))
                try:
                    await _run(settings, admin, built, sockets, running)
                finally:
                    minding.cancel()
    finally:
        await replica.stop(settings.drain_timeout + AFTER_DRAIN_S)
        await asyncio.wait([running])
    return _result(running)


def _result(running: asyncio.Task[None]) -> int:
    running.result()  # raises ChildFailed when the replica could not start
    return 0


async def _run(
    settings: Settings, admin: AdminServices, built: GatewayServices, sockets: Sockets, replica: asyncio.Task[None]
) -> None:
    listener, internal = sockets
    server = GatewayServer(create_app(built), internal=internal)
    tasks = [
        asyncio.create_task(_announce(settings, admin, built, server, listening.url(listener))),
        asyncio.create_task(work(admin, settings)),
    ]

    def replica_ended(_: asyncio.Task[None]) -> None:
        server.should_exit = True

    replica.add_done_callback(replica_ended)
    try:
        await serve_until_signal(server, listener)
    finally:
        for task in tasks:
            task.cancel()
        for done in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(done, Exception):
                logger.error("a task of serve failed", exc_info=done)


class LinkLiveness(Protocol):
    """The link to a replica, as far as it matters whether the replica lives."""

    @property
    def up(self) -> bool:
        """Whether the link is open."""

    @property
    def silent_for(self) -> float:
        """Seconds since anything was heard."""


async def kill_when_silent(replica: Child, link: LinkLiveness, patience: float, every: float = 1.0) -> None:
    """Kill a replica that was heard since it started, and then not for `patience` seconds; it is started again.

    A replica whose steps stand still ends itself (`engine.server.watchdog`). One whose process stands still cannot.
    """
    heard: int | None = None
    while True:
        await asyncio.sleep(every)
        silent = link.silent_for
        if link.up and silent <= patience:
            heard = replica.pid
            replica.proven = True
        elif heard is not None and heard == replica.pid and silent > patience:
            logger.error("the replica's process stands still; it is killed", pid=heard, silent_s=round(silent, 1))
            replica.kill()
            heard = None


async def _provide_demo(admin: AdminServices, settings: Settings) -> None:
    """At the first start: tenant, project, money, and the model's own prices."""
    for folder in settings.model_folders:
        if found := folder_prices(folder):
            name, currency, rows = found
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
    """Write a key to a new file that its owner alone can read. Raises OSError."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as opened_file:
        opened_file.write(key + "\n")


async def _announce(
    settings: Settings, admin: AdminServices, built: GatewayServices, server: GatewayServer, base: str
) -> None:
    """Wait until a request would be answered, then say how to send one.

    The key is made then. It is shown once on a terminal; anything else keeps what is written to it, so that there a
    file of its own gets it.
    """
    model = next(iter(built.models)).name
    while not (server.started and built.fleet.healthy(model)):  # noqa: ASYNC110  # two libraries' states, once
        await asyncio.sleep(READY_POLL_S)
    tenant = await admin.tenancy.tenant(DEMO_TENANT)
    project = await admin.tenancy.project(tenant.id, DEFAULT_PROJECT)
    has_key = any(key.project_id == project.id for key in await admin.tenancy.list_keys(tenant.id))
    # As it was called: inside a checkout that is .venv/bin/turnpike, which is on nobody's PATH.
    command = sys.argv[0] if Path(sys.argv[0]).name == "turnpike" else "turnpike"
    where = f"--data-dir {settings.data_dir}"
    whose = f"API key of tenant {DEMO_TENANT}, project {DEFAULT_PROJECT}"
    file = settings.data.absolute() / KEY_FILE
    if has_key and file.exists():
        key = f"$(cat {shlex.quote(str(file))})"
        about = f"{whose}: in the file\n    {file}"
    elif has_key:
        key = "$TURNPIKE_API_KEY"
        about = (
            "The API key was shown at the first start. Another one:\n"
            f"    export TURNPIKE_API_KEY=$({command} keys create --tenant {DEMO_TENANT} --project {DEFAULT_PROJECT}"
            f" {where})"
        )
    else:
        issued = (await admin.tenancy.create_key(tenant.id, project.id, "made at the first start")).key
        if sys.stdout.isatty():
            key, about = issued, f"{whose} (shown once; keep it):\n    {issued}"
        else:
            write_key(file, issued)
            key, about = f"$(cat {shlex.quote(str(file))})", f"{whose}: written to the file (mode 0600)\n    {file}"
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": DEMO_QUESTION}], "temperature": 0})
    _say(
        f"\nTurnpike is ready at {base} with the model {model}.\n\n{about}\n\nAsk it something:\n"
        f'    curl -sS {base}/v1/chat/completions -H "Authorization: Bearer {key}"'
        f" -H 'Content-Type: application/json' -d '{body}'\n\n"
        f"What it cost:\n    {command} usage {where}\n\nStop with Ctrl-C.",
    )


def _say(text: str) -> None:
    """Print, whether or not anybody reads it: as in `turnpike serve | head`."""
    try:
        print(text, flush=True)
    except OSError as error:
        logger.warning("nobody reads the output", cause=error.strerror)
        # What is left in the buffer would fail again when the process ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
