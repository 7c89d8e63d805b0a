"""/admin/v1/tenants/{tenant}/invoices/{invoice}/verification: an invoice's checks, computed by the server.

A browser with HTTPS computes them itself and needs this for the document before it alone, which may be another
tenant's: of that it gets the hash, which its own document has anyway.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from billing.invoices.store import Invoices
from billing.verification.one_invoice import Predecessor, check_invoice, predecessor
from gateway.admin.access import allowed_tenants
from gateway.admin.invoices.invoices import AT, EXAMPLE, InvoiceOfTenant
from gateway.admin.operation import Call, operation
from gateway.http.policies import demands
from gateway.http.shapes import InvoiceId, TenantId, show
from gateway.services import Gateway


class CheckObject(Struct, frozen=True, kw_only=True):
    """A check: what was compared, and the first difference; none if it holds."""

    name: str
    about: str
    difference: str | None


class PredecessorObject(Struct, frozen=True, kw_only=True):
    """The document before it in its series: its SHA-256, computed anew. The rest only for who may see that document."""

    id: InvoiceId | None
    tenant_id: TenantId | None
    number: str | None
    sha256: str


class VerificationObject(Struct, frozen=True, kw_only=True):
    """The checks of a document, and the one before it in its series; none before the first and for drafts."""

    object: Literal["invoice.verification"] = "invoice.verification"
    number: str | None
    checks: list[CheckObject]
    previous: PredecessorObject | None


class InvoiceVerificationOperations:
    """Computes the checks of invoices."""

    def __init__(self, gateway: Gateway) -> None:
        self._database, self._invoices = gateway.services.database, Invoices(gateway.services.database)

    @operation("GET", f"{AT}/verification", demands("invoices.read"), path=EXAMPLE)
    async def verify_invoice(self, call: Call, invoice: InvoiceOfTenant) -> VerificationObject:
        """Compute an invoice's checks: hashes, sums of lines, tax and totals."""
        _, record = invoice
        content = await self._invoices.content(record)
        before = await predecessor(self._database, record)
        checks = await check_invoice(self._database, record, content, before)
        return VerificationObject(
            number=record.number,
            checks=[CheckObject(name=check.name, about=check.about, difference=check.difference) for check in checks],
            previous=None if before is None else _shown(call, before),
        )


def _shown(call: Call, before: Predecessor) -> PredecessorObject:
    visible = allowed_tenants(call.principal, "invoices.read")
    if visible is not None and before.tenant_id not in visible:
        return PredecessorObject(id=None, tenant_id=None, number=None, sha256=before.sha256)
    return show(PredecessorObject, before)
