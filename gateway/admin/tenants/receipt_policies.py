"""Whether a project's answers have receipts without being asked for them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from gateway.admin.operation import ProjectOfTenant, operation
from gateway.errors import InvalidField
from gateway.http.policies import demands
from gateway.services import Gateway
from storage.free_text import REASON, problem_of_text

_POLICY = "/admin/v1/tenants/{tenant:str}/projects/{project:str}/receipt-policy"


class ReceiptPolicyObject(Struct, frozen=True, kw_only=True):
    """`always`: every answer of the project has a receipt, unless its request says otherwise."""

    object: Literal["receipt_policy"] = "receipt_policy"
    always: bool


class ReceiptPolicyChange(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What to change."""

    always: bool
    reason: str = ""


class ReceiptPolicyOperations:
    """Says and changes whether a project's answers have receipts."""

    def __init__(self, gateway: Gateway) -> None:
        self._policies = gateway.receipt_policies

    @operation("GET", _POLICY, demands("projects.read"))
    async def retrieve_receipt_policy(self, project: ProjectOfTenant) -> ReceiptPolicyObject:
        """Whether every answer of the project has a receipt."""
        return ReceiptPolicyObject(always=await self._policies.always(project[0].id, project[1].id, fresh=True))

    @operation("PATCH", _POLICY, demands("projects.write"), example=ReceiptPolicyChange(always=True))
    async def change_receipt_policy(self, project: ProjectOfTenant, body: ReceiptPolicyChange) -> ReceiptPolicyObject:
        """Change whether every answer of the project has a receipt."""
        if problem := problem_of_text(body.reason, REASON, empty=True):
            raise InvalidField("$.reason", problem)
        await self._policies.set(project[0].id, project[1].id, always=body.always, reason=body.reason)
        return ReceiptPolicyObject(always=body.always)
