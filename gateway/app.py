"""Builds the Litestar application of one gateway worker."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import structlog
from litestar import Litestar
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler
from litestar.routes import HTTPRoute
from litestar.types import Message, Scope

from gateway.admin.routes import admin_routes
from gateway.batches.input_lines import MESSAGES_ENDPOINT, OPENAI_ENDPOINTS
from gateway.console.built_console import BuiltConsole
from gateway.console.routes import console_routes
from gateway.endpoints.adapters import adapter_routes
from gateway.endpoints.batches import batch_routes
from gateway.endpoints.cache_explanations import cache_explanation_routes
from gateway.endpoints.caches import cache_routes
from gateway.endpoints.chat import chat_completions
from gateway.endpoints.completions import completions
from gateway.endpoints.estimates import estimate_route
from gateway.endpoints.exports import export_routes
from gateway.endpoints.files import file_routes
from gateway.endpoints.health import health_routes, metrics_route
from gateway.endpoints.message_batches import message_batch_routes
from gateway.endpoints.messages import message_routes
from gateway.endpoints.models import model_routes
from gateway.endpoints.payment_webhooks import payment_webhook_routes
from gateway.endpoints.prices import list_prices
from gateway.endpoints.provider_logout import provider_logout_routes
from gateway.endpoints.receipts import receipt_keys_route, receipt_routes
from gateway.endpoints.responses import response_routes
from gateway.endpoints.stored_responses import stored_response_routes
from gateway.endpoints.uploads import upload_routes
from gateway.endpoints.usage import usage_routes
from gateway.endpoints.webhooks import webhook_routes
from gateway.http.authentication import Authentication
from gateway.http.cors import CrossOrigin, cross_origin_headers
from gateway.http.csrf import CsrfGuard, check_guarded
from gateway.http.policies import check_policies, policy_of
from gateway.http.responses import dialect_of, error_response
from gateway.http.sessions import session_headers
from gateway.openapi.routes import document_routes
from gateway.request_context import RequestContext, request_context
from gateway.scim.routes import scim_routes
from gateway.services import Gateway, GatewayServices, guarded
from waterfall.refused_requests import RefusedRequest

log = structlog.get_logger("gateway.http")

_TYPE_IN_PATH = re.compile(r":\w+(?=})")


def create_app(services: GatewayServices) -> Litestar:
    """The application, whose lifespan starts and stops the worker (`gateway_of`)."""
    return application_of(Gateway(services))


def application_of(gateway: Gateway) -> Litestar:
    """The application of a worker. Its OpenAPI document is made by `gateway.openapi`: dialects decode the bodies, and
    Litestar does not see their types."""
    services = gateway.services

    @asynccontextmanager
    async def lifespan(app: Litestar) -> AsyncGenerator[None, None]:
        await gateway.start()
        try:
            yield
        finally:
            await gateway.stop()

    async def before_send(message: Message, scope: Scope) -> None:
        if message["type"] == "http.response.start":
            context = request_context(scope)
            name = context.name.encode()  # OpenAI's clients read the first header, Anthropic's the second
            headers = [*message["headers"], (b"x-request-id", name), (b"request-id", name), *context.limit_headers]
            if (asker := context.principal) and asker.tenant_id is not None and dialect_of(scope) == "anthropic":
                headers.append((b"anthropic-organization-id", str(asker.tenant_id).encode()))
            if services.options.cors_origins:
                headers += cross_origin_headers(scope, services.options.cors_origins)
            message["headers"] = [*headers, *session_headers(scope, headers)]
            _record_response(gateway, scope, message["status"])

    management = (usage_routes, receipt_routes, export_routes, cache_routes, cache_explanation_routes, webhook_routes)
    app = Litestar(
        route_handlers=[
            chat_completions(gateway),
            completions(gateway),
            *response_routes(gateway),
            *stored_response_routes(gateway),
            *message_routes(gateway),
            *file_routes(gateway),
            *upload_routes(gateway),
            *adapter_routes(gateway),
            *batch_routes(gateway),
            *message_batch_routes(gateway),
            *model_routes(gateway),
            list_prices(gateway),
            receipt_keys_route(gateway),
            estimate_route(gateway),
            *guarded(gateway, [route for part in management for route in part(gateway)]),
            *guarded(gateway, payment_webhook_routes(gateway)),
            *guarded(gateway, [*scim_routes(gateway), *provider_logout_routes(gateway)]),
            *admin_routes(gateway),
            *console_routes(BuiltConsole.load()),
            *document_routes(),
            *health_routes(gateway),
            *([metrics_route(gateway)] if services.options.public_metrics else []),
        ],
        lifespan=[lifespan],
        middleware=[
            *([CrossOrigin(services.options.cors_origins)] if services.options.cors_origins else []),
            CsrfGuard(),
            Authentication(
                services.authenticator,
                services.users.authenticator,
                services.suspensions,
                services.options.trusted_proxies,
            ),
        ],
        before_send=[before_send],
        exception_handlers={HTTPException: error_response, Exception: error_response},
        request_max_body_size=services.options.body_limit,
        openapi_config=None,
        logging_config=None,
        debug=False,
        state=State({"gateway": gateway}),
    )
    if gateway.batches is not None:
        gateway.batches.requests.handlers = _batch_handlers(app)
    check_policies(app)
    check_guarded(app)
    return app


def _batch_handlers(app: Litestar) -> dict[str, HTTPRouteHandler]:
    """The handlers of the routes that lines of batches ask, by path."""
    asked = {*OPENAI_ENDPOINTS, MESSAGES_ENDPOINT}
    return {
        route.path: handler
        for route in app.routes
        if isinstance(route, HTTPRoute) and route.path in asked
        for handler in route.route_handlers
        if "POST" in handler.http_methods
    }


def create_internal_app(gateway: Gateway) -> Litestar:
    """A running worker's application for its operators: health and metrics, without authentication."""
    return Litestar(
        route_handlers=[*health_routes(gateway), metrics_route(gateway)],
        exception_handlers={HTTPException: error_response, Exception: error_response},
        openapi_config=None,
        logging_config=None,
        debug=False,
    )


