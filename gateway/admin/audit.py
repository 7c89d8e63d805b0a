"""GET /admin/v1/audit: who changed what. A tenant's owners see their tenant's entries, finance those about money."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

import msgspec
from litestar.response import Stream
from msgspec import Meta, Struct

from audit_log import csv_rows
from audit_log.actors import OPERATOR, OPERATOR_MEANS, THIS_MACHINE, Actor, Means
from audit_log.reading import AuditLog, Entry, Filter, Scope
from audit_log.tables import PLATFORM
from audit_log.verification import check_end
from gateway.admin.access import refusal, seen_tenant
from gateway.admin.operation import Call, Query, operation
from gateway.errors import InvalidField
from gateway.http.operations import files
from gateway.http.policies import demands
from gateway.http.shapes import Instant, Page, PageQuery
from gateway.services import Gateway
from storage.database.database import DatabaseUnavailable
from storage.database.public_ids import prefixed_id
from tenancy.directory import PROJECT_PREFIX, project_public_id, tenant_public_id
from tenancy.rights.permissions import ROLE_PERMISSIONS
from tenancy.rights.principals import Principal

_PREFIX = "audit_"
_LINES = 200
"""Entries of one piece of a CSV file."""
_SUSPENSIONS = frozenset({"tenant.suspended", "tenant.resumed", "project.suspended", "project.resumed"})
_NOT_AGREED = frozenset({"change.proposed", "change.withdrawn", "price_sheet.drafted", "price_sheet.withdrawn"})
"""Actions by which nothing applies to a tenant: what the platform's people considered is not for it to read."""


class AuditActor(Struct, frozen=True):
    """Who did it. `means` is how that is known; `name` is for people to read. What is not for the reader is empty."""

    means: Means
    id: Annotated[str, Meta(examples=["user_0199"])]
    name: Annotated[str, Meta(examples=["Ann"])]
    through: str
    address: Annotated[str, Meta(examples=["192.0.2.7"])]


class AuditTarget(Struct, frozen=True):
    """What was changed."""

    type: Annotated[str, Meta(examples=["budget"])]
    id: str


State: TypeAlias = Annotated[
    Any,
    Meta(
        description="The fields of the target, as they were or became.",
        extra_json_schema={"type": ["object", "null"], "additionalProperties": True},
        examples=[{"amount": "100.00"}],
    ),
]


class AuditEntryObject(Struct, frozen=True, kw_only=True):
    """One change. `number` counts the entries of its tenant, or of the platform. `before` is null where the target did
    not exist, `after` where it no longer does."""

    object: Literal["audit_entry"] = "audit_entry"
    id: str
    number: int
    at: str
    action: Annotated[str, Meta(examples=["budget.set"])]
    target: AuditTarget
    tenant: str | None
    project: str | None
    actor: AuditActor
    request_id: str
    reason: str
    before: State
    after: State


class AuditEntryList(Page[AuditEntryObject], frozen=True):
    """Entries, the newest first."""


class AuditChainObject(Struct, frozen=True, kw_only=True):
    """The hash chain of a tenant's entries, or of the platform's. Its last `checked` entries were verified now: each
    says what it said and follows from the one before, unless `problems` says otherwise. `anchored`: up to which entry
    the platform's chain vouches for a tenant's."""

    object: Literal["audit_chain"] = "audit_chain"
    tenant: str | None
    entries: int
    head: Annotated[str, Meta(examples=["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"])]
    anchored: int
    checked: int
    problems: list[str]


_CSV = files(
    "text/csv", description="The same as CSV.", example="number,at,action\r\n7,2026-11-22T09:30:00Z,budget.set\r\n"
)


class AuditOperations:
    """Lists changes, and checks their hash chains."""

    def __init__(self, gateway: Gateway) -> None:
        self._database, self._log = gateway.services.database, AuditLog(gateway.services.database)

    @operation("GET", "/admin/v1/audit", demands("audit.read"), files=_CSV)
    async def list_audit_entries(
        self,
        call: Call,
        page: PageQuery,
        *,
        actor: Annotated[str | None, Query("Only what this actor did: an id or a name.", example="Ann")] = None,
        action: Annotated[str | None, Query("Only this action, or all of one kind.", example="invoice.*")] = None,
        target: Annotated[str | None, Query("Only changes of this kind of object.", example="budget")] = None,
        target_id: Annotated[str | None, Query("Only changes of the object with this id.", example="0199d2a0")] = None,
        tenant: Annotated[str | None, Query("Only of this tenant: its name or id.", example="demo")] = None,
        platform: Annotated[bool, Query("Only what belongs to no tenant.", shown=Literal["true", "false"])] = False,
        project: Annotated[
            str | None, Query("Only of the project with this id.", example="project_0199d2a07b1c7e0c8f0e6a5b4c3d2e1f")
        ] = None,
        from_: Annotated[Instant | None, Query("Only from this instant on.", example="2026-11-01T00:00:00Z")] = None,
        to: Annotated[Instant | None, Query("Only before this instant.", example="2026-12-01T00:00:00Z")] = None,
        format: Annotated[
            Literal["json", "csv"] | None, Query("`csv` gives all entries as a file, as `Accept: text/csv` does.")
        ] = None,
    ) -> AuditEntryList | Stream:
        """List changes, the newest first. Every change of money, access, sharing or prices has an entry."""
        project_id = None if project is None else prefixed_id(project, PROJECT_PREFIX)
        if project is not None and project_id is None:
            raise InvalidField("project", f"{project[:80]!r} is not the id of a project, such as project_0199…")
        filters = Filter(
            actor=actor,
            action=action,
            target=target,
            target_id=target_id,
            tenant_id=None if tenant is None else (await seen_tenant(call.gateway, call.request, tenant)).id,
            platform=platform,
            project_id=project_id,
            since=from_,
            until=to,
        )
        scopes = scopes_of(call.principal)
        whole = any(scope.tenant_id is None for scope in scopes)
        if (format or _accepted(call)) == "csv":
            first = await self._log.page(filters, scopes, 1)  # so that an absent database is an error, not half a file
            return _csv(self._log.stream(filters, scopes) if first else _nothing(), whole=whole)
        position = None if page.after is None else _position(page.after)
        entries = await self._log.page(filters, scopes, page.limit + 1, position)
        return AuditEntryList.of([_object(entry if whole else for_tenant(entry)) for entry in entries], page.limit)

    @operation("GET", "/admin/v1/audit/chain", demands("audit.read"), errors={"not_found": 404})
    async def retrieve_audit_chain(
        self,
        call: Call,
        tenant: Annotated[
            str | None, Query("Of this tenant: its name or id. The platform's without it.", example="demo")
        ] = None,
    ) -> AuditChainObject:
        """Where a chain ends, and whether its last 1,000 entries are whole. `turnpike audit log --verify` reads all."""
        tenant_id = None if tenant is None else (await seen_tenant(call.gateway, call.request, tenant)).id
        if not call.principal.may("audit.read", tenant_id):
            raise refusal("audit.read")
        async with self._database.reading() as session:
            end = await check_end(session, tenant_id or PLATFORM)
        return AuditChainObject(
            tenant=None if tenant_id is None else tenant_public_id(tenant_id),
            entries=end.entries,
            head=end.head.hex(),
            anchored=end.anchored,
            checked=end.checked,
            problems=[f"{each.what}, number {each.number}: {each.detail}" for each in end.findings[:_LINES]],
        )


