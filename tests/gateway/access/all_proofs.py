"""All proofs: a new module of them is imported here."""

from __future__ import annotations

from tests.gateway.access import proofs_admin, proofs_money, proofs_prices, proofs_users, proofs_v1
from tests.gateway.access.proofs import PROOFS

_INVOICES = "tests/gateway/admin/test_invoices.py"
_PERIODS = "tests/gateway/admin/test_platform.py"
UNPROVEN: dict[str, str] = {
    **dict.fromkeys(
        (
            *("admin_retrieve_invoice", "admin_invoice_bundle", "admin_credit_invoice", "admin_invoice_csv"),
            *("admin_finalize_invoice", "admin_invoice_json", "admin_list_lines", "admin_drill_line"),
            *("admin_pay_invoice", "admin_invoice_pdf", "admin_write_off_invoice", "admin_void_invoice"),
            "admin_draft_invoice",
        ),
        _INVOICES,
    ),
    **dict.fromkeys(("admin_close_period", "admin_declare_epoch_dead"), _PERIODS),
}
"""Operations that nothing here proves yet, and where they are tested instead."""
__all__ = ["PROOFS", "UNPROVEN", "proofs_admin", "proofs_money", "proofs_prices", "proofs_users", "proofs_v1"]
