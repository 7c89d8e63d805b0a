"""/admin/v1/users/me: one's own account: name, password, second factor and recovery codes."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from litestar import Response
from msgspec import Struct
from msgspec.structs import replace

from gateway.admin.access import check_second_operator
from gateway.admin.operation import Call, operation
from gateway.admin.users.identity_sign_in import check_own_account
from gateway.admin.users.sign_in import renewed
from gateway.admin.users.user_objects import Code, Email, Name, OwnUserObject, Password, own_user_object, user_errors
from gateway.errors import NotAllowed
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.http.sessions import client_of, session_of
from gateway.services import Gateway

_operation = partial(operation, tags=("users",))
_PROVEN = demands(None, "session", fresh=True)
_ME, _TOTP = "/admin/v1/users/me", "/admin/v1/users/me/totp"
_NO_STORE = {"cache-control": "no-store"}
_STATE = {"wrong_state": 409, "bound_session": 403}
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


class AccountOperations:
    """Shows and changes one's own account."""

    errors = staticmethod(user_errors)

    def __init__(self, gateway: Gateway) -> None:
        self._users = gateway.services.users

    @_operation("GET", _ME, demands(None, "session"))
    async def get_own_user(self, call: Call) -> OwnUserObject:
        """You, with your roles."""
        session = session_of(call.request.scope).session
        user_id = session.user_id
        user = replace(await self._users.accounts.get(user_id), memberships=session.memberships)
        return own_user_object(user, await self._users.second_factors.recovery_codes_left(user_id))

    @_operation("PATCH", _ME, _PROVEN, errors=_RENAMED)
    async def change_own_user(self, call: Call, body: OwnChanges) -> OwnUserObject:
        """Change your name or e-mail address."""
        check_own_account(call.request)
        session = session_of(call.request.scope).session
        if body.email is not None and all(each.tenant_id is not None for each in session.memberships):
            raise NotAllowed("Ask an operator to change your e-mail address.")
        if body.email is not None:
            await check_second_operator(call.gateway, "Changing the e-mail address of who has a role at the platform")
        await self._users.accounts.rename(session.user_id, name=body.name, email=body.email)
        return await self.get_own_user(call)

    @_operation("POST", f"{_ME}/password", _PROVEN, errors=_STATE | _GUESSED | _HASHED)
    async def change_password(self, call: Call, body: NewPassword) -> Annotated[Response[bytes], OwnUserObject]:
        """Set another password. Your other sessions end, and this one gets another cookie."""
        check_own_account(call.request)
        session, client = session_of(call.request.scope).session, client_of(call.request.scope)
        await self._users.password_changes.change(session.user_id, session.id, body.current, body.new, client)
        return await renewed(call.gateway, call.request, await self.get_own_user(call))

    @_operation("POST", _TOTP, _PROVEN, status=201, errors=_STATE)
    async def set_up_totp(self, call: Call) -> Annotated[Response[bytes], AuthenticatorObject]:
        """Begin to set up an authenticator. It is asked for when a code of it was confirmed."""
        check_own_account(call.request)
        user_id = session_of(call.request.scope).session.user_id
        authenticator = await self._users.second_factors.begin(user_id, self._users.clock())
        return json_response(AuthenticatorObject(secret=authenticator.secret, uri=authenticator.uri), 201, _NO_STORE)

    @_operation("POST", f"{_TOTP}/confirm", _PROVEN, errors=_STATE | _GUESSED)
    async def confirm_totp(self, call: Call, body: FirstCode) -> Annotated[Response[bytes], RecoveryCodes]:
        """Confirm the authenticator with a code of it. From now on it is asked for whenever you sign in."""
        check_own_account(call.request)
        session, client = session_of(call.request.scope).session, client_of(call.request.scope)
        codes = await self._users.sign_in.confirm_second_factor(session.user_id, body.code, client)
        return await renewed(call.gateway, call.request, RecoveryCodes(codes=codes))

    @_operation("DELETE", _TOTP, _PROVEN, errors=_STATE)
    async def remove_totp(self, call: Call) -> OwnUserObject:
        """Remove your second factor, with its recovery codes."""
        check_own_account(call.request)
        await self._users.second_factors.remove(session_of(call.request.scope).session.user_id)
        return await self.get_own_user(call)

    @_operation("POST", f"{_ME}/recovery-codes", _PROVEN, status=201, errors=_STATE)
    async def renew_recovery_codes(self, call: Call) -> Annotated[Response[bytes], RecoveryCodes]:
        """Other recovery codes; the present ones are void."""
        check_own_account(call.request)
        user_id = session_of(call.request.scope).session.user_id
        codes = await self._users.second_factors.renew_recovery_codes(user_id, self._users.clock())
        return json_response(RecoveryCodes(codes=codes), 201, _NO_STORE)
