"""What clients of the API and scrapers of its metrics see: routes, error codes, headers, events, names."""

from __future__ import annotations

import ast
import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.app import create_app, create_internal_app
from gateway.dialects.anthropic import errors as anthropic_errors
from gateway.dialects.openai import errors as openai_errors
from gateway.errors import (
    BodyTooLarge,
    BodyTooSlow,
    ClientLeft,
    Conflict,
    GatewayError,
    Interrupted,
    InvalidRequest,
    ModelNotFound,
    NotAllowed,
    NotAuthenticated,
    NotCached,
    NotFound,
    RateLimited,
    Shortage,
    TimedOut,
    Unaffordable,
    Unavailable,
    UnsupportedEncoding,
)
from gateway.http.responses import error_headers
from protocol.metric_help import HELP
from scripts.count_code import product_modules
from tests.billing.money import Tenant
from tests.billing.recorded import DAY, record
from tests.gateway.admin.test_prices import GRID
from tests.gateway.dialects.test_bad_input import BAD, BAD_COMPLETIONS
from tests.gateway.stack import Stack
from tests.goldens import golden

ROOT = Path(__file__).resolve().parents[2]
SHORTAGE = Shortage("project", "month", "2.00", "1.00", "USD", 7, "2026-12-01T00:00:00Z", "0.50")
FAILURES: dict[str, GatewayError] = {
    "the body is too large": BodyTooLarge("m"),
    "the body is too slow": BodyTooSlow("m"),
    "the client left": ClientLeft("m"),
    "a conflict": Conflict("m"),
    "interrupted": Interrupted("m"),
    "an invalid request": InvalidRequest("m", path="$.n", code="invalid_value"),
    "an invalid request without a code": InvalidRequest("m"),
    "an unknown model": ModelNotFound("m", path="$.model"),
    "not allowed": NotAllowed("m"),
    "not authenticated": NotAuthenticated("m"),
    "not cached": NotCached("m", cost="0.001", currency="USD", tokens=7),
    "not found": NotFound("m"),
    "over a limit": RateLimited("m", retry_after=2.5),
    "timed out": TimedOut("m"),
    "unaffordable": Unaffordable("m"),
    "unaffordable, and by how much": Unaffordable("m", SHORTAGE),
    "unavailable": Unavailable("m"),
    "another failure": GatewayError("m"),
    "an encoding that we do not undo": UnsupportedEncoding("m"),
}
"""What a request may fail with. What they are called here stays when a class is renamed."""
MESSAGES = [{"role": "user", "content": "hi"}]
CHAT: dict[str, Any] = {"model": "tiny", "messages": MESSAGES}
TEXT: dict[str, Any] = {"model": "tiny", "prompt": "hi"}
USAGE, COSTS = "/v1/organization/usage/completions", "/v1/organization/costs"
MESSAGES_USAGE, COST_REPORT = "/v1/organizations/usage_report/messages", "/v1/organizations/cost_report"
WEEK = "starting_at=2026-11-01T00:00:00Z&ending_at=2026-11-08T00:00:00Z"
SHEETS = "/admin/v1/prices/sheets"
SHEET: dict[str, Any] = {"model": "tiny", "prices": GRID, "reason": "why"}
HOOK = {"url": "https://hook.test/in"}
ASKED: list[tuple[str, str, str, Any]] = [
    ("project, compressed", "POST", "/v1/chat/completions", b"{}"),
    *(("nobody", "GET", path, None) for path in ("/v1/models", "/v1/prices", USAGE, COST_REPORT, SHEETS)),
    ("nobody", "POST", "/v1/chat/completions", CHAT),
    *(("project", "GET", path, None) for path in (COSTS, MESSAGES_USAGE, "/v1/webhooks", "/v1/exports", SHEETS)),
    ("admin", "POST", "/v1/chat/completions", CHAT),
    ("admin", "POST", "/v1/completions", TEXT),
    ("admin", "GET", SHEETS, None),
    ("operator", "GET", "/v1/models", None),
    ("operator", "POST", "/v1/chat/completions", CHAT),
    ("project", "POST", "/v1/chat/completions", {**CHAT, "model": "none"}),
    ("project", "POST", "/v1/completions", {**TEXT, "model": "none"}),
    ("project", "GET", "/v1/models/none", None),
    ("project", "GET", "/v1/nothing", None),
    ("nobody", "GET", "/v1/nothing", None),
    ("project", "GET", "/v1/chat/completions", None),
    ("project", "DELETE", "/v1/models", None),
    ("project", "GET", "/v1/prices?at=never", None),
    ("project", "GET", "/v1/prices?colour=red", None),
    ("admin", "GET", USAGE, None),
    ("admin", "GET", f"{USAGE}?start_time=x", None),
    ("admin", "GET", f"{USAGE}?start_time=1&bucket_width=1y", None),
    ("admin", "GET", f"{USAGE}?start_time=1&limit=0", None),
    ("admin", "GET", f"{USAGE}?start_time=1&group_by=colour", None),
    ("admin", "GET", f"{USAGE}?start_time=1&page=x", None),
    ("admin", "GET", f"{USAGE}?start_time=2&end_time=1", None),
    ("admin", "GET", f"{USAGE}?start_time=1&project_ids=x", None),
    ("admin", "GET", COSTS, None),
    ("admin", "GET", f"{COSTS}?start_time=1&bucket_width=1h", None),
    ("admin", "GET", f"{COSTS}?start_time=1&group_by=model", None),
    ("admin", "GET", MESSAGES_USAGE, None),
    ("admin", "GET", f"{MESSAGES_USAGE}?starting_at=x", None),
    ("admin", "GET", f"{MESSAGES_USAGE}?starting_at=2026-11-01T00:00:00Z&bucket_width=1y", None),
    ("admin", "GET", f"{MESSAGES_USAGE}?starting_at=2026-11-01T00:00:00Z&group_by[]=colour", None),
    ("admin", "GET", COST_REPORT, None),
    ("admin", "GET", f"{COST_REPORT}?starting_at=2026-11-01T00:00:00Z&limit=99", None),
    ("admin", "POST", "/v1/exports", b"{"),
    ("admin", "POST", "/v1/exports", {"dataset": "usage"}),
    ("admin", "POST", "/v1/exports", {"dataset": "prompts", "period": "2026-11"}),
    ("admin", "POST", "/v1/exports", {"dataset": "usage", "period": "November"}),
    ("admin", "POST", "/v1/exports", {"dataset": "usage", "period": "2026-11", "format": "doc"}),
    ("admin", "POST", "/v1/exports", {"dataset": "usage", "period": "2026-11", "tenant": "other"}),
    ("admin", "GET", "/v1/exports?limit=0", None),
    ("admin", "GET", "/v1/exports/nothing", None),
    ("admin", "GET", "/v1/exports/nothing/content", None),
    ("admin", "POST", "/v1/webhooks", b"{"),
    ("admin", "POST", "/v1/webhooks", {}),
    ("admin", "POST", "/v1/webhooks", {"url": "ftp://hook.test"}),
    ("admin", "POST", "/v1/webhooks", {"url": "http://hook.test"}),
    ("admin", "POST", "/v1/webhooks", {"url": "https://127.0.0.1/in"}),
    ("admin", "POST", "/v1/webhooks", {**HOOK, "topics": ["weather"]}),
    ("admin", "POST", "/v1/webhooks", {**HOOK, "description": "x" * 5000}),
    ("admin", "GET", "/v1/webhooks/nothing", None),
    ("admin", "DELETE", "/v1/webhooks/nothing", None),
    *(("admin", "POST", f"/v1/webhooks/nothing/{verb}", None) for verb in ("rotate", "enable", "test")),
    ("admin", "GET", "/v1/webhook_deliveries?limit=1000", None),
    ("admin", "GET", "/v1/webhook_deliveries?endpoint_id=x", None),
    ("admin", "GET", "/v1/webhook_deliveries/nothing", None),
    ("admin", "POST", "/v1/webhook_deliveries/nothing/resend", None),
    ("operator", "GET", "/admin/v1/prices?at=never", None),
    ("operator", "GET", "/admin/v1/prices?book=none", None),
    ("operator", "GET", f"{SHEETS}?state=odd", None),
    ("operator", "GET", f"{SHEETS}?limit=0", None),
    ("operator", "GET", f"{SHEETS}/99", None),
    ("operator", "POST", SHEETS, b"{"),
    ("operator", "POST", SHEETS, {}),
    ("operator", "POST", SHEETS, {"model": "tiny", "prices": []}),
    ("operator", "POST", SHEETS, {"model": "tiny", "prices": [{"meter": "colour", "price": "1"}]}),
    ("operator", "POST", SHEETS, {"model": "tiny", "prices": [{"meter": "output", "price": "-1"}]}),
    ("operator", "POST", SHEETS, {"model": "tiny", "prices": [{"meter": "output", "price": "1"}], "book": "none"}),
    ("operator", "POST", SHEETS, {**SHEET, "colour": "red"}),
    ("operator", "POST", SHEETS, {**SHEET, "prices": [*GRID, GRID[0]]}),
    ("operator", "POST", SHEETS, {**SHEET, "prices": [{**cell, "price": "900"} for cell in GRID]}),
    ("operator", "POST", SHEETS, {**SHEET, "effective_at": "2020-01-01T00:00:00Z"}),
    ("operator", "POST", SHEETS, {**SHEET, "effective_until": "2020-01-01T00:00:00Z"}),
    ("operator", "POST", SHEETS, {**SHEET, "currency": "EUR"}),
    ("operator", "POST", f"{SHEETS}/99/activate", None),
    ("operator", "POST", f"{SHEETS}/99/withdraw", None),
]
"""Requests that are refused, all but what needs no key: with whose key, how, where, and the body."""
_LABEL = 90