def scopes_of(principal: Principal) -> list[Scope]:
    """What of the log this principal may see."""
    readers = ROLE_PERMISSIONS["audit.read"]
    return [
        Scope(one.tenant_id, one.project_id, money=one.role == "finance")
        for one in principal.memberships
        if one.role in readers and principal.may("audit.read", one.tenant_id, one.project_id)
    ]


def for_tenant(entry: Entry) -> Entry:
    """The entry as a tenant's people see it. Left out are:

    - of an operator: all but name, means and request id
    - of a suspension: the reason
    - of a change that is not approved: reason and content, so that only its existence is told
    - of an approval: the reason, and the state before it
    """
    if entry.action in _SUSPENSIONS:
        before, after = (_without_reason(state) for state in (entry.before, entry.after))
        entry = msgspec.structs.replace(entry, reason="", before=before, after=after)
    elif entry.action in _NOT_AGREED:
        entry = msgspec.structs.replace(entry, reason="", before=None, after=None)
    elif entry.action == "change.approved":
        entry = msgspec.structs.replace(entry, reason="", before=None)
    actor = entry.actor
    if actor.means not in OPERATOR_MEANS and actor.through != OPERATOR:
        return entry
    name = THIS_MACHINE if actor.means == "command" else actor.name  # a command's is USER@HOST
    return msgspec.structs.replace(entry, actor=Actor(actor.means, "", name, request_id=actor.request_id))


def _without_reason(state: str | None) -> str | None:
    if state is None:
        return None
    fields = msgspec.json.decode(state, type=dict[str, msgspec.Raw])
    fields.pop("reason", None)
    return msgspec.json.encode(fields).decode()


def _accepted(call: Call) -> str:
    return "csv" if call.request.headers.get("accept", "").split(";")[0].strip().lower() == "text/csv" else "json"


def _csv(entries: AsyncIterator[Entry], *, whole: bool) -> Stream:
    async def pieces() -> AsyncIterator[str]:
        yield csv_rows.header()
        piece: list[Entry] = []
        try:
            async for entry in entries:
                piece.append(entry if whole else for_tenant(entry))
                if len(piece) == _LINES:
                    yield csv_rows.lines(piece)
                    piece.clear()
        except DatabaseUnavailable as error:
            raise ConnectionAbortedError("the database went away: the file is not whole") from error
        yield csv_rows.lines(piece)

    headers = {"content-disposition": 'attachment; filename="audit.csv"', "cache-control": "no-store"}
    return Stream(pieces(), headers=headers | {"content-type": csv_rows.MEDIA_TYPE})


async def _nothing() -> AsyncIterator[Entry]:
    nothing: Iterable[Entry] = ()
    for entry in nothing:
        yield entry


def _position(name: str) -> tuple[UUID, int]:
    tenant, _, number = name.removeprefix(_PREFIX).partition("_")
    try:
        if name.startswith(_PREFIX) and number.isascii() and number.isdigit() and len(number) < 19:
            return UUID(tenant), int(number)
    except ValueError:
        pass
    raise InvalidField("after", f"{name[:80]!r} is not the id of an entry")


def _object(entry: Entry) -> AuditEntryObject:
    actor = entry.actor
    return AuditEntryObject(
        id=f"{_PREFIX}{(entry.tenant_id or PLATFORM).hex}_{entry.number}",
        number=entry.number,
        at=csv_rows.format_at(entry.at),
        action=entry.action,
        target=AuditTarget(entry.target, entry.target_id),
        tenant=None if entry.tenant_id is None else tenant_public_id(entry.tenant_id),
        project=None if entry.project_id is None else project_public_id(entry.project_id),
        actor=AuditActor(actor.means, actor.id, actor.name, actor.through, actor.address),
        request_id=actor.request_id,
        reason=entry.reason,
        before=_raw(entry.before),
        after=_raw(entry.after),
    )


def _raw(text: str | None) -> Any:
    return None if text is None else msgspec.Raw(text.encode())
