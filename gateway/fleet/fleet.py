"""The replicas of a gateway worker: chooses one for each attempt of a request, and gives each its messages."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import structlog

from gateway.errors import Unavailable
from gateway.fleet.adapter_sender import AdapterSender
from gateway.fleet.replica_discovery import ReplicaDiscovery
from gateway.fleet.replica_link import AwakeClock, FleetOptions, Refused, ReplicaLink
from gateway.fleet.replica_stream import ReplicaStream
from gateway.fleet.router import Routed
from gateway.fleet.routing import FleetRouting, Sent
from gateway.fleet.service_relay import ServiceRelay
from gateway.served_models.registry import ModelRegistry
from protocol.adapters import DropAdapter, WantAdapter
from protocol.addresses import Address, parse_address
from protocol.frames import ToGateway
from protocol.replicas import Fenced, Heartbeat, Hello, Load, Purge, Scope, owner_of
from protocol.requests import (
    ADAPTER_VERSION,
    ATTEMPT_VERSION,
    CONTINUE_VERSION,
    WARMING,
    Ack,
    Began,
    Done,
    Generate,
    PromptLogprobs,
    Tokens,
)
from protocol.service_names import Resolve, parse_service_names, resolve_by_system

log = structlog.get_logger("gateway.fleet")

_POLL_S = 0.1
_REMEMBERED = 10_000
"""Acknowledged requests that are remembered."""
_TICKS = 8
"""How often the clock ticks within the shortest timeout."""
Stray = Callable[[ReplicaLink, Done], None]


class Fleet:
    """The replicas at the addresses given. `on_stray` is called with each `Done` that no running request waits for."""

    def __init__(
        self,
        addresses: Iterable[str],
        *,
        gateway: str,
        link_key: bytes,
        models: ModelRegistry,
        options: FleetOptions | None = None,
        epoch: str = "",
        resolve: Resolve = resolve_by_system,
    ) -> None:
        """`addresses` are `unix:PATH`, `tcp:HOST:PORT`, or `dns:HOST:PORT` for all that `resolve` finds; `epoch` is
        this run of the gateway. Raises AddressError."""
        self.options = options or FleetOptions()
        least = min(self.options.beat_timeout, self.options.step_timeout, self.options.silence)
        self._clock = AwakeClock(least / _TICKS)
        self._link = partial(
            ReplicaLink,
            gateway=gateway,
            link_key=link_key,
            listener=self,
            options=self.options,
            clock=self._clock,
            epoch=epoch,
        )
        names, fixed = parse_service_names(addresses)
        self.links = [self._link(parse_address(text)) for text in fixed]
        self._discovery = ReplicaDiscovery(
            names,
            self.links,
            dial=self._dial,
            drop=self._drop,
            resolve=resolve,
            interval=self.options.lookup,
            silence=self.options.beat_timeout,
        )
        self.on_stray: Stray = lambda link, done: None
        self.on_opened: Callable[[ReplicaLink], None] | None = None
        """Called when a link is open; sets `ReplicaLink.may_run` once requests may be sent there. None: at once."""
        self.on_fenced: Callable[[ReplicaLink, Fenced], None] = lambda link, fenced: None
        self.adapters = AdapterSender()
        self._models = models
        self._streams: dict[str, dict[int, ReplicaStream]] = {}
        """request -> attempt -> its stream."""
        self._acknowledged: OrderedDict[tuple[str, int], int] = OrderedDict()
        """(request, attempt) -> sequence number in the replica's journal, the oldest first."""
        self._epochs: dict[str, int] = {}
        self._relay = ServiceRelay()
        self.routing = FleetRouting()
        self._tasks: list[asyncio.Task[None]] = []
        self._dialing: dict[ReplicaLink, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Begin dialing."""
        self._dialing = {link: asyncio.create_task(link.run()) for link in self.links}
        self._tasks = [asyncio.create_task(work) for work in (self._clock.run(), self._discovery.run())]

    async def stop(self) -> None:
        """Hang up everywhere."""
        await self.adapters.stop()
        tasks = [*self._tasks, *self._dialing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _dial(self, address: Address) -> None:
        link = self._link(address)
        self.links.append(link)
        self._dialing[link] = asyncio.create_task(link.run())

    def _drop(self, link: ReplicaLink) -> None:
        self.links.remove(link)
        task = self._dialing.pop(link)
        self._tasks.append(task)  # `stop` waits for it too
        task.add_done_callback(self._tasks.remove)
        task.cancel()

    def healthy(self, model: str) -> list[ReplicaLink]:
        """The replicas of a model that can take requests."""
        return [link for link in self.links if link.hello and link.hello.model.name == model and link.healthy()]

    def disks_full(self, model: str) -> list[str]:
        """The names of the replicas of a model whose disks are full."""
        return [link.replica for link in self.links if link.hello and link.hello.model.name == model and link.disk_full]

    def waits_for_disk(self, stream: ReplicaStream) -> bool:
        """Whether the replica of a stream has no room on its disk, and goes on with the request when it has."""
        return isinstance(stream.link, ReplicaLink) and stream.link.disk_full

    def context_tokens(self, model: str) -> int | None:
        """The shortest context among the healthy replicas of a model, None if there are none."""
        return min((link.hello.capacity.context_tokens for link in self.healthy(model) if link.hello), default=None)

    def version(self, model: str) -> int:
        """The oldest protocol version among the healthy replicas of a model, 0 if there are none."""
        return min((link.hello.version for link in self.healthy(model) if link.hello), default=0)

    def candidates(
        self, model: str, version: int = 1, *, after: ReplicaStream | None = None, goes_on: bool = False
    ) -> list[ReplicaLink]:
        """The healthy replicas of a model that speak this protocol version. Raises Unavailable if there is none.

        `after`: an earlier attempt of the request, which came to nothing (`_may_follow`). `goes_on`: it goes on after
        the tokens of that attempt, which only the same weights would have drawn; of those that have them the ones with
        its numerics come first.
        """
        healthy = [
            link
            for link in self.healthy(model)
            if link.hello and link.hello.version >= version and (after is None or _may_follow(link.hello, after))
        ]
        if goes_on and after is not None:
            healthy = [link for link in healthy if link.hello and link.hello.model.digest == after.model_digest]
            alike = [link for link in healthy if link.hello and link.hello.numerics == after.numerics]
            healthy = alike or healthy
        if not healthy:
            if self.disks_full(model):
                raise Unavailable(f"The disk of a replica of {model!r} is full; try again shortly.", retry_after=5.0)
            raise Unavailable(f"No replica of the model {model!r} is ready; try again shortly.", retry_after=2.0)
        return healthy

    def choose(self, model: str, routed: Routed, version: int = 1, *, among: Sequence[ReplicaLink] = ()) -> Sent:
        """One of the `candidates`, or of those given. The request counts as work there until it ends: it has to be sent
        at once, or given up by `give_up`. Raises Unavailable."""
        return self.routing.choose(model, routed, among or self.candidates(model, version))

    def give_up(self, sent: Sent) -> None:
        """A request is not sent after all."""
        self.routing.end(sent)

    async def wait_for(
        self,
        model: str,
        timeout_s: float,
        *,
        after: ReplicaStream | None = None,
        goes_on: bool = False,
        unless: Callable[[], bool],
    ) -> ReplicaLink | None:
        """The idlest replica for a first attempt, or for the one that follows `after`, as soon as there is a candidate;
        None if there is none in `timeout_s` seconds, or once `unless` is true. `goes_on`: as for `candidates`."""
        end, version = time.monotonic() + timeout_s, 1 if after is None else after.version
        version = max(version, CONTINUE_VERSION) if goes_on else version
        while not unless():
            with contextlib.suppress(Unavailable):
                return self.routing.idlest(model, self.candidates(model, version, after=after, goes_on=goes_on))
            if time.monotonic() >= end:
                return None
            await asyncio.sleep(_POLL_S)
        return None

    def generate(self, sent: Sent, scopes: Sequence[Scope], request: Generate) -> ReplicaStream:
        """Send a request to the replica that was chosen for it."""
        link = sent.choice.replica
        hello = link.hello
        if hello is None or not link.up:
            raise Unavailable("The replica was lost; try again shortly.", retry_after=2.0)
        request = self.routing.message(sent, request)
        stream = ReplicaStream(request, hello.replica, hello.model.digest, epoch=hello.epoch, numerics=hello.numerics)
        stream.link, stream.sent = link, sent
        self._streams.setdefault(request.id, {})[request.attempt] = stream
        link.running += 1
        for scope in scopes:
            link.introduce(scope)
        link.send(request)
        self.routing.share_later(hello.model.name, sent, request, scopes)
        return stream

    def backlog(self, model: str) -> float:
        """Seconds of work that wait for the replicas of a model, in seconds of one replica; also for one that is not
        there yet."""
        return self.routing.backlog(model, self.healthy(model))

    def purge(self, model: str, scope: str, keys: tuple[bytes, ...]) -> None:
        """Ask every replica of the model that can be reached to drop these blocks. None is sent them again ahead of
        requests."""
        self.routing.forget_scope(owner_of(scope))
        for link in self.links:
            if link.up and link.hello is not None and link.hello.model.name == model:
                link.send(Purge(scope, keys))

    def drop_adapter(self, model: str, name: str) -> None:
        """An adapter was deleted: every replica of the model that can be reached drops what has this name."""
        self.adapters.withdraw(name)
        for link in self.links:
            hello = link.hello
            if link.up and hello is not None and hello.model.name == model and hello.version >= ADAPTER_VERSION:
                link.send(DropAdapter(name))

    def acknowledge(self, stream: ReplicaStream, sequence: int) -> None:
        """Tell the replica that the request's usage is durable, and remember it in case the message is lost."""
        self.remember(stream.request_id, sequence, stream.attempt)
        stream.acknowledge(sequence)

    def remember(self, request_id: str, sequence: int, attempt: int = 1) -> None:
        """Answer repetitions of this `Done` with `Ack` from now on."""
        self._acknowledged[request_id, attempt] = sequence
        while len(self._acknowledged) > _REMEMBERED:
            self._acknowledged.popitem(last=False)

    def end(self, stream: ReplicaStream) -> None:
        """Forget a stream: its task needs nothing more of it."""
        attempts = self._streams.get(stream.request_id, {})
        if attempts.get(stream.attempt) is stream:
            del attempts[stream.attempt]
        if not attempts:
            self._streams.pop(stream.request_id, None)
        if isinstance(stream.link, ReplicaLink):
            stream.link.running = max(0, stream.link.running - 1)
        stream.link = None
        if stream.sent is not None:
            self.routing.end(stream.sent)

    def runs(self, request_id: str) -> bool:
        """Whether any attempt of this request runs in this gateway worker."""
        return request_id in self._streams

    # ------------------------------------------------ what links say

    def check(self, hello: Hello) -> None:
        """Raise Refused for an old incarnation, a replica that has a link already, or one whose text side is not ours;
        ConnectionError for one whose former link ends first."""
        name = hello.model.name
        if hello.epoch < self._epochs.get(hello.replica, 0):
            raise Refused(f"{hello.replica} is of epoch {hello.epoch}, and a newer one was seen")
        for link in self.links:
            if link.up and link.hello is not None and link.hello.replica == hello.replica:
                if link.hello.epoch == hello.epoch and not link.leaving:
                    raise Refused(f"{hello.replica} is connected already, at {link.address.text}")
                link.hang_up()
                raise ConnectionError(f"the link to {hello.replica} at {link.address.text} ends first")
        model = self._models.find(name)
        if model is None:
            raise Refused(f"{hello.replica} serves {name!r}, which this gateway does not")
        if model.text_digest != hello.model.text_digest:
            raise Refused(
                f"{hello.replica} serves {name!r} with another tokenizer or chat template than {model.folder} "
                f"(text digest {hello.model.text_digest[:12]}…, ours {model.text_digest[:12]}…)"
            )
        self._epochs[hello.replica] = hello.epoch

    def opened(self, link: ReplicaLink) -> None:
        """Connect again the streams that this replica had when it was lost, to learn how their requests ended."""
        link.may_run = self.on_opened is None
        if self.on_opened is not None:
            self.on_opened(link)
        self.routing.opened(link)
        for stream in self._all():
            if stream.link is None and stream.replica == link.replica:
                stream.link = link
                link.running += 1
                stream.abort("link lost")

    def heard(self, link: ReplicaLink, message: ToGateway) -> None:
        """Hand a message to its stream, and a beat's service totals to the other replicas."""
        if isinstance(message, Hello):
            return
        if isinstance(message, Heartbeat):
            self._relay.beat(link, message, self.links)
            self.routing.hear_beat(link, message)
            return
        if isinstance(message, Load):
            self.routing.hear_load(link, message)
            return
        if isinstance(message, Fenced):
            self.on_fenced(link, message)
            return
        if isinstance(message, WantAdapter):
            self.adapters.wanted(link, message.name)
            return
        stream = self._stream_for(link, message)
        if stream is not None:
            self._count(stream, message)
            stream.hear(message)
        elif isinstance(message, Done) and message.id.startswith(WARMING):
            self.routing.warmed(link, message)
            if message.sequence:  # a replica that knows no such requests has journaled it
                link.send(Ack(message.id, message.sequence))
        elif isinstance(message, Done):
            self._stray(link, message)

    def _count(self, stream: ReplicaStream, message: Began | PromptLogprobs | Tokens | Done) -> None:
        """Let the routing know how far a request is."""
        if stream.sent is None:
            return
        if isinstance(message, Began):
            self.routing.begin(stream.sent, message)
        elif isinstance(message, Tokens):
            self.routing.end_prefill(stream.sent, self.links)
        elif isinstance(message, Done):
            self.routing.end(stream.sent)

    def closed(self, link: ReplicaLink) -> None:
        """Tell the streams of this link that it is lost."""
        self._relay.closed(link)
        self.routing.closed(link)
        lost = [stream for stream in self._all() if stream.link is link]
        suspect = _suspect(link, lost)
        for stream in lost:
            stream.lose(suspect=stream is suspect)

    def _all(self) -> list[ReplicaStream]:
        return [stream for attempts in self._streams.values() for stream in attempts.values()]

    def _stream_for(self, link: ReplicaLink, message: Began | PromptLogprobs | Tokens | Done) -> ReplicaStream | None:
        """The stream that a message is for. A replica that does not know a request answers `Abort` without an attempt:
        that is for the first attempt that waits for this replica."""
        attempts = self._streams.get(message.id, {})
        if message.attempt:
            return attempts.get(message.attempt)
        return next((stream for _, stream in sorted(attempts.items()) if stream.link is link), None)

    def _stray(self, link: ReplicaLink, done: Done) -> None:
        if (done.id, done.attempt) in self._acknowledged:
            link.send(Ack(done.id, done.sequence))
        elif done.sequence:
            self.on_stray(link, done)


def _suspect(link: ReplicaLink, lost: Sequence[ReplicaStream]) -> ReplicaStream | None:
    """The request that a lost replica probably died of: the only one it had, or the only one without output yet.

    None where several could be, of this gateway or of others.
    """
    if link.others:
        return None
    suspects = [stream for stream in lost if not stream.received] or lost
    return suspects[0] if len(suspects) == 1 else None


def _may_follow(hello: Hello, before: ReplicaStream) -> bool:
    """Whether a request whose attempt `before` came to nothing may be sent to this replica.

    A request that its replica probably died of goes to no other replica. The same replica may have it again if it was
    started again; or if only its link was lost, and it can tell attempts apart. One that still runs and ended the
    attempt is about to stop.
    """
    if hello.replica != before.replica:
        return not before.suspect
    return hello.epoch != before.epoch or (before.lost and hello.version >= ATTEMPT_VERSION)
