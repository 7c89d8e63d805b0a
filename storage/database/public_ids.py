"""The ids of objects as everybody outside sees them: the kind of the object, then its id in hexadecimal.

The API, the audit log, webhooks and errors say an id in this one form, so that what one of them says can be looked up
in another. Objects of other kinds (a grant, a webhook endpoint) have plain UUIDs everywhere; a key has a public id of
its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

PREFIXES: Mapping[str, str] = {
    "tenant": "tenant_",
    "balance": "tenant_",
    "billing_profile": "tenant_",
    "project": "project_",
    "user": "user_",
    "session": "session_",
    "invitation": "invitation_",
    "budget": "budget_",
    "invoice": "invoice_",
    "credit_note": "invoice_",
    "advance": "invoice_",
    "export": "export_",
    "cache": "cache_",
    "response": "resp_",
    "file": "file_",
    "upload": "upload_",
    "upload_part": "part_",
    "adapter": "adapter_",
    "batch": "batch_",
    "message_batch": "msgbatch_",
    "request": "req_",
    "usage_event": "req_",
    "change": "change_",
}
"""Kind of an object → what its public id begins with. A tenant has one balance and one billing profile."""
_FIELDS = {f"{kind}_id": kind for kind in PREFIXES}


def public_id(kind: str, identity: UUID) -> str:
    """The public id of an object of this kind."""
    prefix = PREFIXES.get(kind)
    return str(identity) if prefix is None else f"{prefix}{identity.hex}"


def prefixed_id(text: str, prefix: str) -> UUID | None:
    """The id in `<prefix><hex>`; None for anything else."""
    return _uuid(text.removeprefix(prefix)) if text.startswith(prefix) else None


def forms_of(text: str) -> list[str]:
    """The forms in which an id may have been written down that is given as a public id or a UUID; `text` alone if it is
    neither."""
    identity = _uuid(text[text.rfind("_") + 1 :])
    if identity is None:
        return [text]
    return sorted({text, str(identity), *(f"{prefix}{identity.hex}" for prefix in PREFIXES.values())})


def with_public_ids(value: Any) -> Any:
    """The same, of what JSON has, with the public form of each UUID in a field such as `project_id`."""
    if isinstance(value, dict):
        return {name: _field(name, inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [with_public_ids(inner) for inner in value]
    return value


def _field(name: str, value: Any) -> Any:
    if isinstance(value, str) and name in _FIELDS and (identity := _uuid(value)) is not None:
        return public_id(_FIELDS[name], identity)
    return with_public_ids(value)


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
