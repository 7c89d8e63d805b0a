"""All replicas: which of them may run a request, and whom a message is for."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

import structlog

from gateway.errors import Unavailable
from gateway.fleet.replica_link import AwakeClock, FleetOptions, Refused, ReplicaLink
from gateway.fleet.replica_stream import ReplicaStream
from gateway.fleet.service_relay import ServiceRelay
from gateway.served_models.registry import ModelRegistry
from protocol.addresses import parse_address
from protocol.frames import ToGateway
from protocol.replicas import Beat, Fenced, Hello, Scope
from protocol.requests import ATTEMPTS, Ack, Began, Done, Generate, PromptLogprobs, Tokens

log = structlog.get_logger("gateway.fleet")

_POLL_S = 0.1
_REMEMBERED = 10_000
_TICKS = 8
"""How often we look at the time while the least patience lasts."""
Stray = Callable[[ReplicaLink, Done], None]


class Fleet:
    """The replicas at some addresses. `on_stray` hears of each `Done` that no running request waits for."""

    def __init__(
        self,
        addresses: Iterable[str],
        *,
        gateway: str,
        link_key: bytes,
        models: ModelRegistry,
        options: FleetOptions | None = None,
        epoch: str = "",
    ) -> None:
        """`addresses` are `unix:PATH` or `tcp:HOST:PORT`; `epoch` is this run of the gateway. Raises AddressError."""
        self.options = options or FleetOptions()
        least = min(self.options.beat_timeout, self.options.step_timeout, self.options.silence)
        self._clock = AwakeClock(least / _TICKS)
        self.links = [
            ReplicaLink(
                parse_address(text), gateway, link_key, self, options=self.options, clock=self._clock, epoch=epoch
            )
            for text in addresses
        ]
        self.on_stray: Stray = lambda link, done: None
        self.on_opened: Callable[[ReplicaLink], None] | None = None
        """Who decides when requests may be sent to a replica that was dialed; it sets `ReplicaLink.may_run`."""
        self.on_fenced: Callable[[ReplicaLink, Fenced], None] = lambda link, fenced: None
        self._models = models
        self._exchanges: dict[str, dict[int, ReplicaStream]] = {}
        """By request, and then by attempt."""
        self._acknowledged: OrderedDict[tuple[str, int], int] = OrderedDict()
        """Sequence numbers by request and attempt."""
        self._epochs: dict[str, int] = {}
        self._relay = ServiceRelay()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin dialing."""
        runs = [self._clock.run(), *(link.run() for link in self.links)]
        self._tasks = [asyncio.create_task(run) for run in runs]

    async def stop(self) -> None:
        """Hang up everywhere."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def healthy(self, model: str) -> list[ReplicaLink]:
        """The replicas of a model that can take requests."""
        return [link for link in self.links if link.hello and link.hello.model.name == model and link.healthy()]

    def disks_full(self, model: str) -> list[str]:
        """The names of the replicas of a model whose disks are full."""
        return [link.replica for link in self.links if link.hello and link.hello.model.name == model and link.disk_full]

    def waits_for_disk(self, exchange: ReplicaStream) -> bool:
        """Whether the replica of a request goes on with it when its disk has room, and not before."""
        return isinstance(exchange.link, ReplicaLink) and exchange.link.disk_full

    def context_tokens(self, model: str) -> int | None:
        """The shortest context among the healthy replicas of a model, None if there are none."""
        return min((link.hello.capacity.context_tokens for link in self.healthy(model) if link.hello), default=None)

    def version(self, model: str) -> int:
        """The oldest protocol version among the healthy replicas of a model, 0 if there are none."""
        return min((link.hello.version for link in self.healthy(model) if link.hello), default=0)

    def choose(self, model: str, version: int = 1, *, after: ReplicaStream | None = None) -> ReplicaLink:
        """The least loaded healthy replica of a model that speaks this protocol version. Raises Unavailable.

        `after`: an earlier attempt of the request, which came to nothing (`_may_follow`).
        """
        healthy = [
            link
            for link in self.healthy(model)
            if link.hello and link.hello.version >= version and (after is None or _may_follow(link.hello, after))
        ]
        if not healthy:
            if self.disks_full(model):
                raise Unavailable(f"The disk of the model {model!r}'s replica is full.", retry_after=5.0)
            raise Unavailable(f"No replica of the model {model!r} is ready; try again shortly.", retry_after=2.0)
        return min(healthy, key=lambda link: link.load)

    async def wait_for(
        self, model: str, version: int, patience: float, *, after: ReplicaStream, unless: Callable[[], bool]
    ) -> ReplicaLink | None:
        """What `choose` answers, as soon as there is one; None if there is none in `patience` seconds, or `unless`."""
        end = time.monotonic() + patience
        while not unless():
            with contextlib.suppress(Unavailable):
                return self.choose(model, version, after=after)
            if time.monotonic() >= end:
                return None
            await asyncio.sleep(_POLL_S)
        return None

    def generate(self, link: ReplicaLink, scopes: Iterable[Scope], request: Generate) -> ReplicaStream:
        """Send a request to a replica."""
        hello = link.hello
        if hello is None or not link.up:
            raise Unavailable("The replica was lost; try again shortly.", retry_after=2.0)
        exchange = ReplicaStream(
            request.id, request.attempt, request.credit, hello.replica, hello.model.digest, epoch=hello.epoch
        )
        exchange.link = link
        self._exchanges.setdefault(request.id, {})[request.attempt] = exchange
        link.running += 1
        for scope in scopes:
            link.introduce(scope)
        link.send(request)
        return exchange

    def acknowledge(self, exchange: ReplicaStream, sequence: int) -> None:
        """The request's usage is durable: tell the replica, and remember it in case that word is lost."""
        self.remember(exchange.request_id, sequence, exchange.attempt)
        exchange.acknowledge(sequence)

    def remember(self, request_id: str, sequence: int, attempt: int = 1) -> None:
        """Answer further repetitions of this `Done` with `Ack`."""
        self._acknowledged[request_id, attempt] = sequence
        while len(self._acknowledged) > _REMEMBERED:
            self._acknowledged.popitem(last=False)

    def end(self, exchange: ReplicaStream) -> None:
        """The owner needs nothing more of this exchange."""
        attempts = self._exchanges.get(exchange.request_id, {})
        if attempts.get(exchange.attempt) is exchange:
            del attempts[exchange.attempt]
        if not attempts:
            self._exchanges.pop(exchange.request_id, None)
        if isinstance(exchange.link, ReplicaLink):
            exchange.link.running = max(0, exchange.link.running - 1)
        exchange.link = None

    def runs(self, request_id: str) -> bool:
        """Whether this gateway has a request of this id under way, in whichever attempt."""
        return request_id in self._exchanges

    # ------------------------------------------------ what links say

    def check(self, hello: Hello) -> None:
        """Raise Refused for an old incarnation, or for a replica whose text side is not ours."""
        name = hello.model.name
        if hello.epoch < self._epochs.get(hello.replica, 0):
            raise Refused(f"{hello.replica} is of epoch {hello.epoch}, and a newer one was seen")
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
        """Take up what this replica was running for us when it was lost, to learn how it ended."""
        link.may_run = self.on_opened is None
        if self.on_opened is not None:
            self.on_opened(link)
        for exchange in self._all():
            if exchange.link is None and exchange.replica == link.replica:
                exchange.link = link
                link.running += 1
                exchange.abort("link lost")

    def heard(self, link: ReplicaLink, message: ToGateway) -> None:
        """Hand a message to the request that it is about, and a beat's news to the other replicas."""
        if isinstance(message, Hello):
            return
        if isinstance(message, Beat):
            self._relay.beat(link, message, self.links)
            return
        if isinstance(message, Fenced):
            self.on_fenced(link, message)
            return
        exchange = self._exchange(link, message)
        if exchange is not None:
            exchange.hear(message)
        elif isinstance(message, Done):
            self._stray(link, message)

    def closed(self, link: ReplicaLink) -> None:
        """Tell the owners of what ran there."""
        self._relay.closed(link)
        lost = [exchange for exchange in self._all() if exchange.link is link]
        suspect = _suspect(link, lost)
        for exchange in lost:
            exchange.lose(suspect=exchange is suspect)

    def _all(self) -> list[ReplicaStream]:
        return [exchange for attempts in self._exchanges.values() for exchange in attempts.values()]

    def _exchange(self, link: ReplicaLink, message: Began | PromptLogprobs | Tokens | Done) -> ReplicaStream | None:
        """Whom a message about a request is for. An `Abort` of what a replica does not know is answered without the
        attempt: that was for the first of those that wait for this replica."""
        attempts = self._exchanges.get(message.id, {})
        if message.attempt:
            return attempts.get(message.attempt)
        return next((exchange for _, exchange in sorted(attempts.items()) if exchange.link is link), None)

    def _stray(self, link: ReplicaLink, done: Done) -> None:
        if (done.id, done.attempt) in self._acknowledged:
            link.send(Ack(done.id, done.sequence))
        elif done.sequence:
            self.on_stray(link, done)


def _suspect(link: ReplicaLink, lost: Sequence[ReplicaStream]) -> ReplicaStream | None:
    """Of the requests that a replica had when it was lost, the one that it probably died of: the only one that had not
    put out anything, or the only one. None where there are several, of ours or of other gateways."""
    if link.others:
        return None
    suspects = [exchange for exchange in lost if not exchange.received] or lost
    return suspects[0] if len(suspects) == 1 else None


def _may_follow(hello: Hello, before: ReplicaStream) -> bool:
    """Whether a replica may be sent a request again whose attempt `before` came to nothing.

    One that its replica probably died of is sent to no other. A replica that goes on running, and told us how the
    attempt ended, is about to stop; one of which merely the link was lost has to tell the attempts apart.
    """
    if hello.replica != before.replica:
        return not before.suspect
    return hello.epoch != before.epoch or (before.lost and hello.version >= ATTEMPTS)
