"""Sends grammars to the trial server, a child process that is restarted when it ends or does not answer."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
from pathlib import Path

import msgspec
import structlog

from engine.grammar.compiler import GrammarCompiler
from engine.grammar.trial import TrialVerdict
from engine.grammar.trial_server import Trial, TrialResult

logger = structlog.get_logger("engine.grammar.trial_client")

_TIMEOUT_S = 30.0
_LENGTH_BYTES = 4
_ROOT = Path(__file__).resolve().parents[2]


class TrialLost(Exception):
    """A grammar could not be tried: the trial server ended or did not answer in time."""


class TrialClient:
    """Runs the trial server and talks to it. All methods run in one event loop."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._command = [
            sys.executable, "-m", "engine.grammar.trial_server",
            str(compiler.folder), str(compiler.vocabulary), *map(str, compiler.ends),
        ]  # fmt: skip
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[TrialVerdict]] = {}
        self._numbers = itertools.count(1)

    async def start(self) -> None:
        """Start the trial server if it does not run."""
        async with self._starting:
            if self._process is not None:
                return
            paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
            # One thread, since it forks; one malloc arena, so that its memory limit is meaningful.
            ours = {"PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1",
                    "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # fmt: skip
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=os.environ | ours
            )
            self._reading = asyncio.create_task(self._read(self._process))

    async def try_grammar(self, text: str) -> TrialVerdict:
        """The verdict on a grammar. Raises TrialLost. Cancelling the call ends the trial."""
        await self.start()
        process = self._process
        if process is None or process.stdin is None:
            raise TrialLost
        number = next(self._numbers)
        verdict: asyncio.Future[TrialVerdict] = asyncio.get_running_loop().create_future()
        self._waiting[number] = verdict
        try:
            _send(process.stdin, Trial(number, text))
            async with asyncio.timeout(_TIMEOUT_S):
                return await verdict
        except TimeoutError:
            logger.error("the process that tries grammars does not answer and is started anew")
            _kill(process)
            raise TrialLost from None
        except ConnectionError:
            raise TrialLost from None
        except asyncio.CancelledError:
            if verdict.cancelled() or not verdict.done():
                _send(process.stdin, Trial(number, None))
            raise
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        """End the trial server."""
        process, self._process = self._process, None
        if process is not None:
            _kill(process)
            await process.wait()
        if self._reading is not None:
            await self._reading

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                length = int.from_bytes(await process.stdout.readexactly(_LENGTH_BYTES), "big")
                result = msgspec.msgpack.decode(await process.stdout.readexactly(length), type=TrialResult)
                verdict = self._waiting.get(result.id)
                if verdict is not None and not verdict.done():
                    verdict.set_result(result.verdict)
        _kill(process)
        status = await process.wait()
        if self._process is process:
            logger.warning("the process that tries grammars ended and is started again", status=status)
            self._process = None
        for verdict in self._waiting.values():
            if not verdict.done():
                verdict.set_exception(TrialLost())


def _send(stream: asyncio.StreamWriter, trial: Trial) -> None:
    encoded = msgspec.msgpack.encode(trial)
    stream.write(len(encoded).to_bytes(_LENGTH_BYTES, "big") + encoded)


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
