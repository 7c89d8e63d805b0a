"""Checking the hash chain: every event must say what it said when it was settled, and none may be missing or be new."""

from __future__ import annotations

from collections import defaultdict
from hashlib import sha256
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import func, select

from billing.integrity.hash_chain import ENTRY_SIZE, first_head, next_head, period_root, split_entries
from billing.integrity.leaf_forms import FORMS, LeafForm
from billing.tables.books import billing_period, usage_batch, usage_chain
from billing.tables.money import usage_event
from billing.verification.findings import AuditContext
from storage.database.sql_arrays import one_of

_CHUNK = 5000
_LINKS = 50
_NOBODY = UUID(int=0)

Chain: TypeAlias = tuple[UUID, str]


async def check_chain(audit: AuditContext) -> None:
    """The links of each chain lead to its head, and each event still has the hash of its leaf."""
    walk = _Walk(audit, await _events_by_chain(audit))
    links = select(usage_batch).where(audit.within(usage_batch.c.period)).order_by("tenant_id", "period", "link")
    # all tenants: an audit checks the whole installation
    async for link in await audit.session.stream(links.execution_options(yield_per=_LINKS)):
        await walk.follow(link)
    await walk.compare()
    await _check_ends(audit, walk)
    for chain in sorted(walk.to_search):
        await _name_unchained(audit, chain)
    await _check_closed(audit, walk)


async def _events_by_chain(audit: AuditContext) -> dict[Chain, int]:
    row = usage_event.c
    query = select(row.tenant_id, row.period, func.count()).where(audit.within(row.period))
    rows = await audit.session.execute(query.group_by(row.tenant_id, row.period))
    return {(tenant, period): count for tenant, period, count in rows}


class _Walk:
    """Follows all chains link by link. `ends`: where each chain is: links, events, head, and the last root."""

    def __init__(self, audit: AuditContext, events: dict[Chain, int]) -> None:
        self.events = events
        self.ends: dict[Chain, tuple[int, int, bytes, bytes]] = {}
        self.to_search: set[Chain] = set()
        """Chains whose period may have events that are in none of their batches."""
        self._audit = audit
        self._total = sum(events.values())
        self._done = 0
        self._expected: dict[UUID, tuple[Chain, bytes, LeafForm | None]] = {}

    async def follow(self, link: Any) -> None:
        """Check the next link of its chain."""
        chain = (link.tenant_id, link.period)
        links, events, head, _ = self.ends.get(chain, (0, 0, first_head(*chain), b""))
        root = sha256(link.entries).digest()
        wanted = (links + 1, len(link.entries) // ENTRY_SIZE, root, next_head(head, root))
        form = FORMS.get(link.form)
        if (link.link, link.events, link.root, link.head) != wanted or form is None:
            detail = f"{link.period}: link {link.link} does not follow from link {links} and its own events"
            self._audit.report("the chain of events is broken", link.tenant_id, detail)
        self.ends[chain] = (link.link, events + link.events, link.head, link.root)
        for event, leaf in split_entries(link.entries):
            if self._expected.setdefault(event, (chain, leaf, form)) != (chain, leaf, form):
                detail = f"{link.period}: link {link.link} says something else of it than an earlier one"
                self._audit.report("an event was altered", event, detail)
        if len(self._expected) >= _CHUNK:
            await self.compare()

    async def compare(self) -> None:
        """Compare the events of the links since the last comparison with their leaves."""
        expected, self._expected = self._expected, {}
        in_events = one_of(self._audit.database, usage_event.c.id, expected)
        for row in (await self._audit.session.execute(select(usage_event).where(in_events))).mappings():
            chain, leaf, form = expected.pop(row["id"])
            if (row["tenant_id"], row["period"]) != chain or form is None or form.leaf(row) != leaf:
                detail = f"{chain[1]}: it does not say what it said when it was settled for tenant {chain[0]}"
                self._audit.report("an event was altered", row["id"], detail)
                self.to_search.add(chain)
            self._done += 1
        for event, (chain, _, _) in expected.items():
            detail = f"{chain[1]}: it was settled for tenant {chain[0]}, and is not there"
            self._audit.report("an event is missing", event, detail)
            self.to_search.add(chain)
        self._audit.progress("leaves", self._done, self._total)


async def _check_ends(audit: AuditContext, walk: _Walk) -> None:
    row = usage_chain.c
    query = select(row.tenant_id, row.period, row.links, row.events, row.head, row.root).where(audit.within(row.period))
    ends = {(row.tenant_id, row.period): tuple(row[2:]) for row in await audit.session.execute(query)}
    for chain in sorted(ends.keys() | walk.ends.keys()):
        if ends.get(chain) != walk.ends.get(chain):
            says, found = (
                f"{e[0]} links with {e[1]} events" if e else "none" for e in (ends.get(chain), walk.ends.get(chain))
            )
            detail = f"{chain[1]}: its end says {says}, there are {found}, or they end otherwise"
            audit.report("the chain of events is cut off", chain[0], detail)
    for chain in walk.events.keys() | walk.ends.keys():
        if walk.events.get(chain, 0) != walk.ends.get(chain, (0, 0))[1]:
            walk.to_search.add(chain)


async def _name_unchained(audit: AuditContext, chain: Chain) -> None:
    """Report the events of a tenant's period that are in no batch."""
    tenant, period = chain
    row = usage_batch.c
    chained: set[UUID] = set()
    for entries in await audit.session.scalars(
        select(row.entries).where(row.tenant_id == tenant, row.period == period)
    ):
        chained |= {event for event, _ in split_entries(entries)}
    of_chain = select(usage_event.c.id).where(usage_event.c.tenant_id == tenant, usage_event.c.period == period)
    for event in await audit.session.scalars(of_chain.order_by(usage_event.c.id)):
        if event not in chained:
            audit.report("an event was never settled", event, f"{period}: no batch of tenant {tenant} has it")


async def _check_closed(audit: AuditContext, walk: _Walk) -> None:
    """The root that a closed period was sealed with is the root of its chains now."""
    heads: dict[str, dict[UUID, bytes]] = defaultdict(dict)
    for (tenant, period), (_, _, head, _) in walk.ends.items():
        heads[period][tenant] = head
    closed = (billing_period.c.state == "closed") & audit.within(billing_period.c.period)
    for row in await audit.session.execute(select(billing_period).where(closed)):
        if row.root != period_root(heads[row.period]):
            detail = f"{row.period}: its root was {row.root.hex() if row.root else None}, its events lead to another"
            audit.report("a closed period is not what it was", _NOBODY, detail)
