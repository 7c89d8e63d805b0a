"""The replica process: gateways' sockets ↔ the engine's thread, with the journal between them."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
import structlog

from engine.core.engine import Event
from engine.core.input_processor import Rejected
from engine.errors import DiskFull, EngineFailed, StartError
from engine.grammar.guide import Grammar, InvalidGrammar
from engine.grammar.refused_grammars import RefusedGrammars
from engine.grammar.trial import STACK_BYTES
from engine.grammar.trial_client import TrialClient, TrialLost
from engine.options import ReplicaOptions
from engine.server.done_outbox import DoneOutbox
from engine.server.engine_loop import Command, EngineLoop
from engine.server.gateway_link import GatewayLink
from engine.server.grammar_queue import GrammarQueue, PendingGrammar, TooManyWaiting
from engine.server.journal import Journal
from engine.server.listener import listen, listening_address, remove_socket
from engine.server.running_requests import RunningRequests
from engine.server.watchdog import Watchdog
from engine.startup.assembly import AssembledEngine, assemble
from protocol.frames import OLDEST_VERSION, VERSION, ProtocolError, ToReplica
from protocol.replicas import DISK_FULL, Beat, Dial, Elsewhere, Fence, Fenced, Forget, Hello, Purge, Scope
from protocol.requests import Abort, Ack, Began, Counts, Credit, Done, Extend, Generate, Refusal
from storage.disk_space import DiskWatch, is_disk_full

__all__ = ["ReplicaOptions", "main", "serve"]

logger = structlog.get_logger("engine.server.replica")

BEAT_S = 1.0
ACK_PATIENCE_S = 2.0
_PARENT_S = 0.5


class Replica:
    """Everything here runs in the event loop's thread; the engine is reached through `loop.do`."""

    def __init__(self, options: ReplicaOptions, assembled: AssembledEngine, journal: Journal) -> None:
        self.options = options
        self.journal = journal
        self.events = asyncio.get_running_loop()
        self.stopping = asyncio.Event()
        self.failure: BaseException | None = None
        self.disk = DiskWatch([journal.folder])
        self.loop = EngineLoop(
            assembled.engine,
            journal,
            self._deliver_from_thread,
            self._fail_from_thread,
            chores=assembled.warm_up,
            gateway_of=self._gateway_of,
        )
        self.watchdog = Watchdog(options.data, self.loop.stalled_for, self._patience, self._blame)
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
        )
        self.links: list[GatewayLink] = []
        """Those that have proved themselves, the longest connected first."""
        self._connections: set[asyncio.Task[None]] = set()
        self._running = RunningRequests()
        self._done_outbox = DoneOutbox(journal, self.links)
        self._draining = False
        self._pending_grammars: dict[str, PendingGrammar] = {}
        """Requests whose grammars are being compiled."""
        self._trials = TrialClient(assembled.grammars.compiler)
        self._grammar_queue = GrammarQueue(assembled.grammars, self._trials, RefusedGrammars(options.data / "grammars"))
        self._fencing: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------ connections

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends; nothing that comes over it disturbs the others."""
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
                self._take(link, message)
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
        logger.info("gateway connected", gateway=link.gateway)
        self._done_outbox.welcome(link)

    def _disconnected(self, link: GatewayLink) -> None:
        """What the gateway was running is stopped; what it has not acknowledged waits for the next one."""
        link.open = False
        if link not in self.links:
            return
        self.links.remove(link)
        if link.gateway:
            logger.info("gateway gone", gateway=link.gateway)
        for id, attempt in self._running.of_link(link):
            self._stop_request(id, attempt)
        self._done_outbox.part(link)

    # ------------------------------------------------------------ what gateways say

    def _take(self, link: GatewayLink, message: ToReplica) -> None:
        engine, do = self.loop.engine, self.loop.do
        match message:
            case Generate():
                self._generate(link, message)
            case Credit():
                self._change(message.id, message.attempt, lambda: self._credit(message))
            case Extend():
                self._extend(message)
            case Abort():
                self._abort(link, message)
            case Ack():
                self._done_outbox.acknowledge(message)
            case Scope():
                link.introduce(message)
            case Forget():
                link.forget(message.scope)
                do(lambda: engine.forget(message.scope))
            case Purge():
                do(lambda: engine.purge(message.keys))
            case Elsewhere():
                do(lambda: engine.elsewhere(message.replica, message.epoch, message.service))
            case Fence():
                self._fence(link, message.epoch)
            case Dial():
                raise ProtocolError("a second Dial")

    def _generate(self, link: GatewayLink, message: Generate) -> None:
        refusal = None
        earlier = self._running.attempts(message.id)
        if any(attempt >= message.attempt or not link.is_of_run(owner) for attempt, owner in earlier.items()):
            refusal = f"id: {message.id!r} is already running"
        elif self._draining:
            refusal = "the replica is stopping"
        elif self.journal.is_fenced(link.epoch):
            refusal = "this run of the gateway is over"
        elif self._disk_full:
            refusal = "the disk of the replica's journal is full"
        if refusal is not None:
            link.send([Done(message.id, message.attempt, "rejected", Counts(), 0, error=refusal)])
            return
        for attempt in earlier:  # its gateway gave it up: the link to us was lost, which we may not know yet
            self._stop_request(message.id, attempt)
        self._running.add(message.id, message.attempt, link)
        scopes = link.scopes(message)
        if message.grammar is None:
            self._add(message, scopes)
        else:
            compiling = self._pending_grammars[message.id] = PendingGrammar(message)
            compiling.task = asyncio.create_task(self._compile(compiling, scopes, message.grammar))

    def _add(self, message: Generate, scopes: Mapping[str, Scope], grammar: Grammar | Rejected | None = None) -> None:
        self.loop.do(lambda: self.loop.engine.add(message, scopes, grammar))

    async def _compile(self, compiling: PendingGrammar, scopes: Mapping[str, Scope], text: str) -> None:
        """Compile beside the step loop; the engine finds it done, what is wrong with it, or its time over."""
        grammar: Grammar | Rejected
        try:
            async with asyncio.timeout_at(compiling.until(self.events)) as compiling.timeout:
                grammar = await self._grammar_queue.compile(text, compiling.message.flow)
        except InvalidGrammar as error:
            grammar = Rejected(f"grammar: {error}", invalid="grammar")
        except TooManyWaiting:
            grammar = Rejected("grammar: too many of this flow wait to be compiled", Refusal("flow", 1.0))
        except TrialLost:
            grammar = Rejected("grammar: it could not be tried", Refusal("replica", 1.0))
        except TimeoutError:  # the engine says so
            grammar = Rejected("grammar: it was not compiled in time")
        message = compiling.message
        if self._pending_grammars.get(message.id) is compiling:
            del self._pending_grammars[message.id]
            self._add(message, scopes, grammar)
            for change in compiling.changes:
                self.loop.do(change)

    def _compiling_of(self, id: str, attempt: int) -> PendingGrammar | None:
        """The request of this id, if its grammar is being compiled for this attempt; 0 for any."""
        compiling = self._pending_grammars.get(id)
        return compiling if compiling is not None and attempt in (0, compiling.message.attempt) else None

    def _change(self, id: str, attempt: int, change: Command) -> None:
        """Do this to a request in the engine's thread: now, or as soon as the engine knows of it."""
        compiling = self._compiling_of(id, attempt)
        if compiling is None:
            self.loop.do(change)
        else:
            compiling.changes.append(change)

    def _extend(self, message: Extend) -> None:
        compiling = self._compiling_of(message.id, message.attempt)
        if compiling is not None:
            compiling.extend(message, self.events)
        self._change(message.id, message.attempt, lambda: self._extend_in_engine(message))

    def _extend_in_engine(self, message: Extend) -> None:
        self.loop.engine.extend(message.id, message.max_tokens, message.deadline, message.lane, message.attempt)

    def _fence(self, link: GatewayLink, epoch: str) -> None:
        """Take nothing more of a gateway epoch, stop what it runs, and say what is still known of it."""
        self.journal.fence(epoch)
        for id, attempt in self._running.of_epoch(epoch):
            self._stop_request(id, attempt)
        for other in list(self.links):
            if other.epoch == epoch:  # what it would acknowledge from now on might be in nobody's books
                other.abort()
        task = asyncio.create_task(self._tell_fenced(link, epoch))
        self._fencing.add(task)
        task.add_done_callback(self._fencing.discard)

    async def _tell_fenced(self, link: GatewayLink, epoch: str) -> None:
        """Once the fence is on the disk: an answer that nothing is known is final."""
        try:
            await asyncio.to_thread(self.journal.sync)
        except OSError as error:
            if not self.journal.full:  # a full disk is waited for: the gateway asks again
                self._fail(error)
            return
        known = dict.fromkeys([*self.journal.known_of(epoch), *self._running.of_epoch(epoch)])
        link.send([Fenced(epoch, tuple(known))])

    def _abort(self, link: GatewayLink, message: Abort) -> None:
        id, attempt = message.id, message.attempt
        if message.choice is not None:
            self._change(id, attempt, lambda: self._abort_in_engine(id, attempt, message.choice))
            return
        found = {one: owner for one, owner in self._running.attempts(id).items() if attempt in (0, one)}
        for one, owner in found.items():
            # A gateway that was lost and is back asks for the end of what it left running, and hears of it here.
            if not owner.open or link.is_of_run(owner):
                self._running.add(id, one, link)
            self._stop_request(id, one)
        if not found and not self._done_outbox.tell(id, attempt, link):
            link.send([Done(id, attempt, "rejected", Counts(), 0, error="no such request is running")])

    def _stop_request(self, id: str, attempt: int) -> None:
        waiting = self._compiling_of(id, attempt)
        if waiting is not None:  # the engine does not know of it yet
            del self._pending_grammars[id]
            message = waiting.message
            if waiting.task is not None:
                waiting.task.cancel()
            ended = "it was aborted before it began"
            self._deliver([Done(id, message.attempt, "rejected", Counts(), 0, error=ended)])
            return
        self.loop.do(lambda: self._abort_in_engine(id, attempt))

    def _abort_in_engine(self, id: str, attempt: int, choice: int | None = None) -> None:
        """In the engine's thread. If it ended meanwhile, its `Done` is the answer."""
        self.loop.engine.abort(id, choice, attempt)

    def _credit(self, message: Credit) -> None:
        """In the engine's thread."""
        heard = self.loop.engine.credit(message.id, message.delivered, message.limit, message.attempt)
        if heard is not None:
            attempt, delivered = heard
            self.journal.delivered(message.id, attempt, delivered)

    # ------------------------------------------------------------ what the engine says

    def _gateway_of(self, id: str, attempt: int) -> str:
        """In the engine's thread: a request has its owner until the engine's word of its end was heard."""
        owner = self._running.owner(id, attempt)
        return owner.epoch if owner is not None else ""

    def _deliver_from_thread(self, happened: Sequence[Event]) -> None:
        self.events.call_soon_threadsafe(self._deliver, happened)

    def _fail_from_thread(self, error: BaseException) -> None:
        self.events.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: BaseException) -> None:
        self.failure = error
        self.stopping.set()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """A replica that no longer beats or syncs is of no use to anyone, and would not say so."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("what the replica does all the time came to an end", exc_info=error)
            self._fail(error)

    def _deliver(self, happened: Sequence[Event]) -> None:
        """Send what may be sent now; each Done with a sequence number waits for the disk."""
        outgoing: dict[GatewayLink, list[Event]] = {}
        for event in happened:
            if isinstance(event, Began):
                self._done_outbox.sync_soon()
            if isinstance(event, Done) and event.sequence:
                self._done_outbox.add(event, self._running.end(event.id, event.attempt))
                continue
            link = self._running.owner(event.id, event.attempt)
            if isinstance(event, Done):
                self._running.end(event.id, event.attempt)
            if link is not None:
                outgoing.setdefault(link, []).append(event)
        for link, messages in outgoing.items():
            link.send(messages)

    # ------------------------------------------------------------ the watchdog's questions, asked in its thread

    def _patience(self) -> float:
        return self.options.stall_s + 10 * self.loop.engine.longest_step_s

    def _blame(self) -> str:
        """What the engine works on; those inputs are suspects from now on."""
        engine = self.loop.engine
        requests = [work.request for work in engine.execution.working]
        engine.quarantine.blame([request.input_key() for request in requests])
        return ", ".join(request.id for request in requests) or "no request: it is not in a step of the model"

    # ------------------------------------------------------------ time

    def _beat(self) -> Beat:
        own = {
            "turnpike_engine_gateways": float(sum(bool(link.gateway) for link in self.links)),
            "turnpike_engine_journal_damaged_records": float(self.journal.damaged),
            DISK_FULL: float(self._disk_full),
        }
        beat = self.loop.beat
        return msgspec.structs.replace(beat, metrics=beat.metrics | own)

    @property
    def _disk_full(self) -> bool:
        return self.journal.full or self.disk.full

    async def _beats(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            beat = self._beat()
            for link in self.links:
                link.send([beat])
            await self._watch_journal()
            self._done_outbox.sync_soon()  # now and then, so that long streams are on the disk too
            self._done_outbox.reassign_orphans()

    async def _watch_journal(self) -> None:
        """A journal whose folder was removed is written again while all that stood in it is known: as soon as the disk
        has room."""
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
        while os.getppid() == parent:  # noqa: ASYNC110  # the kernel tells nobody
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
            task.add_done_callback(self._task_ended)
        for number in (signal.SIGTERM, signal.SIGINT):
            self.events.add_signal_handler(number, self.stopping.set)
        # What is there by now stays: to search it for garbage again and again would hold up steps, so Python would do
        # it seldom, and what is garbage of what comes and goes would pile up until then.
        gc.collect()
        gc.freeze()
        self.loop.start()
        self.watchdog.start()
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
                await self._drain()
        finally:
            await asyncio.to_thread(self.loop.stop)
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

    async def _drain(self) -> None:
        """Let what runs come to its end for a while, stop the rest, and hear the gateways acknowledge it."""
        self._draining = True
        logger.info("stopping", running=len(self._running))
        if self.links:
            await self._until(lambda: not self._running, self.options.drain_s)
        for id, attempt in self._running.all():
            self._stop_request(id, attempt)
        await self._until(lambda: not self._running and not self._done_outbox.pending, ACK_PATIENCE_S)
        await self._until(lambda: not self._done_outbox.awaited, ACK_PATIENCE_S)

    async def _until(self, condition: Callable[[], bool], patience: float) -> None:
        end = time.monotonic() + patience
        while not condition() and time.monotonic() < end and self.failure is None:  # noqa: ASYNC110  # several threads' states
            await asyncio.sleep(0.01)


async def serve(options: ReplicaOptions) -> None:
    """Run a replica until SIGTERM, SIGINT or its parent's end. Raises EngineError if it cannot start."""
    listening_address(options.address)
    threading.stack_size(STACK_BYTES)  # of all threads that begin from here on: grammars are tried with half of it
    # The journal's lock first: a second replica on one folder should say so before it loads a model.
    journal = Journal(options.data)
    try:
        if journal.damaged or journal.torn_bytes:
            logger.warning("journal was damaged", records=journal.damaged, torn_bytes=journal.torn_bytes)
        await Replica(options, assemble(options), journal).run()
    finally:
        journal.close()


def main(options: ReplicaOptions) -> int:
    """Run `serve` in a new event loop; 0 after a clean stop. Raises EngineError if it cannot start."""
    asyncio.run(serve(options))
    return 0
