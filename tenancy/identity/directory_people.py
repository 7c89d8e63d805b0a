"""The people and groups of tenants' directories, as a SCIM client keeps them.

A person is bound to an account by what the tenant's identity provider knows it by, or where an account of this e-mail
address has a role at the tenant already. Whoever else has the address is somebody until the provider says otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
from msgspec import Struct
from sqlalchemy import ColumnElement, delete, func, select, true
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from storage.database.base import from_instant, new_id, to_instant
from storage.database.database import Database
from tenancy.identity.directories import Directories
from tenancy.identity.directory_roles import end_membership, give_directory_roles, locked_people
from tenancy.identity.tables import (
    DirectoryGroup,
    DirectoryMember,
    DirectoryUser,
    IdentityProvider,
    UserIdentity,
)
from tenancy.repositories import Tenancy
from tenancy.rights.principals import Principal
from tenancy.users.errors import NoSuchUser, NotPermitted, UserError, WrongState
from tenancy.users.roles import may_give
from tenancy.users.service import Users
from tenancy.users.tables import MembershipRow, UserAccount

MOST_PEOPLE, MOST_GROUPS = 100_000, 5_000
MOST_MEMBERS_SHOWN = 20_000
"""After so many members of groups a page of groups ends."""
Where: TypeAlias = Mapping[str, Any]
"""Attribute of a person or group -> the value that it must have."""


class NameTaken(UserError):
    """Another person or group of the directory has this name."""


class ChangedMeanwhile(UserError):
    """A person or group was changed since it was looked at."""


class PersonFields(Struct, frozen=True, kw_only=True):
    """What a SCIM client says of a person. `content`: what else the resource has, as it is shown again."""

    user_name: str
    external_id: str
    email: str
    active: bool
    content: Mapping[str, Any]


class Person(PersonFields, frozen=True, kw_only=True):
    """A person of a directory. `user_id`: the account; `groups`: id and name of each."""

    id: UUID
    user_id: UUID | None
    groups: tuple[tuple[UUID, str], ...]
    created_at: int
    changed_at: int


class Group(Struct, frozen=True, kw_only=True):
    """A group of a directory. `members`: id and user name of each. `role`: what they have; empty: nothing."""

    id: UUID
    name: str
    external_id: str
    members: tuple[tuple[UUID, str], ...]
    role: str
    project_id: UUID | None
    created_at: int
    changed_at: int


class DirectoryPeople:
    """Keeps directories. Every method is for one tenant and may raise DatabaseUnavailable."""

    def __init__(self, database: Database, users: Users, tenancy: Tenancy, directories: Directories) -> None:
        self._database = database
        self._users = users
        self._tenancy = tenancy
        self._directories = directories

    async def put_person(
        self, tenant_id: UUID, fields: PersonFields, person_id: UUID | None = None, *, seen: int | None = None
    ) -> Person:
        """Add a person, or replace what is said of one. Who is not active any more has left when this returns.
        `seen`: `changed_at` of the person that the fields were made from, which must be what it is still.

        Raises NameTaken, NoSuchUser, NotPermitted, LastOwner, ChangedMeanwhile.
        """
        now = self._users.clock()
        try:
            async with self._database.transaction() as session:
                row = await self._changed_person(session, tenant_id, fields, person_id, now=now, seen=seen)
                await session.flush()
                await _bind(session, row)
                if row.active:
                    await give_directory_roles(session, self._database, row, now)
                else:
                    await end_membership(session, self._database, row, now)
        except IntegrityError as error:
            raise NameTaken(f"another person has the user name {fields.user_name[:100]!r}") from error
        await self._tell(row)
        return await self.person(tenant_id, row.id)

    async def remove_person(self, tenant_id: UUID, person_id: UUID) -> None:
        """Remove a person, who has left when this returns. Raises NoSuchUser, NotPermitted, LastOwner."""
        now = self._users.clock()
        async with self._database.transaction() as session:
            row = await _person_row(session, self._database, tenant_id, person_id)
            await end_membership(session, self._database, row, now)
            await session.execute(delete(DirectoryMember).where(DirectoryMember.member_id == row.id))
            row.active = 0
            await _record(session, "person_removed", row.tenant_id, row.id, before=_facts(row))
            await session.delete(row)
        await self._tell(row)

    async def person(self, tenant_id: UUID, person_id: UUID) -> Person:
        """One person. Raises NoSuchUser."""
        async with self._database.reading() as session:
            row = await _person_row(session, None, tenant_id, person_id)
            return (await _people(session, tenant_id, [row]))[0]

    async def people(self, tenant_id: UUID, where: Where, start: int, count: int) -> tuple[list[Person], int]:
        """The people of whom `where` is true, by user name, `count` from `start` on (the first is 0); and how many
        there are."""
        columns = {
            "username": func.lower(DirectoryUser.user_name),
            "externalid": DirectoryUser.external_id,
            "emails": func.lower(DirectoryUser.email),
            "active": DirectoryUser.active,
            "id": DirectoryUser.id,
        }
        which = (DirectoryUser.tenant_id == tenant_id) & _all_equal(columns, where, {"username", "emails"})
        async with self._database.reading() as session:
            total = await session.scalar(select(func.count()).select_from(DirectoryUser).where(which)) or 0
            query = select(DirectoryUser).where(which).order_by(DirectoryUser.user_name).offset(start).limit(count)
            rows = list((await session.execute(query)).scalars()) if count else []
            return await _people(session, tenant_id, rows), total

    async def put_group(
        self,
        tenant_id: UUID,
        name: str,
        external_id: str,
        members: Collection[UUID] | None,
        group_id: UUID | None = None,
        *,
        seen: int | None = None,
    ) -> Group:
        """Add a group, or replace one; `members`: None leaves them. Its members' roles change at once. `seen`: as of a
        person.

        Raises NameTaken, NoSuchUser, ChangedMeanwhile.
        """
        now = self._users.clock()
        try:
            async with self._database.transaction() as session:
                row = await self._changed_group(session, tenant_id, name, external_id, group_id, now=now, seen=seen)
                await session.flush()
                moved = await self._set_members(session, row, members)
                changed = await self._give_again(session, tenant_id, moved, now)
        except IntegrityError as error:
            raise NameTaken(f"another group has the name {name[:100]!r}") from error
        await self._announce(changed)
        return await self.group(tenant_id, row.id)

    async def remove_group(self, tenant_id: UUID, group_id: UUID) -> None:
        """Remove a group, and what it gave. Raises NoSuchUser."""
        async with self._database.transaction() as session:
            row = await _group_row(session, self._database, tenant_id, group_id)
            moved = await self._set_members(session, row, ())
            await _record(session, "group_removed", tenant_id, row.id, before={"name": row.name, "role": row.role})
            await session.delete(row)
            await session.flush()
            changed = await self._give_again(session, tenant_id, moved, self._users.clock())
        await self._announce(changed)

    async def set_group_role(
        self, by: Principal, tenant_id: UUID, group_id: UUID, role: str, project_id: UUID | None
    ) -> Group:
        """Say what a group's members have, at the tenant or at a project; empty: nothing. Raises NoSuchUser,
        NotPermitted."""
        async with self._database.transaction() as session:
            row = await _group_row(session, self._database, tenant_id, group_id)
            for one, at in ((role, project_id), (row.role, row.project_id)):
                if one and not may_give(by, one, tenant_id, at):  # type: ignore[arg-type]  # only roles are kept
                    raise NotPermitted(f"your role does not let you give or take away the role {one} here")
            before = {"role": row.role, "project_id": row.project_id}
            row.role, row.project_id = role, project_id
            row.role_by_id = "" if by.kind == "command" else by.public_id
            after = {"role": role, "project_id": project_id}
            await _record(session, "group_role_set", tenant_id, row.id, before=before, after=after)
            members = select(DirectoryMember.member_id).where(DirectoryMember.group_id == row.id)
            moved = list((await session.execute(members)).scalars())
            await session.flush()
            changed = await self._give_again(session, tenant_id, moved, self._users.clock())
        await self._announce(changed)
        return await self.group(tenant_id, group_id)

    async def group(self, tenant_id: UUID, group_id: UUID) -> Group:
        """One group. Raises NoSuchUser."""
        async with self._database.reading() as session:
            return await _group(session, await _group_row(session, None, tenant_id, group_id))

    async def groups(self, tenant_id: UUID, where: Where, start: int, count: int) -> tuple[list[Group], int]:
        """The groups of which `where` is true, by name, as `people`; a page ends where its groups have
        MOST_MEMBERS_SHOWN members."""
        columns = {
            "displayname": func.lower(DirectoryGroup.name),
            "externalid": DirectoryGroup.external_id,
            "id": DirectoryGroup.id,
        }
        which = (DirectoryGroup.tenant_id == tenant_id) & _all_equal(columns, where, {"displayname"})
        async with self._database.reading() as session:
            total = await session.scalar(select(func.count()).select_from(DirectoryGroup).where(which)) or 0
            query = select(DirectoryGroup).where(which).order_by(DirectoryGroup.name).offset(start).limit(count)
            rows = list((await session.execute(query)).scalars()) if count else []
            found: list[Group] = []
            left = MOST_MEMBERS_SHOWN
            for row in rows:
                found.append(await _group(session, row))
                left -= len(found[-1].members)
                if left <= 0:
                    break
            return found, total

    async def _changed_person(
        self,
        session: AsyncSession,
        tenant_id: UUID,
        fields: PersonFields,
        person_id: UUID | None,
        *,
        now: int,
        seen: int | None,
    ) -> DirectoryUser:
        if person_id is None:
            await _check_room(session, DirectoryUser, tenant_id, MOST_PEOPLE)
            row = DirectoryUser(id=new_id(), tenant_id=tenant_id, user_id=None, created_at=from_instant(now))
            session.add(row)
            before = None
        else:
            row = await _person_row(session, self._database, tenant_id, person_id)
            now = _next_instant(row, now, seen)
            before = _facts(row)
        row.user_name, row.external_id, row.email = fields.user_name.lower(), fields.external_id, fields.email
        row.active, row.changed_at = int(fields.active), from_instant(now)
        row.content = msgspec.json.encode({**fields.content, "userName": fields.user_name}).decode()
        if before != _facts(row):
            verb = "person_added" if before is None else "person_changed"
            await _record(session, verb, tenant_id, row.id, before=before, after=_facts(row))
        return row

    async def _changed_group(
        self,
        session: AsyncSession,
        tenant_id: UUID,
        name: str,
        external_id: str,
        group_id: UUID | None,
        *,
        now: int,
        seen: int | None,
    ) -> DirectoryGroup:
        if group_id is None:
            await _check_room(session, DirectoryGroup, tenant_id, MOST_GROUPS)
            row = DirectoryGroup(id=new_id(), tenant_id=tenant_id, role="", project_id=None, role_by_id="")
            row.created_at = from_instant(now)
            session.add(row)
            await _record(session, "group_added", tenant_id, row.id, after={"name": name})
        else:
            row = await _group_row(session, self._database, tenant_id, group_id)
            now = _next_instant(row, now, seen)
            if row.name != name:
                await _record(
                    session, "group_changed", tenant_id, row.id, before={"name": row.name}, after={"name": name}
                )
        row.name, row.external_id, row.changed_at = name, external_id, from_instant(now)
        return row

    async def _set_members(
        self, session: AsyncSession, group: DirectoryGroup, members: Collection[UUID] | None
    ) -> list[UUID]:
        """Replace a group's members; who came or went, or everybody where None leaves them. Raises NoSuchUser."""
        query = select(DirectoryMember.member_id).where(DirectoryMember.group_id == group.id)
        present = set((await session.execute(query)).scalars())
        if members is None:
            return []
        wanted = set(members)
        known = await self._locked_people(session, group.tenant_id, present ^ wanted)
        if unknown := wanted - present - {row.id for row in known}:
            raise NoSuchUser(f"there is no person {next(iter(unknown))} in this directory")
        gone = DirectoryMember.member_id.in_(present - wanted)
        await session.execute(delete(DirectoryMember).where(DirectoryMember.group_id == group.id, gone))
        for member in wanted - present:
            session.add(DirectoryMember(group_id=group.id, member_id=member, tenant_id=group.tenant_id))
        if present != wanted:
            before = {"members": sorted(str(one) for one in present - wanted)}
            after = {"members": sorted(str(one) for one in wanted - present)}
            await _record(session, "group_members_changed", group.tenant_id, group.id, before=before, after=after)
        await session.flush()
        return list(present ^ wanted)

    async def _give_again(self, session: AsyncSession, tenant_id: UUID, people: Sequence[UUID], now: int) -> list[UUID]:
        """Give these people what the directory says now; whose accounts they are."""
        bound = [row for row in await self._locked_people(session, tenant_id, people) if row.user_id is not None]
        for row in sorted(bound, key=lambda one: one.user_id.bytes if one.user_id else b""):
            await give_directory_roles(session, self._database, row, now)
        return [row.user_id for row in bound if row.user_id is not None]

    async def _locked_people(
        self, session: AsyncSession, tenant_id: UUID, people: Collection[UUID]
    ) -> list[DirectoryUser]:
        which = (DirectoryUser.tenant_id == tenant_id) & DirectoryUser.id.in_(people)
        return await locked_people(session, self._database, which)

    async def _announce(self, users: Sequence[UUID]) -> None:
        for user_id in users:
            await self._users.changes.announce(user_id)

    async def _tell(self, row: DirectoryUser) -> None:
        """Let gateways know at once, and revoke the keys of who has left where the directory says so."""
        if row.user_id is None:
            return
        await self._users.changes.announce(row.user_id)
        if not row.active and (await self._directories.get(row.tenant_id)).revoke_keys:
            for key in await self._directories.keys_of_former_members(row.tenant_id, row.user_id):
                await self._tenancy.revoke(key.key, row.tenant_id, "its maker has left by the directory")


