"""/admin/v1/operator-keys: the keys of those who run the platform.

Where prices take two operators, one person must not become two: then nobody makes an operator's key here, or gets
another's new secret, or leaves fewer than two operators. The command with both operators' keys does it.
"""

from __future__ import annotations

from functools import partial

from audit_log.actors import person_of
from billing.platform_settings import APPROVALS, PlatformSettings
from gateway.admin.access import check_second_operator
from gateway.admin.keys.key_objects import (
    KeyCheck,
    KeyList,
    KeyObject,
    KeyPatch,
    KeyWithSecret,
    NewOperatorKey,
    Rotation,
    change_of,
    check_future,
    key_errors,
    key_object,
    limits_of,
)
from gateway.admin.keys.keys import (
    CREATED,
    Reason,
    changed_grant,
    overlap_end,
    page_of_keys,
    with_secret,
)
from gateway.admin.operation import Call, operation
from gateway.admin.users.user_objects import user_errors
from gateway.errors import InvalidField, NotFound
from gateway.http.policies import demands
from gateway.http.shapes import PageQuery
from gateway.services import Gateway
from tenancy.administration.operators import check_two_remain, holder_of
from tenancy.repositories import OperatorsGuard, grant_of
from tenancy.rights.delegation import KeyGrant, check_delegation
from tenancy.tables import ApiKey
from tenancy.users.identifiers import user_public_id

_PATH, _ONE = "/admin/v1/operator-keys", "/admin/v1/operator-keys/{key:str}"
_ERRORS = {"exceeds_own_rights": 403, "second_operator_required": 403}
_ENDED = {**_ERRORS, "wrong_state": 409}


class OperatorKeyOperations:
    """Lists, makes, changes and revokes keys of operators."""

    errors = staticmethod(key_errors)

    def __init__(self, gateway: Gateway) -> None:
        self._tenancy, self._accounts = gateway.services.tenancy, gateway.services.users.accounts
        self._platform = PlatformSettings(gateway.services.database)

    @operation("GET", _PATH, demands("platform.read"))
    async def list_operator_keys(self, page: PageQuery) -> KeyList:
        """The keys of operators, with revoked ones, the newest first."""
        return page_of_keys((await self._tenancy.list_operator_keys())[::-1], page)

    @operation(
        "POST",
        _PATH,
        demands("platform.write"),
        status=CREATED,
        example=NewOperatorKey(name="ann", role="finance"),
        errors={**_ERRORS, "not_found": 404},
    )
    async def create_operator_key(self, call: Call, body: NewOperatorKey) -> KeyCheck | KeyWithSecret:
        """Create an operator's key. The answer has the whole key, which is shown this once."""
        expires_at = check_future("expires_at", body.expires_at)
        limits = limits_of(body)
        grant = KeyGrant("operator", role=body.role, limits=limits, expires_at=expires_at)
        check_delegation(call.principal, grant)
        grant.check_scopes(body.scopes or ())
        with user_errors():
            user_id = None if body.user is None else (await self._accounts.find(body.user)).id
        person = person_of(body.name, "" if user_id is None else user_public_id(user_id))
        await _check_own(call, person, "Making another operator's key")
        if body.dry_run:
            return KeyCheck(permissions=sorted(grant.permissions()))
        issued = await self._tenancy.create_operator_key(
            body.name, expires_at=expires_at, role=body.role, limits=limits, user_id=user_id
        )
        return with_secret(await self._tenancy.key(issued.public_id), issued.key)

    @operation("GET", _ONE, demands("platform.read"))
    async def retrieve_operator_key(self, key: str) -> KeyObject:
        """One operator's key, without its secret."""
        return key_object(await self._find(key))

    @operation("PATCH", _ONE, demands("platform.write"), example=KeyPatch(networks=("192.0.2.0/24",)), errors=_ENDED)
    async def change_operator_key(self, call: Call, key: str, body: KeyPatch) -> KeyObject:
        """Change an operator's key: its end, role or limits. Its name says who that is, and stays."""
        row = await self._find(key)
        if body.models or body.lanes:
            raise InvalidField("$.models" if body.models else "$.lanes", "an operator's key is not for inference")
        await _check_own(call, holder_of(row), "Changing another operator's key")
        change = change_of(body, row)
        after = changed_grant(row, change)
        check_delegation(call.principal, after)
        after.check_scopes(body.scopes or ())
        guard = await self._guard(key, after)
        return key_object(await self._tenancy.change_key(key, change, reason=body.reason, guard=guard))

    @operation(
        "POST",
        f"{_ONE}/rotate",
        demands("platform.write"),
        example=Rotation(reason="yearly"),
        body_required=False,
        errors=_ENDED,
    )
    async def rotate_operator_key(self, call: Call, key: str, body: Rotation) -> KeyWithSecret:
        """Give an operator's key a new secret. The present one is valid until a stated instant, else for a day."""
        row = await self._find(key)
        await _check_own(call, holder_of(row), "Getting another operator's secret")
        check_delegation(call.principal, grant_of(row))
        issued, rotated = await self._tenancy.rotate_key(key, until=overlap_end(body), reason=body.reason)
        return with_secret(rotated, issued.key)

    @operation("DELETE", _ONE, demands("platform.write"), errors=_ERRORS)
    async def revoke_operator_key(self, key: str, reason: Reason = "") -> KeyObject:
        """Revoke an operator's key for good, everywhere within a second."""
        row = await self._find(key)
        guard = await self._guard(row.public_id)
        await self._tenancy.revoke(key, reason=reason, guard=guard)
        return key_object(await self._tenancy.key(key))

    async def _find(self, key: str) -> ApiKey:
        row = await self._tenancy.key(key)
        if row.kind != "operator":
            raise NotFound(f"there is no key {key!r}.")
        return row

    async def _guard(self, key: str, after: KeyGrant | None = None) -> OperatorsGuard | None:
        """What checks, while approvals are on, that enough operators remain."""
        approvals_are_on = await self._platform.value(APPROVALS) == "on"
        return partial(check_two_remain, public_id=key, after=after) if approvals_are_on else None


async def _check_own(call: Call, person: str, what: str) -> None:
    # a command that presents no key is nobody's, whatever key has its USER@HOST for a name
    if call.principal.kind == "command" or call.principal.person != person:
        await check_second_operator(call.gateway, what)
