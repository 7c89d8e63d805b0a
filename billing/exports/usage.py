"""The usage export: one row for each finished request and each adjustment of one, as it was recorded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from sqlalchemy import select

from billing.events.rollups import earliest
from billing.exports.datasets import Column, Dataset, ExportQuery, ExportSnapshot, Row
from billing.tables.money import price_version, usage_event
from billing.usage import DRAFTS, METERS

_OF = usage_event.c
_RECORDED = (
    "key_id",
    "model",
    "lane",
    "context_from",
    "price_version",
    "admitted_at",
    "finished_at",
    "status",
    "reason",
    "delivery",
    *METERS,
)


async def _rows(snapshot: ExportSnapshot, wanted: ExportQuery) -> AsyncIterator[Sequence[Row]]:
    names = wanted.names
    async for tenant_id in _tenants(snapshot, wanted):
        since = await earliest(snapshot.session, tenant_id, wanted.period)
        query = (
            select(
                _OF.id,
                _OF.corrects,
                _OF.project_id,
                *(_OF[name] for name in _RECORDED),
                price_version.c.currency,
                _OF.cost_pico,
                *(_OF[f"count_{name}"] for name in DRAFTS),
            )
            .join(price_version, price_version.c.id == _OF.price_version)
            .where(_OF.tenant_id == tenant_id, _OF.period == wanted.period, _OF.admitted_at >= since)
            .order_by(_OF.id)
        )
        tenant = names.tenants.get(tenant_id)
        async for portion in snapshot.portions(query):
            yield [
                (*row[:2], wanted.period, tenant_id, tenant, row[2], names.projects.get(row[2]), *row[3:])
                for row in portion
            ]


async def _tenants(snapshot: ExportSnapshot, wanted: ExportQuery) -> AsyncIterator[Any]:
    """The tenants that have events, in order. Events of one tenant are then read by an index, without sorting."""
    if wanted.tenant_id is not None:
        yield wanted.tenant_id
        return
    last = None
    while True:  # all tenants: an export of the whole installation, one index probe for each
        query = select(_OF.tenant_id).order_by(_OF.tenant_id).limit(1)
        last = await snapshot.session.scalar(query if last is None else query.where(_OF.tenant_id > last))
        if last is None:
            return
        yield last


USAGE = Dataset(
    name="usage",
    title="Usage",
    about="one row for each finished request, and for each adjustment of one",
    columns=(
        Column("request_id", "id", "the request, or the adjustment of one; unique for ever"),
        Column(
            "corrects",
            "id",
            "the request that this adjustment corrects, or whose lost attempt this is; empty for a request",
        ),
        Column("period", "text", "billing period"),
        Column("tenant_id", "id"),
        Column("tenant", "text"),
        Column("project_id", "id"),
        Column("project", "text"),
        Column("key_id", "id", "API key that asked"),
        Column("model", "text", "served model"),
        Column("lane", "text", "interactive, standard or batch"),
        Column("context_from", "integer", "where the context tier that priced it begins, in tokens"),
        Column("price_version", "integer", "price version that it was billed at"),
        Column(
            "admitted_at", "instant", "when the request was admitted; decides the period, unless it was closed already"
        ),
        Column("finished_at", "instant"),
        Column("status", "text", "ok, cancelled or failed"),
        Column("reason", "text", "why it ended"),
        Column("delivery", "text", "whether the delivery of the last token is confirmed"),
        *(
            Column(meter, "integer", "tokens billed on this meter; less than 0 where an adjustment takes off")
            for meter in METERS
        ),
        Column("currency", "text"),
        Column("cost", "money", "exact cost"),
        Column("drafted", "integer", "tokens that the replica guessed and verified; they cost nothing"),
        Column("accepted", "integer", "those of them that became output"),
    ),
    rows=_rows,
    sums=("cost",),
)
