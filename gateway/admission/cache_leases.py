"""Leases at admission: what a request wishes of them, decided together with its hold and frozen in the hold's terms.

So whoever bills the request, from a replica's journal too, bills what was promised here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy.ext.asyncio import AsyncSession

from billing.holds.records import Hold, HoldRequest
from billing.money import format_amount, format_pico
from billing.prices import PriceVersion
from billing.prices.version import STORAGE
from billing.usage import LEASE_CLASSES, Usage
from gateway.errors import NotCached
from gateway.metering.billable_usage import MeteringTerms, pack
from prompt_cache.promise.directives import CachePlan
from prompt_cache.promise.lease_decider import LeaseDecider
from prompt_cache.promise.lease_decisions import BLOCK_NAME, LIFE_S, LeaseDecision, LeaseWish, Mark, split_prompt
from prompt_cache.promise.lease_store import LeaseStore
from prompt_cache.promise.prefix_keys import PromptKeys
from storage.database.database import Database, TransactionConflict

HoldT = TypeVar("HoldT", Hold, HoldRequest)


class LeasePayer(Struct, frozen=True):
    """Which request asks, for whom and in which lane."""

    request_id: UUID
    tenant_id: UUID
    project_id: UUID
    lane: str


class DecisionTold(Exception):
    """The decision of a request cannot be made again: its client was told of it."""


class LeaseRequest:
    """What one request wishes of leases. `decision` is there once its hold is taken."""

    def __init__(
        self, wish: LeaseWish, terms: MeteringTerms, price: PriceVersion, lane: str, *, only_if_cached: bool
    ) -> None:
        self.wish = wish
        self.decision: LeaseDecision | None = None
        self.told = False
        """Whether the decision was told to the client, so that no other one may take its place."""
        self.reach: int | None = None
        """As `Confirmation.reach`, for a decision that is made again."""
        self._terms = terms
        self._price = price
        self._lane = lane
        self.only_if_cached = only_if_cached

    def freeze(self, hold: HoldT, decision: LeaseDecision) -> HoldT | NotCached:
        """The hold, or the request for one, with terms that say what was decided; or the error, if the request was to
        be cached and is not."""
        if (refused := self.refusal(decision)) is not None:
            return refused
        return replace(hold, terms=pack(replace(self._terms, leases=decision.parts)))

    def refusal(self, decision: LeaseDecision) -> NotCached | None:
        """The error of a request that was to be cached, and is not by this decision."""
        if not self.only_if_cached or decision.hit is not None:
            return None
        tokens = self._terms.prompt_tokens
        _, write, covered = split_prompt(decision.parts, tokens)
        cost = self._price.cost(Usage(uncached=tokens - covered, write=write), self._lane)
        return NotCached(
            f"Nothing of this prompt is cached, and the request is to run only if it is. Its {tokens} prompt tokens "
            f"would cost {format_amount(cost)} {self._price.currency} now; nothing was computed or billed.",
            cost=format_pico(cost),
            currency=self._price.currency,
            tokens=tokens,
        )


def needs_leases(plan: CachePlan) -> bool:
    """Whether leases have a say in how a request of this plan is billed."""
    return bool(plan.breakpoints or plan.lookups or plan.only_if_cached)


def readable_classes(price: PriceVersion, lane: str) -> frozenset[str]:
    """The classes whose live leases are read: those whose reads have a price."""
    tiers = price.tiers(lane)
    meters = tiers[0][1] if tiers else {}
    return frozenset(name for name in LEASE_CLASSES if f"read_{name}" in meters)


def priced_classes(price: PriceVersion, lane: str) -> frozenset[str]:
    """The classes of leases that are offered: both their writes and their reads have a price."""
    tiers = price.tiers(lane)
    meters = tiers[0][1] if tiers else {}
    return frozenset(name for name in readable_classes(price, lane) if f"write_{name}" in meters)


def classes_of(plan: CachePlan, price: PriceVersion, lane: str) -> set[str]:
    """The classes that a request of this plan may write: those of its markers, and shorter ones, since a live
    lease that is written again keeps its class."""
    offered = priced_classes(price, lane)
    longest = max((LIFE_S[point.lease] for point in plan.breakpoints if point.lease in offered), default=0)
    return {name for name in offered if LIFE_S[name] <= longest}


def lease_request(
    payer: LeasePayer,
    plan: CachePlan,
    keys: PromptKeys,
    terms: MeteringTerms,
    price: PriceVersion,
    *,
    tags: Iterable[str] = (),
) -> LeaseRequest:
    """What a request of this plan wishes. Markers of classes that have no price are left out: they are billed as if
    they were not there."""
    offered = priced_classes(price, payer.lane)
    marks = tuple(
        Mark(point.tokens, keys.at(point.tokens), point.lease) for point in plan.breakpoints if point.lease in offered
    )
    marked = {mark.tokens for mark in marks}
    blocks = b""
    if marks and STORAGE in {meter for meter, _, _ in price.rows}:
        blocks = b"".join(key[:BLOCK_NAME] for key in keys.blocks(marks[-1].tokens))
    wish = LeaseWish(
        request_id=payer.request_id,
        tenant_id=payer.tenant_id,
        project_id=payer.project_id,
        model=price.model,
        marks=marks,
        lookups=tuple(keys.at(tokens) for tokens in plan.lookups if tokens not in marked),
        read=plan.read != "none",
        may_write=plan.store == "all",
        readable=readable_classes(price, payer.lane),
        writable=offered,
        max_age=plan.max_age,
        tags=tuple(tags),
        blocks=blocks,
    )
    return LeaseRequest(wish, terms, price, payer.lane, only_if_cached=plan.only_if_cached)


class LeaseHook:
    """Decides leases with the holds (`billing.reservation.hold_hooks`)."""

    def __init__(self, store: LeaseStore) -> None:
        self._store = store

    async def begin(self, session: AsyncSession, now: int, hook_inputs: Sequence[LeaseRequest]) -> LeaseDecisions:
        """Read the leases that the requests may depend on."""
        decider = await self._store.decider(session, now, [asked.wish for asked in hook_inputs])
        return LeaseDecisions(self._store, session, decider)


class LeaseDecisions:
    """The decisions of one transaction."""

    def __init__(self, store: LeaseStore, session: AsyncSession, decider: LeaseDecider) -> None:
        self._store = store
        self._session = session
        self._decider = decider
        self._pending: LeaseDecision | None = None
        self._taken: list[tuple[LeaseRequest, LeaseDecision]] = []

    def decide(self, request: HoldRequest, hook_input: LeaseRequest) -> HoldRequest | Exception:
        """The request with the terms that it gets now."""
        self._pending = self._decider.decide(hook_input.wish)
        return hook_input.freeze(request, self._pending)

    def decide_again(self, hold: Hold, hook_input: LeaseRequest) -> Hold | Exception:
        """The hold with the terms that it gets now."""
        assert hook_input.decision is not None
        if hook_input.told:
            return DecisionTold()
        self._pending = self._decider.decide_again(
            hook_input.wish, hook_input.decision, hold.admitted_at, hook_input.reach
        )
        return hook_input.freeze(hold, self._pending)

    def took(self, hook_input: LeaseRequest) -> None:
        """Let the last decision hold."""
        assert self._pending is not None
        self._decider.take(hook_input.wish, self._pending)
        self._taken.append((hook_input, self._pending))

    async def save(self) -> None:
        """Write the leases. Raises TransactionConflict where a client was told meanwhile what its request was promised
        before: the others are decided without that request."""
        await self._store.save(self._session, self._decider)
        if any(hook_input.told for hook_input, _ in self._taken):
            raise TransactionConflict("a decision was told before it was made again")
        Database.after_commit(self._session, self._remember)  # one that is tried again decides from what was before

    def _remember(self) -> None:
        for hook_input, decision in self._taken:
            hook_input.decision = decision
