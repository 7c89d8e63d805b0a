"""One batch that runs here: its input is checked, its lines are run beside each other, its results become files.

Every step can be cut off and is taken up by whoever runs the batch next. What a cut-off line came to, the books say: a
line whose request was billed is asked once more under the same id, which bills nothing; one whose request came to
nothing gets another id; one that still has a hold waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar
from uuid import UUID

import structlog
from msgspec import Struct

from batch_store.records import Batch, BatchProblem, Line, LineResult, PartKind, Status, line_request_id
from batch_store.running import BatchLost, BatchWork
from billing.settlement.settlement import trace_of
from file_store.blobs import BlobMissing
from file_store.sealed_content import ContentReader
from file_store.store import HIDDEN, NewFile
from gateway.batches.batch_notes import BatchNotes
from gateway.batches.input_lines import InputChecker, InputLine, InvalidLine, read_line
from gateway.batches.line_pace import FAULTS, PASSING, LinePace
from gateway.batches.line_places import LinePlaces
from gateway.batches.line_queue import LineQueue, QueuedLine
from gateway.batches.line_requests import LineAnswer, LineRequests
from gateway.batches.result_lines import Left, result_of, result_of_left
from gateway.errors import ClientLeft
from prompt_cache.promise.scope_keys import ScopeKeyUnreadable
from response_store.sealing import ContentSeal, Unreadable
from storage.database.database import DatabaseUnavailable

log = structlog.get_logger("gateway.batches.batch_run")

LINES_AT_ONCE = 32
"""Lines of one batch that are run beside each other."""
TAKEN_AT_ONCE = 64
"""Lines that are taken from the database at once: as many are doubtful after a crash, beside those that ran."""
FLUSH_S = 0.5
"""How long a result waits for others before it is written; as often the batch is heard of."""
_MOST_WAITING, _MOST_WAITING_BYTES = 256, 4 * 1024 * 1024
_LEFT_AT_ONCE = 500
_MOST_FAULTS = 3
"""A line that failed so often by a fault of ours has failed."""
_HELD_PAUSE_S = 2.0
_UNHEARD_S = 5.0
"""When the database has not answered a beat for so long no line is begun: the batch may be another worker's soon."""
_CANCEL_S = 600.0
"""How long lines that run may go on when no others are begun any more."""
_DATABASE_S = 120.0
"""How long a batch waits for a database that does not answer."""
_SECOND = 1_000_000
Result = TypeVar("Result")


class RunLimits(Struct, frozen=True):
    """What a run shares with others of its gateway. `places`: for lines, of all batches; `draining`: whether the
    gateway stops; `release`: ends the hold of a request that was billed before."""

    places: LinePlaces
    draining: Callable[[], bool]
    release: Callable[[UUID, str], Awaitable[None]]


