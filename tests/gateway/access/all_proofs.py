"""All proofs: a new module of them is imported here."""

from __future__ import annotations

from tests.gateway.access import (
    proofs_admin,
    proofs_identity,
    proofs_invoices,
    proofs_money,
    proofs_payments,
    proofs_prices,
    proofs_users,
    proofs_v1,
)
from tests.gateway.access.proofs import PROOFS

__all__ = [
    "PROOFS",
    "proofs_admin",
    "proofs_identity",
    "proofs_invoices",
    "proofs_money",
    "proofs_payments",
    "proofs_prices",
    "proofs_users",
    "proofs_v1",
]
