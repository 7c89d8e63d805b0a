"""The event loop of a role: uvloop, until a signal says stop."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine

import uvloop


def run_role(role: Coroutine[None, None, int]) -> int:
    """Run a role on uvloop to its end; its exit status."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        status = runner.run(role)
    sys.stdout.flush()
    return status


def stop_event() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set. Called on the running loop."""
    event = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, event.set)
    return event
