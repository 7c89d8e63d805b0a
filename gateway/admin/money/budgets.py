"""/admin/v1/tenants/{tenant}/budgets: how much a tenant, project, key or tag may use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal
from uuid import UUID

from msgspec import Struct

from billing.accounts.balances import Balances
from billing.accounts.budgets import THRESHOLDS, BudgetSettings
from billing.budgets.windows import Action, BudgetScope, BudgetWindow, Span
from gateway.admin.access import PartOfTenant, project_named
from gateway.admin.operation import Call, Query, operation
from gateway.errors import InvalidField, NotFound
from gateway.http.policies import demands
from gateway.http.shapes import BudgetId, Instant, Page, PageQuery, Pico, show
from gateway.services import Gateway
from storage.database.database import Database
from storage.database.public_ids import PREFIXES
from tenancy.directory import Directory, project_public_id
from tenancy.tables import Tenant


class NewBudget(Struct, frozen=True, forbid_unknown_fields=True):
    """A budget for a project, a key (its public id) or a tag, or without them for the whole tenant; it counts from now
    on. A budget of the same subject and window is replaced. `thresholds`: percentages of the limit at which webhooks
    are sent. `dry_run`: only check."""

    limit: Pico
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
    id: BudgetId
    scope: BudgetScope
    subject: str
    name: str
    window: Span
    action: Action
    thresholds: list[int]
    currency: str
    limit: Pico
    spent: Pico
    held: Pico
    available: Pico | None
    resets_at: Instant | None


class BudgetList(Page[BudgetObject], frozen=True):
    """Budgets by scope, subject and window."""


class BudgetCheck(Struct, frozen=True, kw_only=True):
    """The result of a dry run: whether a budget would be replaced."""

    object: Literal["budget.check"] = "budget.check"
    replaces: BudgetId | None


class RemovedBudget(Struct, frozen=True, kw_only=True):
    """A budget that is out of force; with `dry_run`, that would be."""

    object: Literal["budget.deleted"] = "budget.deleted"
    id: BudgetId
    deleted: bool


_PATH = "/admin/v1/tenants/{tenant:str}/budgets"


class BudgetOperations:
    """Lists, sets and removes budgets."""

    def __init__(self, gateway: Gateway) -> None:
        database = gateway.services.database
        self._budgets, self._balances = BudgetSettings(database), Balances(database)
        self._directory, self._shapes = Directory(database), BudgetShapes(database)

    @operation("GET", _PATH, demands("budgets.read"))
    async def list_budgets(self, tenant: PartOfTenant, page: PageQuery) -> BudgetList:
        """The tenant's budgets, with what was used of them in their present windows."""
        owner, projects = tenant
        windows: Sequence[BudgetWindow] = await self._budgets.list(owner.id)
        if projects is not None:
            own = {str(project) for project in projects}
            windows = [window for window in windows if window.scope == "project" and window.subject in own]
        windows = page.rest(windows, lambda window: window.budget_id, _id, "budget")
        return BudgetList.of(await self._shown(owner.id, windows[: page.limit + 1]), page.limit)

    @operation(
        "POST",
        _PATH,
        demands("budgets.write"),
        example=NewBudget(limit=Pico(100 * 10**12)),
        errors={"invalid_budget": 400, "invalid_amount": 400},
    )
    async def set_budget(self, call: Call, tenant: Tenant, body: NewBudget) -> BudgetObject | BudgetCheck:
        """Set a budget, in place of one for the same subject and window."""
        scope, subject = await self._subject_of(call.gateway, tenant.id, body)
        present = await self._budgets.list(tenant.id) if body.dry_run else []
        budget_id = await self._budgets.set(
            tenant.id,
            scope,
            subject,
            body.window,
            limit_pico=body.limit,
            currency=await self._balances.currency_of(tenant.id),
            action=body.action,
            thresholds=body.thresholds,
            dry_run=body.dry_run,
            key=body.key or "",
        )
        if body.dry_run:
            same = (scope, subject, body.window)
            replaced = [each for each in present if (each.scope, each.subject, each.span) == same]
            return BudgetCheck(replaces=BudgetId.of(replaced[0].budget_id) if replaced else None)
        windows = [window for window in await self._budgets.list(tenant.id) if window.budget_id == budget_id]
        return (await self._shown(tenant.id, windows))[0]

    @operation("DELETE", f"{_PATH}/{{budget:str}}", demands("budgets.write"))
    async def remove_budget(
        self,
        tenant: Tenant,
        budget: str,
        dry_run: Annotated[bool, Query("Only check.", example=False)] = False,  # by name
    ) -> RemovedBudget:
        """Take a budget out of force."""
        budget_id = _id(budget)
        windows = [window for window in await self._budgets.list(tenant.id) if window.budget_id == budget_id]
        if budget_id is None or not windows:
            raise NotFound(f"There is no budget {budget[:80]!r}.")
        if not dry_run:
            subject = (await self._shown(tenant.id, windows))[0].subject
            await self._budgets.remove(tenant.id, budget_id, key=subject)
        return RemovedBudget(id=BudgetId.of(budget_id), deleted=not dry_run)

    async def _shown(self, tenant_id: UUID, windows: Sequence[BudgetWindow]) -> list[BudgetObject]:
        return await self._shapes.of(tenant_id, windows, await self._balances.currency_of(tenant_id))

    async def _subject_of(self, gateway: Gateway, tenant_id: UUID, body: NewBudget) -> tuple[BudgetScope, str]:
        if sum(name is not None for name in (body.project, body.key, body.tag)) > 1:
            raise InvalidField("$", "a budget is for one of project, key and tag, or without them for the tenant")
        if body.project is not None:
            project = await project_named(gateway, tenant_id, body.project)
            if project is None:
                raise InvalidField("$.project", f"the tenant has no project {body.project[:80]!r}")
            return "project", str(project.id)
        if body.key is not None:
            key = await self._directory.key(tenant_id, body.key)
            if key is None:
                raise InvalidField("$.key", f"the tenant has no key {body.key[:80]!r}")
            return "key", str(key)
        return ("tenant", "") if body.tag is None else ("tag", body.tag)


