"""The routing of a gateway worker's requests: what links hear goes to the router of their served model, and prefixes
that many requests want are sent to further replicas.

Only the latest hot prefixes are remembered with their tokens, for some minutes, and none whose scope was purged or
forgotten. They are sent to a replica that has started, and to another one before theirs is drained. A prefix is shared
once a client has paid for it, in the fairness of who asked for it. None of an adapter is, since its slot has a price.
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence

import structlog
from msgspec import Struct
from msgspec.structs import replace

from gateway.fleet.prefix_map import Name
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
    owner_of,
)
from protocol.requests import (
    LANES,
    ROUTING_VERSION,
    WARMING,
    Abort,
    Began,
    Done,
    Generate,
    Lane,
    Route,
    Sampling,
)

log = structlog.get_logger("gateway.routing")

_KEPT, _KEPT_TOKENS = 32, 2_000_000
"""Hot prefixes that are remembered, and their tokens together."""
_KEPT_S = 600.0
"""A hot prefix that nobody asks for is remembered so long."""
_WARMING_S = 120.0
"""A replica that did not compute a prefix in so many seconds leaves it."""
_MOST_QUEUED, _MOST_DECODES, _MOST_ROOM = 1e9, 100_000, 10**10
"""What a replica is believed at most: tokens that wait, decodes, and tokens of a tier."""
_USUAL_TOKENS = 1_000.0
"""Tokens of a request that waits at a replica which does not tell its queue."""


class Sent(Struct, frozen=True):
    """A request that was sent to a replica by this choice, and what the router was told of it."""

    router: Router
    routed: Routed
    choice: Choice[ReplicaLink]


class _Hot(Struct, frozen=True):
    """A prefix that many want: the request that computes it, but for its id and deadline, and its scopes. `at`: when it
    was asked for last, in monotonic seconds."""

    model: str
    request: Generate
    names: tuple[Name, ...]
    ends: tuple[int, ...]
    scopes: tuple[Scope, ...]
    at: float

    def is_of(self, owner: str) -> bool:
        """Whether any of it belongs to this scope, or to a partition of it."""
        return _is_of(self.scopes, owner)


class _Unpaid(Struct, frozen=True):
    """A request of a hot prefix that has no token yet."""

    model: str
    request: Generate
    scopes: tuple[Scope, ...]


class FleetRouting:
    """Chooses among links; of every served model on its own."""

    def __init__(self) -> None:
        self._routers: dict[str, Router] = {}
        self._loads: dict[ReplicaLink, Load] = {}
        self._epochs: dict[str, int] = {}
        self._at_gateway: Counter[str] = Counter()
        """model -> prompt tokens of requests that wait for a first replica."""
        self._hot: OrderedDict[Name, _Hot] = OrderedDict()
        """By the prefix's last name, those asked for longest ago first."""
        self._unpaid: dict[int, _Unpaid] = {}
        """By the identity of their `Sent`."""
        self._warming: dict[str, tuple[ReplicaLink, _Hot, asyncio.Event]] = {}
        """id -> where a prefix is being computed; set when it is, or is not going to be."""

    # ------------------------------------------------------------ what links hear

    def hear_beat(self, link: ReplicaLink, beat: Heartbeat) -> None:
        """A heartbeat came."""
        if link.hello is None:
            return
        self._expire()
        router = self.router(link.hello.model.name)
        router.hot.gateways = int(_figure(beat.metrics, "turnpike_engine_gateways", 1.0, least=1.0, most=10_000.0))
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
        if before == hello.epoch or not _takes(link, hello.model.name):
            return
        self._expire()
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

    def share_later(self, model: str, sent: Sent, request: Generate, scopes: Sequence[Scope]) -> None:
        """A request was sent: its prefix is shared, if it is hot, once its first token shows that it is computed."""
        if sent.choice.warming is not None and request.store == "all" and not request.adapter:
            self._unpaid[id(sent)] = _Unpaid(model, request, tuple(scopes))

    def forget_scope(self, owner: str) -> None:
        """A scope was purged or forgotten, or is kept otherwise now: nothing of it is computed ahead of requests."""
        self._hot = OrderedDict((name, hot) for name, hot in self._hot.items() if not hot.is_of(owner))
        self._unpaid = {key: one for key, one in self._unpaid.items() if not _is_of(one.scopes, owner)}
        for name, (link, hot, _) in self._warming.items():
            if hot.is_of(owner):
                link.send(Abort(name, "its scope was purged"))

    def begin(self, sent: Sent, began: Began) -> None:
        """The replica has begun with a request."""
        counts, choice = began.counts, sent.choice
        sent.router.begin(choice.replica.replica, choice.estimate, choice.credit, counts.computed, counts.read)

    def end_prefill(self, sent: Sent, links: Iterable[ReplicaLink] = ()) -> None:
        """The request has a token. With the first, a hot prefix is shared with one of these links if it is to."""
        sent.router.end_prefill(sent.choice.replica.replica, sent.choice.credit)
        if (paid := self._unpaid.pop(id(sent), None)) is not None:
            self._share(sent, paid, links)

    def end(self, sent: Sent) -> None:
        """The request has ended there."""
        self._unpaid.pop(id(sent), None)
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
        if hot is not None and done.reason in ("length", "stop"):
            self.router(hot.model).hear_warmed(link.replica, hot.names, hot.ends)

    async def give_homes(self, leaving: ReplicaLink, others: Sequence[ReplicaLink], timeout_s: float) -> int:
        """Let others compute the hot prefixes that only the leaving replica holds, for so long at most; how many."""
        model = leaving.hello.model.name if leaving.hello else ""
        router = self.router(model)
        able = [link for link in others if link is not leaving and _takes(link, model)]
        events = []
        self._expire()
        for hot in list(self._hot.values()) if able else ():
            elsewhere = any(router.holds(link.replica, hot.names) for link in able)
            if hot.model == model and router.holds(leaving.replica, hot.names) and not elsewhere:
                events.append(self._warm(self.idlest(model, able), hot))
        if events:
            await asyncio.wait([asyncio.ensure_future(event.wait()) for event in events], timeout=timeout_s)
        return len(events)

    def _share(self, sent: Sent, paid: _Unpaid, links: Iterable[ReplicaLink]) -> None:
        """Remember a hot prefix, and let another replica compute it if it is to."""
        warming, request = sent.choice.warming, paid.request
        if warming is None:
            return
        tokens, names = warming.tokens, tuple(sent.routed.names[: warming.count])
        segments = tuple(
            replace(segment, until=min(segment.until, tokens))
            for index, segment in enumerate(request.segments)
            if not index or request.segments[index - 1].until < tokens
        )
        computing = Generate(
            id=WARMING,
            attempt=1,
            segments=segments,
            tokens=request.tokens[:tokens],
            sampling=Sampling(max_tokens=0),
            credit=1,  # one without any waits for some
            flow=request.flow,
            sub_flow=request.sub_flow,
            weight=request.weight,
            lane="batch",
            route=Route(b"".join(names), tokens),  # type: ignore[arg-type]
        )
        ends, named = tuple(sent.routed.ends[: warming.count]), {segment.scope for segment in segments}
        scopes = tuple(scope for scope in paid.scopes if scope.scope in named)
        hot = self._hot[names[-1]] = _Hot(paid.model, computing, names, ends, scopes, time.monotonic())
        self._hot.move_to_end(names[-1])
        while len(self._hot) > _KEPT or sum(len(one.request.tokens) for one in self._hot.values()) > _KEPT_TOKENS:
            self._hot.popitem(last=False)
        home = next((link for link in links if link.replica == warming.replica and _takes(link, paid.model)), None)
        if home is not None:
            self._warm(home, hot)

    def _expire(self) -> None:
        """Forget hot prefixes that nobody has asked for of late."""
        last = time.monotonic() - _KEPT_S
        while self._hot and next(iter(self._hot.values())).at < last:
            self._hot.popitem(last=False)

    def _warm(self, link: ReplicaLink, hot: _Hot) -> asyncio.Event:
        """Send the hot prefix, in the batch lane and at nobody's cost."""
        over, now = asyncio.Event(), time.time()
        warming = replace(hot.request, id=f"{WARMING}{uuid.uuid4()}", deadline=now + _WARMING_S, sent_at=now)
        for scope in hot.scopes:
            link.introduce(scope)
        link.send(warming)
        self._warming[warming.id] = link, hot, over
        log.info("a prefix gets another home", replica=link.replica, tokens=len(warming.tokens))
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
        fetch = {tier: _figure(metrics, f"turnpike_engine_{tier}_token_seconds", 0.0, most=1.0) for tier in TIERS[1:]}
        return ReplicaFigures(
            token_s=_figure(metrics, PROMPT_TOKEN_S, 0.0, most=1.0) or usual.token_s,
            step_s=_figure(metrics, DECODE_STEP_S, usual.step_s, most=60.0),
            row_s=_figure(metrics, DECODE_ROW_S, usual.row_s, most=1.0),
            chunk=_figure(metrics, PROMPT_CHUNK, usual.chunk, least=1.0, most=1e7),
            fetch_s=fetch,
            queued={lane: min(max(0.0, tokens), _MOST_QUEUED) for lane, tokens in queued.items()},
            decodes=min(max(0, beat.running if load is None else load.decodes), _MOST_DECODES),
        )


def _figure(metrics: Mapping[str, float], name: str, usual: float, *, least: float = 0.0, most: float) -> float:
    """A figure of a heartbeat within its bounds; the usual one where it is not said, or is no number."""
    value = metrics.get(name, usual)
    return min(max(least, value), most) if math.isfinite(value) else usual


def _is_of(scopes: Iterable[Scope], owner: str) -> bool:
    return any(owner_of(scope.scope) == owner for scope in scopes)


def _takes(link: ReplicaLink, model: str) -> bool:
    """Whether the replica computes prefixes of this model ahead of requests."""
    hello = link.hello
    return link.up and hello is not None and hello.model.name == model and hello.version >= ROUTING_VERSION


def room_of(link: ReplicaLink, beat: Heartbeat) -> dict[Tier, int]:
    """Tokens of KV that a replica has room for, by tier; what its first message says where its beats do not."""
    hello = link.hello
    block = hello.layout.block_tokens if hello else 0
    room: dict[Tier, int] = {"hbm": max(hello.capacity.blocks, default=0) * block if hello else 0}
    for load in beat.memory:
        room[load.tier] = max(room.get(load.tier, 0), load.total * block)
    return {tier: min(max(0, tokens), _MOST_ROOM) for tier, tokens in room.items()}
