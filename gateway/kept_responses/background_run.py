"""One response that runs in the background: its events go to the database, where every worker can read them.

A client that leaves changes nothing. One that cancels asks in the database, and the worker that runs the response hears
of it with its next write.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

import structlog

from gateway.dialects.openai.common_response import encoder
from gateway.dialects.openai.responses import events as told
from gateway.dialects.openai.responses.writer import ResponsesWriter
from gateway.errors import Interrupted
from gateway.generation.delivery import DeliveryChunk, Failed, Finished, Started
from gateway.generation.generation_task import GenerationTask
from gateway.generation.running_tasks import RunningTasks
from response_store.running import Progress, Standing
from storage.database.database import DatabaseUnavailable

log = structlog.get_logger("gateway.kept_responses.background_run")

FLUSH_S = 0.25
"""How long events wait for others before they are written."""
BEAT_S = 1.0
_MOST_WAITING = 1024
"""Events that are written at once at most."""
Write = Callable[[Progress], Awaitable[Standing]]


class BackgroundRun:
    """A response that runs here. `write` writes what there is of it, and raises DatabaseUnavailable when it gives up;
    `first`: the number of the next event."""

    def __init__(
        self,
        id_: UUID,
        task: GenerationTask,
        writer: ResponsesWriter,
        *,
        requests: RunningTasks,
        write: Write,
        first: int,
    ) -> None:
        self._id = id_
        self._task = task
        self._writer = writer
        self._requests = requests
        self._write = write
        self._next = first
        self._waiting: list[bytes] = []
        self._flushed = time.monotonic()
        self._told_status = ""
        self._taken = 0
        """Output tokens of which the events are written, or wait."""
        self._said = 0
        """Of these, those up to the last event of output. Without any the response can be run anew, so that nothing of
        it is billed before one is written."""

    async def run(self) -> None:
        """Run it to its end. Raises nothing but CancelledError."""
        try:
            await self._follow()
        except DatabaseUnavailable:
            log.warning("a response in the background is given up: the database is away", response=str(self._id))
        except Exception:
            log.exception("a response in the background failed", response=str(self._id))
        finally:
            self._task.abandon(Interrupted("The gateway could not keep the response."))

    async def _follow(self) -> None:
        delivery = self._task.delivery
        while True:
            item = await delivery.next(self._pause_s)
            ended = False
            match item:
                case None:
                    pass
                case Started():
                    self._tell(self._writer.open())
                case DeliveryChunk():
                    self._tell(self._writer.open())
                    said = self._writer.more(item.deltas)
                    self._tell(said)
                    self._taken, self._said = item.tokens, item.tokens if said else self._said
                case Failed() if self._requests.draining and not self._said:
                    await self._write(self._progress(released=True))
                    return
                case _:
                    ended = True
                    self._end(item)
            due = time.monotonic() - self._flushed >= self._pause_s
            if ended or due or len(self._waiting) >= _MOST_WAITING:
                mine = await self._flush(ended=ended)
                if ended or not mine:
                    return

    @property
    def _pause_s(self) -> float:
        """How long after the last write the next is due."""
        return FLUSH_S if self._waiting or self._taken > self._task.delivery.confirmed else BEAT_S

    def _end(self, item: object) -> None:
        """The last events. A response whose reader has gone was cancelled."""
        if isinstance(item, Finished):
            self._tell(self._writer.end(item))
        else:
            self._tell(self._writer.fail(item.failure if isinstance(item, Failed) else None))

    def _tell(self, events: Sequence[told.StreamEvent]) -> None:
        self._waiting += map(told.named_event, events)

    async def _flush(self, *, ended: bool) -> bool:
        """Write what waits; False if the response is not this worker's any more. What is written is delivered."""
        delivery = self._task.delivery
        taken = self._taken > delivery.confirmed
        standing = await self._write(self._progress(ended=ended))
        if standing.mine and taken:
            delivery.confirm(self._taken, self._said)
        elif standing.gone:
            self._requests.client_left(self._task, "deleted")
        self._next += len(self._waiting)
        self._waiting, self._flushed, self._told_status = [], time.monotonic(), self._writer.response.status
        if standing.cancelling and not ended:
            self._requests.client_left(self._task, "cancelled")
        return standing.mine

    def _progress(self, *, ended: bool = False, released: bool = False) -> Progress:
        """What is to be written now."""
        response = self._writer.response
        return Progress(
            id=self._id,
            tenant_id=self._task.prepared.payer.tenant_id,
            first=self._next,
            events=tuple(self._waiting),
            status=response.status if response.status != self._told_status else None,
            response=encoder.encode(response) if ended else None,
            ended=ended,
            released=released,
        )
