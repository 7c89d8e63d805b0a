"""/admin/v1/platform: what holds for everybody who works on this installation."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from litestar import Request, Response, get, put
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Struct

from billing.approvals.kinds import SettingArguments
from billing.calendar import format_instant
from billing.pending_changes import propose
from billing.platform_settings import APPROVALS, NAMES, VALUES, PlatformSettings, check_platform_setting
from billing.prices.approval import BY_KEY
from gateway.admin.access import principal_of
from gateway.admin.refusals import refusals
from gateway.dialects.query_parameters import Parameters
from gateway.endpoints.request_body import read_management_body
from gateway.errors import Conflict, NotFound
from gateway.http.operations import describes, page
from gateway.http.pending import PENDING_STATUS, ChangeObject
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.http.shapes import Page
from gateway.services import Gateway
from tenancy.administration.operators import two_decide


class NewValue(Struct, frozen=True, forbid_unknown_fields=True):
    """The value of a setting, and why it is set."""

    value: str
    reason: str = ""


class SettingObject(Struct, frozen=True, kw_only=True):
    """A setting, and the values that it can have; none are listed for one that is an amount."""

    object: Literal["platform.setting"] = "platform.setting"
    name: str
    value: str
    values: list[str]


class SettingList(Page[SettingObject], frozen=True):
    """All settings."""


class SettingChange(Struct, frozen=True, kw_only=True):
    """Who set what, how that is known, when and why."""

    object: Literal["platform.change"] = "platform.change"
    number: int
    name: str
    value: str
    actor: str
    via: str
    reason: str
    at: str


class SettingChanges(Page[SettingChange], frozen=True):
    """Changes, the latest first; `after` is the number of the last one."""


_NEW = msgspec.json.Decoder(NewValue)


def platform_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    client_timeout = gateway.services.options.client_timeout
    database, tenancy = gateway.services.database, gateway.services.tenancy
    platform = PlatformSettings(database)

    async def shown(name: str) -> SettingObject:
        return SettingObject(name=name, value=await platform.value(name), values=list(VALUES.get(name, ())))

    @get("/admin/v1/platform/settings", opt=demands("platform.read") | describes(SettingList))
    async def list_settings(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The settings of the platform."""
        Parameters.of(request).reject_unknown()
        return json_response(SettingList(data=[await shown(name) for name in NAMES], has_more=False))

    @get("/admin/v1/platform/changes", opt=demands("platform.read") | describes(SettingChanges, query=page()))
    async def list_changes(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Who set what, the latest first."""
        parameters = Parameters.of(request)
        limit, after = parameters.page_size(), parameters.integer("after")
        parameters.reject_unknown()
        numbered = reversed(list(enumerate(await platform.history(), 1)))
        found = [(number, change) for number, change in numbered if after is None or number < after]
        data = [
            SettingChange(
                number=number,
                name=change.name,
                value=change.value,
                actor=change.actor,
                via=change.via,
                reason=change.reason,
                at=format_instant(change.at),
            )
            for number, change in found[:limit]
        ]
        return json_response(SettingChanges(data=data, has_more=len(found) > limit))

    @put(
        "/admin/v1/platform/settings/{name:str}",
        opt=demands("platform.write")
        | describes(
            {200: SettingObject, PENDING_STATUS: ChangeObject},
            body=NewValue(value="on", reason="as agreed"),
            path={"name": "approvals"},
            errors={"second_operator_required": 409},
        ),
    )
    async def change_setting(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
        """Set one. While approvals are on, a change waits for another operator, and the answer is 202."""
        body = await read_management_body(request, client_timeout, _NEW)
        if name not in NAMES:
            raise NotFound(f"There is no platform setting {name[:80]!r}.")
        with refusals():
            check_platform_setting(name, body.value)
            if await platform.value(APPROVALS) == "on":
                change, summary = SettingArguments(name, body.value), f"{name}: {body.value}"
                await propose(database, "platform_setting.set", change, summary, reason=body.reason)
            turns_on = name == APPROVALS and body.value == "on"
            if turns_on and not two_decide(await tenancy.list_operator_keys()):
                raise Conflict(
                    "Approvals take two operators, each with an owner's key that does not expire: "
                    "`turnpike keys create --operator --name WHO`; the keys of both name a user, or neither's.",
                    code="second_operator_required",
                )
            principal = principal_of(request)
            via = BY_KEY if principal.kind == "operator_key" else principal.kind.replace("_", " ")
            by = principal.name or principal.public_id
            await platform.set(name, body.value, by=by, via=via, reason=body.reason)
        return json_response(await shown(name))

    return [list_settings, list_changes, change_setting]
