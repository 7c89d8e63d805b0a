"""Lets a child process check an adapter while it is uploaded (`model_files.adapter_trial`)."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import Any

import msgspec

from file_store.adapters import AdapterFacts
from gateway.errors import InvalidField, Unavailable
from storage.database.circuit_breaker import beside_the_database

MOST_CHECKS = 2
"""Adapters that one worker has checked at a time."""
_WAIT_S = 180.0
"""Seconds that a check may take after all has come."""


class AdapterCheck:
    """A child process that gets an adapter's content as it comes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def begin(cls, base: str, model: Path) -> AdapterCheck:
        """Start the process. `base`: the text digest of the base model in the folder or file `model`."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "model_files.adapter_trial", base, str(model)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        return cls(process)

    async def take(self, content: bytes) -> None:
        """More of the content. A process that has ended is asked for its verdict later."""
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError), beside_the_database():
            self._process.stdin.write(content)
            await self._process.stdin.drain()

    async def verdict(self) -> tuple[str, AdapterFacts]:
        """The digest of the adapter, and what it changes. Raises InvalidField, naming the part that is refused, and
        Unavailable."""
        try:
            with beside_the_database():
                async with asyncio.timeout(_WAIT_S):
                    output, _ = await self._process.communicate(b"")  # which closes its input
        except TimeoutError as error:
            raise Unavailable("The adapter was not checked in time; try again later.", retry_after=60.0) from error
        finally:
            await self.end()
        try:
            said: dict[str, Any] = msgspec.json.decode(output)
        except msgspec.DecodeError as error:  # the kernel ended it at its bounds
            raise InvalidField("file", "checking it took too much time or memory", code="invalid_adapter") from error
        if "problem" in said:
            raise InvalidField("file", f"{said['field']}: {said['problem']}", code="invalid_adapter")
        return said.pop("digest"), msgspec.convert(said, AdapterFacts)

    async def end(self) -> None:
        """End the process, if it has not ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