async def _bind(session: AsyncSession, row: DirectoryUser) -> None:
    """Bind a person to the account that is known to be hers, if there is one that nobody else is bound to."""
    if row.user_id is not None:
        return
    known = (
        select(UserIdentity.user_id)
        .join(IdentityProvider, IdentityProvider.id == UserIdentity.provider_id)
        .where(IdentityProvider.tenant_id == row.tenant_id, UserIdentity.subject == row.external_id)
    )
    member = (
        select(UserAccount.id)
        .join(MembershipRow, MembershipRow.user_id == UserAccount.id)
        .where(
            MembershipRow.tenant_id == row.tenant_id,
            UserAccount.email.in_({row.user_name, row.email.lower()} - {""}),
        )
        .distinct()
    )
    found = set((await session.execute(known)).scalars()) if row.external_id else set()
    found = found or set((await session.execute(member)).scalars())
    taken = select(DirectoryUser.user_id).where(
        DirectoryUser.tenant_id == row.tenant_id, DirectoryUser.user_id.in_(found)
    )
    free = found - set((await session.execute(taken)).scalars())
    if len(free) == 1:
        row.user_id = free.pop()
        await session.flush()


async def _check_room(session: AsyncSession, table: Any, tenant_id: UUID, most: int) -> None:
    if (await session.scalar(select(func.count()).select_from(table).where(table.tenant_id == tenant_id)) or 0) >= most:
        raise WrongState(f"the directory has {most} of these, the most allowed")


