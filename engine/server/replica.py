"""The replica process: between the gateways' sockets and the engine's thread, with the journal beside them."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence

import msgspec
import structlog

from engine.core.output_processor import Event
from engine.core.stepped_engine import SteppedEngine
from engine.errors import DiskFull, EngineFailed, StartError
from engine.grammar.refused_grammars import RefusedGrammars
from engine.grammar.trial import STACK_BYTES
from engine.grammar.trial_client import TrialClient
from engine.models.decoder import Decoder
from engine.models.registry import load_model
from engine.server.adapter_arrivals import AdapterArrivals
from engine.server.done_outbox import DoneOutbox
from engine.server.engine_loop import EngineLoop
from engine.server.gateway_link import GatewayLink
from engine.server.grammar_queue import GrammarQueue
from engine.server.journal import Journal
from engine.server.listener import listen, listening_address, remove_socket
from engine.server.pending_requests import PendingRequests
from engine.server.routing_load import RoutingLoad
from engine.server.running_requests import RunningRequests
from engine.server.watchdog import Watchdog
from engine.startup.assembly import AssembledEngine, assemble
from engine.startup.options import ReplicaOptions
from protocol.adapters import AdapterPart, DropAdapter
from protocol.frames import OLDEST_VERSION, VERSION, ProtocolError, ToReplica
from protocol.replicas import (
    DISK_FULL,
    DRAINING,
    LOAD_S,
    PROMPT_TOKEN_S,
    Dial,
    Drain,
    Fence,
    Fenced,
    Forget,
    Heartbeat,
    Hello,
    Purge,
    RemoteService,
    Scope,
)
from protocol.requests import ROUTING_VERSION, Abort, Ack, Began, Counts, Credit, Done, Generate
from storage.disk_space import RESERVE_BYTES, DiskWatch, is_disk_full

logger = structlog.get_logger("engine.server.replica")

BEAT_S = 1.0
ACK_TIMEOUT_S = 2.0
SLOW_S = 1.0
"""A step that takes longer is told of in the log."""
_PARENT_S = 0.5
_GC_THRESHOLDS = 50_000, 20, 50
"""Far above Python's own: a search goes through the tokens of all prompts, and holds up a step meanwhile."""
_SWITCH_S = 0.0001
"""How long the engine's thread waits for the interpreter while others use it, at each of a step's hundreds of launches.
Python's own 5 ms are a whole step."""


