"""One GenerationTask with nothing around it but memory, so that a test says event by event what happens to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from billing.holds.records import Hold
from billing.prices import PriceVersion
from billing.reservation.decisions import InsufficientFunds
from billing.usage import UsageEvent
from gateway.admission.admission import database_unavailable
from gateway.admission.prepared_request import Payer, PreparedRequest
from gateway.admission.request_timeouts import RequestTimeouts
from gateway.conversation.prompt import Prompt
from gateway.errors import Interrupted, NotCached, Unaffordable, Unavailable
from gateway.fleet.replica_link import FleetOptions
from gateway.fleet.replica_stream import ReplicaStream, TimeOver
from gateway.fleet.router import Routed, Router
from gateway.fleet.routing import Sent
from gateway.generation.delivery import DeliveryChunk, Failed, Finished, ReaderGone, Started
from gateway.generation.dependencies import GenerationDependencies
from gateway.generation.generation_task import GenerationTask
from gateway.generation.shared_writes import SharedWrites
from gateway.generation_request import GenerationRequest, Grammar
from gateway.limits.permit import AskedPermit
from gateway.metering.billable_usage import MeteringTerms
from gateway.served_models.served_model import ServedModel
from prompt_cache.promise.directives import plan
from prompt_cache.promise.rule_sets import rules_for
from protocol.requests import Abort, Began, Counts, Done, Generate, Sampling, Tokens

SLICE = 6
"""Output tokens of a slice of the hold."""
MAX_TOKENS = 18
PROMPT = [1, 2, 3, 4]
STOP = "END"
STOPPING = Unavailable("This gateway is stopping; try again.", retry_after=1.0)
_ID, _NOBODY = UUID(int=7), UUID(int=1)
_PRICE = PriceVersion(1, "tiny", "USD", {(meter, "*", 0): 1 for meter in ("uncached", "read_automatic", "output")})
_HOLD = Hold(_ID, _NOBODY, _NOBODY, _NOBODY, "tiny", "standard", 1, 10**9, "g", b"", 10**15, "2001-09", 2 * 10**15)


class TaskHarness:
    """Runs a task of its own. `happen` lets one thing happen, if it can now; `finish` brings the task to its end."""

    def __init__(
        self,
        model: ServedModel,
        *,
        streamed: bool = True,
        choices: int = 1,
        sliced: bool = False,
        grammar: bool = False,
        promised: bool = False,
        permit: AskedPermit | None = None,
    ) -> None:
        self.model, self.choices = model, choices
        self.records: list[tuple[Any, ...]] = []
        """What the recorder was told: exactly one of these ends the hold."""
        self.sent: list[Any] = []
        """What the replica was told."""
        self.ends: list[Any] = []
        """What the reader was told at the end."""
        self.text = ""
        self._taken = 0
        self.watched: list[int] = []
        self.refused = 0
        self.events: list[UsageEvent] = []
        self.sequence = 0
        self.held = self.told_late = False
        self.disk_full = self.spool_slow = False
        self.stream: ReplicaStream | None = None
        self.said_done = self.said_began = False
        self.sent_tokens: dict[int, int] = {}
        self.counted = Counts()
        """What an earlier attempt counted."""
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._overdue: Callable[[], None] = lambda: None
        generation = GenerationRequest(
            surface="openai",
            model="tiny",
            turns=(),
            turns_path="$.prompt",
            stop=(STOP,),
            choices=choices,
            grammar=Grammar('{"regex":"a"}', "$.guided_regex") if grammar else None,
        )
        self.prepared = PreparedRequest(
            request_id=_ID,
            payer=Payer(_NOBODY, _NOBODY, _NOBODY, "default", "key"),
            generation=generation,
            model=model,
            prompt=Prompt(PROMPT, ()),
            plan=plan(rules_for("openai", model.family), prompt_tokens=len(PROMPT), read_min=8),
            sampling=Sampling(MAX_TOKENS),
            price=_PRICE,
            terms=MeteringTerms("openai", 8, len(PROMPT)),
            conversation=b"",
            held_output=SLICE if sliced else MAX_TOKENS,
        )
        dependencies: Any = GenerationDependencies(
            self._admission(), self._fleet(), self._domains(), self._recorder(), self._attempts(),  # type: ignore[arg-type]
            SimpleNamespace(keep=self._keep), _Silent(), SimpleNamespace(full=False),  # type: ignore[arg-type]
            SharedWrites(), SimpleNamespace(note=lambda *_, **__: None),  # type: ignore[arg-type]
            promises=self._promises() if promised else None,
        )  # fmt: skip
        self.task = GenerationTask(dependencies, self.prepared, streamed=streamed, permit=permit)
        self.running = asyncio.create_task(self.task.run())

    # ------------------------------------------------ what is around the task

    def _admission(self) -> Any:
        timeouts = RequestTimeouts(request=1e6, retry=1e6, done=1e6, replay=1e6)

        async def reserve(prepared: PreparedRequest, overdue: Callable[[], None]) -> tuple[PreparedRequest, Hold]:
            self._overdue = overdue
            await self._wait("hold")
            self.held = True
            return prepared, _HOLD

        async def until_database_answers() -> None:
            await self._wait("database")

        async def top_up(prepared: PreparedRequest, hold: Hold, output: int) -> Hold:
            await self._wait("slice")
            return hold

        return SimpleNamespace(
            timeouts=timeouts,
            slice_tokens=SLICE,
            reserve=reserve,
            top_up=top_up,
            until_database_answers=until_database_answers,
        )

    def _fleet(self) -> Any:
        def generate(sent: Any, scopes: Any, request: Generate) -> ReplicaStream:
            stream = ReplicaStream(request, "replica-0", "d" * 64, epoch=1)
            stream.link = self
            self.stream, self.said_done, self.said_began = stream, False, False
            self.counted = request.counted
            self.sent_tokens = {choice: len(tokens) for choice, tokens in enumerate(request.emitted)}
            return stream

        def choose(model: str, routed: Routed, version: int = 1, *, among: Any = ()) -> Any:
            if self.disk_full:
                raise Unavailable("No replica of the model is ready.")
            router = Router(lambda: 0.0)
            return Sent(router, routed, router.choose(routed, [SimpleNamespace(replica="replica-0")]))

        async def wait_for(
            model: str, timeout_s: float, *, after: Any, goes_on: bool, unless: Callable[[], bool]
        ) -> Any:
            if timeout_s <= 0:
                return None
            self._unless = unless
            return await self._wait("replica")

        return SimpleNamespace(
            options=FleetOptions(credit_window=12, credit_step=4),
            choose=choose,
            generate=generate,
            give_up=lambda sent: None,
            wait_for=wait_for,
            waits_for_disk=lambda stream: self.disk_full and stream.link is not None,
            end=lambda stream: self.sent.append(("ended", stream.attempt)),
            acknowledge=lambda stream, sequence: self.sent.append(("ack", stream.attempt, sequence)),
        )

    def send(self, message: Any) -> None:
        """The link's: what the task tells the replica."""
        if isinstance(message, Abort):
            self.sent.append(("abort", message.why, message.choice, message.attempt))

    @staticmethod
    def _domains() -> Any:
        return SimpleNamespace(prompt_segments=lambda *of: ((), ()), ready=lambda project: True)

    def _recorder(self) -> Any:
        async def release(hold: Hold, reason: str) -> None:
            self.records.append(("release", reason))

        async def once_release(request_id: UUID, reason: str) -> None:
            self.records.append(("once", reason))

        async def use(hold: Hold, event: UsageEvent, *, failing: Callable[[], UsageEvent]) -> None:
            self.events.append(event)
            usage = (event.usage.uncached, event.usage.output)
            self.records.append(("use", event.status, event.reason, usage, event.attempt, event.sequence))
            if self.spool_slow:
                self.told_late = True
                failing()
                await self._wait("spool")

        return SimpleNamespace(release=release, once_release=once_release, use=use)

    def _promises(self) -> Any:
        """Of a request that is to run only if it is cached, and reads what is not paid for yet."""
        missed = NotCached("The prompt is not cached.", cost="0", currency="USD", tokens=len(PROMPT))

        async def refusal(prepared: PreparedRequest) -> NotCached | None:
            return missed if await self._wait("cached") == "no" else None

        async def confirm(prepared: PreparedRequest, hold: Hold, reach: int | None) -> tuple[PreparedRequest, Hold]:
            if await self._wait("promise") == "broken":
                raise missed
            return prepared, hold

        return SimpleNamespace(needed=lambda prepared: True, refusal=refusal, confirm=confirm)

    def _attempts(self) -> Any:
        return SimpleNamespace(watch=lambda stream, hold, done: self.watched.append(stream.attempt))

    async def _keep(self, done: Done, replica: str, error: Exception) -> None:
        self.refused += 1

    async def _wait(self, what: str) -> Any:
        future = self._waiting[what] = asyncio.get_running_loop().create_future()
        try:
            return await future
        finally:
            del self._waiting[what]

    # ------------------------------------------------ what happens

    async def happen(self, what: str) -> bool:
        """Let it happen, and the task do what follows. False if it cannot happen now."""
        name, _, detail = what.partition(" ")
        if self.running.done() or not getattr(self, f"_on_{name}")(detail):
            return False
        await self.settle()
        return True

    async def settle(self) -> None:
        """Let the task go on until it waits."""
        for _ in range(12):
            await asyncio.sleep(0)
        if "replica" in self._waiting and self._unless():
            self._resolve("replica", None)
            await self.settle()

    async def finish(self) -> None:
        """What comes in the end of any request: holds are answered, times are over, readers read."""
        for _ in range(8):
            for what in (
                "disk ok",
                "hold ok",
                "database back",
                "cached yes",
                "replica none",
                "slice refused",
                "spool ok",
            ):
                await self.happen(what)
            await self.happen("promise kept")
            await self.read(confirm=True)
            await self.happen("time over")
        assert self.running.done(), "it does not end"
        await self.running
        await self.read(confirm=True)

    async def read(self, *, confirm: bool) -> bool:
        """Take what is ready, and perhaps tell that it was sent. False if nothing was."""
        if confirm:
            self.task.delivery.confirm(self._taken)
        if self.ends:
            await self.settle()
            return False
        item = await self.task.delivery.next(0)
        if isinstance(item, Started):
            item = await self.task.delivery.next(0)
        if isinstance(item, DeliveryChunk):
            self.text += "".join(delta.text for delta in item.deltas)
            self._taken = item.tokens
            if confirm:
                self.task.delivery.confirm(item.tokens)
        elif isinstance(item, Finished):
            self.ends.append(("finished", item.reasons))
        elif isinstance(item, Failed):
            self.ends.append(("failed", type(item.failure).__name__, item.failure.code))
        elif isinstance(item, ReaderGone):
            self.ends.append(("gone",))
        await self.settle()
        return item is not None

    def _resolve(self, what: str, result: Any = None) -> bool:
        future = self._waiting.get(what)
        if future is None or future.done():
            return False
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
        return True

    def _on_hold(self, detail: str) -> bool:
        failures = {"refused": Unaffordable("Too dear."), "away": database_unavailable(), "odd": RuntimeError("odd")}
        return self._resolve("hold", failures.get(detail))

    def _on_overdue(self, _: str) -> bool:
        if "hold" in self._waiting:
            self._overdue()
        return "hold" in self._waiting

    def _on_database(self, _: str) -> bool:
        return self._resolve("database")

    def _on_slice(self, detail: str) -> bool:
        short = InsufficientFunds("tenant", 2, 1, "USD")
        return self._resolve("slice", short if detail == "refused" else None)

    def _on_cached(self, detail: str) -> bool:
        return self._resolve("cached", detail)

    def _on_promise(self, detail: str) -> bool:
        return self._resolve("promise", detail)

    def _on_replica(self, detail: str) -> bool:
        return self._resolve("replica", None if detail == "none" else SimpleNamespace(replica="replica-1", hello=None))

    def _on_spool(self, detail: str) -> bool:
        self.spool_slow = detail == "slow"
        return self._resolve("spool") or self.spool_slow

    def _on_disk(self, detail: str) -> bool:
        self.disk_full = detail == "full"
        return True

    def _on_leave(self, _: str) -> bool:
        self.task.delivery.leave("client")
        return True

    def _on_abandon(self, _: str) -> bool:
        self.task.abandon(Interrupted("Nobody can read it."))
        return True

    def _on_stop(self, _: str) -> bool:
        self.task.interrupt(STOPPING)
        return True

    def _on_time(self, _: str) -> bool:
        if self.stream is None:
            return False
        self.stream.hear(TimeOver())
        return True

    def _on_link(self, detail: str) -> bool:
        stream = self.stream
        if stream is None:
            return False
        if detail == "lost" and stream.link is not None:
            stream.lose()
        elif detail == "back" and stream.link is None:
            stream.link = self
            stream.abort("link lost")
        else:
            return False
        return True

    def _on_began(self, _: str) -> bool:
        stream = self.stream
        if stream is None or stream.link is None or self.said_done or self.said_began:
            return False
        self.said_began = True
        stream.hear(Began(stream.request_id, stream.attempt, self._counts()))
        return True

    def _on_tokens(self, detail: str) -> bool:
        """`CHOICE TEXT`: so much more of a choice, as far as there is credit for it."""
        stream = self.stream
        if stream is None or stream.lost or stream.link is None or self.said_done or not self.said_began:
            return False
        number, _, text = detail.partition(" ")
        choice = int(number) % self.choices
        start = self.sent_tokens.get(choice, 0)
        tokens = self.model.tokenizer.content(text)[: min(stream._limit, MAX_TOKENS) - start]
        if tokens:
            self.sent_tokens[choice] = start + len(tokens)
            stream.hear(Tokens(stream.request_id, stream.attempt, start, tokens, choice))
        return bool(tokens)

    def _on_done(self, detail: str) -> bool:
        """`REASON`, or `REASON nonsense` with counts that cannot be true, or `rejected grammar`."""
        stream = self.stream
        if stream is None or stream.link is None or self.said_done:
            return False
        reason, _, more = detail.partition(" ")
        self.said_done = True
        rejected = reason == "rejected"
        counts = Counts(prompt=5, computed=1) if more == "nonsense" else Counts() if rejected else self._counts()
        self.sequence += not rejected
        stream.hear(
            Done(
                stream.request_id,
                stream.attempt,
                reason,  # type: ignore[arg-type]
                counts,
                0 if rejected else self.sequence,
                reasons=(reason,) * self.choices if self.choices > 1 else (),  # type: ignore[arg-type]
                error="grammar: odd" if more == "grammar" else None,
                invalid="grammar" if more == "grammar" else None,
            )
        )
        return True

    def _counts(self) -> Counts:
        prompt = self.counted.prompt or len(PROMPT) * self.said_began
        return Counts(prompt=prompt, computed=prompt, output=sum(self.sent_tokens.values()))

    # ------------------------------------------------ what came of it

    @property
    def aborts(self) -> list[tuple[str, int | None, int]]:
        """What the replica was asked to stop: why, which choice, in which attempt."""
        return [tuple(message[1:]) for message in self.sent if message[0] == "abort"]


class _Silent:
    """Metrics that nobody reads."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *values, **named: None
