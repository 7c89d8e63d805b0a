"""The routes of /scim/v2. The token of a tenant's directory says whose they are, and they change this tenant alone.

They lie outside /admin/v1: no cookie counts here, and no API key. A client that guesses tokens is stopped as one that
guesses links.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
from litestar import Request, Response, delete, get, patch, post, put
from litestar.handlers import HTTPRouteHandler

from audit_log.actors import Actor, acting_as
from gateway.endpoints.request_body import read_signed_body
from gateway.http.authentication import api_key
from gateway.http.operations import ErrorForm, describes, files
from gateway.http.policies import public
from gateway.http.sessions import CookieJar
from gateway.request_context import request_context
from gateway.scim.expressions import Resource, ScimRefused, apply_patch, read_filter, select_attributes
from gateway.scim.resources import group_fields, group_resource, list_response, person_fields, person_resource
from gateway.scim.schemas import CONFIG, GROUP, MESSAGES, MOST_RESULTS, RESOURCE_TYPES, SCHEMAS, USER
from gateway.services import Gateway
from tenancy.identity.directory_people import ChangedMeanwhile, NameTaken
from tenancy.users.attempts import MINUTE_S, Limit, network_of
from tenancy.users.errors import LastOwner, NoSuchUser, NotPermitted, TooManyAttempts, WrongState

_BASE = "/scim/v2"
_MEDIA_TYPE = "application/scim+json"
_MOST_START = 1_000_000
_MOST_TRIES = 3
Answer: TypeAlias = tuple[int, Resource | None]
Work: TypeAlias = Callable[[Request[Any, Any, Any], UUID, str], Awaitable[Answer]]
_PEOPLE = {"username": "username", "externalid": "externalid", "id": "id", "active": "active"}
_PEOPLE |= dict.fromkeys(("emails", "emails.value"), "emails")
_GROUPS = {"displayname": "displayname", "externalid": "externalid", "id": "id"}
_ERROR = ErrorForm(
    _MEDIA_TYPE,
    {
        "type": "object",
        "required": ["schemas", "status", "detail"],
        "properties": {
            "schemas": {"type": "array", "items": {"type": "string"}},
            "status": {"type": "string"},
            "detail": {"type": "string"},
            "scimType": {"type": "string"},
        },
    },
    {"schemas": [f"{MESSAGES}:Error"], "status": "401", "detail": "send the token of the tenant's directory"},
)
"""RFC 7644, section 3.12."""
_FILE = files(_MEDIA_TYPE, description="A SCIM resource or message.", example="{}")


def scim_routes(gateway: Gateway) -> list[HTTPRouteHandler]:  # noqa: PLR0915  # a route each
    """The routes, for one worker."""
    people = gateway.services.identity.directory

    async def list_people(request: Request[Any, Any, Any], tenant_id: UUID, base: str) -> Answer:
        return await search_people(_query(request), tenant_id, base)

    async def search_people(asked: Mapping[str, Any], tenant_id: UUID, base: str) -> Answer:
        where, start, count = _asked(asked, _PEOPLE)
        found, total = await people.people(tenant_id, where, start - 1, count)
        return 200, list_response([_cut(asked, person_resource(one, base)) for one in found], total, start)

    async def ask_people(request: Request[Any, Any, Any], tenant_id: UUID, base: str) -> Answer:
        return await search_people(_search(await _body(gateway, request)), tenant_id, base)

    async def add_person(request: Request[Any, Any, Any], tenant_id: UUID, base: str) -> Answer:
        person = await people.put_person(tenant_id, person_fields({"active": True, **await _body(gateway, request)}))
        return 201, _cut(_query(request), person_resource(person, base))

    async def get_person(request: Request[Any, Any, Any], tenant_id: UUID, base: str) -> Answer:
        return 200, _cut(_query(request), person_resource(await people.person(tenant_id, _id(request)), base))

    async def replace_person(request: Request[Any, Any, Any], tenant_id: UUID, base: str) -> Answer:
        person_id, fields = _id(request), person_fields(await _body(gateway, request))
        return 200, _cut(_query(request), person_resource(await people.put_person(tenant_id, fields, person_id), base))

    async def patch_person(request: Request[Any, Any, Any], tenant_id: UUID, base: str) -> Answer:
        operations, person_id = await _operations(gateway, request), _id(request)

        async def change() -> Resource:
            present = await people.person(tenant_id, person_id)
            fields = person_fields(apply_patch(person_resource(present, base), operations, USER))
            changed = await people.put_person(tenant_id, fields, person_id, seen=present.changed_at)
            return person_resource(changed, base)

        return 200, _cut(_query(request), await _until_unchanged(change))

    async def remove_person(request: Request[Any, Any, Any], tenant_id: UUID, base: str) -> Answer:
        await people.remove_person(tenant_id, _id(request))
        return 204, None

    async def list_groups(request: Request[Any, Any, Any], tenant_id: UUID, base: str) -> Answer:
        return await search_groups(_query(request), tenant_id, base)

    async def search_groups(asked: Mapping[str, Any], tenant_id: UUID, base: str) -> Answer:
        where, start, count = _asked(asked, _GROUPS)
        found, total = await people.groups(tenant_id, where, start - 1, count)
        return 200, list_response([_cut(asked, group_resource(one, base)) for one in found], total, start)

    async def ask_groups(request: Request[Any, Any, Any], tenant_id: UUID, base: str) -> Answer:
        return await search_groups(_search(await _body(gateway, request)), tenant_id, base)

    async def add_group(request: Request[Any, Any, Any], tenant_id: UUID, base: str) -> Answer:
        name, external_id, members = group_fields(await _body(gateway, request))
        return 201, _cut(
            _query(request), group_resource(await people.put_group(tenant_id, name, external_id, members), base)
        )

    async def get_group(request: Request[Any, Any, Any], tenant_id: UUID, base: str) -> Answer:
        return 200, _cut(_query(request), group_resource(await people.group(tenant_id, _id(request)), base))

    async def replace_group(request: Request[Any, Any, Any], tenant_id: UUID, base: str) -> Answer:
        group_id = _id(request)
        name, external_id, members = group_fields(await _body(gateway, request))
        group = await people.put_group(tenant_id, name, external_id, members, group_id)
        return 200, _cut(_query(request), group_resource(group, base))

    async def patch_group(request: Request[Any, Any, Any], tenant_id: UUID, base: str) -> Answer:
        operations, group_id = await _operations(gateway, request), _id(request)

        async def change() -> Resource:
            present = await people.group(tenant_id, group_id)
            name, external_id, members = group_fields(apply_patch(group_resource(present, base), operations, GROUP))
            seen = present.changed_at
            return group_resource(
                await people.put_group(tenant_id, name, external_id, members, group_id, seen=seen), base
            )

        return 200, _cut(_query(request), await _until_unchanged(change))

    async def remove_group(request: Request[Any, Any, Any], tenant_id: UUID, base: str) -> Answer:
        await people.remove_group(tenant_id, _id(request))
        return 204, None

    async def ask_both(request: Request[Any, Any, Any], tenant_id: UUID, base: str) -> Answer:
        asked = _search(await _body(gateway, request))
        _, found = await search_people(asked, tenant_id, base)
        _, groups = await search_groups(asked, tenant_id, base)
        assert found is not None and groups is not None, "both are lists"  # noqa: PT018
        both = [*found["Resources"], *groups["Resources"]][:MOST_RESULTS]
        return 200, list_response(both, found["totalResults"] + groups["totalResults"], found["startIndex"])

    async def get_config(request: Request[Any, Any, Any], tenant_id: UUID, base: str) -> Answer:
        return 200, _located(CONFIG, "ServiceProviderConfig", f"{base}/ServiceProviderConfig")

    async def get_schemas(request: Request[Any, Any, Any], tenant_id: UUID, base: str) -> Answer:
        return _published(request, [_located(one, "Schema", f"{base}/Schemas/{one['id']}") for one in SCHEMAS])

    async def get_resource_types(request: Request[Any, Any, Any], tenant_id: UUID, base: str) -> Answer:
        types = [_located(one, "ResourceType", f"{base}/ResourceTypes/{one['id']}") for one in RESOURCE_TYPES]
        return _published(request, types)

    async def nothing(request: Request[Any, Any, Any], tenant_id: UUID, base: str) -> Answer:
        raise ScimRefused(404, "there is no such resource")

    one = f"{_BASE}/{{kind}}/{{resource:str}}"
    users, user = f"{_BASE}/Users", one.replace("{kind}", "Users")
    groups, group = f"{_BASE}/Groups", one.replace("{kind}", "Groups")
    found = [
        _route(gateway, get, users, list_people, "List the people of the directory, by a filter such as userName eq."),
        _route(gateway, post, users, add_person, "Add a person."),
        _route(gateway, get, user, get_person, "One person."),
        _route(gateway, put, user, replace_person, "Replace a person. Who is not active has left the tenant at once."),
        _route(gateway, patch, user, patch_person, "Change a person. Who is not active has left the tenant at once."),
        _route(gateway, delete, user, remove_person, "Remove a person, who has left the tenant at once."),
        _route(
            gateway, get, groups, list_groups, "List the groups of the directory, by a filter such as displayName eq."
        ),
        _route(gateway, post, groups, add_group, "Add a group."),
        _route(gateway, post, f"{users}/.search", ask_people, "List the people of the directory, asked in a body."),
        _route(gateway, post, f"{groups}/.search", ask_groups, "List the groups of the directory, asked in a body."),
        _route(gateway, post, f"{_BASE}/.search", ask_both, "List people and groups, asked in a body."),
        _route(gateway, get, group, get_group, "One group."),
        _route(gateway, put, group, replace_group, "Replace a group."),
        _route(gateway, patch, group, patch_group, "Change a group or its members."),
        _route(gateway, delete, group, remove_group, "Remove a group, with what it gave."),
        _route(gateway, get, f"{_BASE}/ServiceProviderConfig", get_config, "What this service can do."),
        _route(gateway, get, f"{_BASE}/Schemas", get_schemas, "The schemas of people and groups."),
        _route(
            gateway,
            get,
            f"{_BASE}/Schemas/{{resource:str}}",
            get_schemas,
            "One schema.",
            operation_id="get_scim_schema",
        ),
        _route(gateway, get, f"{_BASE}/ResourceTypes", get_resource_types, "The types of resources."),
        _route(
            gateway,
            get,
            f"{_BASE}/ResourceTypes/{{resource:str}}",
            get_resource_types,
            "One type of resources.",
            operation_id="get_scim_resource_type",
        ),
    ]
    found.append(_route(gateway, get, f"{_BASE}/{{path:path}}", nothing, "Anything else is not there."))
    return found


async def _until_unchanged(change: Callable[[], Awaitable[Resource]]) -> Resource:
    """What comes of a change that reads before it writes: made again where another one came between. Raises
    ScimRefused."""
    for _ in range(_MOST_TRIES):
        with suppress(ChangedMeanwhile):
            return await change()
    raise ScimRefused(409, "others change this at the same time: try again")


def _route(
    gateway: Gateway, method: Any, path: str, work: Work, about: str, *, operation_id: str = ""
) -> HTTPRouteHandler:
    status = 201 if method is post and not path.endswith(".search") else 204 if method is delete else 200
    name = operation_id or f"{work.__name__.partition('_')[0]}_scim_{work.__name__.partition('_')[2] or 'path'}"

    async def answer(request: Request[Any, Any, Any]) -> Response[bytes]:
        return await _answer(gateway, request, work)

    async def answer_nothing(request: Request[Any, Any, Any]) -> Response[None]:
        return await _answer(gateway, request, work)

    handling = answer_nothing if status == 204 else answer
    handling.__name__, handling.__doc__ = name, about
    says = describes(
        None if status == 204 else _FILE,
        status=status,
        errors={"not_authenticated": 401, "too_many_attempts": 429},
        tags=("scim",),
        operation_id=name,
        error_form=_ERROR,
    )
    handler: HTTPRouteHandler = method(path, status_code=status, opt=public() | says)(handling)
    return handler


async def _answer(gateway: Gateway, request: Request[Any, Any, Any], work: Work) -> Response[Any]:
    """What the work answers, or the error as SCIM writes it."""
    headers: dict[str, str] = {"cache-control": "no-store"}
    try:
        tenant_id = await _tenant(gateway, request)
        actor = Actor(
            "admin_key",
            f"directory_{tenant_id.hex}",
            "directory",
            address=request_context(request.scope).address,
            request_id=request_context(request.scope).name,
        )
        with acting_as(actor):
            status, body = await work(request, tenant_id, _base(request))
        if status == 201 and body is not None:
            headers["location"] = body.get("meta", {}).get("location", "")
    except (ScimRefused, NameTaken, NoSuchUser, NotPermitted, LastOwner, WrongState, TooManyAttempts) as error:
        status, kind = _status(error)
        body = {"schemas": [f"{MESSAGES}:Error"], "status": str(status), "detail": str(error)}
        if kind:
            body["scimType"] = kind
        if status == 401:
            headers["www-authenticate"] = "Bearer"
        if isinstance(error, TooManyAttempts):
            headers["retry-after"] = str(int(error.retry_after) + 1)
    content = None if body is None else msgspec.json.encode(body)
    return Response(content, status_code=status, media_type=_MEDIA_TYPE, headers=headers)


def _status(error: Exception) -> tuple[int, str]:
    match error:
        case ScimRefused():
            return error.status, error.kind
        case NameTaken():
            return 409, "uniqueness"
        case NoSuchUser():
            return 404, ""
        case NotPermitted():
            return 403, ""
        case TooManyAttempts():
            return 429, ""
        case _:
            return 409, "mutability"


async def _tenant(gateway: Gateway, request: Request[Any, Any, Any]) -> UUID:
    """The tenant whose token is presented. Raises ScimRefused, TooManyAttempts."""
    users, token = gateway.services.users, api_key(request.headers)
    tenant_id = await gateway.services.identity.directories.tenant_of(token, users.clock())
    if tenant_id is None:
        address = request_context(request.scope).address
        await users.attempts.take([Limit(f"scim-address/{network_of(address)}", 20, 5 * MINUTE_S)])
        raise ScimRefused(401, "send the token of the tenant's directory as 'Authorization: Bearer TOKEN'")
    if gateway.services.suspensions.find(tenant_id, None) is not None and request.method == "POST":
        raise ScimRefused(403, "the tenant is suspended: nobody is added; people may leave")
    return tenant_id


def _base(request: Request[Any, Any, Any]) -> str:
    scheme = "https" if CookieJar.of(request.scope).secure else "http"
    return f"{scheme}://{request.headers.get('host', '')}{_BASE}"


async def _body(gateway: Gateway, request: Request[Any, Any, Any]) -> Resource:
    body = await read_signed_body(request, gateway.services.options.client_timeout)
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ScimRefused(400, f"the body is no JSON object: {error}", "invalidSyntax") from error


async def _operations(gateway: Gateway, request: Request[Any, Any, Any]) -> Any:
    body = await _body(gateway, request)
    return next((value for name, value in body.items() if name.lower() == "operations"), None)


def _id(request: Request[Any, Any, Any]) -> UUID:
    try:
        return UUID(request.path_params["resource"])
    except ValueError as error:
        raise ScimRefused(404, f"there is no resource {request.path_params['resource'][:80]!r}") from error


def _query(request: Request[Any, Any, Any]) -> Mapping[str, Any]:
    """What the query asks for; of a name that occurs twice, the first."""
    return {name: request.query_params.getall(name)[0] for name in request.query_params}


def _search(body: Resource) -> Mapping[str, Any]:
    """What a search by POST asks for (RFC 7644, section 3.4.3), as a query would."""
    return {
        name: ",".join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in body.items()
        if value is not None
    }


def _asked(asked: Mapping[str, Any], names: dict[str, str]) -> tuple[dict[str, Any], int, int]:
    """The filter, the first resource's number from 1, and how many are asked for. Raises ScimRefused."""
    terms = read_filter(asked["filter"]) if asked.get("filter") else {}
    if unknown := terms.keys() - names.keys():
        raise ScimRefused(400, f"there is no filter by {', '.join(sorted(unknown))}", "invalidFilter")
    where: dict[str, Any] = {}
    for name, value in terms.items():
        if isinstance(value, bool) != (name == "active") or not isinstance(value, bool | str):
            raise ScimRefused(400, f"{name}: not a value of this attribute", "invalidFilter")
        where[names[name]] = int(value) if isinstance(value, bool) else value.replace("\0", "")
    if "id" in where:
        try:
            where["id"] = UUID(where["id"])
        except ValueError:
            where["id"] = UUID(int=0)
    start = min(max(1, _number(asked, "startIndex", 1)), _MOST_START)
    return where, start, min(max(0, _number(asked, "count", MOST_RESULTS)), MOST_RESULTS)


def _number(asked: Mapping[str, Any], name: str, default: int) -> int:
    text = asked.get(name) or str(default)
    try:
        return int(text[:12])
    except ValueError as error:
        raise ScimRefused(400, f"{name}: not a number", "invalidValue") from error


def _cut(asked: Mapping[str, Any], resource: Resource) -> Resource:
    return select_attributes(resource, asked.get("attributes", ""), asked.get("excludedAttributes", ""))


def _located(what: Any, kind: str, location: str) -> Resource:
    return {**what, "meta": {"resourceType": kind, "location": location}}


def _published(request: Request[Any, Any, Any], resources: list[Resource]) -> Answer:
    if request.query_params.get("filter"):
        raise ScimRefused(403, "these are not filtered")
    named = request.path_params.get("resource")
    if named is None:
        return 200, list_response(resources, len(resources), 1)
    found = next((one for one in resources if one["id"] == named), None)
    if found is None:
        raise ScimRefused(404, f"there is no {named[:80]!r}")
    return 200, found
