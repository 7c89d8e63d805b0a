"""How a request of the document says who sends it."""

from __future__ import annotations

from typing import Any

from gateway.http.policies import Policy

SESSION_COOKIE = "turnpike_session"
CSRF_HEADER = "x-turnpike-csrf"
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

SECURITY_SCHEMES: dict[str, Any] = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A key as `Authorization: Bearer KEY`: a project's, an administrator's or an operator's.",
    },
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same key, as at Anthropic."},
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": SESSION_COOKIE,
        "description": "The cookie of a signed-in user. It means nothing below /v1.",
    },
    "csrf": {
        "type": "apiKey",
        "in": "header",
        "name": CSRF_HEADER,
        "description": "Beside the cookie, on every request that changes something.",
    },
}


def security_of(policy: Policy, path: str, method: str) -> list[dict[str, list[str]]]:
    """The alternatives for an operation; one of them is nothing where no key is needed."""
    if policy.access == "public":
        return []
    kinds = policy.kinds_for(path)
    alternatives: list[dict[str, list[str]]] = []
    if kinds - {"session"}:
        alternatives += [{"bearer": []}, {"apiKey": []}]
    if "session" in kinds:
        alternatives.append({"session": []} if method in _SAFE else {"session": [], "csrf": []})
    return alternatives + ([{}] if policy.access == "keyless" else [])