def _all_equal(columns: Mapping[str, Any], where: Where, folded: Collection[str]) -> ColumnElement[bool]:
    which: ColumnElement[bool] = true()
    for name, value in where.items():
        which &= columns[name] == (value.lower() if name in folded else value)
    return which


async def _person_row(
    session: AsyncSession, locking: Database | None, tenant_id: UUID, person_id: UUID
) -> DirectoryUser:
    query = select(DirectoryUser).where(DirectoryUser.id == person_id, DirectoryUser.tenant_id == tenant_id)
    row: DirectoryUser | None = (
        await session.execute(query if locking is None else locking.locked(query))
    ).scalar_one_or_none()
    if row is None:
        raise NoSuchUser(f"there is no person {person_id} in this directory")
    return row


async def _group_row(
    session: AsyncSession, locking: Database | None, tenant_id: UUID, group_id: UUID
) -> DirectoryGroup:
    query = select(DirectoryGroup).where(DirectoryGroup.id == group_id, DirectoryGroup.tenant_id == tenant_id)
    row: DirectoryGroup | None = (
        await session.execute(query if locking is None else locking.locked(query))
    ).scalar_one_or_none()
    if row is None:
        raise NoSuchUser(f"there is no group {group_id} in this directory")
    return row


def _next_instant(row: DirectoryUser | DirectoryGroup, now: int, seen: int | None) -> int:
    """When a locked row changes: later than it did before, whatever the clock says. Raises ChangedMeanwhile."""
    changed_at = to_instant(row.changed_at)
    if seen not in (None, changed_at):
        raise ChangedMeanwhile("this was changed meanwhile: read it and try again")
    return max(now, changed_at + 1)


