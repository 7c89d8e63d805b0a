"""/admin/v1/tenants/{tenant}/batches: the batches of a tenant's projects, as its people see and cancel them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal
from uuid import UUID

from msgspec import Meta, Struct

from batch_store.records import Batch, BatchProblem, Status, Surface
from batch_store.running import batch_name
from batch_store.store import BatchStore
from billing.calendar import format_instant
from billing.reports.request_list import costs_of_batch
from gateway.admin.access import PartOfTenant
from gateway.admin.operation import Query, operation
from gateway.admin.usage import project_filter
from gateway.dialects.usage_reports import Cost, costs_by_currency
from gateway.errors import Conflict, InvalidField, NotFound
from gateway.http.policies import demands
from gateway.http.shapes import Page, PageQuery
from gateway.services import Gateway
from prompt_cache.promise.scope_keys import ScopeKeyUnreadable
from storage.database.public_ids import prefixed_id, public_id
from tenancy.directory import Directory, project_public_id

BATCHES = "/admin/v1/tenants/{tenant:str}/batches"
ID = "batch_01934f6e0d2a7b3c8e51a9c4d7f60b12"
_FILE = "file_01934f6e0d2a7b3c8e51a9c4d7f60b12"
_NAME = {"batch": ID}
FileName = Annotated[str | None, Meta(examples=[_FILE])]


class BatchCounts(Struct, frozen=True, kw_only=True):
    """The lines of a batch: all, and how those ended that have. `left`: those that have not."""

    total: int
    left: int
    completed: int
    failed: int
    cancelled: int
    expired: int


class BatchTokens(Struct, frozen=True, kw_only=True):
    """The tokens of answers together, as far as the batch's dialect has them: of message batches they are 0."""

    input: int
    cached: int
    output: int
    reasoning: int


class BatchError(Struct, frozen=True, kw_only=True):
    """Why a batch failed or was stopped. `line`: of the input, from 1."""

    code: str
    message: str
    line: Annotated[int | None, Meta(examples=[7])]
    param: str | None


class TenantBatchObject(Struct, frozen=True, kw_only=True):
    """A batch. `surface`: whose dialect it was ordered in. `key`: the public id of the key that its lines are run for.
    `cost`: what the books have of its lines until now. `results`: which files of results there are."""

    object: Literal["tenant.batch"] = "tenant.batch"
    id: Annotated[str, Meta(examples=[ID])]
    project_id: str
    project: str | None
    key: Annotated[str, Meta(examples=["k7WmXq2ZpR4t"])]
    surface: Surface
    endpoint: Annotated[str, Meta(examples=["/v1/chat/completions"])]
    lane: Literal["batch"] = "batch"
    status: Status
    counts: BatchCounts
    tokens: BatchTokens
    cost: list[Cost]
    errors: list[BatchError]
    input_file_id: FileName
    results: Annotated[list[Literal["output", "error"]], Meta(examples=[["output"]])]
    created_at: str
    expires_at: str
    in_progress_at: str | None
    finalizing_at: str | None
    cancelling_at: str | None
    ended_at: str | None


class TenantBatchList(Page[TenantBatchObject], frozen=True):
    """A tenant's batches, the newest first."""


