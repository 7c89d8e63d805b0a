"""What a project keeps of its responses, as its people see it: how long, a list, and where it opted in the content."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from litestar import Request, Response, delete, get, patch
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import UNSET, Meta, Struct, UnsetType

from gateway.admin.access import visible_project
from gateway.dialects.json_paths import json_object
from gateway.dialects.openai.responses.input_items import listed
from gateway.dialects.query_parameters import Parameters
from gateway.endpoints.request_body import read_management_body
from gateway.endpoints.stored_responses import DeletedResponse, ItemJson, ResponseList, raw_items, shown, summary
from gateway.errors import InvalidField, NotAllowed
from gateway.http.operations import describes, page
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.kept_responses.earlier_items import input_of
from gateway.kept_responses.keeper import response_id_of, unknown
from gateway.services import Gateway
from response_store.policies import LONGEST_S, ResponsePolicy
from response_store.records import ListedResponse
from storage.free_text import REASON, problem_of_text

_PROJECT = "/admin/v1/tenants/{tenant:str}/projects/{project:str}"
_ID = "resp_01934f6e0d2a7b3c8e51a9c4d7f60b12"
_NAME = {"response": _ID}


class ResponsePolicyObject(Struct, frozen=True, kw_only=True):
    """What a project keeps of its responses. `retention_seconds`: null for the platform's default, 0 for nothing at
    all; `effective_retention_seconds` is what counts. `readable`: whether people may read the content."""

    object: Literal["response_policy"] = "response_policy"
    retention_seconds: Annotated[int | None, Meta(examples=[86_400])]
    effective_retention_seconds: int
    readable: bool


class ResponsePolicyChange(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What to change; what is left out stays. A shorter retention counts for responses from now on."""

    retention_seconds: Annotated[int, Meta(ge=0, le=LONGEST_S)] | UnsetType | None = UNSET
    readable: bool | UnsetType = UNSET
    reason: str = ""


class ResponseContent(Struct, frozen=True, kw_only=True):
    """A kept response with its content: the object, and the items of its input."""

    object: Literal["response.content"] = "response.content"
    response: Annotated[msgspec.Raw, json_object("The response, as its client gets it.")]
    input: list[ItemJson]


_CHANGE = msgspec.json.Decoder(ResponsePolicyChange)
_CONTENT = ResponseContent(
    response=msgspec.Raw(f'{{"id":"{_ID}","object":"response"}}'.encode()),
    input=[msgspec.Raw(b'{"id":"item_01934f6e","type":"message","role":"user","content":"Where is Paris?"}')],
)


def stored_response_admin_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    keeper = gateway.response_keeper
    client_timeout = gateway.services.options.client_timeout

    def policy_object(policy: ResponsePolicy) -> Response[bytes]:
        default = gateway.services.options.response_retention
        effective = default if policy.retention_s is None else policy.retention_s
        return json_response(
            ResponsePolicyObject(
                retention_seconds=policy.retention_s, effective_retention_seconds=effective, readable=policy.readable
            )
        )

    @get(f"{_PROJECT}/response-policy", opt=demands("projects.read") | describes(ResponsePolicyObject))
    async def retrieve_response_policy(
        request: Request[Any, Any, Any], tenant: FromPath[str], project: FromPath[str]
    ) -> Response[bytes]:
        """What the project keeps of its responses."""
        owner, found = await visible_project(gateway, request, tenant, project, "projects.read")
        return policy_object(await keeper.policies.get(owner.id, found.id, fresh=True))

    @patch(
        f"{_PROJECT}/response-policy",
        opt=demands("projects.write")
        | describes(ResponsePolicyObject, body=ResponsePolicyChange(retention_seconds=86_400, readable=False)),
    )
    async def change_response_policy(
        request: Request[Any, Any, Any], tenant: FromPath[str], project: FromPath[str]
    ) -> Response[bytes]:
        """Change what the project keeps of its responses, and whether people may read it."""
        owner, found = await visible_project(gateway, request, tenant, project, "projects.write")
        change = await read_management_body(request, client_timeout, _CHANGE)
        if problem := problem_of_text(change.reason, REASON, empty=True):
            raise InvalidField("$.reason", problem)
        changed = keeper.policies.set(
            owner.id,
            found.id,
            retention_s=change.retention_seconds,
            readable=change.readable,
            reason=change.reason,
        )
        return policy_object(await changed)

    @get(f"{_PROJECT}/responses", opt=demands("requests.read") | describes(ResponseList, query=page()))
    async def list_project_responses(
        request: Request[Any, Any, Any], tenant: FromPath[str], project: FromPath[str]
    ) -> Response[bytes]:
        """The project's kept responses without their content, the newest first."""
        owner, found = await visible_project(gateway, request, tenant, project, "requests.read")
        parameters = Parameters.of(request)
        limit, after = parameters.page_size(), parameters.text("after")
        parameters.reject_unknown()
        before = None if after is None else response_id_of(after)
        if after is not None and before is None:
            raise unknown(after)
        listed: list[ListedResponse] = []
        if keeper.store is not None:
            listed = await keeper.store.page(owner.id, found.id, limit=limit + 1, before=before)
        data = [summary(one) for one in listed[:limit]]
        return json_response(ResponseList(data=data, has_more=len(listed) > limit))

    @get(
        f"{_PROJECT}/responses/{{response:str}}",
        opt=demands("content.read") | describes(_CONTENT, path=_NAME, errors={"content_not_readable": 403}),
    )
    async def read_project_response(
        request: Request[Any, Any, Any], tenant: FromPath[str], project: FromPath[str], response: FromPath[str]
    ) -> Response[bytes]:
        """A kept response with its content, where the project allows people to read it; the audit log says who did."""
        owner, found = await visible_project(gateway, request, tenant, project, "content.read")
        policy = await keeper.policies.get(owner.id, found.id, fresh=True)
        if not policy.readable:
            raise NotAllowed(
                "This project does not let people read what its responses say; its response policy can allow it.",
                code="content_not_readable",
            )
        with gateway.bodies.share(owner.id) as share:
            stored = await keeper.get(owner.id, found.id, response, share.load)
        assert keeper.store is not None, "it has the response"
        await keeper.store.record_reading(owner.id, found.id, stored.id)
        items = raw_items(list(map(listed, input_of(stored))))
        return json_response(ResponseContent(response=msgspec.Raw(shown(stored)), input=items))

    @delete(
        f"{_PROJECT}/responses/{{response:str}}",
        status_code=200,
        opt=demands("projects.write") | describes(DeletedResponse, path=_NAME),
    )
    async def delete_project_response(
        request: Request[Any, Any, Any], tenant: FromPath[str], project: FromPath[str], response: FromPath[str]
    ) -> Response[bytes]:
        """Delete a kept response. One that runs ends."""
        owner, found = await visible_project(gateway, request, tenant, project, "projects.write")
        id_ = response_id_of(response)
        if keeper.store is None or id_ is None or not await keeper.store.delete(owner.id, found.id, id_):
            raise unknown(response)
        return json_response(DeletedResponse(id=response))

    return [
        retrieve_response_policy,
        change_response_policy,
        list_project_responses,
        read_project_response,
        delete_project_response,
    ]
