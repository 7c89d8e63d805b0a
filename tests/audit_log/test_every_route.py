"""Every route that may change something is known, with what it records, or why it records nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.architecture import ROOMS

ROOT = Path(__file__).resolve().parents[2]
_CHANGING = ("POST", "PUT", "PATCH", "DELETE")
_ADMIN, _TENANT = "/admin/v1", "/admin/v1/tenants/{tenant:str}"
_PROJECT = f"{_TENANT}/projects/{{project:str}}"
RECORDED = {
    **{f"POST {_ADMIN}/approvals/{{change:str}}/{verb}": "change" for verb in ("approve", "withdraw")},
    **{f"POST {_ADMIN}/fleet/{{replica:str}}/{verb}": "replica" for verb in ("drain", "resume")},
    f"POST {_ADMIN}/fleet/scale-in": "replica",
    f"POST {_ADMIN}/gateway-epochs/{{epoch:str}}/declare-dead": "journal",
    f"POST {_ADMIN}/invitations/accept": "invitation",
    **{f"POST {base}/invitations": "invitation" for base in (_ADMIN, _TENANT, _PROJECT)},
    **{f"DELETE {base}/invitations/{{invitation:str}}": "invitation" for base in (_ADMIN, _TENANT, _PROJECT)},
    **{
        f"{verb} {at}/members/{{user:str}}": "member"
        for verb in ("PUT", "DELETE")
        for at in (_ADMIN, _TENANT, _PROJECT)
    },
    **{f"POST {base}": "key" for base in (f"{_ADMIN}/operator-keys", f"{_TENANT}/keys")},
    **{
        f"{verb} {base}/{{key:str}}{more}": "key"
        for base in (f"{_ADMIN}/operator-keys", f"{_TENANT}/keys")
        for verb, more in (("PATCH", ""), ("DELETE", ""), ("POST", "/rotate"))
    },
    **{
        f"{verb} {_ADMIN}/limits/{subject}": "limits"
        for verb in ("PUT", "DELETE")
        for subject in ("keys/{key:str}", "projects/{project:str}")
    },
    f"POST {_ADMIN}/periods/{{period:str}}/close": "period",
    f"PUT {_ADMIN}/platform/settings/{{name:str}}": "platform_setting",
    f"POST {_ADMIN}/prices/books": "price_book",
    f"POST {_ADMIN}/prices/sheets": "price_sheet",
    **{f"POST {_ADMIN}/prices/sheets/{{number:int}}/{verb}": "price_sheet" for verb in ("activate", "withdraw")},
    f"PATCH {_ADMIN}/sellers/{{seller:str}}": "seller",
    f"PATCH {_TENANT}/buyer": "billing_profile",
    f"POST {_ADMIN}/tenants": "tenant",
    **{f"POST {_TENANT}/{verb}": "tenant" for verb in ("suspend", "resume")},
    f"POST {_TENANT}/projects": "project",
    **{f"POST {_PROJECT}/{verb}": "project" for verb in ("suspend", "resume")},
    f"POST {_TENANT}/adjustments": "usage",
    f"POST {_TENANT}/budgets": "budget",
    f"DELETE {_TENANT}/budgets/{{budget:str}}": "budget",
    f"PUT {_TENANT}/credit-line": "credit_line",
    **{f"POST {_TENANT}/{what}": "grant" for what in ("grants", "payments")},
    f"PUT {_TENANT}/payment-connection": "payment_customer",
    f"PUT {_TENANT}/auto-top-up": "auto_top_up",
    f"POST {_TENANT}/top-ups": "top_up",
    f"POST {_TENANT}/top-ups/{{top_up:str}}/refunds": "payment_refund",
    f"POST {_TENANT}/invoices/{{invoice:str}}/push-again": "document",
    **{f"POST {_ADMIN}/payments/receipts/{{receipt:str}}/{verb}": "cash" for verb in ("apply", "return")},
    f"POST {_ADMIN}/payments/statements": "cash",
    f"POST {_ADMIN}/payments/tasks/{{task:str}}/close": "finance_task",
    f"POST {_ADMIN}/payments/reminders/{{reminder:str}}/send-again": "payment_reminder",
    f"PUT {_TENANT}/reminder-policy": "reminder_policy",
    f"POST {_TENANT}/refunds": "refund",
    f"POST {_TENANT}/terms": "terms",
    **{f"POST {base}/exports": "export" for base in (_TENANT, "/v1")},
    f"POST {_TENANT}/invoices": "invoice",
    f"POST {_TENANT}/invoices/{{invoice:str}}/credit-notes": "credit_note",
    **{
        f"POST {_TENANT}/invoices/{{invoice:str}}/{verb}": "invoice"
        for verb in ("finalize", "payments", "uncollectible", "vat-relief", "void")
    },
    **{f"POST {base}/webhooks": "webhook_endpoint" for base in (_TENANT, "/v1")},
    **{f"DELETE {base}/webhooks/{{name:str}}": "webhook_endpoint" for base in (_TENANT, "/v1")},
    **{
        f"POST {base}/webhooks/{{name:str}}/{verb}": "webhook_endpoint"
        for base in (_TENANT, "/v1")
        for verb in ("enable", "rotate")
    },
    **{f"{verb} /v1/caches{more}": "cache" for verb, more in (("DELETE", ""), ("DELETE", "/{name:str}"))},
    "PATCH /v1/caches/{name:str}": "cache",
    "DELETE /v1/responses/{name:str}": "response",
    **{"POST /v1/adapters": "adapter", "DELETE /v1/adapters/{adapter:str}": "adapter"},
    **{"POST /v1/files": "file", "DELETE /v1/files/{file:str}": "file"},
    "POST /v1/uploads/{upload:str}/complete": "file",
    **{
        f"POST {base}{more}": "batch"
        for base in ("/v1/batches", "/v1/messages/batches")
        for more in ("", "/{batch:str}/cancel")
    },
    "DELETE /v1/messages/batches/{batch:str}": "batch",
    f"DELETE {_PROJECT}/responses/{{response:str}}": "response",
    f"POST {_TENANT}/batches/{{batch:str}}/cancel": "batch",
    f"DELETE {_TENANT}/files/{{file:str}}": "file",
    f"DELETE {_TENANT}/adapters/{{adapter:str}}": "adapter",
    f"POST {_PROJECT}/adapters": "adapter",
    f"PATCH {_PROJECT}/response-policy": "response_policy",
    f"PATCH {_PROJECT}/receipt-policy": "receipt_policy",
    **{f"POST {_ADMIN}/users/{{user:str}}/{verb}": "user" for verb in ("disable", "enable", "links")},
    f"POST {_ADMIN}/users/{{user:str}}/revoke-sessions": "session",
    f"POST {_ADMIN}/sessions/revoke-all": "session",
    f"DELETE {_ADMIN}/sessions/{{session:str}}": "session",
    f"DELETE {_ADMIN}/session": "session",
    f"PATCH {_ADMIN}/users/me": "user",
    **{f"POST {_ADMIN}/users/me/{what}": "user" for what in ("password", "recovery-codes", "totp/confirm")},
    f"DELETE {_ADMIN}/users/me/totp": "user",
    f"POST {_ADMIN}/password-resets/redeem": "user",
    **{f"POST {_ADMIN}/session{more}": "user" for more in ("", "/link", "/second-factor", "/passkey")},
    f"POST {_ADMIN}/session/provider/finish": "user",
    f"POST {_ADMIN}/users/me/passkeys": "user",
    **{f"{verb} {_ADMIN}/users/me/passkeys/{{passkey:str}}": "user" for verb in ("PATCH", "DELETE")},
    f"DELETE {_ADMIN}/users/me/identities/{{identity:str}}": "user",
    **{f"POST {base}/identity-providers": "identity_provider" for base in (_ADMIN, _TENANT)},
    **{
        f"{verb} {base}/identity-providers/{{provider:str}}{more}": "identity_provider"
        for base in (_ADMIN, _TENANT)
        for verb, more in (("PATCH", ""), ("DELETE", ""), ("PUT", "/groups"), ("PUT", "/domains"))
    },
    f"POST {_TENANT}/directory/token": "directory",
    **{f"{verb} {_TENANT}/directory": "directory" for verb in ("PATCH", "DELETE")},
    f"PUT {_TENANT}/directory/groups/{{group:str}}/role": "directory",
    f"PUT {_TENANT}/sign-in-policy": "sign_in_policy",
    **{f"POST /scim/v2/{what}": "directory" for what in ("Users", "Groups")},
    **{
        f"{verb} /scim/v2/{what}/{{resource:str}}": "directory"
        for what in ("Users", "Groups")
        for verb in ("PUT", "PATCH", "DELETE")
    },
    "POST /oidc/{provider:str}/logout": "session",
}
"""Route -> the object of the actions that it records (`object.verb`)."""
NOT_RECORDED = {
    **dict.fromkeys(
        (
            *("POST /v1/chat/completions", "POST /v1/completions", "POST /v1/messages"),
            *("POST /v1/messages/count_tokens", "POST /v1/responses", "POST /v1/responses/input_tokens"),
        ),
        "a request: its usage event says all",
    ),
    "POST /v1/estimate": "nothing happens",
    "POST /webhooks/stripe": "an event is noted; what the worker does about it is recorded",
    **{
        f"POST {_TENANT}/payment-connection/{page}": "a page at the provider: what is done on it comes as an event"
        for page in ("card-page", "portal")
    },
    **{
        f"POST {_PROJECT}/playground/{what}": "a request; the key that it makes once is recorded as key.created"
        for what in ("chat/completions", "estimate")
    },
    **{
        f"POST {base}/{what}": "a message to where messages go anyway"
        for base in (_TENANT, "/v1")
        for what in ("webhooks/{name:str}/test", "webhook_deliveries/{name:str}/resend")
    },
    **dict.fromkeys(
        ("POST /v1/uploads", *(f"POST /v1/uploads/{{upload:str}}/{what}" for what in ("parts", "cancel"))),
        "room for a file that is not there yet: what becomes of it is recorded",
    ),
    "POST /v1/responses/{name:str}/cancel": "its usage event says that it was",
    f"POST {_ADMIN}/session/confirm": "the same user in the same session",
    f"POST {_ADMIN}/session/confirm/passkey": "the same user in the same session",
    **{
        f"POST {_ADMIN}/{what}": "counts when it is finished"
        for what in (
            *("session/provider", "session/provider/confirm", "session/passkey/challenge"),
            *("session/confirm/passkey/challenge", "users/me/passkeys/challenge"),
        )
    },
    **{f"POST /scim/v2{what}/.search": "it looks" for what in ("", "/Users", "/Groups")},
    f"POST {_ADMIN}/users/me/totp": "counts when it is confirmed",
}


def test_every_changing_route_is_known() -> None:
    routes = json.loads((ROOT / "tests/goldens/files/routes.json").read_text())["public"]
    changing = {route for route in routes if route.split()[0] in _CHANGING}
    assert changing == RECORDED.keys() | NOT_RECORDED.keys()
    assert not RECORDED.keys() & NOT_RECORDED.keys()


@pytest.mark.parametrize("kind", sorted(set(RECORDED.values())))
def test_what_a_route_records_is_recorded_somewhere(kind: str) -> None:
    sources = (path.read_text() for room in ROOMS for path in (ROOT / room).rglob("*.py") if room != "gateway")
    action = re.compile(rf"""["']{kind}\.[a-z_{{]""")
    assert any("record" in source and action.search(source) for source in sources)