class BatchRun:
    """A batch that this worker has taken."""

    def __init__(
        self, batch: Batch, work: BatchWork, requests: LineRequests, seal: ContentSeal, limits: RunLimits
    ) -> None:
        self._batch = batch
        self._work = work
        self._requests = requests
        self._seal = seal
        self._limits = limits
        self._gone = asyncio.Event()
        """Set when nobody waits for running lines any more."""
        self._wake = asyncio.Event()
        self._results: list[LineResult] = []
        self._bytes = 0
        self._stopping = False
        """No further line is begun."""
        self._notes = BatchNotes()
        self._pace = LinePace()
        self._heard_at = time.monotonic()
        """When the last beat that was answered was asked for."""
        self._running = 0

    async def run(self) -> None:
        """Run it to its end, or until the gateway stops. Raises nothing but CancelledError."""
        try:
            try:
                await self._run()
            except (Unreadable, ScopeKeyUnreadable, BlobMissing):
                problem = BatchProblem("input_unreadable", "The input file was deleted, or cannot be read any more.")
                await self._until_available(lambda: self._work.fail(self._batch, [problem], self._seal))
        except BatchLost:
            log.warning("a batch is another worker's now", batch=str(self._batch.id))
        except DatabaseUnavailable:
            log.warning("a batch is given up: the database is away", batch=str(self._batch.id))
        except Exception:
            log.exception("a batch failed to run", batch=str(self._batch.id))
        finally:
            self._gone.set()

    async def _run(self) -> None:
        status = self._batch.status
        if status == "validating":
            checked = await self._while_alive(self._check_input())
            if checked is None:
                return
            status = checked
        over = status == "cancelling" or self._batch.expires_at <= await self._until_available(self._work.now)
        if over and not await self._while_alive(self._answer_billed()):
            return
        if status == "in_progress" and not await self._run_lines():
            return
        await self._while_alive(self._end())

    # ------------------------------------------------ the input

    async def _check_input(self) -> Status | None:
        """Check the input and write where its lines are; the state of the batch then, None if it failed."""
        checker = InputChecker(self._batch.surface, self._batch.endpoint)
        async for piece in (await self._input()).pieces():
            await asyncio.to_thread(checker.feed, piece)
            if checker.over:
                break
        await asyncio.to_thread(checker.end)
        if checker.problems:
            await self._until_available(lambda: self._work.fail(self._batch, checker.problems, self._seal))
            return None
        return await self._until_available(lambda: self._work.begin(self._batch, checker.lines))

    async def _input(self) -> ContentReader:
        files, batch = self._work.store.files, self._batch
        file = await files.get(batch.tenant_id, batch.project_id, batch.input_file_id)
        if file is None:
            raise BlobMissing(batch.input_file_id.hex)
        return await files.content(file)

    # ------------------------------------------------ the lines

    async def _run_lines(self) -> bool:
        """Run lines until there are no more, or until it is too late for more; False if the gateway stops before."""
        batch, work = self._batch, self._work
        self._reader = await self._input()
        lock = asyncio.Lock()

        async def take() -> list[Line]:
            return await work.take_lines(batch, TAKEN_AT_ONCE)

        self._queue = LineQueue(await work.begun_lines(batch), take)
        await self._flush()
        deadline = time.monotonic() + (batch.expires_at - await work.now()) / _SECOND
        workers = [asyncio.create_task(self._work_on(lock)) for _ in range(LINES_AT_ONCE)]
        stopped_at: float | None = None
        leaves = aside = False
        try:
            while not all(worker.done() for worker in workers):
                await self._pause_of_flushing()
                if any(worker.done() and worker.exception() for worker in workers):
                    break
                if await self._flush() != "in_progress" or time.monotonic() >= deadline:
                    self._stopping = True
                if self._limits.draining():
                    self._stopping = leaves = True
                if self._pace.stalled and not self._running and not self._stopping:
                    self._stopping = leaves = aside = True
                if (stop := self._notes.stop) is not None and not self._stopping:
                    self._stopping = True
                    await self._until_available(lambda stop=stop: work.stop(batch, stop, self._seal))  # type: ignore[misc]
                await self._tell()
                if self._stopping:
                    stopped_at = time.monotonic() if stopped_at is None else stopped_at
                    if time.monotonic() - stopped_at > _CANCEL_S:
                        self._gone.set()
            for worker in workers:
                worker.result()
            status = await self._flush()
            await self._tell()
        finally:
            self._gone.set()
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        if leaves and status == "in_progress" and not self._queue.empty and time.monotonic() < deadline:
            await work.release(batch, self._queue.unbegun(), aside=aside)
            return False
        return True

    async def _tell(self) -> None:
        """Say in the batch what lines found out of it."""
        if (note := self._notes.take()) is not None:
            await self._until_available(lambda: self._work.note(self._batch, note, self._seal))

    async def _pause_of_flushing(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await self._wake.wait()
        self._wake.clear()

    async def _flush(self) -> str:
        """Write the results that wait; the state of the batch."""
        results, self._results, self._bytes = self._results, [], 0

        async def ask() -> str:
            asked_at, work = time.monotonic(), self._work
            status = await (work.write(self._batch, results, self._seal) if results else work.beat(self._batch))
            self._heard_at = asked_at
            return status

        return await self._until_available(ask)

    @property
    def _unheard(self) -> bool:
        return time.monotonic() - self._heard_at > _UNHEARD_S

    async def _work_on(self, lock: asyncio.Lock) -> None:
        """Run one line after the other. Raises what keeps the batch from going on."""
        while not self._stopping:
            wait = FLUSH_S if self._unheard else self._pace.wait_s
            if wait > 0:
                await asyncio.sleep(min(wait, FLUSH_S))
                continue
            async with lock:
                queued = None if self._stopping else await self._until_available(self._queue.next)
            if queued is not None:
                async with self._limits.places.take(queued.line.length):
                    self._running += 1
                    try:
                        await self._run_line(queued)
                    finally:
                        self._running -= 1
            elif self._queue.empty:
                return
            else:
                await asyncio.sleep(FLUSH_S)

    async def _run_line(self, queued: QueuedLine) -> None:
        batch, line, billed = self._batch, queued.line, False
        if self._stopping or self._unheard:
            self._queue.put(queued, 0.0)
            return
        if queued.begun:
            id_ = line_request_id(batch.id, line.number, line.attempt)
            trace = await self._until_available(lambda: trace_of(self._work.store.database, id_))
            if trace.held:
                self._queue.put(queued, _HELD_PAUSE_S)
                return
            billed = trace.billed
            if not billed:
                line = await self._until_available(lambda: self._work.begin_again(batch, line))
        asked = await self._read(line)
        answer = await self._answer(line, asked, billed=billed)
        if billed:
            await self._limits.release(line_request_id(batch.id, line.number, line.attempt), "billed before")
        self._notes.hear(answer.stop, answer.key_end)
        faults = queued.faults + isinstance(answer.failure, FAULTS)
        passes = answer.stop is not None or isinstance(answer.failure, (*PASSING, ClientLeft))
        if not billed and (passes or (isinstance(answer.failure, FAULTS) and faults < _MOST_FAULTS)):
            again = await self._until_available(lambda: self._work.begin_again(batch, line))
            self._queue.put(QueuedLine(again, faults=faults), self._pace.refused(answer.failure))
            return
        if billed and answer.failure is not None:
            self._queue.put(QueuedLine(line, begun=True), self._pace.refused(answer.failure))
            return
        self._pace.answered()
        result = result_of(batch.surface, _name(batch, line), line, asked.custom_id, answer)
        self._results.append(result)
        self._bytes += len(result.content)
        if len(self._results) >= _MOST_WAITING or self._bytes >= _MOST_WAITING_BYTES:
            self._wake.set()

    async def _answer(self, line: Line, asked: InputLine, *, billed: bool) -> LineAnswer:
        batch, body = self._batch, bytes(asked.body)
        id_ = line_request_id(batch.id, line.number, line.attempt)
        return await self._requests.answer(batch.key, batch.endpoint, body, id_, self._gone, billed=billed)

    async def _read(self, line: Line) -> InputLine:
        content = await self._reader.read(line.offset, line.length)
        try:
            return read_line(content)
        except InvalidLine as error:  # it was checked
            raise Unreadable from error

    async def _answer_billed(self) -> bool:
        """Answer lines that an earlier worker had begun, and that are paid for, though it is too late for others; False
        if the gateway stops before."""
        batch, work = self._batch, self._work
        begun = await self._until_available(lambda: work.begun_lines(batch))
        if begun:
            self._reader = await self._input()
        end = time.monotonic() + _CANCEL_S
        while begun and time.monotonic() < end:
            unknown = await asyncio.gather(*map(self._answer_if_billed, begun))
            await self._flush()
            begun = [line for line, left in zip(begun, unknown, strict=True) if left]
            if begun and self._limits.draining():
                await work.release(batch, [])
                return False
            if begun:
                await asyncio.sleep(_HELD_PAUSE_S)
        return True

    async def _answer_if_billed(self, line: Line) -> bool:
        """Answer a line once more, which was billed; whether it is still to come whether it was, or its answer."""
        batch = self._batch
        id_ = line_request_id(batch.id, line.number, line.attempt)
        async with self._limits.places.take(line.length):
            trace = await self._until_available(lambda: trace_of(self._work.store.database, id_))
            if trace.held or not trace.billed:
                return trace.held
            asked = await self._read(line)
            answer = await self._answer(line, asked, billed=True)
        await self._limits.release(id_, "billed before")
        if answer.stop is not None:
            return False
        if isinstance(answer.failure, (*PASSING, *FAULTS, ClientLeft)):
            return True
        self._results.append(result_of(batch.surface, _name(batch, line), line, asked.custom_id, answer))
        return False

    # ------------------------------------------------ the end

    async def _end(self) -> None:
        """Say of lines that were not run why, make files of the results, and end the batch."""
        batch, work = self._batch, self._work
        await self._until_available(lambda: work.finalize(batch))
        status = await self._until_available(lambda: work.beat(batch))
        why: Left = "cancelled" if status == "cancelling" else "expired"
        while lines := await self._until_available(lambda: work.unfinished_lines(batch, _LEFT_AT_ONCE)):
            self._reader = await self._input()
            left = [
                result_of_left(batch.surface, _name(batch, line), line, (await self._read(line)).custom_id, why)
                for line in lines
            ]
            await self._until_available(lambda left=left: work.write(batch, left, self._seal))  # type: ignore[misc]
        output, errors = await self._file("output"), await self._file("error")
        await self._until_available(lambda: work.finish(batch, output, errors, self._seal))

    async def _file(self, kind: PartKind) -> NewFile | None:
        """A file of the results of this kind, if there are any; its content is durable, and its row is yet to come."""
        batch, files = self._batch, self._work.store.files
        parts = self._work.parts(batch, kind, self._seal)
        first = await anext(parts, None)
        if first is None:
            return None
        id_, writer = await files.begin(batch.tenant_id, batch.project_id)
        try:
            await writer.append(first)
            async for part in parts:
                await writer.append(part)
            await writer.commit()
        except BaseException:
            await writer.discard()
            raise
        return NewFile(
            id=id_,
            tenant_id=batch.tenant_id,
            project_id=batch.project_id,
            purpose="batch_output" if batch.surface == "openai" else HIDDEN,
            filename=f"batch_{batch.id.hex}_{kind}.jsonl",
            bytes=writer.size,
            lifetime_s=batch.output_lifetime_s,
        )

    # ------------------------------------------------ waiting

    async def _while_alive(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do the work, and say meanwhile that this worker runs the batch. Raises what either raises."""
        working = asyncio.create_task(work)
        try:
            while not (await asyncio.wait([working], timeout=FLUSH_S))[0]:
                await self._until_available(lambda: self._work.beat(self._batch))
            return working.result()
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    async def _until_available(self, ask: Callable[[], Awaitable[Result]]) -> Result:
        """Ask the database until it answers. Raises DatabaseUnavailable after a while."""
        end = time.monotonic() + _DATABASE_S
        while True:
            try:
                return await ask()
            except DatabaseUnavailable:
                if time.monotonic() > end:
                    raise
                await asyncio.sleep(1.0)


def _name(batch: Batch, line: Line) -> str:
    """The name of a line's request in its batch."""
    return f"batch_req_{line_request_id(batch.id, line.number, 0).hex}"
