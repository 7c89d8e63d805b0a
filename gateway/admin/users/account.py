"""/admin/v1/users/me: one's own account: name, password, second factor and recovery codes."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import msgspec
from litestar import Request, Response, delete, get, patch, post
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from gateway.admin.access import check_second_operator
from gateway.admin.users.sign_in import renewed
from gateway.admin.users.user_objects import Code, Email, Name, OwnUserObject, Password, own_user_object, user_errors
from gateway.endpoints.request_body import read_management_body
from gateway.errors import NotAllowed
from gateway.http.operations import describes
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.http.sessions import client_of, session_of
from gateway.services import Gateway

_describes = partial(describes, tags=("users",))
_ME, _TOTP = "/admin/v1/users/me", "/admin/v1/users/me/totp"
_NO_STORE = {"cache-control": "no-store"}
_STATE = {"wrong_state": 409}
_RENAMED = {**_STATE, "email_taken": 409, "second_operator_required": 403}
_GUESSED = {"sign_in_refused": 401, "too_many_attempts": 429}
_HASHED = {"sign_in_busy": 503}


class OwnChanges(Struct, frozen=True, forbid_unknown_fields=True):
    """What to change of one's account. The e-mail address is for those with a role at the platform to change."""

    name: Name | None = None
    email: Email | None = None


class NewPassword(Struct, frozen=True, forbid_unknown_fields=True):
    """Another password. `current` may be absent only where there is none yet."""

    new: Password
    current: Password | None = None


class FirstCode(Struct, frozen=True, forbid_unknown_fields=True):
    """A code of the authenticator that is being set up."""

    code: Code


class AuthenticatorObject(Struct, frozen=True, kw_only=True):
    """What to enter into an authenticator, shown this once: the secret, or the URI as a QR code."""

    object: Literal["authenticator"] = "authenticator"
    secret: str
    uri: str


class RecoveryCodes(Struct, frozen=True, kw_only=True):
    """Codes for who has lost the authenticator, shown this once; each is good once."""

    object: Literal["recovery_codes"] = "recovery_codes"
    codes: list[str]


_CHANGES, _PASSWORD = msgspec.json.Decoder(OwnChanges), msgspec.json.Decoder(NewPassword)
_CODE = msgspec.json.Decoder(FirstCode)


def account_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    users, timeout = gateway.services.users, gateway.services.options.client_timeout

    async def own(request: Request[Any, Any, Any]) -> OwnUserObject:
        user_id = session_of(request.scope).session.user_id
        user = await users.accounts.get(user_id)
        return own_user_object(user, await users.second_factors.recovery_codes_left(user_id))

    @get(_ME, opt=demands(None, "session") | _describes(OwnUserObject))
    async def get_own_user(request: Request[Any, Any, Any]) -> Response[bytes]:
        """You, with your roles."""
        return json_response(await own(request))

    @patch(
        _ME,
        opt=demands(None, "session", fresh=True) | _describes(OwnUserObject, body=OwnChanges, errors=_RENAMED),
    )
    async def change_own_user(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Change your name or e-mail address."""
        body = await read_management_body(request, timeout, _CHANGES)
        session = session_of(request.scope).session
        if body.email is not None and all(one.tenant_id is not None for one in session.memberships):
            raise NotAllowed("Ask an operator to change your e-mail address.")
        if body.email is not None:
            await check_second_operator(gateway, "Changing the e-mail address of who has a role at the platform")
        with user_errors():
            await users.accounts.rename(session.user_id, name=body.name, email=body.email)
            return json_response(await own(request))

    @post(
        f"{_ME}/password",
        status_code=200,
        opt=demands(None, "session", fresh=True)
        | _describes(OwnUserObject, body=NewPassword, errors=_STATE | _GUESSED | _HASHED),
    )
    async def change_password(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Set another password. Your other sessions end, and this one gets another cookie."""
        body = await read_management_body(request, timeout, _PASSWORD)
        session, client = session_of(request.scope).session, client_of(request.scope)
        changing = users.password_changes.change(session.user_id, session.id, body.current, body.new, client)
        with user_errors():
            await changing
        return await renewed(gateway, request, await own(request))

    @post(
        _TOTP,
        status_code=201,
        opt=demands(None, "session", fresh=True) | _describes(AuthenticatorObject, status=201, errors=_STATE),
    )
    async def set_up_totp(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Begin to set up an authenticator. It is asked for when a code of it was confirmed."""
        with user_errors():
            made = await users.second_factors.begin(session_of(request.scope).session.user_id, users.clock())
        return json_response(AuthenticatorObject(secret=made.secret, uri=made.uri), 201, _NO_STORE)

    @post(
        f"{_TOTP}/confirm",
        status_code=200,
        opt=demands(None, "session", fresh=True) | _describes(RecoveryCodes, body=FirstCode, errors=_STATE | _GUESSED),
    )
    async def confirm_totp(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Confirm the authenticator with a code of it. From now on it is asked for whenever you sign in."""
        body = await read_management_body(request, timeout, _CODE)
        session, client = session_of(request.scope).session, client_of(request.scope)
        with user_errors():
            codes = await users.sign_in.confirm_second_factor(session.user_id, body.code, client)
        return await renewed(gateway, request, RecoveryCodes(codes=codes))

    @delete(
        _TOTP,
        status_code=200,
        opt=demands(None, "session", fresh=True) | _describes(OwnUserObject, errors=_STATE),
    )
    async def remove_totp(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Remove your second factor, with its recovery codes."""
        with user_errors():
            await users.second_factors.remove(session_of(request.scope).session.user_id)
        return json_response(await own(request))

    @post(
        f"{_ME}/recovery-codes",
        status_code=201,
        opt=demands(None, "session", fresh=True) | _describes(RecoveryCodes, status=201, errors=_STATE),
    )
    async def renew_recovery_codes(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Other recovery codes; the present ones are void."""
        user_id = session_of(request.scope).session.user_id
        with user_errors():
            codes = await users.second_factors.renew_recovery_codes(user_id, users.clock())
        return json_response(RecoveryCodes(codes=codes), 201, _NO_STORE)

    return [
        *(get_own_user, change_own_user, change_password, set_up_totp, confirm_totp, remove_totp),
        renew_recovery_codes,
    ]