class BatchOperations:
    """Lists, shows and cancels batches."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._directory = Directory(gateway.services.database)

    @operation("GET", BATCHES, demands("requests.read"))
    async def list_batches(
        self,
        tenant: PartOfTenant,
        page: PageQuery,
        project: Annotated[list[str] | None, Query("Only of this project, by id or name.", example="default")] = None,
        state: Annotated[Literal["running", "ended"] | None, Query("Only those that run, or have ended.")] = None,
    ) -> TenantBatchList:
        """The batches of the tenant's projects that you may see, in both dialects, the newest first."""
        owner, visible = tenant
        projects = await project_filter(self._gateway, owner.id, project, visible)
        before = None if page.after is None else id_of(page.after)
        if page.after is not None and before is None:
            raise InvalidField("after", f"{page.after[:80]!r} is not the id of a batch")
        ended = None if state is None else state == "ended"
        store = batch_store(self._gateway)
        found = await store.page(owner.id, projects, limit=page.limit + 1, ended=ended, before=before)
        return TenantBatchList(data=await self._shown(found[: page.limit]), has_more=len(found) > page.limit)

    @operation("GET", f"{BATCHES}/{{batch:str}}", demands("requests.read"), path=_NAME)
    async def retrieve_batch(self, tenant: PartOfTenant, batch: str) -> TenantBatchObject:
        """One batch."""
        return (await self._shown([await find_batch(self._gateway, tenant, batch)]))[0]

    @operation("POST", f"{BATCHES}/{{batch:str}}/cancel", demands("inference"), path=_NAME, errors={"conflict": 409})
    async def cancel_batch(self, tenant: PartOfTenant, batch: str) -> TenantBatchObject:
        """Begin no further line of a batch. Lines that run are finished, and paid for."""
        found, store = await find_batch(self._gateway, tenant, batch), batch_store(self._gateway)
        if not await store.cancel(found.tenant_id, found.project_id, found.id):
            found = await find_batch(self._gateway, tenant, batch)
            if found.status not in ("cancelling", "cancelled"):
                raise Conflict(f"The batch is {found.status}; it cannot be cancelled any more.")
        return (await self._shown([await find_batch(self._gateway, tenant, batch)]))[0]

    async def _shown(self, batches: Sequence[Batch]) -> list[TenantBatchObject]:
        if not batches:
            return []
        names = await self._directory.project_names(batches[0].tenant_id, {one.project_id for one in batches})
        database = self._gateway.services.database
        shown = []
        for one in batches:
            cost = await costs_of_batch(database, one.tenant_id, one.project_id, one.id)
            shown.append(_object(one, names, costs_by_currency(cost)))
        return shown


def batch_store(gateway: Gateway) -> BatchStore:
    """The batches. Raises NotFound where there are none."""
    if gateway.files is None:
        raise NotFound("This gateway runs no batches.")
    return BatchStore(gateway.files)


async def find_batch(gateway: Gateway, tenant: PartOfTenant, name: str) -> Batch:
    """A batch of these projects of a tenant, in either dialect. Raises NotFound, DatabaseUnavailable."""
    (owner, visible), id_ = tenant, id_of(name)
    try:
        found = None if id_ is None else await batch_store(gateway).get(owner.id, None, id_)
    except ScopeKeyUnreadable:
        found = None
    if found is None or batch_name(found) != name or (visible is not None and found.project_id not in visible):
        raise NotFound(f"There is no batch {name[:80]!r}.")
    return found


def id_of(name: str) -> UUID | None:
    """The id in a batch's name, which either vendor's clients know; None for anything else."""
    return prefixed_id(name, "batch_") or prefixed_id(name, "msgbatch_")


def _object(batch: Batch, projects: Mapping[UUID, str], cost: list[Cost]) -> TenantBatchObject:
    ended = batch.completed + batch.failed + batch.cancelled + batch.expired
    tokens = batch.tokens
    results: list[Literal["output", "error"]] = []
    if batch.output_file_id is not None:
        results.append("output")
    if batch.error_file_id is not None:
        results.append("error")
    return TenantBatchObject(
        id=batch_name(batch),
        project_id=project_public_id(batch.project_id),
        project=projects.get(batch.project_id),
        key=batch.key,
        surface=batch.surface,
        endpoint=batch.endpoint,
        status=batch.status,
        counts=BatchCounts(
            total=batch.total,
            left=max(0, batch.total - ended),
            completed=batch.completed,
            failed=batch.failed,
            cancelled=batch.cancelled,
            expired=batch.expired,
        ),
        tokens=BatchTokens(input=tokens.input, cached=tokens.cached, output=tokens.output, reasoning=tokens.reasoning),
        cost=cost,
        errors=[_error(problem) for problem in batch.problems],
        input_file_id=public_id("file", batch.input_file_id) if batch.surface == "openai" else None,
        results=results,
        created_at=format_instant(batch.created_at),
        expires_at=format_instant(batch.expires_at),
        in_progress_at=_instant(batch.in_progress_at),
        finalizing_at=_instant(batch.finalizing_at),
        cancelling_at=_instant(batch.cancelling_at),
        ended_at=_instant(batch.ended_at),
    )


def _error(problem: BatchProblem) -> BatchError:
    return BatchError(code=problem.code, message=problem.message, line=problem.line, param=problem.param)


def _instant(instant: int | None) -> str | None:
    return None if instant is None else format_instant(instant)
