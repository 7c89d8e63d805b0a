"""API keys as `/admin/v1` takes and shows them; secrets are in the answers that make them, and nowhere else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from gateway.errors import Conflict, InvalidField, NotAllowed, NotFound
from gateway.http.shapes import Instant, Page, ProjectId, TenantId, show
from protocol.requests import LANES
from storage.free_text import InvalidText
from tenancy.administration.operators import TooFewOperators
from tenancy.repositories import InvalidKeyChange, KeyChange, NoSuchRecord, grant_of
from tenancy.rights.delegation import GivesTooMuch
from tenancy.rights.key_limits import InvalidLimit, KeyLimits, key_limits
from tenancy.rights.permissions import Role
from tenancy.tables import ApiKey

DEFAULT_OVERLAP_S = 24 * 3600
Texts: TypeAlias = Annotated[tuple[str, ...], Meta(max_length=200)]


class NewKey(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A new key. With `project`, for inference in that project; without, for administration of the tenant, with `role`.

    What is left out is not limited. `scopes`: permissions, or groups of them such as `read` or `keys`. `networks`:
    CIDRs from which it may be used. `expires_at`: RFC 3339. `dry_run`: only check.
    """

    project: str | None = None
    name: str = ""
    role: Role | None = None
    scopes: Texts | None = None
    networks: Texts | None = None
    models: Texts | None = None
    lanes: Texts | None = None
    expires_at: Instant | None = None
    dry_run: bool = False


class NewOperatorKey(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A new key of an operator, whom `name` tells apart from others. `user`: the id or e-mail address of the user who
    this operator is, if it is one."""

    name: str
    user: str | None = None
    role: Role = "owner"
    scopes: Texts | None = None
    networks: Texts | None = None
    expires_at: Instant | None = None
    dry_run: bool = False


class KeyPatch(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What to change of a key. What is left out stays; null takes a limit away."""

    name: str | UnsetType = UNSET
    role: Role | UnsetType = UNSET
    scopes: Texts | UnsetType | None = UNSET
    networks: Texts | UnsetType | None = UNSET
    models: Texts | UnsetType | None = UNSET
    lanes: Texts | UnsetType | None = UNSET
    expires_at: Instant | UnsetType | None = UNSET
    reason: str = ""


class Rotation(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When the present secret ends; without it, in 24 hours. An instant that has passed ends it now."""

    old_secret_until: Instant | None = None
    reason: str = ""


class KeyObject(Struct, frozen=True, kw_only=True):
    """A key. `id` is the part of it that may be logged. `permissions`: all that it allows. `old_secret_until`: until
    then the secret from before the last rotation is valid too; `old_secret_used_at` says when it last was used.
    `leaked`: it was revoked since somebody else may have it, so that the batches that it ordered are stopped.
    `stands_in`: it stands for a person who asks in the console, without a key. It has no secret, and none is given to
    it."""

    object: Literal["api_key"] = "api_key"
    id: str
    kind: Literal["project", "admin", "operator"]
    tenant_id: TenantId | None
    project_id: ProjectId | None
    name: str
    role: Role | None
    state: Literal["active", "expired", "revoked"]
    permissions: list[str]
    scopes: list[str] | None
    networks: list[str] | None
    models: list[str] | None
    lanes: list[str] | None
    created_at: Instant
    expires_at: Instant | None
    revoked_at: Instant | None
    leaked: bool
    last_used_at: Instant | None
    rotated_at: Instant | None
    old_secret_until: Instant | None
    old_secret_used_at: Instant | None
    stands_in: bool


class KeyWithSecret(KeyObject, frozen=True, kw_only=True):
    """A key, with the whole of it to be kept safe: it is shown this once."""

    key: str


class KeyCheck(Struct, frozen=True, kw_only=True):
    """The result of a dry run: what the key would allow."""

    object: Literal["api_key.check"] = "api_key.check"
    permissions: list[str]


class KeyList(Page[KeyObject], frozen=True):
    """Keys, the newest first."""


def key_object(key: ApiKey) -> KeyObject:
    """A key as answers have it."""
    grant = grant_of(key)
    limits, ended = grant.limits, grant.expires_at is not None and grant.expires_at <= time.time_ns() // 1000
    return show(
        KeyObject,
        key,
        id=key.public_id,
        kind=grant.kind,
        role=None if key.kind == "project" else grant.role,
        state="revoked" if key.revoked_at else "expired" if ended else "active",
        leaked=bool(key.leaked),
        permissions=sorted(grant.permissions()),
        scopes=limits.permissions,
        networks=limits.networks,
        models=limits.models,
        lanes=limits.lanes,
        old_secret_until=key.previous_until if key.previous_mac is not None else None,
        old_secret_used_at=key.previous_used_at,
    )


def limits_of(body: NewKey | NewOperatorKey) -> KeyLimits:
    """The limits of a new key. Raises InvalidLimit."""
    if isinstance(body, NewOperatorKey):
        return key_limits(scopes=body.scopes, networks=body.networks)
    _check_lanes(body.lanes)
    return key_limits(scopes=body.scopes, networks=body.networks, models=body.models, lanes=body.lanes)


def change_of(body: KeyPatch, key: ApiKey) -> KeyChange:
    """The change of a key that a patch asks for. Raises InvalidLimit, InvalidField."""
    _check_lanes(body.lanes or None)
    fields = {name: getattr(body, name) for name in ("scopes", "networks", "models", "lanes")}
    given = {name: value for name, value in fields.items() if value is not UNSET}
    limits: KeyLimits | UnsetType = UNSET
    if given:
        made = key_limits(**given)
        names = ["permissions" if name == "scopes" else name for name in given]
        limits = replace(grant_of(key).limits, **{name: getattr(made, name) for name in names})
    expires = body.expires_at
    return KeyChange(
        name=body.name,
        role=body.role,
        limits=limits,
        expires_at=UNSET if isinstance(expires, UnsetType) else check_future("expires_at", expires),
    )


def check_future(field: str, instant: int | None) -> int | None:
    """The instant of a body. Raises InvalidField if it has passed."""
    if instant is not None and instant <= time.time_ns() // 1000:
        raise InvalidField(f"$.{field}", "it has passed")
    return instant


@contextmanager
def key_errors() -> Iterator[None]:
    """Turn errors of keys into errors of the request."""
    try:
        yield
    except NoSuchRecord as error:
        raise NotFound(f"{error}.") from error
    except InvalidKeyChange as error:
        raise Conflict(f"{error}.", code="wrong_state") from error
    except TooFewOperators as error:
        raise NotAllowed(f"{error}.", code="second_operator_required") from error
    except GivesTooMuch as error:
        raise NotAllowed(f"{error}.", path=f"$.{error.field}", code="exceeds_own_rights") from error
    except (InvalidLimit, InvalidText) as error:
        raise InvalidField(f"$.{error.field}", error.problem) from error


def _check_lanes(lanes: tuple[str, ...] | UnsetType | None) -> None:
    for lane in lanes or ():
        if lane not in LANES:
            raise InvalidLimit("lanes", f"{lane[:80]!r} is not one of {', '.join(LANES)}")