def _label(body: Any) -> str:
    text = repr(body) if isinstance(body, bytes) else json.dumps(body)
    return text if len(text) <= _LABEL else f"{text[:_LABEL]}… ({len(text)} characters)"


def _refusal(answer: httpx.Response) -> Any:
    """Status and envelope of an answer, without the words; of one that is no error, its status."""
    if answer.is_success:
        return answer.status_code
    body = answer.json()
    error = body["error"]
    assert error.pop("message")
    more = {name: answer.headers[name] for name in ("www-authenticate", "allow") if name in answer.headers}
    if "retry-after" in answer.headers:
        assert int(answer.headers["retry-after"]) > 0
        more["retry-after"] = "SECONDS"
    outside = {key: value for key, value in body.items() if key not in ("error", "request_id")}
    return [answer.status_code, {**outside, **error}, *([more] if more else [])]


def test_failures() -> None:
    frozen = {}
    for name, failure in FAILURES.items():
        openai, anthropic = (
            json.loads(json.dumps(_builtins(surface.envelope(failure, "req_1"))))
            for surface in (openai_errors, anthropic_errors)
        )
        del openai["error"]["message"], anthropic["error"]["message"]
        frozen[name] = {
            "status": failure.status,
            "headers": error_headers(failure),
            "openai": openai,
            "anthropic": anthropic,
        }
    golden.check("failures", frozen)