def gateway_of(app: Litestar) -> Gateway:
    """The worker of an application made by `create_app`."""
    gateway = app.state["gateway"]
    assert isinstance(gateway, Gateway)
    return gateway


def _record_response(gateway: Gateway, scope: Scope, status: int) -> None:
    """Count and log a response that begins, but not those to health and metrics probes."""
    handler = scope.get("route_handler")
    if handler is not None and policy_of(handler).access == "public":
        return
    context = request_context(scope)
    gateway.metrics.answered(context.model, status)
    principal, (code, field) = context.principal, context.error or (None, None)
    if context.refusal is not None:
        _note_refused(gateway, scope, context, status)
    log.info(
        "answered",
        request_id=context.name,
        method=scope.get("method"),
        path=scope["path"],
        status=status,
        code=code,
        field=field,
        key=principal.public_id if principal else None,
        old_secret=True if principal and principal.old_secret else None,
        tenant=principal.tenant if principal else None,
        project=principal.project if principal else None,
        operator=principal.name if principal and principal.kind == "operator_key" else None,
        model=context.model or None,
        trace_id=context.marks.trace.trace_id if context.marks.trace else None,
        seconds=round(time.monotonic() - context.started, 4),
    )


def _note_refused(gateway: Gateway, scope: Scope, context: RequestContext, status: int) -> None:
    """Let a tenant's people read later that a request of their key was refused, and why."""
    principal = context.principal
    if context.refusal is None or principal is None or principal.tenant_id is None:
        return
    code, message = context.refusal
    gateway.refused_requests.note(
        RefusedRequest(
            tenant_id=principal.tenant_id,
            request_id=context.id,
            project_id=principal.project_id,
            at=context.marks.received_at,
            key=principal.public_id,
            route=f"{scope.get('method')} {_TYPE_IN_PATH.sub('', scope['path_template'])}",
            status=status,
            code=code,
            message=message,
        )
    )
