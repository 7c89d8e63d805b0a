"""/admin/v1/tenants/{tenant}/projects/{project}/playground: asking a model without holding a key of the project.

A request is answered, held, limited and billed as one of /v1/chat/completions. Each person who asks has a key of the
project, which is made on first use. Nobody knows its secret. Usage, limits, budgets and requests name this key, and so
the person. Who revokes the key ends that person's use of the playground. A key that has expired is made anew.
"""

from __future__ import annotations

import time
from typing import Any, Literal

from litestar import Request, Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.types import ASGIApp
from msgspec import Struct

from gateway.admin.access import principal_of, visible_project
from gateway.admin.keys.key_objects import key_errors
from gateway.admission.prepared_request import Payer
from gateway.endpoints.chat import answer_chat
from gateway.endpoints.estimates import ESTIMATE, answer_estimate
from gateway.endpoints.generation_description import CHAT
from gateway.errors import AddressRefused, NotAllowed
from gateway.http.authentication import check_not_suspended
from gateway.http.operations import describes
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.request_context import request_context
from gateway.services import Gateway
from protocol.requests import LANES
from storage.free_text import NAME
from tenancy.repositories import grant_of
from tenancy.rights.key_limits import is_inside, parse_networks

_PATH = "/admin/v1/tenants/{tenant:str}/projects/{project:str}/playground"


class PlaygroundModel(Struct, frozen=True, kw_only=True):
    """A served model. `context_tokens`: of prompt and output together."""

    id: str
    context_tokens: int


class PlaygroundObject(Struct, frozen=True, kw_only=True):
    """What can be asked for."""

    object: Literal["playground"] = "playground"
    models: list[PlaygroundModel]
    lanes: list[str]


_EXAMPLE = PlaygroundObject(models=[PlaygroundModel(id="tiny", context_tokens=8192)], lanes=list(LANES))


def playground_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker. What they ask of the database is bounded here: generating may take any time."""
    wait = gateway.questions.wait

    @get(_PATH, opt=demands("inference") | describes(_EXAMPLE))
    async def retrieve_playground(
        request: Request[Any, Any, Any], tenant: FromPath[str], project: FromPath[str]
    ) -> Response[bytes]:
        """The models and lanes that the project can ask for."""
        await wait(visible_project(gateway, request, tenant, project, "inference"))
        models = [
            PlaygroundModel(id=model.name, context_tokens=gateway.admission.context_tokens(model))
            for model in gateway.services.models
        ]
        return json_response(PlaygroundObject(models=models, lanes=list(LANES)))

    @post(f"{_PATH}/chat/completions", opt=demands("inference") | CHAT)
    async def create_playground_completion(
        request: Request[Any, Any, Any], tenant: FromPath[str], project: FromPath[str]
    ) -> ASGIApp:
        """Answer a conversation, whole or streamed, as /v1/chat/completions does. It is billed to the project, by a key
        that stands for you."""
        return await answer_chat(gateway, request, await wait(_payer(gateway, request, tenant, project)))

    @post(f"{_PATH}/estimate", status_code=200, opt=demands("inference") | ESTIMATE)
    async def create_playground_estimate(
        request: Request[Any, Any, Any], tenant: FromPath[str], project: FromPath[str]
    ) -> Response[bytes]:
        """What a request of the playground would cost if it were sent now, as /v1/estimate says it."""
        return await answer_estimate(gateway, request, await wait(_payer(gateway, request, tenant, project)))

    return [retrieve_playground, create_playground_completion, create_playground_estimate]


async def _payer(gateway: Gateway, request: Request[Any, Any, Any], tenant: str, project: str) -> Payer:
    """The project of the path, by the key that stands for whoever asks. Raises NotFound, NotAllowed, SuspendedError."""
    owner, found = await visible_project(gateway, request, tenant, project, "inference")
    check_not_suspended(gateway.services.suspensions, owner.id, found.id)  # for operators too: it would be billed
    principal = principal_of(request)
    person = principal.user or principal.public_id
    name = f"playground, {principal.name or principal.public_id}"[:NAME]
    now = time.time_ns() // 1000
    with key_errors():
        key = await gateway.services.tenancy.stand_in_key(owner.id, found.id, person, name, now=now)
    grant = grant_of(key)
    if key.revoked_at is not None:
        raise NotAllowed(f"The key {key.public_id}, which stands for you here, was revoked: ask with another key.")
    if "inference" not in grant.permissions():
        raise NotAllowed(f"The scopes of the key {key.public_id}, which stands for you here, do not include inference.")
    address, networks = request_context(request.scope).address, grant.limits.networks
    if networks is not None and not is_inside(address, parse_networks(networks)):
        raise AddressRefused(f"The key {key.public_id}, which stands for you here, may not be used from {address}.")
    return Payer(owner.id, found.id, key.id, found.name, key.public_id, grant.limits)