def test_other_errors() -> None:
    frozen = {}
    for status in (400, 401, 403, 404, 405, 406, 413, 415, 422, 431, 500, 501, 503):
        found = [_builtins(surface.plain(status, "m", "req_1")) for surface in (openai_errors, anthropic_errors)]
        for envelope in found:
            del envelope["error"]["message"]
        frozen[str(status)] = found
    golden.check("other_errors", frozen)


def _builtins(envelope: Any) -> Any:
    return json.loads(openai_errors.encode(envelope))


def test_codes_in_the_source() -> None:
    """Every code that a failure is given where it is raised, wherever in the product that is."""
    codes = set()
    for path in product_modules(ROOT):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                codes |= {word.value for word in node.keywords if word.arg == "code"}
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                codes |= {node.value for target in targets if getattr(target, "id", "") == "code"}
    golden.check("error_codes", sorted({c.value for c in codes if isinstance(c, ast.Constant) and c.value}))


async def test_refusals(stack: Stack) -> None:
    stack.say("never")
    operator = await stack.tenancy.create_operator_key("Ann")
    keys = {"project": stack.key, "admin": stack.admin_key, "operator": operator.key}
    asked = [
        *(("project", "POST", "/v1/chat/completions", body) for body, _ in BAD),
        *(("project", "POST", "/v1/completions", body) for body, _ in BAD_COMPLETIONS),
        *ASKED,
    ]
    at_once = asyncio.Semaphore(16)

    async def ask(who: str, method: str, path: str, body: Any) -> Any:
        whose, _, how = who.partition(", ")
        headers = {"authorization": f"Bearer {keys[whose]}"} if whose in keys else {}
        if how == "compressed":
            headers["content-encoding"] = "gzip"
        data: dict[str, Any] = {} if body is None else {"content": body} if isinstance(body, bytes) else {"json": body}
        async with at_once:
            answer = await stack.http.request(method, path, headers=headers, **data)
        return [f"{who}: {method} {path}", _label(body), _refusal(answer)]

    frozen = await asyncio.gather(*(ask(*each) for each in asked))
    golden.check("refusals", frozen)


