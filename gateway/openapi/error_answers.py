"""The errors that an operation can answer with: by status, with their codes, in the envelope of its dialect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.errors import GatewayError
from gateway.generation_request import Dialect
from gateway.http.operations import ErrorForm, Operation
from gateway.http.policies import ADMIN_PATH, Policy
from gateway.http.responses import ERROR_BODIES
from gateway.openapi.examples import shown

_BODY_ERRORS = {
    "invalid_json": 400,
    "invalid_type": 400,
    "invalid_value": 400,
    "missing_required_parameter": 400,
    "request_timeout": 408,
    "request_too_large": 413,
    "unsupported_encoding": 415,
}
_ADMIN_ERRORS = {"invalid_amount": 400, "invalid_period": 400, "refused": 400}
"""What bodies about money and months may be refused with, beside what an operation names itself."""
_KEY_ERRORS = {"address_not_allowed": 403, "tenant_suspended": 403, "project_suspended": 403}
_QUERY_ERRORS = {"invalid_value": 400, "unknown_parameter": 400}
_MEANINGS = {
    400: "The request is wrong; the same request will fail again.",
    401: "There is no key, or not a valid one.",
    402: "The balance or a budget is too low.",
    403: "The key or user is valid, but may not do this.",
    404: "The object does not exist, or belongs to others.",
    408: "The body did not arrive in time.",
    409: "The object is in a state that does not allow this.",
    412: "The request was to run only if its prompt is cached.",
    413: "The body is too large.",
    415: "The body has a Content-Encoding that is not supported.",
    429: "The client's own limit or share is used up; `retry-after` says when to try again.",
    500: "The server failed while it processed the request.",
    503: "The server cannot do this now; `retry-after` says when to try again.",
    504: "The request's own time limit passed.",
    529: "The server cannot do this now; `retry-after` says when to try again.",
}
_RETRIED = frozenset({429, 503, 529})
_REQUEST_ID = "req_01934f6e0d2a7b3c8e51a9c4d7f60b12"


def error_codes(operation: Operation, policy: Policy, method: str, path: str) -> dict[int, list[str]]:
    """Status → codes, of what follows from policy, path, query and body, and of what the operation adds."""
    codes: dict[str, int] = {}
    kinds = policy.kinds_for(path)
    if policy.access != "public":
        codes |= ({"invalid_api_key": 401} if kinds - {"session"} else {}) | {"not_allowed": 403}
        codes |= _KEY_ERRORS if kinds - {"session"} else {}
        codes |= {"not_signed_in": 401} if "session" in kinds else {}
        codes |= {"confirmation_required": 403} if policy.needs_proof(method) and "session" in kinds else {}
    if path.startswith(ADMIN_PATH) and method != "GET":
        codes["csrf"] = 403
    if operation.body is not None:
        codes |= _BODY_ERRORS
        codes |= _ADMIN_ERRORS if path.startswith(f"{ADMIN_PATH}/") else {}
    if operation.query or operation.headers:
        codes |= _QUERY_ERRORS
    if any(parameter.required for parameter in operation.query):
        codes["missing_required_parameter"] = 400
    if "{period}" in path or any(parameter.name == "period" for parameter in operation.query):
        codes["invalid_period"] = 400
    if "{" in path or any(parameter.name == "after" for parameter in operation.query):
        codes["not_found"] = 404
    if policy.access != "public":
        codes |= {"internal_error": 500, "service_unavailable": 503}
    by_status: dict[int, list[str]] = {}
    for code, status in [*codes.items(), *operation.errors.items()]:
        listed = by_status.setdefault(status, [])
        if code not in listed:
            listed.append(code)
    return dict(sorted(by_status.items()))


def error_answers(
    codes: Mapping[int, Sequence[str]],
    dialects: Sequence[Dialect],
    schemas: Mapping[Dialect, Any],
    form: ErrorForm | None = None,
) -> dict[str, Any]:
    """The document's answers of these errors. `schemas`: of each dialect's envelope; `form`: what takes its place."""
    answers: dict[str, Any] = {}
    if form is not None:
        for status, listed in codes.items():
            answers[str(status)] = answer = _answer(status, listed)
            answer["content"][form.media_type] = {"schema": form.schema, "example": form.example}
        return dict(sorted(answers.items()))
    for status, listed in codes.items():
        for dialect in dialects:
            shown_status = ERROR_BODIES[dialect].status_of(status)
            answer = answers.setdefault(str(shown_status), _answer(shown_status, listed))
            content = answer["content"].setdefault("application/json", {"schema": schemas[dialect]})
            if content["schema"] != schemas[dialect]:
                content["schema"] = {"anyOf": [schemas[one] for one in dialects]}
            content.setdefault("example", _example(dialect, status, listed[0]))
    return dict(sorted(answers.items()))


def _answer(status: int, codes: Sequence[str]) -> dict[str, Any]:
    meaning = _MEANINGS.get(status, "The request failed.")
    answer: dict[str, Any] = {
        "description": f"{meaning} Codes: {', '.join(f'`{code}`' for code in codes)}.",
        "headers": {"x-request-id": {"$ref": "#/components/headers/x-request-id"}},
        "content": {},
        "x-error-codes": list(codes),
    }
    if status in _RETRIED:
        answer["headers"]["retry-after"] = {"$ref": "#/components/headers/retry-after"}
    return answer


def _example(dialect: Dialect, status: int, code: str) -> Any:
    failure = GatewayError(_MEANINGS.get(status, "The request failed."), code=code)
    failure.status = status
    return shown(ERROR_BODIES[dialect].envelope(failure, _REQUEST_ID), whole=True)
