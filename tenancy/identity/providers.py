"""Identity providers of the platform and of tenants: added, changed, removed; their domains and what groups give.

What a provider of a tenant may give is a role of this tenant alone, and none beyond that of who says so. A domain
belongs to one provider, and operators alone say to which: who claims another's domain would get in as its people.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from msgspec import Struct
from msgspec.structs import asdict
from sqlalchemy import delete, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from storage.database.base import from_instant, new_id, to_instant
from storage.database.database import Database
from storage.free_text import NAME, check_text
from tenancy.identity.provider_client import ProviderClient
from tenancy.identity.tables import IdentityDomain, IdentityGroup, IdentityProvider, UserIdentity
from tenancy.rights.permissions import Role
from tenancy.rights.principals import Principal
from tenancy.users.accounts import scope_name
from tenancy.users.errors import FieldRefused, NoSuchUser, NotPermitted, WrongState
from tenancy.users.roles import may_give
from tenancy.users.tables import MembershipRow, UserSession
from tenancy.users.tokens import UserSecrets
from webhooks.addresses import UrlRefused

MOST_PROVIDERS = 20
"""Of one tenant, or of the platform."""
MOST_GROUPS = 500
_MOST_TEXT = 1_000
_DOMAIN = re.compile(r"(?=.{3,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+")


class GroupRole(Struct, frozen=True):
    """The role that the members of a group have, at a project, a tenant or without either the platform."""

    group_id: str
    role: Role
    tenant_id: UUID | None = None
    project_id: UUID | None = None


class Provider(Struct, frozen=True, kw_only=True):
    """An identity provider, without its secret. `created_at`: microseconds since the Unix epoch."""

    id: UUID
    tenant_id: UUID | None
    name: str
    issuer: str
    client_id: str
    has_secret: bool
    scopes: str
    groups_claim: str
    acr_values: str
    owner_by_group: bool
    enabled: bool
    domains: tuple[str, ...]
    groups: tuple[GroupRole, ...]
    created_at: int

    @property
    def source(self) -> str:
        """What memberships say that its groups gave."""
        return f"provider_{self.id.hex}"


class ProviderFields(Struct, frozen=True, kw_only=True):
    """What may be said of a provider; None: left as it is. `client_secret`: empty for a public client."""

    name: str | None = None
    client_id: str | None = None
    client_secret: str | None = None
    scopes: str | None = None
    groups_claim: str | None = None
    acr_values: str | None = None
    owner_by_group: bool | None = None
    enabled: bool | None = None


_DEFAULTS = {"scopes": "openid email profile", "groups_claim": "groups", "acr_values": ""}


class Providers:
    """All identity providers. Methods that name a tenant know its own alone; None is the platform. Every method may
    raise DatabaseUnavailable."""

    def __init__(self, database: Database, secrets: UserSecrets, client: ProviderClient) -> None:
        self._database = database
        self._secrets = secrets
        self._client = client

    async def add(self, tenant_id: UUID | None, issuer: str, fields: ProviderFields, now: int) -> Provider:
        """Add a provider, after it has answered as one. Raises FieldRefused, IdentityRefused, InvalidText."""
        try:
            self._client.check_issuer(issuer)
        except UrlRefused as error:
            raise FieldRefused("issuer", str(error)) from error
        await self._client.metadata(issuer)
        row = IdentityProvider(
            id=new_id(), tenant_id=tenant_id, issuer=issuer, secret=None, owner_by_group=0, enabled=1, **_DEFAULTS
        )
        row.created_at = from_instant(now)
        if fields.name is None or not fields.client_id:
            raise FieldRefused("name" if fields.name is None else "client_id", "say one")
        self._write(row, fields)
        async with self._database.transaction() as session:
            present = (await session.execute(select(IdentityProvider.id).where(_of(tenant_id)))).scalars().all()
            if len(present) >= MOST_PROVIDERS:
                raise WrongState(f"there are {MOST_PROVIDERS} providers, the most allowed: remove one first")
            session.add(row)
            await _record(session, "added", row, after=_description(row))
        return await self.get(row.id, tenant_id)

    async def change(self, provider_id: UUID, tenant_id: UUID | None, fields: ProviderFields) -> Provider:
        """Change a provider; its issuer stays. Raises NoSuchUser, FieldRefused, InvalidText."""
        async with self._database.transaction() as session:
            row = await _row(session, self._database, provider_id, tenant_id)
            before = _description(row)
            self._write(row, fields)
            after = {**_description(row), **({"client_secret": "changed"} if fields.client_secret is not None else {})}
            await _record(session, "changed", row, before=before, after=after)
        return await self.get(provider_id, tenant_id)

    async def remove(self, provider_id: UUID, tenant_id: UUID | None, now: int) -> list[UUID]:
        """Remove a provider with its links, the roles that its groups gave, and the sessions that it opened; whose they
        were. Raises NoSuchUser."""
        async with self._database.transaction() as session:
            row = await _row(session, self._database, provider_id, tenant_id)
            linked = UserIdentity.provider_id == provider_id
            users = list((await session.execute(select(UserIdentity.user_id).where(linked))).scalars())
            await session.execute(delete(UserIdentity).where(linked))
            await session.execute(delete(IdentityGroup).where(IdentityGroup.provider_id == provider_id))
            await session.execute(delete(IdentityDomain).where(IdentityDomain.provider_id == provider_id))
            # all tenants: a provider of the platform gives roles at several
            given = MembershipRow.source == f"provider_{provider_id.hex}"
            users += (await session.execute(select(MembershipRow.user_id).where(given))).scalars()
            await session.execute(delete(MembershipRow).where(given))
            opened = (UserSession.provider_id == provider_id) & UserSession.revoked_at.is_(None)
            users += (await session.execute(select(UserSession.user_id).where(opened))).scalars()
            await session.execute(update(UserSession).where(opened).values(revoked_at=from_instant(now)))
            await session.delete(row)
            await _record(session, "removed", row, before=_description(row))
        return list(dict.fromkeys(users))

    async def at(self, tenant_id: UUID | None) -> list[Provider]:
        """The providers of a tenant or of the platform, the oldest first."""
        async with self._database.reading() as session:
            rows = await session.execute(
                select(IdentityProvider).where(_of(tenant_id)).order_by(IdentityProvider.created_at)
            )
            return [await _provider(session, row) for row in rows.scalars()]

    async def get(self, provider_id: UUID, tenant_id: UUID | None) -> Provider:
        """One provider of this tenant or of the platform. Raises NoSuchUser."""
        async with self._database.reading() as session:
            return await _provider(session, await _row(session, None, provider_id, tenant_id))

    async def find(self, provider_id: UUID) -> tuple[Provider, str | None] | None:
        """A provider, whosever it is, that is switched on, with its client secret."""
        async with self._database.reading() as session:
            # all tenants: who signs in names the provider
            row = await session.get(IdentityProvider, provider_id)
            if row is None or not row.enabled:
                return None
            secret = None if row.secret is None else self._secrets.unseal(row.secret, row.id).decode()
            return await _provider(session, row), secret

    async def offered(self, tenant_id: UUID | None, domain: str = "") -> list[Provider]:
        """The providers that are switched on: of a tenant, of an e-mail domain, or of the platform."""
        if not domain:
            return [one for one in await self.at(tenant_id) if one.enabled]
        async with self._database.reading() as session:
            claim = await session.get(IdentityDomain, domain.lower()) if domain.isprintable() else None
        found = None if claim is None else await self.find(claim.provider_id)
        return [] if found is None else [found[0]]

    async def set_groups(
        self, by: Principal, provider_id: UUID, tenant_id: UUID | None, groups: Iterable[GroupRole]
    ) -> Provider:
        """Say which roles groups give, in place of what was said before; it holds from each member's next sign-in.

        Raises NoSuchUser, NotPermitted, FieldRefused.
        """
        wanted = list(dict.fromkeys(groups))
        if len(wanted) > MOST_GROUPS or len({(one.group_id, *_scope(one)) for one in wanted}) < len(wanted):
            raise FieldRefused("groups", f"name each group once for each place, {MOST_GROUPS} at most")
        async with self._database.transaction() as session:
            row = await _row(session, self._database, provider_id, tenant_id)
            before = await _groups(session, provider_id)
            for one in wanted:
                _check_group(row, one)
                if one not in before and not may_give(by, one.role, one.tenant_id, one.project_id):
                    raise NotPermitted(f"your role does not let you give the role {one.role} here")
            for gone in set(before) - set(wanted):
                if not may_give(by, gone.role, gone.tenant_id, gone.project_id):
                    raise NotPermitted(f"your role does not let you take away the role {gone.role} here")
                where = (IdentityGroup.provider_id == provider_id) & (IdentityGroup.group_id == gone.group_id)
                await session.execute(
                    delete(IdentityGroup).where(where, IdentityGroup.scope == scope_name(*_scope(gone)))
                )
            maker = "" if by.kind == "command" else by.public_id
            for one in wanted:
                if one not in before:
                    session.add(
                        IdentityGroup(
                            id=new_id(),
                            provider_id=provider_id,
                            scope=scope_name(*_scope(one)),
                            created_by_id=maker,
                            **asdict(one),
                        )
                    )
            after = [asdict(one) for one in wanted]
            await _record(session, "groups_set", row, before=[asdict(one) for one in before], after=after)
        return await self.get(provider_id, tenant_id)

    async def set_domains(
        self, provider_id: UUID, tenant_id: UUID | None, domains: Iterable[str], now: int
    ) -> Provider:
        """Say which domains of e-mail addresses belong to who runs the provider. Raises NoSuchUser, FieldRefused,
        WrongState."""
        wanted = sorted({domain.strip().lower() for domain in domains})
        for domain in wanted:
            if not _DOMAIN.fullmatch(domain):
                raise FieldRefused("domains", f"{domain[:80]!r} is not a domain such as example.com")
        async with self._database.transaction() as session:
            row = await _row(session, self._database, provider_id, tenant_id)
            before = await _domains(session, provider_id)
            for domain in wanted:
                claim = await session.get(IdentityDomain, domain)
                if claim is not None and claim.provider_id != provider_id:
                    raise WrongState(f"the domain {domain} belongs to another provider")
                if claim is None:
                    session.add(IdentityDomain(domain=domain, provider_id=provider_id, created_at=from_instant(now)))
            gone = set(before) - set(wanted)
            await session.execute(delete(IdentityDomain).where(IdentityDomain.domain.in_(gone)))
            await _record(session, "domains_set", row, before=list(before), after=wanted)
        return await self.get(provider_id, tenant_id)

    def _write(self, row: IdentityProvider, fields: ProviderFields) -> None:
        if fields.name is not None:
            check_text("name", fields.name, NAME)
        for name in ("name", "client_id", "scopes", "groups_claim", "acr_values"):
            value = getattr(fields, name)
            if value is not None:
                check_text(name, value, _MOST_TEXT, empty=name in ("groups_claim", "acr_values"))
                setattr(row, name, value.strip())
        if "openid" not in row.scopes.split():
            raise FieldRefused("scopes", "openid must be among them")
        if fields.owner_by_group is not None:
            row.owner_by_group = int(fields.owner_by_group)
        if fields.enabled is not None:
            row.enabled = int(fields.enabled)
        if fields.client_secret is not None:
            check_text("client_secret", fields.client_secret, _MOST_TEXT, empty=True)
            sealed = self._secrets.seal(fields.client_secret.encode(), row.id)
            row.secret = sealed if fields.client_secret else None


def _check_group(row: IdentityProvider, one: GroupRole) -> None:
    check_text("groups", one.group_id, NAME)
    if row.tenant_id is not None and one.tenant_id != row.tenant_id:
        raise NotPermitted("a provider of a tenant gives roles at this tenant alone")
    if one.role == "owner" and not row.owner_by_group:
        raise FieldRefused("groups", "a group gives the role owner only where owner_by_group is on")


def _scope(one: GroupRole) -> tuple[UUID | None, UUID | None]:
    return one.tenant_id, one.project_id


def _of(tenant_id: UUID | None) -> Any:
    column = IdentityProvider.tenant_id
    return column.is_(None) if tenant_id is None else column == tenant_id


async def _row(
    session: AsyncSession, locking: Database | None, provider_id: UUID, tenant_id: UUID | None
) -> IdentityProvider:
    query = select(IdentityProvider).where(IdentityProvider.id == provider_id, _of(tenant_id))
    row: IdentityProvider | None = (
        await session.execute(query if locking is None else locking.locked(query))
    ).scalar_one_or_none()
    if row is None:
        raise NoSuchUser(f"there is no identity provider {provider_id}")
    return row


async def _groups(session: AsyncSession, provider_id: UUID) -> list[GroupRole]:
    # all tenants: a provider of the platform gives roles at several
    query = select(IdentityGroup).where(IdentityGroup.provider_id == provider_id).order_by(IdentityGroup.id)
    rows = (await session.execute(query)).scalars()
    return [GroupRole(row.group_id, row.role, row.tenant_id, row.project_id) for row in rows]


async def _domains(session: AsyncSession, provider_id: UUID) -> tuple[str, ...]:
    query = select(IdentityDomain.domain).where(IdentityDomain.provider_id == provider_id)
    return tuple((await session.execute(query.order_by(IdentityDomain.domain))).scalars())


async def _provider(session: AsyncSession, row: IdentityProvider) -> Provider:
    return Provider(
        id=row.id,
        tenant_id=row.tenant_id,
        name=row.name,
        issuer=row.issuer,
        client_id=row.client_id,
        has_secret=row.secret is not None,
        scopes=row.scopes,
        groups_claim=row.groups_claim,
        acr_values=row.acr_values,
        owner_by_group=bool(row.owner_by_group),
        enabled=bool(row.enabled),
        domains=await _domains(session, row.id),
        groups=tuple(await _groups(session, row.id)),
        created_at=to_instant(row.created_at),
    )


def _description(row: IdentityProvider) -> dict[str, Any]:
    names = ("name", "issuer", "client_id", "scopes", "groups_claim", "acr_values", "owner_by_group", "enabled")
    return {name: getattr(row, name) for name in names}


async def _record(
    session: AsyncSession, verb: str, row: IdentityProvider, *, before: Any = None, after: Any = None
) -> None:
    await record_change(
        session,
        f"identity_provider.{verb}",
        target="identity_provider",
        target_id=row.id,
        tenant_id=row.tenant_id,
        before=before,
        after=after,
    )
