"""/admin/v1/approvals: what waits for a second person, and the decision about it. Nobody approves their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import msgspec
from litestar import Request, Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Struct

from billing.approvals.approvals import Approvals
from billing.calendar import InvalidPeriod
from billing.money import InvalidMoney
from billing.pending_changes import ApprovalRefused, NotPending, OwnChange, UnknownChange
from billing.prices.errors import NotADraft, PriceRefused, SamePerson
from gateway.admin.access import principal_of
from gateway.dialects.query_parameters import Parameters
from gateway.endpoints.request_body import read_management_body
from gateway.errors import Conflict, InvalidField, InvalidRequest, NotAllowed, NotFound
from gateway.http.operations import describes, page, query
from gateway.http.pending import ChangeObject, change_object
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.http.shapes import Page
from gateway.services import Gateway
from storage.database.database import DatabaseUnavailable
from storage.free_text import InvalidText
from storage.reported_error import ReportedError

_STATES = ("pending", "approved", "withdrawn")
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


_DECISION = msgspec.json.Decoder(ApprovalDecision)
_WITHDRAWAL = msgspec.json.Decoder(WithdrawalDecision)


def approval_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    approvals = Approvals(gateway.services.database, gateway.services.prices)
    client_timeout = gateway.services.options.client_timeout

    @get(
        _PATH,
        opt=demands("approvals.read")
        | describes(
            ChangeList,
            query=(query("state", Literal["pending", "approved", "withdrawn"], "Only those in it."), *page()),
        ),
    )
    async def list_approvals(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Changes that take two people, of every kind, with price sheets: those that wait, and those decided."""
        parameters = Parameters.of(request)
        state, limit, after = parameters.choice("state", _STATES), parameters.page_size(), parameters.text("after")
        parameters.reject_unknown()
        found = await approvals.list(state)
        ids = [change.id for change in found]
        if after is not None and after not in ids:
            raise InvalidField("after", "there is no such change")
        first = 0 if after is None else ids.index(after) + 1
        listed = [change_object(change) for change in found[first : first + limit]]
        return json_response(ChangeList(data=listed, has_more=len(found) > first + limit))

    @get(_ONE, opt=demands("approvals.read") | describes(ChangeObject))
    async def retrieve_approval(change: FromPath[str]) -> Response[bytes]:
        """One change, with its arguments."""
        with _approval_errors():
            return json_response(change_object(await approvals.get(change)))

    @post(
        f"{_ONE}/approve",
        status_code=200,
        opt=demands("approvals.decide")
        | describes(
            ChangeObject,
            body=ApprovalDecision(reason="as agreed"),
            body_required=False,
            errors={"four_eyes_required": 403, "wrong_state": 409, "change_refused": 400},
        ),
    )
    async def approve_change(request: Request[Any, Any, Any], change: FromPath[str]) -> Response[bytes]:
        """Make a change that another person proposed, with its checks run anew."""
        body = await read_management_body(request, client_timeout, _DECISION, default=b"{}")
        with _approval_errors():
            approving = approvals.approve(change, principal_of(request).may, body.reason, dry_run=body.dry_run)
            return json_response(change_object(await approving))

    @post(
        f"{_ONE}/withdraw",
        status_code=200,
        opt=demands("approvals.read", fresh=True)
        | describes(
            ChangeObject,
            body=WithdrawalDecision(reason="a slip"),
            body_required=False,
            errors={"wrong_state": 409},
        ),
    )
    async def withdraw_change(request: Request[Any, Any, Any], change: FromPath[str]) -> Response[bytes]:
        """End a change without making it; its author may do so too."""
        body = await read_management_body(request, client_timeout, _WITHDRAWAL, default=b"{}")
        with _approval_errors():
            return json_response(
                change_object(await approvals.withdraw(change, principal_of(request).may, body.reason))
            )

    return [list_approvals, retrieve_approval, approve_change, withdraw_change]


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
