"""What a process takes from its machine by the standard library: clocks, randomness, UUIDs. A world replaces them.

`install` comes before the product is imported, so that names that are bound at import are bound to these. Without a
world they are the machine's own.
"""

from __future__ import annotations

import os
import random
import time
import uuid
from collections.abc import Callable
from typing import Any, Protocol

import uuid_utils
import uuid_utils.compat

START_S = 1_767_225_600
"""The wall clock of a world begins here: 2026-01-01."""


class Machine(Protocol):
    """What a world gives in place of the machine."""

    random_bytes: random.Random

    def monotonic_ns(self) -> int:
        """Nanoseconds since the world began."""
        ...

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch, by the clock of the node that asks."""
        ...


_machine: Machine | None = None
_ids = 0


def use(machine: Machine | None) -> None:
    """Let this world answer from now on; None: the machine itself."""
    global _machine, _ids
    _machine, _ids = machine, 0
    if machine is not None:
        random.seed(machine.random_bytes.getrandbits(64))


def _replaced(real: Callable[..., Any], simulated: Callable[[Machine], Any]) -> Callable[..., Any]:
    def ask(*arguments: Any) -> Any:
        return real(*arguments) if _machine is None else simulated(_machine)

    return ask


def _made_id(machine: Machine) -> int:
    """The bits of a UUIDv7: by time, and after that by number, so that the same seed makes the same ids."""
    global _ids  # noqa: PLW0603
    _ids += 1
    millisecond = machine.wall_ns() // 1_000_000
    return millisecond << 80 | 7 << 76 | 2 << 62 | _ids << 20 | machine.random_bytes.getrandbits(20)


def install() -> None:
    """Replace the functions, for good; `use` says who answers."""
    for name, simulated in {
        "time": lambda machine: machine.wall_ns() / 1e9,
        "time_ns": lambda machine: machine.wall_ns(),
        "monotonic": lambda machine: machine.monotonic_ns() / 1e9,
        "monotonic_ns": lambda machine: machine.monotonic_ns(),
        "perf_counter": lambda machine: machine.monotonic_ns() / 1e9,
        "perf_counter_ns": lambda machine: machine.monotonic_ns(),
        "clock_gettime_ns": lambda machine: machine.monotonic_ns(),
        "thread_time": lambda machine: 0.0,
        "process_time": lambda machine: 0.0,
    }.items():
        setattr(time, name, _replaced(getattr(time, name), simulated))
    urandom = os.urandom

    def simulated_urandom(size: int) -> bytes:
        return urandom(size) if _machine is None else _machine.random_bytes.randbytes(size)

    os.urandom = simulated_urandom
    random._urandom = simulated_urandom  # type: ignore[attr-defined]
    native, compatible, random_uuid = uuid_utils.uuid7, uuid_utils.compat.uuid7, uuid.uuid4
    uuid_utils.uuid7 = _replaced(native, lambda machine: uuid_utils.UUID(int=_made_id(machine)))
    uuid_utils.compat.uuid7 = _replaced(compatible, lambda machine: uuid.UUID(int=_made_id(machine)))
    uuid.uuid4 = _replaced(random_uuid, lambda machine: uuid.UUID(bytes=machine.random_bytes.randbytes(16), version=4))
