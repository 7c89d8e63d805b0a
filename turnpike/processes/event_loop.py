"""The event loop of a role: uvloop, until a signal says stop. What a role changes by itself, it does as the system.

A role does not outlive a task that it is made of.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

import structlog
import uvloop

from audit_log.actors import Actor, become

logger = structlog.get_logger(__name__)


def run_role(role: Coroutine[None, None, int]) -> int:
    """Run a role on uvloop to its end; its exit status."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        status = runner.run(_as_system(role))
    sys.stdout.flush()
    return status


async def _as_system(role: Coroutine[None, None, int]) -> int:
    become(Actor("system", "turnpike", "turnpike"))
    return await role


def stop_event() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set. Called on the running loop."""
    event = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, event.set)
    return event


@asynccontextmanager
async def tasks_beside(*work: Coroutine[None, None, None], on_failure: Callable[[], None]) -> AsyncIterator[None]:
    """Run `work` beside the body, and cancel it at the body's end.

    When one fails, that is logged at once, `on_failure` has the body come to its end, and the error is raised then: a
    process must not look well without what it is there for. One that is done is no failure.
    """

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a task failed; this process stops", cause=str(error) or type(error).__name__)
            on_failure()

    tasks = [asyncio.create_task(one) for one in work]
    for task in tasks:
        task.add_done_callback(ended)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result
