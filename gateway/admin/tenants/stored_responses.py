"""What a project keeps of its responses, as its people see it: how long, a list, and where it opted in the content."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from gateway.admin.operation import ProjectOfTenant, operation
from gateway.dialects.json_paths import json_object
from gateway.dialects.openai.responses.input_items import listed
from gateway.endpoints.stored_responses import DeletedResponse, ItemJson, ResponseList, raw_items, shown, summary
from gateway.errors import InvalidField, NotAllowed
from gateway.http.policies import demands
from gateway.http.shapes import PageQuery
from gateway.kept_responses.earlier_items import input_of
from gateway.kept_responses.keeper import response_id_of, unknown
from gateway.services import Gateway
from response_store.policies import LONGEST_S, ResponsePolicy
from response_store.records import ListedResponse
from storage.free_text import REASON, problem_of_text

_PROJECT = "/admin/v1/tenants/{tenant:str}/projects/{project:str}"
_POLICY, _RESPONSES = f"{_PROJECT}/response-policy", f"{_PROJECT}/responses"
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


_CONTENT = ResponseContent(
    response=msgspec.Raw(f'{{"id":"{_ID}","object":"response"}}'.encode()),
    input=[msgspec.Raw(b'{"id":"item_01934f6e","type":"message","role":"user","content":"Where is Paris?"}')],
)


class StoredResponseOperations:
    """Says and changes what a project keeps of its responses; lists, reads and deletes what is kept."""

    def __init__(self, gateway: Gateway) -> None:
        self._keeper, self._bodies = gateway.response_keeper, gateway.bodies
        self._default_retention = gateway.services.options.response_retention

    @operation("GET", _POLICY, demands("projects.read"))
    async def retrieve_response_policy(self, project: ProjectOfTenant) -> ResponsePolicyObject:
        """What the project keeps of its responses."""
        return self._policy_object(await self._keeper.policies.get(project[0].id, project[1].id, fresh=True))

    @operation(
        "PATCH",
        _POLICY,
        demands("projects.write"),
        example=ResponsePolicyChange(retention_seconds=86_400, readable=False),
    )
    async def change_response_policy(
        self, project: ProjectOfTenant, body: ResponsePolicyChange
    ) -> ResponsePolicyObject:
        """Change what the project keeps of its responses, and whether people may read it."""
        if problem := problem_of_text(body.reason, REASON, empty=True):
            raise InvalidField("$.reason", problem)
        changed = self._keeper.policies.set(
            project[0].id,
            project[1].id,
            retention_s=body.retention_seconds,
            readable=body.readable,
            reason=body.reason,
        )
        return self._policy_object(await changed)

    @operation("GET", _RESPONSES, demands("requests.read"))
    async def list_project_responses(self, project: ProjectOfTenant, page: PageQuery) -> ResponseList:
        """The project's kept responses without their content, the newest first."""
        before = None if page.after is None else response_id_of(page.after)
        if page.after is not None and before is None:
            raise unknown(page.after)
        rows: list[ListedResponse] = []
        if self._keeper.store is not None:
            rows = await self._keeper.store.page(project[0].id, project[1].id, limit=page.limit + 1, before=before)
        return ResponseList(data=[summary(row) for row in rows[: page.limit]], has_more=len(rows) > page.limit)

    @operation(
        "GET",
        f"{_RESPONSES}/{{response:str}}",
        demands("content.read"),
        path=_NAME,
        errors={"content_not_readable": 403},
    )
    async def read_project_response(
        self, project: ProjectOfTenant, response: str
    ) -> Annotated[ResponseContent, _CONTENT]:
        """A kept response with its content, where the project allows people to read it; the audit log says who did."""
        tenant_id, project_id = project[0].id, project[1].id
        policy = await self._keeper.policies.get(tenant_id, project_id, fresh=True)
        if not policy.readable:
            raise NotAllowed(
                "This project does not let people read what its responses say; its response policy can allow it.",
                code="content_not_readable",
            )
        with self._bodies.share(tenant_id) as share:
            stored = await self._keeper.get(tenant_id, project_id, response, share.load)
        assert self._keeper.store is not None, "it has the response"
        await self._keeper.store.record_reading(tenant_id, project_id, stored.id)
        items = raw_items(list(map(listed, input_of(stored))))
        return ResponseContent(response=msgspec.Raw(shown(stored)), input=items)

    @operation("DELETE", f"{_RESPONSES}/{{response:str}}", demands("projects.write"), path=_NAME)
    async def delete_project_response(self, project: ProjectOfTenant, response: str) -> DeletedResponse:
        """Delete a kept response. One that runs ends."""
        store, id_ = self._keeper.store, response_id_of(response)
        if store is None or id_ is None or not await store.delete(project[0].id, project[1].id, id_):
            raise unknown(response)
        return DeletedResponse(id=response)

    def _policy_object(self, policy: ResponsePolicy) -> ResponsePolicyObject:
        effective = self._default_retention if policy.retention_s is None else policy.retention_s
        return ResponsePolicyObject(
            retention_seconds=policy.retention_s, effective_retention_seconds=effective, readable=policy.readable
        )
