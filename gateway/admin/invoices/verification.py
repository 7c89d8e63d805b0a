"""/admin/v1/tenants/{tenant}/invoices/{invoice}/verification: an invoice's checks, computed by the server.

A browser with HTTPS computes them itself and needs this for the document before it alone, which may be another
tenant's: of that it gets the hash, which its own document has anyway.
"""

from __future__ import annotations

from typing import Any, Literal

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Struct

from billing.verification.one_invoice import Predecessor, check_invoice, predecessor
from gateway.admin.access import allowed_tenants, principal_of
from gateway.admin.invoices.invoices import AT, InvoiceFinder
from gateway.admin.refusals import refusals
from gateway.http.operations import describes
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.services import Gateway
from storage.database.public_ids import public_id
from tenancy.directory import tenant_public_id


class CheckObject(Struct, frozen=True, kw_only=True):
    """A check: what was compared, and the first difference; none if it holds."""

    name: str
    about: str
    difference: str | None


class PredecessorObject(Struct, frozen=True, kw_only=True):
    """The document before it in its series: its SHA-256, computed anew. The rest only for who may see that document."""

    id: str | None
    tenant_id: str | None
    number: str | None
    sha256: str


class VerificationObject(Struct, frozen=True, kw_only=True):
    """The checks of a document, and the one before it in its series; none before the first and for drafts."""

    object: Literal["invoice.verification"] = "invoice.verification"
    number: str | None
    checks: list[CheckObject]
    previous: PredecessorObject | None


def invoice_verification_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The route, for one worker."""
    database, finder = gateway.services.database, InvoiceFinder(gateway)

    @get(
        f"{AT}/verification",
        opt=demands("invoices.read") | describes(VerificationObject, path={"invoice": "INV-2026-000042"}),
    )
    async def verify_invoice(
        request: Request[Any, Any, Any], tenant: FromPath[str], invoice: FromPath[str]
    ) -> Response[bytes]:
        """Compute an invoice's checks: hashes, sums of lines, tax and totals."""
        _, record = await finder.find(request, tenant, invoice)
        with refusals():
            content = await finder.invoices.content(record)
            before = await predecessor(database, record)
            checks = await check_invoice(database, record, content, before)
        return json_response(
            VerificationObject(
                number=record.number,
                checks=[CheckObject(name=c.name, about=c.about, difference=c.difference) for c in checks],
                previous=None if before is None else _shown(request, before),
            )
        )

    return [verify_invoice]


def _shown(request: Request[Any, Any, Any], before: Predecessor) -> PredecessorObject:
    visible = allowed_tenants(principal_of(request), "invoices.read")
    if visible is not None and before.tenant_id not in visible:
        return PredecessorObject(id=None, tenant_id=None, number=None, sha256=before.sha256)
    return PredecessorObject(
        id=public_id("invoice", before.id),
        tenant_id=tenant_public_id(before.tenant_id),
        number=before.number,
        sha256=before.sha256,
    )
