"""Notes finished requests for the history of the prompt cache, diagnoses them, and writes both beside the requests.

Nobody waits for it but who asks for an explanation in his response, and he for a moment only. What the queue has no
room for, or what fails, is left out: the history explains, it bills nothing.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property
from uuid import UUID

import structlog
from msgspec import Struct

from billing.holds.records import Hold
from billing.prices import PriceCatalog, PriceMissing, UnknownPriceVersion
from billing.usage import UsageEvent
from gateway.admission.prepared_request import PreparedRequest
from gateway.generation_request import GenerationRequest
from gateway.metering.miss_prices import MissPrice, price_misses
from prompt_cache.history.comparison import Comparison, compare
from prompt_cache.history.diagnosis import Diagnosis, Evidence, diagnose
from prompt_cache.history.prefix_hashes import (
    LEAST_PIECE,
    common_tokens,
    family,
    history_secret,
    label,
    nodes_of,
    piece_keys,
    tail_key,
)
from prompt_cache.history.records import (
    MOST_PATH,
    MOST_PIECES,
    MOST_SPANS,
    MOST_TAILS,
    Computed,
    Entry,
    PieceNote,
    RequestRecord,
    SpanNote,
)
from prompt_cache.history.resemblance import Noted
from prompt_cache.history.store import History
from prompt_cache.promise.cache_domains import CacheDomains
from protocol.requests import MOST_LOST, Lost
from protocol.requests import Miss as EngineMiss
from storage.database.database import Database, DatabaseUnavailable

log = structlog.get_logger("gateway.generation.request_history")

_MOST_WAITING = 500
_MOST_TOKENS = 1_000_000
"""Of all requests that wait to be written."""
_BATCH = 32
_GATHER_S = 0.5
_STOP_S = 3.0
_EXPLAIN_S = 1.0
"""How long a response waits for its explanation."""
_IN_THREAD = 8192
"""Prompts of more tokens are hashed in a thread."""
_PENDING = 64
_SECOND = 1_000_000
_ID = re.compile(r"(?:[a-z]{1,16}[-_])?([0-9a-f]{32})")


class Finding(Struct, frozen=True):
    """Why a request missed, with prices in the order of `diagnosis.misses`, empty if they are not known."""

    record: RequestRecord
    diagnosis: Diagnosis
    prices: Sequence[MissPrice] = ()
    currency: str = ""


class Explanation(Struct, frozen=True):
    """What a response tells who asked: how the request differs from the one named, and our own finding if there was
    time for it."""

    comparison: Comparison
    finding: Finding | None = None


class Observed:
    """A request that has ended. `misses`, `lost`: what its replica said. `began_s`: seconds from its admission until
    others could read what it computed. `root`: that of its project's scope."""

    def __init__(
        self,
        prepared: PreparedRequest,
        hold: Hold,
        event: UsageEvent,
        *,
        misses: tuple[EngineMiss, ...],
        began_s: float | None,
        root: bytes,
        lost: tuple[Lost, ...] = (),
    ) -> None:
        self.prepared = prepared
        self._hold = hold
        self._event = event
        self._misses = misses
        self._lost = lost
        self._began_s = began_s
        self._root = root

    @property
    def admitted_at(self) -> int:
        """When it was admitted, in microseconds since the Unix epoch."""
        return self._hold.admitted_at

    @cached_property
    def noted(self) -> Noted:
        """What is kept of it. The hashes of a long prompt take milliseconds."""
        prepared, event = self.prepared, self._event
        generation, plan, model = prepared.generation, prepared.plan, prepared.model
        secret, partition = history_secret(self._root), generation.cache.partition
        kin = family(secret, model.name, model.text_digest, partition)
        nodes = nodes_of(prepared.prompt.tokens, kin)
        spans = tuple(SpanNote(span.path[:MOST_PATH], span.start, span.end) for span in prepared.prompt.spans)
        leases = prepared.leases
        kept = () if leases is None else leases.changes
        refused = () if leases is None else leases.refused
        visible = None if self._began_s is None else self._hold.admitted_at + int(self._began_s * _SECOND)
        record = RequestRecord(
            id=prepared.request_id,
            tenant_id=prepared.payer.tenant_id,
            project_id=prepared.payer.project_id,
            at=self._hold.admitted_at,
            visible_at=visible,
            model=model.name,
            text_digest=model.text_digest,
            family=kin.key,
            partition=label(secret, "partition", partition),
            format=label(secret, "format", "" if generation.grammar is None else generation.grammar.text),
            surface=generation.surface,
            lane=event.lane,
            replica=event.replica,
            tokens=len(prepared.prompt.tokens),
            nodes=tuple(node.key for node in nodes),
            spans=spans[:MOST_SPANS],
            pieces=piece_notes(generation, secret, spans),
            root_path=generation.turns_path,
            automatic=plan.automatic,
            read=plan.read,
            store=plan.store,
            read_min=plan.read_min,
            lookups=plan.lookups,
            max_age=plan.max_age,
            entries=(
                *(Entry(one.tokens, one.lease_class, one.written_at, one.expires_at) for one in kept),
                *(Entry(one.tokens, one.lease_class, one.written_at, one.expires_at, refused=True) for one in refused),
            ),
            breakpoints=tuple((point.tokens, point.lease) for point in plan.breakpoints),
            parts=prepared.terms.leases,
            billed_read=sum(event.usage.read.values()),
            found=event.counts.prompt - event.counts.computed,
            misses=tuple(Computed(one.start, one.end, one.cause) for one in self._misses),
            price_version=event.price_version,
            cost_pico=event.cost_pico,
            tails=_tails(generation, secret, spans),
            lost=tuple(Computed(one.start, one.end, one.cause) for one in self._lost[:MOST_LOST]),
        )
        return Noted(record, nodes)

    def keys(self, tokens: Sequence[int]) -> dict[bytes, int]:
        """The keys of leases on prefixes of these lengths, with the lengths."""
        keys = self.prepared.keys
        return {} if keys is None else {keys.at(length): length for length in tokens if length > 0}