class BudgetShapes:
    """Budgets as answers have them, with the names of their subjects."""

    def __init__(self, database: Database) -> None:
        self._directory = Directory(database)

    async def of(self, tenant_id: UUID, windows: Sequence[BudgetWindow], currency: str) -> list[BudgetObject]:
        """The budgets of a tenant whose balance has this currency. Raises DatabaseUnavailable."""
        key_ids = _subjects(windows, "key")
        keys = await self._directory.named_keys(tenant_id, key_ids) if key_ids else {}
        project_ids = _subjects(windows, "project")
        projects = await self._directory.project_names(tenant_id, project_ids) if project_ids else {}
        names = {str(key): (named.public_id, named.name) for key, named in keys.items()}
        names |= {str(project): (project_public_id(project), name) for project, name in projects.items()}
        return [_object(window, currency, *names.get(window.subject, (window.subject,) * 2)) for window in windows]


def _subjects(windows: Sequence[BudgetWindow], scope: BudgetScope) -> list[UUID]:
    return [UUID(window.subject) for window in windows if window.scope == scope]


def _id(name: str) -> UUID | None:
    try:
        return UUID(name.removeprefix(PREFIXES["budget"]))
    except ValueError:
        return None


def _object(window: BudgetWindow, currency: str, subject: str, name: str) -> BudgetObject:
    return show(
        BudgetObject,
        window,
        id=window.budget_id,
        subject=subject,
        name=name,
        window=window.span,
        thresholds=[int(percent) for percent in window.thresholds.split(",")],
        currency=currency,
        limit=window.limit_pico,
    )
