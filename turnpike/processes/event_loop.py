"""The event loop of a role: uvloop, until a signal says stop. What a role changes by itself, it does as the system."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine

import uvloop

from audit_log.actors import Actor, become


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
