"""/admin/v1/tenants/{tenant}/budgets: how much a tenant, project, key or tag may use."""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Struct

from billing.accounts.balances import Balances
from billing.accounts.budgets import THRESHOLDS, BudgetSettings
from billing.budgets.windows import Action, BudgetScope, BudgetWindow, Span
from billing.calendar import format_instant
from billing.money import format_pico
from gateway.admin.access import partly_visible_tenant, project_named, visible_tenant
from gateway.admin.refusals import amount_at, refusals
from gateway.dialects.query_parameters import Parameters
from gateway.endpoints.request_body import read_management_body
from gateway.errors import InvalidField, NotFound
from gateway.http.operations import describes, page, query
from gateway.http.pages import Page
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.services import Gateway
from storage.database.database import Database
from storage.database.public_ids import PREFIXES, public_id
from tenancy.directory import Directory, project_public_id


class NewBudget(Struct, frozen=True, forbid_unknown_fields=True):
    """A budget for a project, a key (its public id) or a tag, or without them for the whole tenant; it counts from now
    on. A budget of the same subject and window is replaced. `thresholds`: percentages of the limit at which webhooks
    are sent. `dry_run`: only check."""

    limit: str
    project: str | None = None
    key: str | None = None
    tag: str | None = None
    window: Span = "month"
    action: Action = "block"
    thresholds: tuple[int, ...] = THRESHOLDS
    dry_run: bool = False


class BudgetObject(Struct, frozen=True, kw_only=True):
    """A budget in its present window. `subject`: the project's id, the key's public id, or the tag; `name`: the name of
    that project or key, or the tag. `available`: what may still be reserved; none if nothing is ever refused."""

    object: Literal["budget"] = "budget"
    id: str
    scope: BudgetScope
    subject: str
    name: str
    window: Span
    action: Action
    thresholds: list[int]
    currency: str
    limit: str
    spent: str
    held: str
    available: str | None
    resets_at: str | None


class BudgetList(Page[BudgetObject]):
    """Budgets by scope, subject and window."""


class BudgetCheck(Struct, frozen=True, kw_only=True):
    """The result of a dry run: whether a budget would be replaced."""

    object: Literal["budget.check"] = "budget.check"
    replaces: str | None


class RemovedBudget(Struct, frozen=True, kw_only=True):
    """A budget that is out of force; with `dry_run`, that would be."""

    object: Literal["budget.deleted"] = "budget.deleted"
    id: str
    deleted: bool


_NEW = msgspec.json.Decoder(NewBudget)


