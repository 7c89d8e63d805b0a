"""What a tenant's directory gives its people, and how somebody leaves: of this tenant alone, whatever else the account
is. Nothing is given beyond the rights of who made the directory's token and of who said what a group has."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import ColumnElement, delete, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from storage.database.base import from_instant
from storage.database.database import Database
from tenancy.identity.given_roles import DIRECTORY, add_role, set_given_roles
from tenancy.identity.tables import Directory, DirectoryGroup, DirectoryMember, DirectoryUser
from tenancy.rights.permissions import Role
from tenancy.rights.principals import Membership, Principal
from tenancy.users.accounts import locked_user
from tenancy.users.errors import LastOwner, NotPermitted
from tenancy.users.identifiers import user_public_id
from tenancy.users.members import Scope
from tenancy.users.roles import may_give, may_still_give, may_take, other_owners
from tenancy.users.sessions import memberships_of, revoke_sessions, rotate_sessions, withdraw_links
from tenancy.users.tables import MembershipRow, OneTimeToken, UserAccount, UserSession


def token_principal(directory: Directory) -> Principal:
    """The holder of a directory's token, with the role of who made it."""
    return Principal(
        "admin_key",
        directory.tenant_id,
        f"directory_{directory.tenant_id.hex}",
        name="directory",
        memberships=(Membership(directory.role, directory.tenant_id),),
    )


async def directory_may_take_all(session: AsyncSession, tenant_id: UUID, user_id: UUID) -> bool:
    """Whether the holder of the directory's token may take away every role that the account has at the tenant."""
    directory = await session.get(Directory, tenant_id)
    if directory is None:
        return False
    by = token_principal(directory)
    roles = [one for one in await memberships_of(session, user_id) if one.tenant_id == tenant_id]
    return all(may_take(by, one.role, tenant_id, one.project_id) for one in roles)


async def locked_people(
    session: AsyncSession, database: Database, which: ColumnElement[bool], most: int | None = None
) -> list[DirectoryUser]:
    """The people of whom this is true as they are now, at most so many, locked in one order, so that two changes at
    once never wait for each other. A person's row is locked before those of its account."""
    await session.flush()
    query = database.locked(select(DirectoryUser).where(which).order_by(DirectoryUser.id).limit(most))
    return list((await session.execute(query.execution_options(populate_existing=True))).scalars())


async def give_directory_roles(session: AsyncSession, database: Database, person: DirectoryUser, now: int) -> None:
    """Give a bound person who is active the roles that the directory says. The caller announces the change."""
    await locked_people(session, database, DirectoryUser.id == person.id)  # who is leaving meanwhile gets nothing back
    directory = await session.get(Directory, person.tenant_id)
    if directory is None or person.user_id is None or not person.active:
        return
    bound, tenant_id = token_principal(directory), person.tenant_id
    wanted: dict[Scope, Role] = {}
    offers: list[tuple[str, UUID | None, str]] = [(directory.member_role, None, directory.created_by_id)]
    groups = await session.execute(
        select(DirectoryGroup)
        .join(DirectoryMember, DirectoryMember.group_id == DirectoryGroup.id)
        .where(DirectoryMember.member_id == person.id, DirectoryGroup.tenant_id == tenant_id)
    )
    offers += [(row.role, row.project_id, row.role_by_id) for row in groups.scalars()]
    for role, project_id, maker in offers:
        if not role or not may_give(bound, role, tenant_id, project_id):  # type: ignore[arg-type]
            continue
        if await may_still_give(session, maker, role, tenant_id, project_id):
            add_role(wanted, Scope(tenant_id, project_id), role)  # type: ignore[arg-type]  # only roles are kept
    await set_given_roles(session, database, person.user_id, DIRECTORY, wanted, now=now, tenant_id=tenant_id)


async def end_membership(session: AsyncSession, database: Database, person: DirectoryUser, now: int) -> None:
    """Take everything that a person has at the directory's tenant: roles, sessions that its providers opened, and
    invitations. What the account is elsewhere stays; sessions of one that is nothing elsewhere end too. The caller
    announces the change. Raises NotPermitted, LastOwner."""
    directory, tenant_id = await session.get_one(Directory, person.tenant_id), person.tenant_id
    moment, addresses = from_instant(now), {person.user_name, person.email.lower()}
    if person.user_id is not None:
        addresses.add((await session.get_one(UserAccount, person.user_id)).email)
        await _take_roles(session, database, token_principal(directory), person.user_id, tenant_id)
        opened = (UserSession.user_id == person.user_id) & (UserSession.tenant_id == tenant_id)
        await session.execute(
            update(UserSession).where(opened, UserSession.revoked_at.is_(None)).values(revoked_at=moment)
        )
        if await memberships_of(session, person.user_id):
            await rotate_sessions(session, person.user_id)
        else:
            await revoke_sessions(session, person.user_id, moment)
            await withdraw_links(session, person.user_id, moment)
    made_by = OneTimeToken.created_by_id == ("-" if person.user_id is None else user_public_id(person.user_id))
    invitations = (OneTimeToken.kind == "invitation") & (OneTimeToken.tenant_id == tenant_id)
    about = made_by | OneTimeToken.email.in_(addresses - {""})
    await session.execute(
        update(OneTimeToken).where(invitations & about, OneTimeToken.used_at.is_(None)).values(used_at=moment)
    )


async def _take_roles(session: AsyncSession, database: Database, by: Principal, user_id: UUID, tenant_id: UUID) -> None:
    at = (MembershipRow.user_id == user_id) & (MembershipRow.tenant_id == tenant_id)
    seen = (await session.execute(select(MembershipRow.role).where(at, MembershipRow.project_id.is_(None)))).scalar()
    if seen == "owner" and not await other_owners(session, database, user_id, tenant_id):
        raise LastOwner("this is the last owner of the tenant: make another one first")
    await locked_user(session, database, user_id)
    rows = (await session.execute(select(MembershipRow).where(at).execution_options(populate_existing=True))).scalars()
    for row in rows.all():
        if not may_take(by, row.role, tenant_id, row.project_id):
            raise NotPermitted(f"who made this token may not take away the role {row.role}")
        await record_change(
            session,
            "member.removed",
            target="user",
            target_id=user_public_id(user_id),
            tenant_id=tenant_id,
            project_id=row.project_id,
            before={"role": row.role},
            after={"role": None, "given_by": DIRECTORY},
        )
    await session.execute(delete(MembershipRow).where(at))
