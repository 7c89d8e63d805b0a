"""The responses in the background of one gateway worker: begun, read by whoever resumes them, cancelled, taken over.

When a worker dies, another one takes its responses over. A response of which nothing was told yet is run anew, as a
request is whose replica was lost. Any other response ends as failed, with the output that it had.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Coroutine
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
import structlog
from msgspec import Raw, Struct
from msgspec.structs import replace

from gateway.admission.admission import Admission
from gateway.admission.estimates import within_max_cost
from gateway.admission.prepared_request import Payer, PreparedRequest
from gateway.admission.truncation import fitted
from gateway.dialects.openai.common_request import SERVICE_TIER_OF
from gateway.dialects.openai.common_response import encoder
from gateway.dialects.openai.responses import events as told
from gateway.dialects.openai.responses.request import ResponsesRequest, generation_of
from gateway.dialects.openai.responses.response_object import Response, begun, response_error
from gateway.dialects.openai.responses.writer import ResponsesWriter
from gateway.errors import GatewayError, Interrupted, TakenOverTooOften
from gateway.generation.running_tasks import RunningTasks
from gateway.generation_request import CacheDirectives
from gateway.kept_responses.background_run import BEAT_S, BackgroundRun, Write
from gateway.kept_responses.keeper import PREFIX, ResponseKeeper, Terms, new_response
from gateway.kept_responses.waiting import wait_for_limits, wait_until_it_begins, while_wanted
from gateway.limits.limiter import Limiter
from gateway.limits.permit import AskedPermit
from gateway.served_models.registry import ModelRegistry
from prompt_cache.promise.scope_keys import ScopeKeyUnreadable
from response_store.records import RUNNING, ListedResponse, StoredResponse
from response_store.running import Orphan, Progress, RunningResponses, Standing
from response_store.sealing import ContentSeal, ReasoningSeal, Unreadable
from response_store.store import ResponseStore
from storage.database.base import new_id
from storage.database.database import DatabaseUnavailable

log = structlog.get_logger("gateway.kept_responses.background")

SILENT_S = 10.0
"""A worker that has not said for so long that it runs a response has died."""
_CANCEL_SILENT_S = 3.0
"""The same for one that was asked to end it: it would have heard."""
MOST_TAKEN_OVER = 3
"""A response of which so many workers died is not given to another one: it may be what they died of."""
_CANCEL_S = 8.0
"""How long a cancellation waits for the end."""
_SWEEP_S = 5.0
_SLOW_SWEEP_S = 3.0
"""A sweep that takes so long says that the database stood still, perhaps since the sweep before it."""
_DATABASE_TIMEOUT_S = 120.0
"""How long a running response waits for a database that does not answer."""
_STOP_S = 5.0
_SECOND = 1_000_000
_DONE = b"event: response.output_item.done\n"
_QUIET = (b"event: response.created\n", b"event: response.queued\n", b"event: response.in_progress\n")
"""The events of a response that has said nothing yet."""


class _Kept(Struct, frozen=True):
    """What is kept of a request in the background: enough to run it anew. `input` is what is listed; `cache`: what body
    and headers say about the cache together (None in what older releases kept)."""

    payer: Payer
    asked: ResponsesRequest
    input: Raw
    cache: CacheDirectives | None = None


_kept = msgspec.json.Decoder(_Kept)


class BackgroundResponses:
    """The responses in the background, as one gateway worker runs and reads them."""

    def __init__(
        self,
        running: RunningResponses,
        store: ResponseStore,
        keeper: ResponseKeeper,
        *,
        requests: RunningTasks,
        admission: Admission,
        models: ModelRegistry,
        limiter: Limiter,
    ) -> None:
        self._running = running
        self._store = store
        self._keeper = keeper
        self._requests = requests
        self._admission = admission
        self._models = models
        self._limiter = limiter
        self._tasks: set[asyncio.Task[None]] = set()
        self._here: set[UUID] = set()
        """The responses that run or wait in this process: however silent it was, it does not take its own over."""
        self._deaf_at = -math.inf
        """When this worker last could not reach the database, on the monotonic clock: nor could the others, perhaps."""

    async def stop(self) -> None:
        """Write what the responses have told that ran here; they have ended."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_STOP_S)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._running.close()

    # ------------------------------------------------ beginning

    async def start(
        self,
        asked: ResponsesRequest,
        prepared: PreparedRequest,
        writer: ResponsesWriter,
        terms: Terms,
        permit: AskedPermit,
    ) -> Response:
        """Keep a response, and run it; returns it as it waits. One that is not admitted, such as for the lack of money,
        is not kept. Raises GatewayError, DatabaseUnavailable."""
        payer = prepared.payer
        try:
            seal = await self._store.seal_of(payer.tenant_id, payer.project_id)
            task = self._requests.start(prepared, streamed=True, permit=permit)
        except BaseException:
            await permit.ended(prepared.request_id, 0)
            raise
        try:
            await task.admitted.wait()
            if task.state.outcome is not None and task.state.outcome.failure is not None:
                raise task.state.outcome.failure
            events = [told.named_event(one) for one in writer.queue()]
            queued = writer.response
            cache = prepared.generation.cache
            kept = encoder.encode(_Kept(payer, asked, Raw(encoder.encode(asked.input)), cache))
            new = new_response(payer, queued, kept, terms, worker=self._running.worker)
            self._keeper.count(new.project_id, new.request, new.response)
            await self._store.save(new)
            await self._running.write(Progress(id=new.id, tenant_id=new.tenant_id, first=0, events=events), seal)
        except asyncio.CancelledError:
            self._requests.client_left(task, "not kept")
            raise
        except Exception:
            task.abandon(Interrupted("The gateway could not keep the response."))
            raise
        write = partial(self._write, seal=seal)
        run = BackgroundRun(new.id, task, writer, requests=self._requests, write=write, first=len(events))
        self._spawn(new.id, run.run())
        return queued

    def _spawn(self, id_: UUID, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        self._here.add(id_)

        def ended(_: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._here.discard(id_)

        task.add_done_callback(ended)

    async def _write(self, progress: Progress, seal: ContentSeal) -> Standing:
        """Write, and wait for a database that is away. Raises DatabaseUnavailable after a while."""
        self._keeper.count(seal.project_id, progress.response, *progress.events)
        end = time.monotonic() + _DATABASE_TIMEOUT_S
        while True:
            try:
                return await self._running.write(progress, seal)
            except DatabaseUnavailable:
                self._deaf_at = time.monotonic()
                if self._deaf_at > end:
                    raise
                await asyncio.sleep(BEAT_S)

    # ------------------------------------------------ reading

    async def events(self, stored: ListedResponse, tenant_id: UUID, after: int) -> tuple[list[bytes], int]:
        """The next events of a response after the one with this number, and the number of the last of them. Raises
        DatabaseUnavailable."""
        try:
            seal = await self._store.seal_of(tenant_id, stored.project_id)
            return await self._running.events(tenant_id, stored.id, after, seal)
        except (Unreadable, ScopeKeyUnreadable):
            return [], after

    async def cancel(self, tenant_id: UUID, project_id: UUID, name: str) -> StoredResponse:
        """End a response; returns it as it is then. Raises NotFound, DatabaseUnavailable."""
        stored = await self._keeper.listed(tenant_id, project_id, name)
        if stored.status in RUNNING:
            await self._running.cancel(tenant_id, project_id, stored.id)
        end = time.monotonic() + _CANCEL_S
        while stored.status in RUNNING and time.monotonic() < end:
            await asyncio.sleep(0.1)
            stored = await self._keeper.listed(tenant_id, project_id, name)
            await self.adopt(Orphan(stored.id, tenant_id, project_id), _CANCEL_SILENT_S)
        return await self._keeper.get(tenant_id, project_id, name)

    # ------------------------------------------------ taking over

    async def adopt_orphans(self) -> None:
        """Take over, for ever, what silent workers ran."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            if self._requests.draining:
                return
            try:
                await self.sweep()
            except DatabaseUnavailable:
                continue
            except Exception:
                log.exception("responses of a silent worker are not taken over")

    async def sweep(self) -> None:
        """Take over, once, what silent workers ran. Raises DatabaseUnavailable."""
        began = time.monotonic()
        try:
            orphans = await self._running.orphans(SILENT_S)
        except DatabaseUnavailable:
            self._deaf_at = time.monotonic()
            raise
        if time.monotonic() - began > _SLOW_SWEEP_S:
            self._deaf_at = time.monotonic()
        for orphan in orphans:
            await self.adopt(orphan)

    async def adopt(self, orphan: Orphan, silent_s: float | None = None) -> None:
        """Take a response over whose worker is silent, for `SILENT_S` or `silent_s`. After the database was away a
        worker that lives is given `SILENT_S` to say so. Raises DatabaseUnavailable."""
        if orphan.id in self._here or (silent_s is None and time.monotonic() - self._deaf_at < SILENT_S):
            return
        taken = await self._running.take_over(orphan, SILENT_S if silent_s is None else silent_s)
        if taken is None:
            return
        log.warning("a response in the background is taken over", response=str(orphan.id), times=taken)
        try:
            stored = await self._store.get(orphan.tenant_id, orphan.project_id, orphan.id)
            seal = await self._store.seal_of(orphan.tenant_id, orphan.project_id)
        except ScopeKeyUnreadable:
            return  # nobody can read it any more
        if stored is None:
            gone = Progress(id=orphan.id, tenant_id=orphan.tenant_id, first=0, status="failed", ended=True)
            await self._running.write(gone, seal)
            return
        events, last = await self._all_events(stored, orphan.tenant_id)
        if stored.cancelling:
            await self._end(stored, orphan.tenant_id, events, None, seal)
        elif not events:  # its client was answered with an error, and never told its id
            await self._end(stored, orphan.tenant_id, events, Interrupted("It was not begun."), seal)
        elif not all(event.startswith(_QUIET) for event in events):
            stopped = Interrupted("The gateway that ran this response has stopped.")
            await self._end(stored, orphan.tenant_id, events, stopped, seal)
        elif taken > MOST_TAKEN_OVER:
            died = TakenOverTooOften(f"{taken} workers have died while they ran this response; it is not run again.")
            await self._end(stored, orphan.tenant_id, events, died, seal)
        else:
            self._spawn(stored.id, self._run_anew(stored, orphan.tenant_id, seal, events, last + 1))

    async def _all_events(self, stored: StoredResponse, tenant_id: UUID) -> tuple[list[bytes], int]:
        found: list[bytes] = []
        after = -1
        while True:
            more, after = await self.events(stored, tenant_id, after)
            if not more:
                return found, after
            found += more

    async def _run_anew(
        self, stored: StoredResponse, tenant_id: UUID, seal: ContentSeal, events: list[bytes], first: int
    ) -> None:
        """Run a response from its beginning, once it can be. Raises nothing but CancelledError."""
        waiting = Progress(id=stored.id, tenant_id=tenant_id, first=first)
        still_wanted = partial(self._still_wanted, waiting, partial(self._write, seal=seal))
        try:
            try:
                begins = wait_until_it_begins(
                    partial(self._requests.check_model, self._models.get(stored.model).name),
                    partial(self._run_of, stored, seal, waiting),
                )
                run = await while_wanted(begins, still_wanted)
            except GatewayError as error:
                if self._requests.draining:
                    await self._running.write(replace(waiting, released=True), seal)
                else:
                    await self._end(stored, tenant_id, events, error, seal)
                return
        except DatabaseUnavailable:
            log.warning("a response is not run anew: the database is away", response=str(stored.id))
        except Exception:
            log.exception("a response is not run anew", response=str(stored.id))
        else:
            if run is not None:
                await run.run()

    async def _run_of(self, stored: StoredResponse, seal: ContentSeal, waiting: Progress, end: float) -> BackgroundRun:
        """A new run of a response, for which it waits until `end`. Raises GatewayError, DatabaseUnavailable."""
        kept = _kept.decode(stored.request)
        payer = kept.payer
        asked, earlier = await self._keeper.earlier(payer, kept.asked, lambda _: None)
        sealed = ReasoningSeal(seal)
        call = generation_of(asked, earlier, sealed.open)
        generation = call.generation if kept.cache is None else replace(call.generation, cache=kept.cache)
        model = self._models.get(generation.model)
        if asked.truncation == "auto":
            generation = await fitted(self._admission, payer, model, generation)

        request_id, began = new_id(), time.monotonic()

        async def prepare() -> PreparedRequest:
            (prepared,) = within_max_cost([await self._admission.prepare(request_id, payer, model, generation)])
            return prepared

        write = partial(self._write, seal=seal)
        prepared = await prepare()
        permit = await wait_for_limits(self._limiter, prepared, end)
        try:
            await self._requests.check_key(payer)
            if time.monotonic() - began > BEAT_S:  # it waited, and prices may have changed
                prepared = await prepare()
            response = begun(
                asked,
                id=f"{PREFIX}{stored.id.hex}",
                created=stored.created_at // _SECOND,
                model=model.name,
                tier=SERVICE_TIER_OF[generation.lane],
                stored=True,
            )
            writer = ResponsesWriter(
                response,
                model.tokenizer,
                call.names,
                logprobs=generation.logprobs is not None,
                seal=sealed.seal if asked.encrypted else None,
                prewarm=generation.cache.prewarm,
                told_before=waiting.first,
            )
            task = self._requests.start(prepared, streamed=True, permit=permit)
        except BaseException:
            await permit.ended(request_id, 0)
            raise
        return BackgroundRun(stored.id, task, writer, requests=self._requests, write=write, first=waiting.first)

    async def _still_wanted(self, waiting: Progress, write: Write) -> bool:
        """Say that the response waits here, and hear whether it is to. One that was cancelled, or whose worker stops,
        is given to whoever looks next. Raises DatabaseUnavailable."""
        standing = await write(waiting)
        leaves = standing.cancelling or self._requests.draining
        if standing.mine and leaves:
            await write(replace(waiting, released=True))
        return standing.mine and not leaves

    async def _end(
        self,
        stored: StoredResponse,
        tenant_id: UUID,
        events: list[bytes],
        failure: GatewayError | None,
        seal: ContentSeal,
    ) -> None:
        """End a response with the items that it had: as failed, or without a failure as cancelled."""
        response = msgspec.json.decode(stored.response)
        response["status"] = status = "cancelled" if failure is None else "failed"
        response["error"] = None if failure is None else msgspec.to_builtins(response_error(failure))
        response["output"] = [
            msgspec.json.decode(event.partition(b"data: ")[2])["item"] for event in events if event.startswith(_DONE)
        ]
        last = {"type": "response.failed", "sequence_number": len(events), "response": response}
        progress = Progress(
            id=stored.id,
            tenant_id=tenant_id,
            first=len(events),
            events=[b"event: response.failed\ndata: " + encoder.encode(last) + b"\n\n"],
            status="cancelled" if status == "cancelled" else "failed",
            response=encoder.encode(response),
            ended=True,
        )
        await self._write(progress, seal)
