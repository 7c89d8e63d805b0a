"""Users, sessions, members and invitations as /admin/v1 shows them, and their errors as errors of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Literal

from msgspec import Meta, Struct

from gateway.errors import (
    Conflict,
    GatewayError,
    InvalidField,
    InvalidRequest,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    RateLimited,
    Unavailable,
)
from gateway.http.shapes import Instant, InvitationId, Page, ProjectId, SessionId, TenantId, UserId, show
from storage.free_text import InvalidText
from tenancy.rights.permissions import Permission, Role, permissions_of_role
from tenancy.rights.principals import Membership
from tenancy.users.accounts import User
from tenancy.users.errors import (
    EmailTaken,
    FieldRefused,
    LastOwner,
    LinkRefused,
    NoSuchUser,
    NotPermitted,
    PasswordsBusy,
    SignInRefused,
    TooManyAttempts,
    UserError,
    WrongState,
)
from tenancy.users.links import Invitation, Link
from tenancy.users.members import Member
from tenancy.users.sessions import FRESH_US, SessionRecord

Password = Annotated[str, Meta(max_length=1024)]
Email = Annotated[str, Meta(max_length=320)]
Name = Annotated[str, Meta(max_length=1024)]
Token = Annotated[str, Meta(max_length=256)]
Code = Annotated[str, Meta(max_length=64)]
Reason = Annotated[str, Meta(max_length=500)]


class MembershipObject(Struct, frozen=True):
    """A role, and where it is held: at a project, a tenant, or without either at the whole platform."""

    role: Role
    tenant: TenantId | None
    project: ProjectId | None


class UserObject(Struct, frozen=True, kw_only=True):
    """A user."""

    object: Literal["user"] = "user"
    id: UserId
    email: str
    name: str
    memberships: list[MembershipObject]
    created_at: Instant
    disabled_at: Instant | None
    has_password: bool
    has_second_factor: bool


class RightsObject(Struct, frozen=True):
    """What a membership allows: at a project, a tenant with its projects, or without either at the whole platform."""

    tenant: TenantId | None
    project: ProjectId | None
    permissions: list[Permission]


class OwnUserObject(UserObject, frozen=True, kw_only=True):
    """The user who asks. `rights` has what each membership allows, in their order."""

    recovery_codes_left: int
    rights: list[RightsObject]


class UserList(Page[UserObject], frozen=True):
    """A page of users, ordered by e-mail address."""


class SessionObject(Struct, frozen=True, kw_only=True):
    """A browser that is signed in. `method`: how. What needs a fresh proof may be done until `fresh_until`."""

    object: Literal["session"] = "session"
    id: SessionId
    user: UserId
    method: str
    address: str
    user_agent: str
    created_at: Instant
    last_seen_at: Instant
    expires_at: Instant
    fresh_until: Instant
    current: bool


class SessionList(Page[SessionObject], frozen=True):
    """The user's sessions, newest first."""


class SignInObject(Struct, frozen=True, kw_only=True):
    """How far a sign-in has come. `next`: the page to go to, as it was asked for."""

    object: Literal["sign_in"] = "sign_in"
    state: Literal["signed_in", "second_factor_required"]
    user: UserId | None
    expires_at: Instant
    next: str | None = None


class MemberObject(Struct, frozen=True, kw_only=True):
    """A user with its role at a scope."""

    object: Literal["member"] = "member"
    user: UserId
    email: str
    name: str
    role: Role
    since: Instant
    disabled: bool
    has_second_factor: bool


class MemberList(Page[MemberObject], frozen=True):
    """Who has a role at this very scope, ordered by e-mail address."""


class InvitationObject(Struct, frozen=True, kw_only=True):
    """An invitation that was not accepted yet."""

    object: Literal["invitation"] = "invitation"
    id: InvitationId
    email: str
    role: Role
    tenant: TenantId | None
    project: ProjectId | None
    invited_by: str
    created_at: Instant
    expires_at: Instant


class InvitationList(Page[InvitationObject], frozen=True):
    """Invitations to this very scope that may still be accepted, oldest first."""


class LinkObject(Struct, frozen=True, kw_only=True):
    """A one-time link, whose `token` is shown this once. Hand it to the user by a way that nobody else reads; `path` is
    the page that redeems it."""

    object: Literal["one_time_link"] = "one_time_link"
    kind: Literal["invitation", "password_reset", "sign_in"]
    token: str
    path: str
    expires_at: Instant


def user_object(user: User) -> UserObject:
    """A user as it is shown."""
    return show(UserObject, user, memberships=membership_objects(user.memberships))


def own_user_object(user: User, recovery_codes_left: int) -> OwnUserObject:
    """The user who asks, as it is shown."""
    return show(
        OwnUserObject,
        user,
        memberships=membership_objects(user.memberships),
        recovery_codes_left=recovery_codes_left,
        rights=[_rights_object(membership) for membership in user.memberships],
    )


def _rights_object(membership: Membership) -> RightsObject:
    tenant, project = membership.tenant_id, membership.project_id
    permissions = sorted(permissions_of_role(membership.role, platform=tenant is None))
    return show(RightsObject, membership, tenant=tenant, project=project, permissions=permissions)


def membership_objects(memberships: Iterable[Membership]) -> list[MembershipObject]:
    """Roles as they are shown."""
    return [show(MembershipObject, each, tenant=each.tenant_id, project=each.project_id) for each in memberships]


def session_object(session: SessionRecord, *, current: bool) -> SessionObject:
    """A session as it is shown."""
    return show(
        SessionObject,
        session,
        user=session.user_id,
        last_seen_at=session.seen_at,
        fresh_until=session.proven_at + FRESH_US,
        current=current,
    )


def member_object(member: Member) -> MemberObject:
    """A member as it is shown."""
    return show(MemberObject, member, user=member.user_id)


def invitation_object(invitation: Invitation) -> InvitationObject:
    """An invitation as it is shown."""
    tenant, project = invitation.scope.tenant_id, invitation.scope.project_id
    return show(InvitationObject, invitation, tenant=tenant, project=project, invited_by=invitation.created_by)


def link_object(link: Link) -> LinkObject:
    """A new link as it is shown."""
    assert link.kind != "second_factor", "that one is a cookie"
    return show(LinkObject, link)


_FAILURES: tuple[tuple[type[UserError], Callable[[str], GatewayError]], ...] = (
    (SignInRefused, partial(NotAuthenticated, code="sign_in_refused")),
    (LinkRefused, partial(NotAuthenticated, code="link_not_valid")),
    (NoSuchUser, NotFound),
    (NotPermitted, NotAllowed),
    (EmailTaken, partial(Conflict, code="email_taken")),
    (LastOwner, partial(Conflict, code="last_owner")),
    (WrongState, partial(Conflict, code="wrong_state")),
)


@contextmanager
def user_errors() -> Iterator[None]:
    """Turn errors of `tenancy.users` into errors of the request."""
    try:
        yield
    except TooManyAttempts as error:
        raise RateLimited(str(error), retry_after=error.retry_after, code="too_many_attempts") from error
    except PasswordsBusy as error:
        raise Unavailable(str(error), retry_after=error.retry_after, code="sign_in_busy") from error
    except FieldRefused as error:
        raise InvalidField(f"$.{error.field}", error.problem) from error
    except InvalidText as error:
        raise InvalidRequest(f"$.{error}.", path=f"$.{error.field}", code="invalid_value") from error
    except UserError as error:
        raise _failure(error) from error


def _failure(error: UserError) -> GatewayError:
    text = str(error)
    text = text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
    for kind, failure in _FAILURES:
        if isinstance(error, kind):
            return failure(text)
    raise error