class RequestHistory:
    """The history as one gateway worker writes it. `left_out`: how many requests it had no room for."""

    def __init__(
        self, database: Database, domains: CacheDomains, prices: PriceCatalog, *, gather_s: float = _GATHER_S
    ) -> None:
        """`gather_s`: how long requests are gathered before they are written together."""
        self.left_out = 0
        self._gather_s = gather_s
        self.history = History(database)
        self._domains = domains
        self._prices = prices
        self._waiting: deque[Observed] = deque()
        self._writing: list[Observed] = []
        self._tokens = 0
        self._task: asyncio.Task[None] | None = None

    def observed(
        self,
        prepared: PreparedRequest,
        hold: Hold,
        event: UsageEvent,
        misses: tuple[EngineMiss, ...],
        began_s: float | None,
        *,
        lost: tuple[Lost, ...] = (),
    ) -> Observed | None:
        """A request that has ended, None if nobody is going to ask why it missed: its prompt was not billed whole, or
        it is shorter than what is cached, without markers."""
        tokens, plan = len(prepared.prompt.tokens), prepared.plan
        asked = bool(plan.breakpoints) or prepared.generation.cache.compare_with is not None
        if event.usage.prompt != tokens or not (asked or tokens >= plan.read_min):
            return None
        root = self._domains.project(prepared.payer.tenant_id, prepared.payer.project_id).root
        return Observed(prepared, hold, event, misses=misses, began_s=began_s, root=root, lost=lost)

    def note(self, observed: Observed) -> None:
        """Write it later."""
        tokens = len(observed.prepared.prompt.tokens)
        if len(self._waiting) >= _MOST_WAITING or (self._waiting and self._tokens + tokens > _MOST_TOKENS):
            self.left_out += 1
            return
        self._waiting.append(observed)
        self._tokens += tokens
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write_all())

    async def written(self) -> None:
        """Wait until all that is noted is written, or left out."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def stop(self) -> None:
        """Write what waits, for a moment."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_STOP_S)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # ------------------------------------------------ explaining

    async def explain(self, observed: Observed) -> Explanation:
        """Why this request missed, for its own response; in a moment or not at all."""
        named = observed.prepared.generation.cache.compare_with or ""
        try:
            async with asyncio.timeout(_EXPLAIN_S):
                noted = await self._hashed(observed)
                comparison = await self._comparison(noted, named)
                (finding,) = await self._find([observed], await self._pending(observed))
        except (TimeoutError, DatabaseUnavailable):
            return Explanation(Comparison("unavailable"))
        return Explanation(comparison, finding)

    async def finding(self, tenant_id: UUID, project_id: UUID | None, name: str) -> Finding | None:
        """What is known of a request, by any of its names; None unless it is the tenant's, and the project's if one is
        named. Raises DatabaseUnavailable."""
        request_id = request_id_of(name)
        if request_id is None:
            return None
        noted = await self.history.get(tenant_id, project_id, request_id)
        if noted is None:
            own = [
                one
                for one in (*self._writing, *self._waiting)
                if (one.prepared.request_id, one.prepared.payer.tenant_id) == (request_id, tenant_id)
                and project_id in (None, one.prepared.payer.project_id)
            ]
            if own:
                return (await self._find(own[:1], await self._pending(own[0])))[0]
            # It may have been written after the database was asked.
            noted = await self.history.get(tenant_id, project_id, request_id)
            if noted is None:
                return None
        assert noted.diagnosis is not None
        return await priced(self._prices, noted.record, noted.diagnosis)

    async def _comparison(self, noted: Noted, named: str) -> Comparison:
        if not named:
            return Comparison("none", read=noted.record.billed_read)
        request_id, record = request_id_of(named), noted.record
        if request_id is None:
            return Comparison("not_found", read=record.billed_read)
        for one in (*self._writing, *self._waiting):
            payer = one.prepared.payer
            if (one.prepared.request_id, payer.project_id) == (request_id, record.project_id):
                other = await self._hashed(one)
                return compare(record, other.record, _common(noted, other))
        earlier = await self.history.get(record.tenant_id, record.project_id, request_id)
        if earlier is None:
            return Comparison("not_found", read=record.billed_read)
        return compare(record, earlier.record, await self.history.common_with(noted, earlier.record))

    async def _pending(self, observed: Observed) -> list[Noted]:
        """What others may have left of this project that is not in the database yet."""
        project = observed.prepared.payer.project_id
        alike = [
            one
            for one in (*self._writing, *self._waiting)
            if one is not observed and one.prepared.payer.project_id == project
        ]
        return [await self._hashed(one) for one in alike[-_PENDING:]]

    async def _find(self, batch: Sequence[Observed], pending: Sequence[Noted]) -> list[Finding]:
        """Why these requests missed; in the order of their admission, each known to those after it."""
        asked = [(await self._hashed(observed), observed.keys) for observed in batch]
        found = await self.history.evidence_of(asked, pending)
        return [await self._diagnosed(noted, *own) for (noted, _), own in zip(asked, found, strict=True)]

    async def _diagnosed(self, noted: Noted, evidence: Evidence, known: frozenset[bytes]) -> Finding:
        await asyncio.sleep(0)  # requests come between those of a batch
        noted.known = known
        noted.diagnosis = diagnose(noted.record, evidence)
        found = await priced(self._prices, noted.record, noted.diagnosis)
        noted.currency = found.currency
        noted.costs = {}
        for miss, price in zip(noted.diagnosis.misses, found.prices, strict=False):
            noted.costs[miss.cause] = noted.costs.get(miss.cause, 0) + price.cost_pico
        return found

    async def _hashed(self, observed: Observed) -> Noted:
        if len(observed.prepared.prompt.tokens) > _IN_THREAD:
            return await asyncio.to_thread(lambda: observed.noted)
        await asyncio.sleep(0)  # requests come between those of a batch
        return observed.noted

    # ------------------------------------------------ writing

    async def _write_all(self) -> None:
        while self._waiting:
            await asyncio.sleep(self._gather_s)
            batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
            self._writing = batch
            self._tokens -= sum(len(one.prepared.prompt.tokens) for one in batch)
            try:
                batch.sort(key=lambda one: one.admitted_at)
                await self._find(batch, ())
                await self.history.write([one.noted for one in batch])
            except DatabaseUnavailable:
                self.left_out += len(batch)
            except Exception:
                self.left_out += len(batch)
                log.exception("requests are left out of the history", requests=len(batch))
            finally:
                self._writing = []


