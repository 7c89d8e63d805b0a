"""The worker's sign of life: a file that it renews, and what `turnpike worker --health` makes of it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from pathlib import Path

from turnpike.failures import CommandError
from turnpike.settings.settings import Settings

EVERY_S = 5.0
SILENT_S = 30.0
"""A worker that has not renewed its file for so long is not well."""


def heartbeat_file(settings: Settings) -> Path:
    """The file of the worker on this host."""
    return settings.data / "run" / f"worker-{socket.gethostname()}.health"


async def renew(path: Path, problem: Callable[[], str], every_s: float = EVERY_S) -> None:
    """Renew the file for ever; it holds what keeps the worker from its jobs, nothing if they go on."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    said: str | None = None
    while True:
        now = problem()
        with contextlib.suppress(OSError):  # a full disk: an empty file and its time need no room
            _write(path, None if now == said else now)
            said = now
        await asyncio.sleep(every_s)


def _write(path: Path, text: str | None) -> None:
    if text is not None:
        path.write_text(text)
    path.touch()


def check_worker(settings: Settings) -> int:
    """`turnpike worker --health`: 0 if the worker on this host lives and does its jobs. Raises CommandError."""
    path = heartbeat_file(settings)
    try:
        silent, problem = time.time() - path.stat().st_mtime, path.read_text()
    except OSError as error:
        raise CommandError(f"there is no sign of a worker in {path}: {error.strerror}") from error
    if silent > SILENT_S:
        raise CommandError(f"the worker has not been heard of for {silent:.0f} s")
    if problem:
        raise CommandError(problem)
    print("the worker does its jobs")
    return 0