async def _people(session: AsyncSession, tenant_id: UUID, rows: Sequence[DirectoryUser]) -> list[Person]:
    query = (
        select(DirectoryMember.member_id, DirectoryGroup.id, DirectoryGroup.name)
        .join(DirectoryGroup, DirectoryGroup.id == DirectoryMember.group_id)
        .where(DirectoryMember.tenant_id == tenant_id, DirectoryMember.member_id.in_([row.id for row in rows]))
    )
    groups: dict[UUID, list[tuple[UUID, str]]] = {}
    for member, group_id, name in await session.execute(query):
        groups.setdefault(member, []).append((group_id, name))
    return [
        Person(
            id=row.id,
            user_id=row.user_id,
            user_name=row.user_name,
            external_id=row.external_id,
            email=row.email,
            active=bool(row.active),
            content=msgspec.json.decode(row.content),
            groups=tuple(groups.get(row.id, ())),
            created_at=to_instant(row.created_at),
            changed_at=to_instant(row.changed_at),
        )
        for row in rows
    ]


async def _group(session: AsyncSession, row: DirectoryGroup) -> Group:
    query = (
        select(DirectoryUser.id, DirectoryUser.user_name)
        .join(DirectoryMember, DirectoryMember.member_id == DirectoryUser.id)
        .where(DirectoryMember.group_id == row.id, DirectoryUser.tenant_id == row.tenant_id)
        .order_by(DirectoryUser.user_name)
    )
    members = tuple((one.id, one.user_name) for one in await session.execute(query))
    return Group(
        id=row.id,
        name=row.name,
        external_id=row.external_id,
        members=members,
        role=row.role,
        project_id=row.project_id,
        created_at=to_instant(row.created_at),
        changed_at=to_instant(row.changed_at),
    )


def _facts(row: DirectoryUser) -> dict[str, Any]:
    names = ("user_name", "external_id", "email")
    return {**{name: getattr(row, name) for name in names}, "active": bool(row.active)}


async def _record(
    session: AsyncSession, verb: str, tenant_id: UUID, target: UUID, *, before: Any = None, after: Any = None
) -> None:
    action = f"directory.{verb}"
    await record_change(
        session, action, target="directory", target_id=target, tenant_id=tenant_id, before=before, after=after
    )
