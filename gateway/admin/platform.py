"""/admin/v1/platform: what holds for everybody who works on this installation."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from billing.approvals.kinds import SettingArguments
from billing.pending_changes import propose
from billing.platform_settings import APPROVALS, NAMES, VALUES, PlatformSettings, check_platform_setting
from billing.prices.approval import BY_KEY
from gateway.admin.operation import Call, operation
from gateway.dialects.query_parameters import Parameters
from gateway.errors import Conflict, NotFound
from gateway.http.pending import PENDING_STATUS, ChangeObject
from gateway.http.policies import demands
from gateway.http.shapes import Instant, Page, PageQuery, show
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
    at: Instant


class SettingChanges(Page[SettingChange], frozen=True):
    """Changes, the latest first; `after` is the number of the last one."""


class PlatformOperations:
    """Shows and sets the settings of the platform."""

    def __init__(self, gateway: Gateway) -> None:
        self._database, self._tenancy = gateway.services.database, gateway.services.tenancy
        self._platform = PlatformSettings(gateway.services.database)

    @operation("GET", "/admin/v1/platform/settings", demands("platform.read"))
    async def list_settings(self, call: Call) -> SettingList:
        """The settings of the platform."""
        Parameters.of(call.request).reject_unknown()
        return SettingList(data=[await self._shown(name) for name in NAMES], has_more=False)

    @operation("GET", "/admin/v1/platform/changes", demands("platform.read"))
    async def list_changes(self, call: Call, page: PageQuery) -> SettingChanges:
        """Who set what, the latest first."""
        after = Parameters.of(call.request).integer("after")
        numbered = list(enumerate(await self._platform.history(), 1))[::-1]
        rest = [(number, change) for number, change in numbered if after is None or number < after]
        changes = [show(SettingChange, change, number=number) for number, change in rest[: page.limit + 1]]
        return SettingChanges.of(changes, page.limit)

    @operation(
        "PUT",
        "/admin/v1/platform/settings/{name:str}",
        demands("platform.write"),
        status={SettingObject: 200, ChangeObject: PENDING_STATUS},
        example=NewValue(value="on", reason="as agreed"),
        path={"name": "approvals"},
        errors={"second_operator_required": 409},
    )
    async def change_setting(self, call: Call, name: str, body: NewValue) -> SettingObject | ChangeObject:
        """Set one. While approvals are on, a change waits for another operator, and the answer is 202."""
        if name not in NAMES:
            raise NotFound(f"There is no platform setting {name[:80]!r}.")
        check_platform_setting(name, body.value)
        if await self._platform.value(APPROVALS) == "on":
            change, summary = SettingArguments(name, body.value), f"{name}: {body.value}"
            await propose(self._database, "platform_setting.set", change, summary, reason=body.reason)
        turns_on = name == APPROVALS and body.value == "on"
        if turns_on and not two_decide(await self._tenancy.list_operator_keys()):
            raise Conflict(
                "Approvals take two operators, each with an owner's key that does not expire: "
                "`turnpike keys create --operator --name WHO`; the keys of both name a user, or neither's.",
                code="second_operator_required",
            )
        principal = call.principal
        via = BY_KEY if principal.kind == "operator_key" else principal.kind.replace("_", " ")
        by = principal.name or principal.public_id
        await self._platform.set(name, body.value, by=by, via=via, reason=body.reason)
        return await self._shown(name)

    async def _shown(self, name: str) -> SettingObject:
        return SettingObject(name=name, value=await self._platform.value(name), values=list(VALUES.get(name, ())))
