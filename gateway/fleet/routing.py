"""The routing of a gateway worker's requests: what links hear goes to the router of their served model, and prefixes
that many requests want are sent to further replicas.

Only the latest hot prefixes are remembered with their tokens. They are sent to a replica that has started, and to
another one before theirs is drained.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence

import structlog
from msgspec import Struct
from msgspec.structs import replace

from gateway.fleet.hot_prefixes import Warming
from gateway.fleet.replica_link import ReplicaLink
from gateway.fleet.replica_work import ReplicaFigures
from gateway.fleet.router import Choice, Routed, Router
from protocol.prefixes import PREFIX_ENDS, split_names
from protocol.replicas import (
    DECODE_ROW_S,
    DECODE_STEP_S,
    PROMPT_CHUNK,
    PROMPT_TOKEN_S,
    TIERS,
    Heartbeat,
    Load,
    Scope,
    Tier,
)
from protocol.requests import LANES, ROUTING_VERSION, WARMING, Began, Done, Generate, Lane, Route, Sampling

log = structlog.get_logger("gateway.routing")

_KEPT, _KEPT_TOKENS = 32, 2_000_000
"""Hot prefixes that are remembered, and their tokens together."""
_WARMING_S = 120.0
"""A replica that did not compute a prefix in so many seconds leaves it."""
_USUAL_TOKENS = 1_000.0
"""Tokens of a request that waits at a replica which does not tell its queue."""


class Sent(Struct, frozen=True):
    """A request that was sent to a replica by this choice, and what the router was told of it."""

    router: Router
    routed: Routed
    choice: Choice[ReplicaLink]


class _Hot(Struct, frozen=True):
    """A request whose first `warming.tokens` tokens many want, with its scopes."""

    model: str
    request: Generate
    routed: Routed
    warming: Warming
    scopes: tuple[Scope, ...]


class FleetRouting:
    """Chooses among links; of every served model on its own."""

    def __init__(self) -> None:
        self._routers: dict[str, Router] = {}
        self._loads: dict[ReplicaLink, Load] = {}
        self._epochs: dict[str, int] = {}
        self._at_gateway: Counter[str] = Counter()
        """model -> prompt tokens of requests that wait for a first replica."""
        self._hot: OrderedDict[bytes, _Hot] = OrderedDict()
        self._warming: dict[str, tuple[ReplicaLink, _Hot, asyncio.Event]] = {}
        """id -> where a prefix is being computed; set when it is, or is not going to be."""

    # ------------------------------------------------------------ what links hear

    def hear_beat(self, link: ReplicaLink, beat: Heartbeat) -> None:
        """A heartbeat came."""
        if link.hello is None:
            return
        router = self.router(link.hello.model.name)
        router.hot.gateways = max(1, int(beat.metrics.get("turnpike_engine_gateways", 1)))
        router.hear(link.replica, link.hello.epoch, self._figures(link, beat), room_of(link, beat))

    def hear_load(self, link: ReplicaLink, load: Load) -> None:
        """A replica's queue has changed."""
        self._loads[link] = load
        if link.hello is None or link.beat is None:
            return
        self.hear_beat(link, link.beat)
        for sent in load.prefixes:
            names = split_names(sent.names)
            router = self.router(link.hello.model.name)
            router.hear_prefix(link.replica, names, PREFIX_ENDS[: len(names)], sent.until, sent.leased)

    def opened(self, link: ReplicaLink) -> None:
        """A link is ready. A replica that was started holds nothing yet: it gets what many want."""
        hello = link.hello
        if hello is None:
            return
        before, self._epochs[link.replica] = self._epochs.get(link.replica), hello.epoch
        if before == hello.epoch or hello.version < ROUTING_VERSION:
            return
        for hot in [hot for hot in self._hot.values() if hot.model == hello.model.name]:
            self._warm(link, hot)

    def closed(self, link: ReplicaLink) -> None:
        """A link was lost. What the replica holds it may hold still."""
        self._loads.pop(link, None)
        if link.hello is not None:
            self.router(link.hello.model.name).lose(link.replica)
        for name in [name for name, (home, _, _) in self._warming.items() if home is link]:
            self._warming.pop(name)[2].set()

    # ------------------------------------------------------------ requests

    def router(self, model: str) -> Router:
        """The router of a served model."""
        router = self._routers.get(model)
        if router is None:
            router = self._routers[model] = Router(time.monotonic, time.time)
        return router

    def choose(self, model: str, routed: Routed, candidates: Sequence[ReplicaLink]) -> Sent:
        """Choose a replica, where the request counts as work from now on: `end` must be called."""
        router = self.router(model)
        return Sent(router, routed, router.choose(routed, candidates))

    def idlest(self, model: str, candidates: Sequence[ReplicaLink]) -> ReplicaLink:
        """The replica with the least work."""
        router = self.router(model)
        return min(candidates, key=lambda link: (router.backlog([link.replica]), link.load))

    def message(self, sent: Sent, request: Generate) -> Generate:
        """The request with what its replica tells other gateways."""
        link, routed = sent.choice.replica, sent.routed
        if link.hello is None or link.hello.version < ROUTING_VERSION:
            return request
        names, expected = b"".join(routed.names), max(1, routed.tokens - sent.choice.estimate.held)  # type: ignore[arg-type]
        return replace(request, route=Route(names, expected, routed.leased, routed.until))

    def share(
        self, model: str, sent: Sent, request: Generate, scopes: Sequence[Scope], links: Iterable[ReplicaLink]
    ) -> None:
        """Remember the hot prefix of a request that was sent, and let another replica compute it if it is to."""
        warming = sent.choice.warming
        if warming is None or request.store != "all":
            return
        name = bytes(sent.routed.names[warming.count - 1])  # type: ignore[call-overload]
        hot = self._hot[name] = _Hot(model, request, sent.routed, warming, tuple(scopes))
        self._hot.move_to_end(name)
        while len(self._hot) > _KEPT or sum(one.warming.tokens for one in self._hot.values()) > _KEPT_TOKENS:
            self._hot.popitem(last=False)
        if warming.replica:
            self._warm(next(link for link in links if link.replica == warming.replica), hot)

    def begin(self, sent: Sent, began: Began) -> None:
        """The replica has begun with a request."""
        counts, choice = began.counts, sent.choice
        sent.router.begin(choice.replica.replica, choice.estimate, choice.credit, counts.computed, counts.read)

    def end_prefill(self, sent: Sent) -> None:
        """The request has its first token."""
        sent.router.end_prefill(sent.choice.replica.replica, sent.choice.credit)

    def end(self, sent: Sent) -> None:
        """The request has ended there."""
        sent.router.end(sent.choice.replica.replica, sent.choice.credit)

    def wait_at_gateway(self, model: str, tokens: int) -> None:
        """A request of so many prompt tokens begins to wait for a first replica; or ends, with a number below 0."""
        self._at_gateway[model] += tokens

    def backlog(self, model: str, links: Sequence[ReplicaLink]) -> float:
        """Seconds of work of these replicas, and of what waits for one at this gateway."""
        router = self.router(model)
        return router.backlog([link.replica for link in links]) + self._at_gateway[model] * router.token_s

    # ------------------------------------------------------------ prefixes that many want

    def warmed(self, link: ReplicaLink, done: Done) -> None:
        """A replica has computed a prefix, or refused to."""
        _, hot, over = self._warming.pop(done.id, (None, None, None))
        if over is not None:
            over.set()
        if hot is not None and done.reason != "rejected":
            routed, count = hot.routed, hot.warming.count
            self.router(hot.model).hear_warmed(link.replica, routed.names[:count], routed.ends[:count])

    async def give_homes(self, leaving: ReplicaLink, others: Sequence[ReplicaLink], timeout_s: float) -> int:
        """Let others compute the hot prefixes that only the leaving replica holds, for so long at most; how many."""
        model = leaving.hello.model.name if leaving.hello else ""
        router = self.router(model)
        able = [link for link in others if link is not leaving and link.hello and link.hello.version >= ROUTING_VERSION]
        events = []
        for hot in list(self._hot.values()) if able else ():
            names = hot.routed.names[: hot.warming.count]
            elsewhere = any(router.holds(link.replica, names) for link in able)
            if hot.model == model and router.holds(leaving.replica, names) and not elsewhere:
                events.append(self._warm(self.idlest(model, able), hot))
        if events:
            await asyncio.wait([asyncio.ensure_future(event.wait()) for event in events], timeout=timeout_s)
        return len(events)

    def _warm(self, link: ReplicaLink, hot: _Hot) -> asyncio.Event:
        """Send the hot prefix, in the batch lane and in nobody's name."""
        request, tokens, over = hot.request, hot.warming.tokens, asyncio.Event()
        now = time.time()
        segments = tuple(
            replace(segment, until=min(segment.until, tokens))
            for index, segment in enumerate(request.segments)
            if not index or request.segments[index - 1].until < tokens
        )
        warming = Generate(
            id=f"{WARMING}{uuid.uuid4()}",
            attempt=1,
            segments=segments,
            tokens=request.tokens[:tokens],
            sampling=Sampling(max_tokens=0),
            credit=1,  # one without any waits for some
            lane="batch",
            deadline=now + _WARMING_S,
            sent_at=now,
            retain=tuple(one for one in request.retain if one.tokens <= tokens),
            adapter=request.adapter,
            route=Route(b"".join(hot.routed.names[: hot.warming.count]), tokens),  # type: ignore[arg-type]
        )
        for scope in hot.scopes:
            link.introduce(scope)
        link.send(warming)
        self._warming[warming.id] = link, hot, over
        log.info("a prefix gets another home", replica=link.replica, tokens=tokens)
        return over

    # ------------------------------------------------------------ figures

    def _figures(self, link: ReplicaLink, beat: Heartbeat) -> ReplicaFigures:
        metrics, load = beat.metrics, self._loads.get(link)
        queued: Mapping[Lane, float]
        if load is None:
            queued = {lane: beat.waiting.get(lane, 0) * _USUAL_TOKENS for lane in LANES}
        else:
            queued = {lane: load.queued.get(lane, 0) for lane in LANES}
        usual = ReplicaFigures()
        fetch = {tier: metrics.get(f"turnpike_engine_{tier}_token_seconds", 0.0) for tier in TIERS[1:]}
        return ReplicaFigures(
            token_s=metrics.get(PROMPT_TOKEN_S) or usual.token_s,
            step_s=metrics.get(DECODE_STEP_S, usual.step_s),
            row_s=metrics.get(DECODE_ROW_S, usual.row_s),
            chunk=metrics.get(PROMPT_CHUNK, usual.chunk),
            fetch_s=fetch,
            queued=queued,
            decodes=beat.running if load is None else load.decodes,
        )


def room_of(link: ReplicaLink, beat: Heartbeat) -> dict[Tier, int]:
    """Tokens of KV that a replica has room for, by tier; what its first message says where its beats do not."""
    hello = link.hello
    block = hello.layout.block_tokens if hello else 0
    room: dict[Tier, int] = {"hbm": max(hello.capacity.blocks, default=0) * block if hello else 0}
    for load in beat.memory:
        room[load.tier] = max(room.get(load.tier, 0), load.total * block)
    return room
