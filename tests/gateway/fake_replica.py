"""A replica that runs a script instead of a model: the real protocol over a socket, with a journal in memory."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct, structs

from engine.scheduling.fairness.fair_share import FairShare
from protocol.adapters import AdapterPart, DropAdapter, ResidentAdapter, WantAdapter
from protocol.frames import OLDEST_VERSION, VERSION, ToGateway, encode, link_proof, read_from_gateway
from protocol.replicas import (
    DISK_FULL,
    DRAINING,
    Capacity,
    Dial,
    Drain,
    Fence,
    Fenced,
    Forget,
    Heartbeat,
    Hello,
    Layout,
    Purge,
    RemoteService,
    Scope,
    ServedModel,
)
from protocol.requests import (
    ATTEMPT_VERSION,
    PROMPT_VERSION,
    Abort,
    Ack,
    Began,
    Counts,
    Credit,
    Done,
    Generate,
    Lost,
    PromptChunk,
    PromptLogprobs,
    PromptRead,
    Timeline,
    TokenLogprob,
    Tokens,
)

LINK_KEY = b"k" * 32

_ACCEPTING_S = 0.01
"""How long a connection that is being accepted may take to reach us."""


class Script(Struct, kw_only=True):
    """What to do with a request. `tokens` are sent `burst` at a time, `pause` seconds apart."""

    tokens: list[int]
    burst: int = 1
    pause: float = 0.0
    queued: float = 0.0
    """Seconds before `Began`."""
    prefill: float = 0.0
    """Seconds between `Began` and the first token."""
    read_hbm: int = 0
    read_dram: int = 0
    read_nvme: int = 0
    lost: tuple[Lost, ...] = ()
    """What of `read_dram` and `read_nvme` is planned and then computed."""
    die_after: int | None = None
    """Drop the connection after so many tokens; 0: before the first, -1: before `Began`."""
    silent: bool = False
    """Never answer anything, not even `Abort`."""
    ignore_credit: bool = False
    reason: str = ""
    """End with this reason instead of the natural one."""
    error: str | None = None
    invalid: str | None = None
    likeliest: int = 0
    """How many likeliest tokens stand beside each token that is scored, of the prompt and, if asked for, the output."""

    def scores(self, tokens: Sequence[int]) -> tuple[TokenLogprob, ...]:
        """Log probabilities of these tokens: other ones at each place."""
        return tuple(
            TokenLogprob(-1.5 - at, tuple((other, -0.5 - at - other) for other in range(self.likeliest)))
            for at in range(len(tokens))
        )


class Run:
    """One request as this replica sees it."""

    def __init__(self, generate: Generate) -> None:
        self.generate = generate
        self.limit = generate.credit
        self.delivered = generate.delivered
        self.sent = len(generate.emitted[0]) if generate.emitted else 0
        """Output tokens, those of an earlier attempt among them."""
        self.credits: list[Credit] = []
        self.aborted = asyncio.Event()
        self.abort_reason = ""
        self.more = asyncio.Event()
        self.counts = Counts()
        self.timeline: Timeline | None = None
        self.arrived = time.monotonic()
        self.task: asyncio.Task[None] | None = None


def _micros(since: float) -> int:
    return int((time.monotonic() - since) * 1e6)


class FakeReplica:
    """Listens on `path`, or at `host`. `script` says what to do with each request."""

    def __init__(
        self,
        path: Path,
        text_digest: str,
        *,
        model: str = "tiny",
        name: str = "replica-0",
        context: int = 512,
        script: Callable[[Generate], Script] | Script | None = None,
        host: str = "",
        port: int = 0,
    ) -> None:
        self.path = path
        self.host, self.port = host, port
        """Where it listens instead of `path`; may be changed while it is stopped. Port 0: a free one at the start."""
        self.name = name
        self.epoch = 1
        self.version = VERSION
        self.identity = f"journal of {name}"
        self.numerics = "exact"
        self.fences: list[Fence] = []
        self.answering = True
        """Whether `Fence` is answered."""
        self.model = ServedModel(model, "d" * 64, text_digest, "float32", 600)
        self.context = context
        self.script = script or Script(tokens=[])
        self.runs: dict[str, Run] = {}
        self.scopes: list[Scope] = []
        self.purges: list[Purge] = []
        self.forgotten: list[str] = []
        self.journal: dict[str, Done] = {}
        self.resident: tuple[ResidentAdapter, ...] = ()
        """What its heartbeats say of adapters."""
        self.adapters: dict[str, bytes] = {}
        """What came of the adapters that requests named: each is asked for once."""
        self.done: list[Done] = []
        self.acked: list[Ack] = []
        self.aborts: list[Abort] = []
        self.dials: list[Dial] = []
        self.share = FairShare()
        """Whose service the beats tell, and that hears of the others'."""
        self.elsewhere: list[RemoteService] = []
        self.draining = False
        self.disk_full = False
        self.beating = True
        self.busy = 0
        self.blocks = 10
        self.metrics: dict[str, float] = {}
        """Claim so many running requests at least."""
        self.stuck = False
        self.beat_steps = 0
        self.sequence = 0
        self.beat_interval = 0.1
        self._writers: set[asyncio.StreamWriter] = set()
        """Every connection since the start: one that is closed may still have something to write."""
        self._linked: set[asyncio.StreamWriter] = set()
        """Those whose gateway has proved itself."""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"tcp:{self.host}:{self.port}" if self.host else f"unix:{self.path}"

    async def start(self) -> None:
        if self.host:
            self._server = await asyncio.start_server(self._accept, self.host, self.port)
            self.port = self._server.sockets[0].getsockname()[1]
            return
        self.path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._accept, str(self.path))

    async def stop(self) -> None:
        """Like a kill: connections drop, nothing is said."""
        if self._server is not None:
            self._server.close()
        await asyncio.sleep(_ACCEPTING_S)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        self.drop()
        self._writers.clear()
        await asyncio.sleep(0)  # connections that were aborted end in the loop's next turn
        if self._server is not None:
            await self._server.wait_closed()
        self._server = None

    async def restart(self) -> None:
        """A new epoch; what was running is in the journal as a crash."""
        self.epoch += 1
        for run in self.runs.values():
            self._crashed(run)
        await self.start()

    def _crashed(self, run: Run) -> list[Done]:
        """Journal a run that began and did not end."""
        generate = run.generate
        ended = any((done.id, done.attempt) == (generate.id, generate.attempt) for done in self.done)
        return [self._journal(run, "crash")] if run.counts.prompt and not ended else []

    def drop(self) -> None:
        """Lose all connections, but go on running."""
        for writer in list(self._writers):
            writer.transport.abort()

    def _journal(self, run: Run, reason: str, error: str | None = None, invalid: str | None = None) -> Done:
        self.sequence += 1
        generate = run.generate
        done = Done(
            generate.id,
            generate.attempt,
            reason,
            run.counts,
            self.sequence,
            run.delivered,
            error,  # type: ignore[arg-type]
            invalid=invalid,
            claim=generate.claim,
        )
        told = run.timeline
        if told is not None:
            told = structs.replace(told, ended=_micros(run.arrived), first=told.first if run.sent else -1)
        self.journal[generate.id if generate.attempt == 1 else f"{generate.id}/{generate.attempt}"] = done
        self.done.append(done)
        return structs.replace(done, timeline=told)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        beats: asyncio.Task[None] | None = None
        try:
            challenge = b"c" * 16
            layout = Layout(64, ())
            hello = Hello(
                self.version,
                OLDEST_VERSION,
                self.name,
                self.epoch,
                challenge,
                self.model,
                layout,
                Capacity((self.blocks,), self.context, 8),
                self.identity,
                numerics=self.numerics,
            )
            writer.write(encode(hello))
            dial = await read_from_gateway(reader)
            if not isinstance(dial, Dial) or dial.proof != link_proof(LINK_KEY, challenge, dial.gateway):
                return
            self.dials.append(dial)
            self._linked.add(writer)
            for done in self.journal.values():
                writer.write(encode(structs.replace(done, replayed=True)))
            beats = asyncio.create_task(self._beat(writer))
            while (message := await read_from_gateway(reader)) is not None:
                match message:
                    case Forget():
                        self.forgotten.append(message.scope)
                    case Scope():
                        self.scopes.append(message)
                    case Purge():
                        self.purges.append(message)
                    case Generate():
                        if before := self.runs.get(message.id):  # an attempt whose connection was lost
                            if self.version < ATTEMPT_VERSION and before.task is not None and not before.task.done():
                                writer.write(encode(Done(message.id, message.attempt, "rejected", Counts(), 0)))
                                continue
                            if not before.aborted.is_set() or before.task is None or before.task.done():
                                for done in self._crashed(before):
                                    writer.write(encode(done))
                        if message.adapter and message.adapter not in self.adapters:
                            self.adapters[message.adapter] = b""
                            writer.write(encode(WantAdapter(message.adapter)))
                        run = self.runs[message.id] = Run(message)
                        run.task = asyncio.create_task(self._run(run, writer))
                        self._tasks.add(run.task)
                        run.task.add_done_callback(self._tasks.discard)
                    case Credit():
                        run = self.runs[message.id]
                        run.credits.append(message)
                        run.limit, run.delivered = message.limit, message.delivered
                        run.more.set()
                    case Abort():
                        self._abort(message, writer)
                    case Fence():
                        self.fences.append(message)
                        if self.answering:
                            known = tuple((done.id, done.attempt) for done in self.journal.values())
                            writer.write(encode(Fenced(message.epoch, known)))
                    case AdapterPart():
                        self.adapters[message.name] = self.adapters.get(message.name, b"") + message.content
                    case DropAdapter():
                        self.adapters.pop(message.name, None)
                    case Drain():
                        self.draining = message.drain
                    case RemoteService():
                        self.elsewhere.append(message)
                        self.share.record_remote_service(message.replica, message.epoch, message.service)
                    case Ack():
                        self.acked.append(message)
                        for name, done in list(self.journal.items()):
                            if (done.id, done.sequence) == (message.id, message.sequence):
                                del self.journal[name]
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            if beats is not None:
                beats.cancel()
            self._linked.discard(writer)
            writer.close()

    def _abort(self, message: Abort, writer: asyncio.StreamWriter) -> None:
        self.aborts.append(message)
        run = self.runs.get(message.id)
        if run is not None and message.attempt not in (0, run.generate.attempt):
            run = None
        told = [
            done for done in self.journal.values() if done.id == message.id and message.attempt in (0, done.attempt)
        ]
        if told:
            for done in told:
                writer.write(encode(structs.replace(done, replayed=True)))
        elif run is None:
            writer.write(encode(Done(message.id, message.attempt, "rejected", Counts(), 0)))
        else:
            run.abort_reason = message.why
            run.aborted.set()
            run.more.set()

    async def _beat(self, writer: asyncio.StreamWriter) -> None:
        while True:
            if self.beating:
                self.beat_steps += not self.stuck
                running = self.busy + sum(1 for run in self.runs.values() if run.task and not run.task.done())
                flags = {DRAINING: float(self.draining), DISK_FULL: float(self.disk_full)}
                metrics = {"turnpike_engine_kv_blocks_free": 7.0, **flags, **self.metrics}
                service = self.share.service_given()
                beat = Heartbeat(
                    self.beat_steps, running, {"standard": 0}, (), service, metrics=metrics, adapters=self.resident
                )
                writer.write(encode(beat))
            await asyncio.sleep(self.beat_interval)

    def answer_to(self, generate: Generate) -> Script:
        """What it does with this request."""
        return self.script(generate) if callable(self.script) else self.script

    async def _wait(self, run: Run, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(run.aborted.wait(), seconds)

    async def _run(self, run: Run, writer: asyncio.StreamWriter) -> None:
        generate, script, arrived = run.generate, self.answer_to(run.generate), run.arrived
        if script.silent:
            return

        def say(message: ToGateway) -> None:
            for current in self._linked:
                current.write(encode(message))

        if script.die_after == -1:
            writer.transport.abort()
            return
        if script.reason == "rejected":
            say(
                Done(generate.id, generate.attempt, "rejected", Counts(), 0, error=script.error, invalid=script.invalid)
            )
            return
        if script.queued:
            await self._wait(run, script.queued)
        if run.aborted.is_set():
            say(self._journal(run, "abort"))
            return
        prompt = len(generate.tokens)
        hbm = min(script.read_hbm, prompt - 1)
        dram = min(script.read_dram, prompt - 1 - hbm)
        nvme = min(script.read_nvme, prompt - 1 - hbm - dram)
        read = hbm + dram + nvme
        run.counts = Counts(prompt=prompt, computed=prompt - read, read_hbm=hbm, read_dram=dram, read_nvme=nvme)
        if generate.emitted:
            run.counts = structs.replace(generate.counted, output=run.sent, recomputed=prompt + run.sent)
        began = _micros(arrived)
        say(Began(generate.id, generate.attempt, run.counts))
        for lost in script.lost:
            tokens_lost = lost.end - lost.start
            from_nvme = min(run.counts.read_nvme, tokens_lost)
            run.counts = structs.replace(
                run.counts,
                computed=run.counts.computed + tokens_lost,
                read_nvme=run.counts.read_nvme - from_nvme,
                read_dram=run.counts.read_dram - (tokens_lost - from_nvme),
            )
        prompt_read = PromptRead(run.counts, script.lost) if self.version >= PROMPT_VERSION else None
        if script.prefill:
            await self._wait(run, script.prefill)
        first = _micros(arrived)
        chunk_of_all = PromptChunk(began, first, prompt - read)
        run.timeline = Timeline(
            0, began, first if script.tokens else -1, chunks=(chunk_of_all,), decodes=2, drafting=1500
        )
        if generate.sampling.prompt_logprobs is not None:
            say(PromptLogprobs(generate.id, generate.attempt, 1, script.scores(generate.tokens[1:])))
        scored = generate.sampling.logprobs is not None and bool(script.likeliest)
        reason = "length"
        tokens = script.tokens[: generate.sampling.max_tokens]
        while run.sent < len(tokens):
            if script.die_after is not None and run.sent >= script.die_after:
                await writer.drain()
                writer.transport.abort()
                return
            if run.aborted.is_set():
                break
            allowed = script.burst if script.ignore_credit else min(script.burst, run.limit - run.sent)
            if allowed <= 0:
                run.more.clear()
                await run.more.wait()
                continue
            chunk = tokens[run.sent : run.sent + allowed]
            for index, token in enumerate(chunk):
                if token in generate.sampling.stop_tokens:
                    chunk, reason = chunk[: index + 1], "stop"
                    break
            logprobs = script.scores(chunk) if scored else ()
            read_now = None if run.sent else prompt_read
            say(Tokens(generate.id, generate.attempt, run.sent, chunk, logprobs=logprobs, prompt=read_now))
            run.sent += len(chunk)
            run.counts = structs.replace(run.counts, output=run.sent)
            if reason == "stop":
                break
            await self._wait(run, script.pause)
        if script.die_after is not None and run.sent >= script.die_after:
            writer.transport.abort()
            return
        if run.aborted.is_set() and reason != "stop" and run.sent < len(tokens):
            reason = "abort"
        if run.aborted.is_set() and run.abort_reason != "stop":
            reason = "abort"
        if not run.aborted.is_set() and script.reason:
            reason = script.reason
        say(self._journal(run, reason, script.error, script.invalid))