async def test_routes(stack: Stack) -> None:
    public, internal = create_app(stack.gateway.services), create_internal_app(stack.gateway)
    frozen = {
        name: sorted(f"{method} {route.path}" for route in app.routes for method in getattr(route, "methods", ()))
        for name, app in (("public", public), ("internal", internal))
    }
    golden.check("routes", frozen)


_CHANGING = {"anthropic-organization-id": "ID", "date": "DATE", "x-request-id": "ID", "request-id": "ID"}


def _headers(answer: httpx.Response) -> list[str]:
    assert answer.headers["x-request-id"] == answer.headers["request-id"]
    assert answer.headers["x-request-id"].startswith("req_")
    return [f"{name}: {_CHANGING.get(name, value)}" for name, value in answer.headers.items()]


def _steady(text: str) -> str:
    """A body without what is another one each time: ids, the model's fingerprint, seconds."""
    text = re.sub(r"\b(req|chatcmpl|cmpl|msg)[-_][0-9A-Za-z]+", r"\1_ID", text)
    text = re.sub(r"\bfp_[0-9a-f]+", "fp_ID", text)
    return re.sub(r'"created":\d+', '"created":"TIME"', text)


ANSWERS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {**CHAT, "max_tokens": 20}),
    "chat, streamed": ("/v1/chat/completions", {**CHAT, "max_tokens": 20, "stream": True}),
    "chat, streamed with usage": (
        "/v1/chat/completions",
        {**CHAT, "max_tokens": 20, "stream": True, "stream_options": {"include_usage": True}},
    ),
    "completion": ("/v1/completions", {**TEXT, "max_tokens": 20}),
    "completion, streamed": ("/v1/completions", {**TEXT, "max_tokens": 20, "stream": True}),
    "completion, streamed with usage": (
        "/v1/completions",
        {**TEXT, "max_tokens": 20, "stream": True, "stream_options": {"include_usage": True}},
    ),
    "message": ("/v1/messages", {**CHAT, "max_tokens": 20}),
    "message, streamed": ("/v1/messages", {**CHAT, "max_tokens": 20, "stream": True}),
}
_VERSION = {"anthropic-version": "2026-10-21"}


async def test_answers(stack: Stack) -> None:
    stack.say("one two", burst=100)
    frozen = {}
    for name, (path, body) in ANSWERS.items():
        headers = {"authorization": f"Bearer {stack.key}", **(_VERSION if path == "/v1/messages" else {})}
        answer = await stack.http.post(path, json=body, headers=headers)
        assert answer.status_code == 200
        text = _steady(answer.text)
        told: Any = text.split("\n\n") if body.get("stream") else json.loads(text)
        shown = [header for header in _headers(answer) if not header.startswith("content-length")]
        frozen[name] = {"headers": shown, "body": told}
    await stack.settled(len(ANSWERS))
    golden.check("answers", frozen)


async def test_streams_that_fail(stack: Stack) -> None:
    """The replica fails before the first token, or on its way: what is streamed then."""
    frozen = {}
    for name, script in {
        "rejected": {"reason": "rejected", "error": "grammar: odd", "invalid": "grammar"},
        "failed on its way": {"reason": "error", "error": "boom"},
    }.items():
        stack.say("one two", burst=100, **script)
        for what in ("chat, streamed", "completion, streamed"):
            path, body = ANSWERS[what]
            wanted = {**body, "guided_regex": "a+"} if name == "rejected" else body
            answer = await stack.http.post(path, json=wanted, headers={"authorization": f"Bearer {stack.key}"})
            text = re.sub(r'"message":"(?:[^"\\]|\\.)*"', '"message":"WORDS"', _steady(answer.text))
            frozen[f"{name}: {what}"] = [answer.status_code, text.split("\n\n")]
    golden.check("failed_streams", frozen)