async def priced(prices: PriceCatalog, record: RequestRecord, diagnosis: Diagnosis) -> Finding:
    """The finding with prices, where its price version is known. Raises DatabaseUnavailable."""
    try:
        price = await prices.version(record.price_version)
        return Finding(record, diagnosis, price_misses(record, diagnosis, price), price.currency)
    except (PriceMissing, UnknownPriceVersion):
        return Finding(record, diagnosis)


def request_id_of(name: str) -> UUID | None:
    """The id in a request's or response's name, such as `req_…`, `chatcmpl-…` or `msg_…`; None if there is none."""
    found = _ID.fullmatch(name)
    if found is not None:
        return UUID(found[1])
    try:
        return UUID(name[:40])
    except ValueError:
        return None


def piece_notes(generation: GenerationRequest, secret: bytes, spans: Sequence[SpanNote]) -> tuple[PieceNote, ...]:
    """What the client wrote, piece by piece, as the history keeps it."""
    ends = {span.path: span.end for span in spans}
    named = list(_texts(generation))[:MOST_PIECES]
    keys = piece_keys(secret, [(kind, text) for kind, text, _ in named])
    notes, end = [], 0
    for key, (_, _, path) in zip(keys, named, strict=True):
        end = max(end, ends.get(path[:MOST_PATH], end))
        notes.append(PieceNote(key if end >= LEAST_PIECE else b"", end, path[:MOST_PATH]))
    return tuple(notes) if spans else ()


def _tails(generation: GenerationRequest, secret: bytes, spans: Sequence[SpanNote]) -> tuple[bytes, ...]:
    long = {span.path for span in spans if span.end - span.start >= LEAST_PIECE}
    named = [text for _, text, path in _texts(generation) if path[:MOST_PATH] in long]
    return tuple(tail_key(secret, text) for text in named[:MOST_TAILS])


def _texts(generation: GenerationRequest) -> Iterator[tuple[str, str, str]]:
    """What the client wrote, as (kind, text, path), in the order of templates."""
    for tool in generation.tools:
        yield "tool", f"{tool.name}\0{tool.description}\0{tool.schema}", tool.path
    for turn in generation.turns:
        for text in turn.texts:
            yield f"{turn.role} {text.kind} {turn.call_name}", text.text, text.path


def _common(one: Noted, other: Noted) -> int:
    """How many tokens two prompts begin with; 0 for those of two families."""
    if one.record.family != other.record.family:
        return 0
    common = 0
    for mine, theirs in zip(one.nodes, other.nodes, strict=False):
        if mine.key != theirs.key:
            return common + common_tokens(mine.hashes, theirs.hashes)
        common = mine.end
    return common