class Replica:
    """One replica. Methods run in the event loop's thread unless they say otherwise; `loop.do` reaches the engine."""

    def __init__(self, options: ReplicaOptions, assembled: AssembledEngine[SteppedEngine], journal: Journal) -> None:
        self.options = options
        self.journal = journal
        self.events = asyncio.get_running_loop()
        self.stopping = asyncio.Event()
        self.failure: BaseException | None = None
        self._journal_disk = DiskWatch([journal.folder])
        self._running = RunningRequests()
        self._routing_load = RoutingLoad(self._prompt_token_s, self._load_changed)
        self._telling: asyncio.TimerHandle | None = None
        self._told_at = 0.0
        self.loop = EngineLoop(
            assembled.engine,
            journal,
            self._deliver_from_thread,
            self._fail_from_thread,
            chores=assembled.warm_up,
            gateway_epoch_of=self._running.epoch_of,
        )
        self.watchdog = Watchdog(
            options.data,
            self.loop.stalled_for,
            self._stall_limit,
            self._report_stall,
            slow=lambda: max(SLOW_S, 4 * self.loop.engine.longest_step_s),
            where=self.loop.stack,
        )
        self.hello = Hello(
            version=VERSION,
            oldest=OLDEST_VERSION,
            replica=options.name,
            epoch=journal.epoch,
            challenge=b"",
            model=assembled.model,
            layout=assembled.layout,
            capacity=assembled.capacity,
            journal=journal.identity,
            since=journal.since,
            numerics=assembled.numerics,
            foreign=assembled.foreign,
        )
        self.links: list[GatewayLink] = []
        """Those that have proved themselves, the longest connected first."""
        self._connections: set[asyncio.Task[None]] = set()
        self._done_outbox = DoneOutbox(journal, self.links)
        self._draining = self._stopping = False
        self._trials: TrialClient | None = None
        self._grammar_queue: GrammarQueue | None = None
        if (grammars := assembled.grammars) is not None:
            self._trials = TrialClient(grammars.compiler)
            self._grammar_queue = GrammarQueue(grammars, self._trials, RefusedGrammars(options.data / "grammars"))
        self._pending = PendingRequests(self.loop, self._grammar_queue)
        self._adapters = AdapterArrivals(assembled.engine.adapters)
        self._fencing: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------ connections

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends. Nothing that comes over it disturbs the others."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        link = GatewayLink(reader, writer)
        try:
            await link.greet(self.hello, self.options.link_key)
            if self.journal.is_fenced(link.epoch):
                raise ProtocolError("this run of the gateway is over")
            self._welcome(link)
            while (message := await link.receive()) is not None:
                self._receive(link, message)
        except ProtocolError as error:
            logger.warning("connection closed", gateway=link.gateway, problem=str(error))
        except TimeoutError:
            logger.warning("connection closed", gateway=link.gateway, problem="no greeting in time")
        except asyncio.CancelledError:
            pass  # the replica stops; asyncio's server would log the cancellation as an error
        finally:
            self._disconnected(link)
            await link.close()
            self._connections.discard(task)

    def _welcome(self, link: GatewayLink) -> None:
        self.links.append(link)
        link.send([self._beat()])
        if not link.gateway:
            return
        self._tell_load([link])
        logger.info("gateway connected", gateway=link.gateway)
        self._done_outbox.gateway_connected(link)

    def _disconnected(self, link: GatewayLink) -> None:
        """Stop what the gateway was running. What it has not acknowledged is kept for another link."""
        link.open = False
        if link not in self.links:
            return
        self.links.remove(link)
        self._adapters.link_lost(link)
        if link.gateway:
            logger.info("gateway gone", gateway=link.gateway)
        for id, attempt in self._running.of_link(link):
            self._stop_request(id, attempt)
        self._done_outbox.gateway_disconnected(link)

    # ------------------------------------------------------------ what gateways say

    def _receive(self, link: GatewayLink, message: ToReplica) -> None:
        engine, do = self.loop.engine, self.loop.do
        match message:
            case Generate():
                self._generate(link, message)
            case Credit():
                self._pending.do(message.id, message.attempt, lambda: self._credit(message))
            case Abort():
                self._abort(link, message)
            case Ack():
                self._done_outbox.acknowledge(message)
            case Scope():
                link.introduce(message)
                do(lambda: engine.introduce(message))
            case Forget():
                link.forget(message.scope)
                do(lambda: engine.forget(message.scope))
            case Purge():
                do(lambda: engine.purge(message.scope, message.keys))
            case RemoteService():
                do(lambda: engine.record_remote_service(message.replica, message.epoch, message.service))
            case Fence():
                self._fence(link, message.epoch)
            case Drain():
                self._drain(link, message.drain)
            case AdapterPart() | DropAdapter():
                self._take_adapter(link, message)
            case Dial():
                raise ProtocolError("a second Dial")

    def _take_adapter(self, link: GatewayLink, message: AdapterPart | DropAdapter) -> None:
        if isinstance(message, AdapterPart):
            self._adapters.take(message, link)
        else:
            self._adapters.drop(message.name)  # at once: the next request that names it asks for it again
            self.loop.do(lambda: self.loop.engine.drop_adapter(message.name))

    def _generate(self, link: GatewayLink, message: Generate) -> None:
        message = message.received(time.time())
        refusal = None
        earlier = self._running.attempts(message.id)
        if any(attempt >= message.attempt or not link.is_of_run(owner) for attempt, owner in earlier.items()):
            refusal = f"id: {message.id!r} is already running"
        elif self._stopping:
            refusal = "the replica is stopping"
        elif self._draining:
            refusal = "the replica is draining"
        elif self.journal.is_fenced(link.epoch):
            refusal = "this run of the gateway is over"
        elif self._journal_disk_full:
            refusal = "the disk of the replica's journal is full"
        if refusal is not None:
            link.send([Done(message.id, message.attempt, "rejected", Counts(), 0, error=refusal)])
            return
        for attempt in earlier:  # its gateway lost the link, which this side may not have noticed yet
            self._stop_request(message.id, attempt)
        self._running.add(message.id, message.attempt, link)
        self._routing_load.add(link, message)
        self._pending.add(message, link.scopes(message), self._adapters.way_here(message.adapter, link))

    def _drain(self, link: GatewayLink, drain: bool) -> None:
        """Refuse requests from now on, or take them again. All gateways hear of it at once."""
        if drain != self._draining:
            logger.info("draining" if drain else "resumed", gateway=link.gateway, running=len(self._running))
        self._draining = drain
        beat = self._beat()
        for other in self.links:
            other.send([beat])

    def _fence(self, link: GatewayLink, epoch: str) -> None:
        """Refuse a gateway epoch from now on, stop its requests, and answer which of them are known."""
        self.journal.fence(epoch)
        for id, attempt in self._running.of_epoch(epoch):
            self._stop_request(id, attempt)
        for other in list(self.links):
            if other.epoch == epoch:  # what it acknowledged from now on might never be billed
                other.abort()
        task = asyncio.create_task(self._tell_fenced(link, epoch))
        self._fencing.add(task)
        task.add_done_callback(self._fencing.discard)

    async def _tell_fenced(self, link: GatewayLink, epoch: str) -> None:
        """Answer a fence when it is on the disk: an answer without requests is final."""
        try:
            await asyncio.to_thread(self.journal.sync)
        except OSError as error:
            if not self.journal.full:  # a full disk is waited for: the gateway asks again
                self._fail(error)
            return
        requests = dict.fromkeys([*self.journal.known_of(epoch), *self._running.of_epoch(epoch)])
        link.send([Fenced(epoch, tuple(requests))])

    def _abort(self, link: GatewayLink, message: Abort) -> None:
        id, attempt = message.id, message.attempt
        if message.choice is not None:
            self._pending.do(id, attempt, lambda: self._abort_in_engine(id, attempt, message.choice))
            return
        running = {number: owner for number, owner in self._running.attempts(id).items() if attempt in (0, number)}
        for number, owner in running.items():
            # A gateway that lost its link and dialed again ends what it left running; the `Done` is to reach it here.
            if not owner.open or link.is_of_run(owner):
                self._running.add(id, number, link)
            self._stop_request(id, number)
        if not running and not self._done_outbox.resend(id, attempt, link):
            link.send([Done(id, attempt, "rejected", Counts(), 0, error="no such request is running")])

    def _stop_request(self, id: str, attempt: int) -> None:
        """Stop an attempt; 0 stands for any."""
        pending = self._pending.cancel(id, attempt)
        if pending is None:
            self.loop.do_for(id, lambda: self._abort_in_engine(id, attempt))
        else:
            error = "it was aborted before it began"
            self._deliver([Done(id, pending.attempt, "rejected", Counts(), 0, error=error)])

    def _abort_in_engine(self, id: str, attempt: int, choice: int | None = None) -> None:
        """Runs in the engine's thread. If the request has ended meanwhile, its `Done` is the answer."""
        self.loop.engine.abort(id, choice, attempt)

    def _credit(self, message: Credit) -> None:
        """Runs in the engine's thread."""
        credited = self.loop.engine.credit(message.id, message.delivered, message.limit, message.attempt)
        if credited is not None:
            attempt, delivered = credited
            self.journal.delivered(message.id, attempt, delivered)

    # ------------------------------------------------------------ what the engine says

    def _deliver_from_thread(self, happened: Sequence[Event]) -> None:
        self.events.call_soon_threadsafe(self._deliver, happened)

    def _fail_from_thread(self, error: BaseException) -> None:
        self.events.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: BaseException) -> None:
        self.failure = error
        self.stopping.set()

    def _background_task_ended(self, task: asyncio.Task[None]) -> None:
        """End the replica if a background task failed: without heartbeats or syncs it is of no use."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("a background task of the replica ended", exc_info=error)
            self._fail(error)

    def _deliver(self, happened: Sequence[Event]) -> None:
        """Send events to the gateways. A `Done` with a sequence number waits until the journal is on the disk."""
        self._routing_load.observe(happened)
        if any(isinstance(event, Began) for event in happened):
            self._done_outbox.sync_soon()
        self._running.deliver(happened, self._done_outbox)

    # ------------------------------------------------------------ called in the watchdog's thread

    def _stall_limit(self) -> float:
        """Seconds without a step after which the watchdog ends the replica."""
        return self.options.stall_s + 10 * self.loop.engine.longest_step_s

    def _report_stall(self) -> str:
        """Name the requests that the engine works on, and quarantine their inputs."""
        return ", ".join(self.loop.engine.record_stall()) or "no request: it is not in a step of the model"

    # ------------------------------------------------------------ heartbeats

    def _beat(self) -> Heartbeat:
        metrics = {
            "turnpike_engine_gateways": float(sum(bool(link.gateway) for link in self.links)),
            "turnpike_engine_journal_damaged_records": float(self.journal.damaged),
            DISK_FULL: float(self._journal_disk_full),
            DRAINING: float(self._draining),
        }
        beat = self.loop.beat
        return msgspec.structs.replace(beat, metrics=beat.metrics | metrics)

    @property
    def _journal_disk_full(self) -> bool:
        return self.journal.full or self._journal_disk.full

    async def _beats(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            beat = self._beat()
            for link in self.links:
                link.send([beat])
            self._tell_load(self.links)
            for tier in self.loop.engine.tiers if self._journal_disk_full else ():
                tier.give_back(RESERVE_BYTES)  # cached KV goes before anything is refused for long
            await self._restore_journal()
            self._done_outbox.sync_soon()  # so that the counts of long streams reach the disk, too
            self._done_outbox.reassign_orphans()

    def _load_changed(self) -> None:
        """Tell the gateways soon: at once if they were not told for `LOAD_S`."""
        if self._telling is None:
            delay = max(0.0, self._told_at + LOAD_S - self.events.time())
            self._telling = self.events.call_later(delay, self._tell_load, self.links)

    def _tell_load(self, links: Sequence[GatewayLink]) -> None:
        if self._telling is not None and links is self.links:
            self._telling.cancel()
            self._telling, self._told_at = None, self.events.time()
        for link in links:
            if link.gateway and link.version >= ROUTING_VERSION:
                load, link.told = self._routing_load.message_for(link, link.told)
                link.send([load])

    def _prompt_token_s(self) -> float:
        return self.loop.beat.metrics.get(PROMPT_TOKEN_S, 0.0)

    async def _restore_journal(self) -> None:
        """Write the journal again, from memory, if its folder was removed: as soon as the disk has room."""
        if self.journal.is_there:
            return
        try:
            await asyncio.to_thread(self.journal.restore)  # which may wait for the disk
        except (OSError, StartError, DiskFull) as error:
            if isinstance(error, DiskFull) or is_disk_full(error):
                logger.error("the journal was removed, and the disk has no room for it", cause=str(error))
                return
            logger.exception("the journal was removed and cannot be written again")
            self._fail(error)

    async def _watch_parent(self, parent: int) -> None:
        while os.getppid() == parent:  # noqa: ASYNC110  # the kernel sends no event
            await asyncio.sleep(_PARENT_S)
        logger.warning("parent is gone", parent=parent)
        self.stopping.set()

    # ------------------------------------------------------------ life

    async def run(self) -> None:
        """Listen until told to stop. Raises StartError if the address cannot be used, EngineFailed."""
        server = await listen(self.options.address, self.connected)
        tasks = [asyncio.create_task(self._done_outbox.sync(self._fail)), asyncio.create_task(self._beats())]
        if self.options.parent_pid is not None:
            tasks.append(asyncio.create_task(self._watch_parent(self.options.parent_pid)))
        for task in tasks:
            task.add_done_callback(self._background_task_ended)
        for number in (signal.SIGTERM, signal.SIGINT):
            self.events.add_signal_handler(number, self.stopping.set)
        # The objects of the start stay for good. Frozen, they are not searched for garbage again and again: that would
        # hold up steps, and would be done so seldom that the garbage of requests piles up.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        sys.setswitchinterval(_SWITCH_S)
        self.loop.start()
        self.watchdog.start()
        if self._trials is not None:
            await self._trials.start()
        logger.info(
            "ready",
            replica=self.options.name,
            address=self.options.address,
            model=self.hello.model.name,
            epoch=self.hello.epoch,
            replayed=len(self._done_outbox),
        )
        try:
            await self.stopping.wait()
            server.close()
            if self.failure is None:
                await self._finish()
        finally:
            await asyncio.to_thread(self.loop.stop)
            if self._grammar_queue is not None and self._trials is not None:
                await self._grammar_queue.close()
                await self._trials.close()
            self.watchdog.stop()
            running = [*tasks, *self._connections, *self._fencing]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            server.close()
            remove_socket(self.options.address)
        if self.failure is not None:
            raise EngineFailed(f"the engine failed: {self.failure}") from self.failure
        logger.info("stopped", replica=self.options.name)

    async def _finish(self) -> None:
        """Let requests run on for a while, stop the rest, and wait for the gateways to acknowledge them."""
        self._stopping = True
        logger.info("stopping", running=len(self._running))
        if self.links:
            await self._wait_until(lambda: not self._running, self.options.drain_s)
        for id, attempt in self._running.all():
            self._stop_request(id, attempt)
        await self._wait_until(lambda: not self._running and not self._done_outbox.pending, ACK_TIMEOUT_S)
        await self._wait_until(lambda: not self._done_outbox.awaited, ACK_TIMEOUT_S)

    async def _wait_until(self, condition: Callable[[], bool], seconds: float) -> None:
        end = time.monotonic() + seconds
        while not condition() and time.monotonic() < end and self.failure is None:  # noqa: ASYNC110  # several threads' states
            await asyncio.sleep(0.01)


async def serve(options: ReplicaOptions, load: Callable[..., Decoder] = load_model) -> None:
    """Run a replica until SIGTERM, SIGINT or the end of its parent. `load` loads the model. Raises EngineError if it
    cannot start."""
    listening_address(options.address)
    threading.stack_size(STACK_BYTES)  # of threads that start from here on; trials of grammars get half of it
    # The journal's lock first: a second replica on the folder fails before it loads a model.
    journal = Journal(options.data)
    try:
        if journal.damaged or journal.torn_bytes:
            logger.warning("journal was damaged", records=journal.damaged, torn_bytes=journal.torn_bytes)
        if options.foreign is not None:
            from engine.foreign.assembly import assemble_foreign  # noqa: PLC0415  # others need no HTTP client

            assembled: AssembledEngine[SteppedEngine] = await asyncio.to_thread(assemble_foreign, options)
        else:
            assembled = assemble(options, load, journal.wait_for_sync)
        await Replica(options, assembled, journal).run()
    finally:
        journal.close()


def main(options: ReplicaOptions, load: Callable[..., Decoder] = load_model) -> int:
    """Run `serve` in a new event loop. Returns 0 after a clean stop. Raises EngineError if it cannot start."""
    asyncio.run(serve(options, load))
    return 0