def budget_routes(gateway: Gateway) -> list[HTTPRouteHandler]:  # noqa: PLR0915  # three routes
    """The routes, for one worker."""
    database, client_timeout = gateway.services.database, gateway.services.options.client_timeout
    budgets = BudgetSettings(gateway.services.database)
    balances, directory, shapes = Balances(database), Directory(database), BudgetShapes(database)

    async def shown(tenant_id: UUID, windows: list[BudgetWindow]) -> list[BudgetObject]:
        return await shapes.of(tenant_id, windows, await balances.currency_of(tenant_id))

    async def subject_of(tenant_id: UUID, body: NewBudget) -> tuple[BudgetScope, str]:
        if sum(name is not None for name in (body.project, body.key, body.tag)) > 1:
            raise InvalidField("$", "a budget is for one of project, key and tag, or without them for the tenant")
        if body.project is not None:
            project = await project_named(gateway, tenant_id, body.project)
            if project is None:
                raise InvalidField("$.project", f"the tenant has no project {body.project[:80]!r}")
            return "project", str(project.id)
        if body.key is not None:
            key = await directory.key(tenant_id, body.key)
            if key is None:
                raise InvalidField("$.key", f"the tenant has no key {body.key[:80]!r}")
            return "key", str(key)
        return ("tenant", "") if body.tag is None else ("tag", body.tag)

    @get("/admin/v1/tenants/{tenant:str}/budgets", opt=demands("budgets.read") | describes(BudgetList, query=page()))
    async def list_budgets(request: Request[Any, Any, Any], tenant: FromPath[str]) -> Response[bytes]:
        """The tenant's budgets, with what was used of them in their present windows."""
        owner, projects = await partly_visible_tenant(gateway, request, tenant, "budgets.read")
        parameters = Parameters.of(request)
        limit, after = parameters.page_size(), parameters.text("after")
        parameters.reject_unknown()
        found = await budgets.list(owner.id)
        if projects is not None:
            own = {str(project) for project in projects}
            found = [window for window in found if window.scope == "project" and window.subject in own]
        if after is not None:
            places = [place for place, window in enumerate(found) if window.budget_id == _id(after)]
            if not places:
                raise InvalidField("after", "there is no such budget")
            found = found[places[0] + 1 :]
        listed = await shown(owner.id, found[:limit])
        return json_response(BudgetList(data=listed, has_more=len(found) > limit))

    @post(
        "/admin/v1/tenants/{tenant:str}/budgets",
        status_code=200,
        opt=demands("budgets.write")
        | describes(
            (BudgetObject, BudgetCheck),
            body=NewBudget(limit="100.00"),
            errors={"invalid_budget": 400, "invalid_amount": 400},
        ),
    )
    async def set_budget(request: Request[Any, Any, Any], tenant: FromPath[str]) -> Response[bytes]:
        """Set a budget, in place of one for the same subject and window."""
        owner = await visible_tenant(gateway, request, tenant, "budgets.write")
        body = await read_management_body(request, client_timeout, _NEW)
        limit = amount_at("$.limit", body.limit)
        scope, subject = await subject_of(owner.id, body)
        with refusals():
            same = (scope, subject, body.window)
            present = await budgets.list(owner.id) if body.dry_run else []
            replaced = [each for each in present if (each.scope, each.subject, each.span) == same]
            made = await budgets.set(
                owner.id,
                scope,
                subject,
                body.window,
                limit_pico=limit,
                currency=await balances.currency_of(owner.id),
                action=body.action,
                thresholds=body.thresholds,
                dry_run=body.dry_run,
                key=body.key or "",
            )
        if body.dry_run:
            return json_response(BudgetCheck(replaces=_name(replaced[0].budget_id) if replaced else None))
        windows = [window for window in await budgets.list(owner.id) if window.budget_id == made]
        return json_response((await shown(owner.id, windows))[0])

    @delete(
        "/admin/v1/tenants/{tenant:str}/budgets/{budget:str}",
        status_code=200,
        opt=demands("budgets.write")
        | describes(RemovedBudget, query=(query("dry_run", bool, "Only check.", example=False),)),
    )
    async def remove_budget(
        request: Request[Any, Any, Any], tenant: FromPath[str], budget: FromPath[str]
    ) -> Response[bytes]:
        """Take a budget out of force."""
        owner = await visible_tenant(gateway, request, tenant, "budgets.write")
        parameters = Parameters.of(request)
        dry_run = parameters.boolean("dry_run") or False
        parameters.reject_unknown()
        identity = _id(budget)
        found = [window for window in await budgets.list(owner.id) if window.budget_id == identity]
        if identity is None or not found:
            raise NotFound(f"There is no budget {budget[:80]!r}.")
        if not dry_run:
            subject = (await shown(owner.id, found))[0].subject
            with refusals():
                await budgets.remove(owner.id, identity, key=subject)
        return json_response(RemovedBudget(id=_name(identity), deleted=not dry_run))

    return [list_budgets, set_budget, remove_budget]


class BudgetShapes:
    """Budgets as answers have them, with the names of their subjects."""

    def __init__(self, database: Database) -> None:
        self._directory = Directory(database)

    async def of(self, tenant_id: UUID, windows: list[BudgetWindow], currency: str) -> list[BudgetObject]:
        """The budgets of a tenant whose balance has this currency. Raises DatabaseUnavailable."""
        key_ids = _subjects(windows, "key")
        keys = await self._directory.named_keys(tenant_id, key_ids) if key_ids else {}
        project_ids = _subjects(windows, "project")
        projects = await self._directory.project_names(tenant_id, project_ids) if project_ids else {}
        known = {str(key): (named.public_id, named.name) for key, named in keys.items()}
        known |= {str(project): (project_public_id(project), name) for project, name in projects.items()}
        return [_object(window, currency, *known.get(window.subject, (window.subject,) * 2)) for window in windows]


def _subjects(windows: list[BudgetWindow], scope: BudgetScope) -> list[UUID]:
    return [UUID(window.subject) for window in windows if window.scope == scope]


def _id(name: str) -> UUID | None:
    try:
        return UUID(name.removeprefix(PREFIXES["budget"]))
    except ValueError:
        return None


def _name(budget_id: UUID) -> str:
    return public_id("budget", budget_id)


def _object(window: BudgetWindow, currency: str, subject: str, name: str) -> BudgetObject:
    return BudgetObject(
        id=_name(window.budget_id),
        scope=window.scope,
        subject=subject,
        name=name,
        window=window.span,
        action=window.action,
        thresholds=[int(percent) for percent in window.thresholds.split(",")],
        currency=currency,
        limit=format_pico(window.limit_pico),
        spent=format_pico(window.spent),
        held=format_pico(window.held),
        available=None if window.available is None else format_pico(window.available),
        resets_at=None if window.resets_at is None else format_instant(window.resets_at),
    )
