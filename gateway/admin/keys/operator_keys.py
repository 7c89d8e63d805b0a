"""/admin/v1/operator-keys: the keys of those who run the platform.

Where prices take two operators, one person must not become two: then nobody makes an operator's key here, or gets
another's new secret, or leaves fewer than two operators. The command with both operators' keys does it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
from litestar import Request, Response, delete, get, patch, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from audit_log.actors import person_of
from billing.platform_settings import APPROVALS, PlatformSettings
from gateway.admin.access import check_second_operator, principal_of
from gateway.admin.keys.key_objects import (
    KeyCheck,
    KeyList,
    KeyObject,
    KeyPatch,
    KeyWithSecret,
    NewOperatorKey,
    Rotation,
    change_of,
    future_instant,
    key_errors,
    key_object,
    limits_of,
)
from gateway.admin.keys.keys import REASON, changed_grant, overlap_end, page_of_keys, reason_of, with_secret
from gateway.admin.users.user_objects import user_errors
from gateway.dialects.query_parameters import Parameters
from gateway.endpoints.request_body import read_management_body
from gateway.errors import InvalidField, NotAllowed, NotFound
from gateway.http.operations import describes, page
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.services import Gateway
from tenancy.administration.operators import TooFewOperators, check_two_remain, holder_of
from tenancy.repositories import OperatorsGuard, grant_of
from tenancy.rights.delegation import KeyGrant, check_delegation
from tenancy.tables import ApiKey
from tenancy.users.identifiers import user_public_id

_NEW, _PATCH = msgspec.json.Decoder(NewOperatorKey), msgspec.json.Decoder(KeyPatch)
_ROTATION = msgspec.json.Decoder(Rotation)
_PATH, _ONE = "/admin/v1/operator-keys", "/admin/v1/operator-keys/{key:str}"
_ERRORS = {"exceeds_own_rights": 403, "second_operator_required": 403}
_ENDED = {**_ERRORS, "wrong_state": 409}


def operator_key_routes(gateway: Gateway) -> list[HTTPRouteHandler]:  # noqa: PLR0915  # six routes
    """The routes, for one worker."""
    tenancy, client_timeout = gateway.services.tenancy, gateway.services.options.client_timeout
    platform = PlatformSettings(gateway.services.database)

    async def approvals_are_on() -> bool:
        return await platform.value(APPROVALS) == "on"

    async def operator_key(key: str) -> ApiKey:
        with key_errors():
            found = await tenancy.key(key)
        if found.kind != "operator":
            raise NotFound(f"there is no key {key!r}.")
        return found

    async def check_own_while_approvals_are_on(request: Request[Any, Any, Any], person: str, what: str) -> None:
        if principal_of(request).person != person:
            await check_second_operator(gateway, what)

    async def user_named(reference: str | None) -> UUID | None:
        with user_errors():
            return None if reference is None else (await gateway.services.users.accounts.find(reference)).id

    async def enough_remain(key: str, after: KeyGrant | None = None) -> OperatorsGuard | None:
        return partial(check_two_remain, public_id=key, after=after) if await approvals_are_on() else None

    @get(_PATH, opt=demands("platform.read") | describes(KeyList, query=page()))
    async def list_operator_keys(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The keys of operators, with revoked ones, the newest first."""
        parameters = Parameters.of(request)
        limit, after = parameters.page_size(), parameters.text("after")
        parameters.reject_unknown()
        return json_response(page_of_keys((await tenancy.list_operator_keys())[::-1], limit, after))

    @post(
        _PATH,
        status_code=201,
        opt=demands("platform.write")
        | describes(
            {200: KeyCheck, 201: KeyWithSecret},
            body=NewOperatorKey(name="ann", role="finance"),
            errors={**_ERRORS, "not_found": 404},
        ),
    )
    async def create_operator_key(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Create an operator's key. The answer has the whole key, which is shown this once."""
        body = await read_management_body(request, client_timeout, _NEW)
        expires_at = future_instant("expires_at", body.expires_at)
        with key_errors():
            limits = limits_of(body)
            grant = KeyGrant("operator", role=body.role, limits=limits, expires_at=expires_at)
            check_delegation(principal_of(request), grant)
            grant.check_scopes(body.scopes or ())
        user_id = await user_named(body.user)
        person = person_of(body.name, "" if user_id is None else user_public_id(user_id))
        await check_own_while_approvals_are_on(request, person, "Making another operator's key")
        if body.dry_run:
            return json_response(KeyCheck(permissions=sorted(grant.permissions())))
        with key_errors():
            making = tenancy.create_operator_key(
                body.name, expires_at=expires_at, role=body.role, limits=limits, user_id=user_id
            )
            issued = await making
            made = await tenancy.key(issued.public_id)
        return json_response(with_secret(made, issued.key), 201)

    @get(_ONE, opt=demands("platform.read") | describes(KeyObject))
    async def retrieve_operator_key(key: FromPath[str]) -> Response[bytes]:
        """One operator's key, without its secret."""
        return json_response(key_object(await operator_key(key)))

    @patch(
        _ONE,
        opt=demands("platform.write") | describes(KeyObject, body=KeyPatch(networks=("192.0.2.0/24",)), errors=_ENDED),
    )
    async def change_operator_key(request: Request[Any, Any, Any], key: FromPath[str]) -> Response[bytes]:
        """Change an operator's key: its end, role or limits. Its name says who that is, and stays."""
        found = await operator_key(key)
        body = await read_management_body(request, client_timeout, _PATCH)
        if body.models or body.lanes:
            raise InvalidField("$.models" if body.models else "$.lanes", "an operator's key is not for inference")
        await check_own_while_approvals_are_on(request, holder_of(found), "Changing another operator's key")
        with key_errors():
            change = change_of(body, found)
            after = changed_grant(found, change)
            check_delegation(principal_of(request), after)
            after.check_scopes(body.scopes or ())
            guard = await enough_remain(found.public_id, after)
            with _too_few():
                changed = await tenancy.change_key(key, change, reason=body.reason, guard=guard)
            return json_response(key_object(changed))

    @post(
        f"{_ONE}/rotate",
        status_code=200,
        opt=demands("platform.write")
        | describes(KeyWithSecret, body=Rotation(reason="yearly"), body_required=False, errors=_ENDED),
    )
    async def rotate_operator_key(request: Request[Any, Any, Any], key: FromPath[str]) -> Response[bytes]:
        """Give an operator's key a new secret. The present one is valid until a stated instant, else for a day."""
        found = await operator_key(key)
        body = await read_management_body(request, client_timeout, _ROTATION, default=b"{}")
        await check_own_while_approvals_are_on(request, holder_of(found), "Getting another operator's secret")
        with key_errors():
            check_delegation(principal_of(request), grant_of(found))
            issued, rotated = await tenancy.rotate_key(key, until=overlap_end(body), reason=body.reason)
        return json_response(with_secret(rotated, issued.key))

    @delete(
        _ONE,
        status_code=200,
        opt=demands("platform.write") | describes(KeyObject, query=(REASON,), errors=_ERRORS),
    )
    async def revoke_operator_key(request: Request[Any, Any, Any], key: FromPath[str]) -> Response[bytes]:
        """Revoke an operator's key for good, everywhere within a second."""
        found, reason = await operator_key(key), reason_of(request)
        guard = await enough_remain(found.public_id)
        with key_errors(), _too_few():
            await tenancy.revoke(key, reason=reason, guard=guard)
            return json_response(key_object(await tenancy.key(key)))

    return [
        list_operator_keys,
        create_operator_key,
        retrieve_operator_key,
        change_operator_key,
        rotate_operator_key,
        revoke_operator_key,
    ]


@contextmanager
def _too_few() -> Iterator[None]:
    try:
        yield
    except TooFewOperators as error:
        raise NotAllowed(f"{error}.", code="second_operator_required") from error
