"""`turnpike worker`: run the billing jobs, or check the worker on this host.

The worker renews a heartbeat file; `turnpike worker --health` reads it. A container runs that check every few seconds,
so it imports nothing of the database.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from turnpike.command_line import CommandError, CommandParser
from turnpike.processes.event_loop import run_role, stop_event, tasks_beside
from turnpike.settings.data_folder import prepare_data_folder, protect_data_folder
from turnpike.settings.settings import WORKER, Settings

RENEWED_EVERY_S = 5.0
SILENT_S = 30.0
"""A worker that has not renewed its file for so long is not well."""

logger = structlog.get_logger(__name__)


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike worker`."""
    parser.runs(worker, WORKER)
    parser.add_argument("--health", action="store_true", help="exit 0 if the worker on this host does its jobs")


def worker(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike worker`: do the billing jobs until a signal; with `--health`, say whether another process does them."""
    return check_worker(settings) if arguments.health else run_role(_worker(settings))


async def _worker(settings: Settings) -> int:
    from turnpike.admin_services import open_admin_services
    from turnpike.processes.worker import Outage, job_database, jobs, repeat_jobs

    prepare_data_folder(settings)
    protect_data_folder(settings)
    async with open_admin_services(settings, "embedded") as admin, job_database(admin) as database:
        all_jobs, outage = jobs(admin, database), Outage()  # a setting that is wrong shows before there is a heartbeat
        logger.info("worker runs")
        stop = stop_event()
        heartbeat = _renew_heartbeat(heartbeat_file(settings), lambda: outage.problem)
        async with tasks_beside(repeat_jobs(all_jobs, outage), heartbeat, on_failure=stop.set):
            await stop.wait()
    return 0


def heartbeat_file(settings: Settings) -> Path:
    """The file of the worker on this host."""
    return settings.data / "run" / f"worker-{socket.gethostname()}.health"


async def _renew_heartbeat(path: Path, problem: Callable[[], str]) -> None:
    """Renew the file for ever. It holds what keeps the worker from its jobs, and is empty while they go on."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    written: str | None = None
    while True:
        current = problem()
        with contextlib.suppress(OSError):  # on a full disk an empty file can still be touched
            _write(path, None if current == written else current)
            written = current
        await asyncio.sleep(RENEWED_EVERY_S)


def _write(path: Path, text: str | None) -> None:
    if text is not None:
        path.write_text(text)
    path.touch()


def check_worker(settings: Settings) -> int:
    """`turnpike worker --health`: 0 if the worker on this host lives and does its jobs. Raises CommandError."""
    path = heartbeat_file(settings)
    try:
        silent_s, problem = time.time() - path.stat().st_mtime, path.read_text()
    except OSError as error:
        raise CommandError(f"there is no sign of a worker in {path}: {error.strerror}") from error
    if silent_s > SILENT_S:
        raise CommandError(f"the worker has not been heard of for {silent_s:.0f} s")
    if problem:
        raise CommandError(problem)
    print("the worker does its jobs")
    return 0
