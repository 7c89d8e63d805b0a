"""/admin/v1/approvals: what waits for a second person, and the decision about it. Nobody approves their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Literal

from msgspec import Struct

from billing.approvals.approvals import Approvals
from billing.calendar import InvalidPeriod
from billing.money import InvalidMoney
from billing.pending_changes import ApprovalRefused, NotPending, OwnChange, UnknownChange
from billing.prices.errors import NotADraft, PriceRefused, SamePerson
from gateway.admin.operation import Call, Query, operation
from gateway.errors import Conflict, InvalidField, InvalidRequest, NotAllowed, NotFound
from gateway.http.pending import ChangeObject, change_object
from gateway.http.policies import demands
from gateway.http.shapes import Page, PageQuery
from gateway.services import Gateway
from storage.database.database import DatabaseUnavailable
from storage.free_text import InvalidText
from storage.reported_error import ReportedError

_PATH, _ONE = "/admin/v1/approvals", "/admin/v1/approvals/{change:str}"


class ApprovalDecision(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Why; kept with the change and in the audit log. `dry_run`: run all checks of an approval and write nothing."""

    reason: str = ""
    dry_run: bool = False


class WithdrawalDecision(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Why; kept with the change and in the audit log."""

    reason: str = ""


class ChangeList(Page[ChangeObject], frozen=True):
    """Changes, the newest first."""


@contextmanager
def _approval_errors() -> Iterator[None]:
    """Turn errors of approvals, and of the changes that they make, into errors of the request."""
    try:
        yield
    except DatabaseUnavailable:
        raise
    except UnknownChange as error:
        raise NotFound(f"{error}.") from error
    except (OwnChange, SamePerson) as error:
        raise NotAllowed(f"{error}.", code="four_eyes_required") from error
    except (NotPending, NotADraft) as error:
        raise Conflict(f"{error}.", code="wrong_state") from error
    except ApprovalRefused as error:
        raise NotAllowed(f"{error}.") from error
    except InvalidText as error:
        raise InvalidField(f"$.{error.field}", error.problem) from error
    except (ReportedError, PriceRefused, InvalidMoney, InvalidPeriod) as error:
        raise InvalidRequest(f"The change cannot be made now: {error}.", code="change_refused") from error


class ApprovalOperations:
    """Lists and decides changes that take two people."""

    errors = staticmethod(_approval_errors)

    def __init__(self, gateway: Gateway) -> None:
        self._approvals = Approvals(gateway.services.database, gateway.services.prices)

    @operation("GET", _PATH, demands("approvals.read"))
    async def list_approvals(
        self,
        state: Annotated[Literal["pending", "approved", "withdrawn"] | None, Query("Only those in it.")] = None,
        *,
        page: PageQuery,
    ) -> ChangeList:
        """Changes that take two people, of every kind, with price sheets: those that wait, and those decided."""
        changes = page.rest(await self._approvals.list(state), lambda change: change.id, str, "change")
        return ChangeList.of([change_object(change) for change in changes[: page.limit + 1]], page.limit)

    @operation("GET", _ONE, demands("approvals.read"))
    async def retrieve_approval(self, change: str) -> ChangeObject:
        """One change, with its arguments."""
        return change_object(await self._approvals.get(change))

    @operation(
        "POST",
        f"{_ONE}/approve",
        demands("approvals.decide"),
        example=ApprovalDecision(reason="as agreed"),
        body_required=False,
        errors={"four_eyes_required": 403, "wrong_state": 409, "change_refused": 400},
    )
    async def approve_change(self, call: Call, change: str, body: ApprovalDecision) -> ChangeObject:
        """Make a change that another person proposed, with its checks run anew."""
        may = call.principal.may
        return change_object(await self._approvals.approve(change, may, body.reason, dry_run=body.dry_run))

    @operation(
        "POST",
        f"{_ONE}/withdraw",
        demands("approvals.read", fresh=True),
        example=WithdrawalDecision(reason="a slip"),
        body_required=False,
        errors={"wrong_state": 409},
    )
    async def withdraw_change(self, call: Call, change: str, body: WithdrawalDecision) -> ChangeObject:
        """End a change without making it; its author may do so too."""
        return change_object(await self._approvals.withdraw(change, call.principal.may, body.reason))