@pytest.mark.slow
async def test_ends(stack: Stack) -> None:
    """What a client hears of each reason for which a replica ends a request, of a lost replica, and of no money."""
    frozen = {}
    for reason in ("stop", "length", "budget", "abort", "deadline", "rejected", "error", "crash"):
        stack.say("one two", burst=100, reason=reason)
        answer = await stack.post({**CHAT, "n": 1})
        frozen[reason] = _refusal(answer) if answer.is_error else answer.json()["choices"][0]["finish_reason"]
    tenant = await stack.tenancy.create_tenant("poor")
    project = await stack.tenancy.create_project(tenant.id, "default")
    poor = (await stack.tenancy.create_key(tenant.id, project.id)).key
    frozen["no money"] = _refusal(await stack.post(CHAT, key=poor))
    await stack.replica.stop()
    await stack.until(lambda: not stack.gateway.services.fleet.healthy("tiny"))
    frozen["no replica"] = _refusal(await stack.post(CHAT))
    golden.check("ends", frozen)


LISTED: list[tuple[str, str, str, Any]] = [
    ("project", "GET", "/v1/models", None),
    ("project", "GET", "/v1/models/tiny", None),
    ("project", "GET", "/v1/prices", None),
    ("admin", "POST", "/v1/exports", {"dataset": "usage", "period": "2026-11"}),
    ("admin", "GET", "/v1/exports", None),
    ("admin", "POST", "/v1/webhooks", HOOK),
    ("admin", "GET", "/v1/webhooks", None),
    ("admin", "GET", "/v1/webhook_deliveries", None),
    ("admin", "GET", f"{USAGE}?start_time=1793491200&end_time=1794096000&limit=1", None),
    ("admin", "GET", f"{COSTS}?start_time=1793491200&end_time=1794096000&limit=1", None),
    ("admin", "GET", f"{MESSAGES_USAGE}?{WEEK}&limit=1", None),
    ("admin", "GET", f"{COST_REPORT}?{WEEK}&limit=1", None),
    ("operator", "GET", "/admin/v1/prices", None),
    ("operator", "POST", SHEETS, {**SHEET, "force": "why"}),
    ("operator", "GET", SHEETS, None),
    ("nobody", "GET", "/healthz", None),
    ("nobody", "GET", "/readyz", None),
]
"""Requests that are answered, each after those before it."""


def _shape(value: Any) -> Any:
    """The fields of a value and the kinds of what is in them; of a list, that of its first entry."""
    if isinstance(value, dict):
        return {key: _shape(inner) for key, inner in value.items()}
    return [_shape(one) for one in value[:1]] if isinstance(value, list) else type(value).__name__


async def test_shapes(stack: Stack) -> None:
    """The fields of what the rest of the API answers; usage by the API has a month of made-up events."""
    operator = await stack.tenancy.create_operator_key("Ann")
    keys = {"project": stack.key, "admin": stack.admin_key, "operator": operator.key}
    past = await Tenant.rich(stack.database, 0)
    past.id, past.project_id = stack.tenant.id, stack.project.id
    await record(stack.database, past, count=40, span=DAY)
    frozen = []
    for who, method, path, body in LISTED:
        headers = {"authorization": f"Bearer {keys[who]}"} if who in keys else {}
        answer = await stack.http.request(method, path, headers=headers, json=body)
        assert answer.is_success, answer.text
        frozen.append([f"{who}: {method} {path}", answer.status_code, _shape(answer.json())])
    golden.check("shapes", frozen)


async def test_metrics(stack: Stack) -> None:
    """Names, types and labels of what /metrics says once there was an answer; `process_*` depends on the machine."""
    stack.say("one two", pause=0.001)
    assert (await stack.post(CHAT)).status_code == 200
    await stack.settled(1)
    text = (await stack.http.get("/metrics")).text
    frozen: dict[str, Any] = {}
    for family in text_string_to_metric_families(text):
        labels: dict[str, set[str]] = {}
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
        if not family.name.startswith("process_"):
            frozen[family.name] = [family.type, {name: sorted(of) for name, of in labels.items()}]
    assert frozen.pop("turnpike_engine_kv_blocks_free")[0] == "gauge", "which only the fake replica has"
    golden.check("gateway_metrics", frozen)
    buckets = [line.split()[0] for line in text.splitlines() if "_bucket{" in line]
    golden.check("gateway_metrics_buckets", buckets)


def test_metrics_of_a_replica_that_are_explained() -> None:
    golden.check("replica_metrics_explained", sorted(HELP))
