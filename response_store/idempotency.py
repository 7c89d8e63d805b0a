"""Idempotency keys: which request a key stands for, and the answer that is given again to whoever sends it again.

A claim belongs to one API key: the same value sent with another API key is another claim. Sources: the IETF draft "The
Idempotency-Key HTTP Header Field" (draft-ietf-httpapi-idempotency-key-header-07) and Stripe's API.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct
from sqlalchemy import Row, and_, delete, or_, select, update

from response_store.sealing import ContentSeal, Unreadable
from response_store.store import FORGOTTEN, ResponseStore
from response_store.tables import idempotency_claim
from storage.database.database import Database
from storage.database.sql_arrays import one_of

_SECOND = 1_000_000
_LONG_SILENT_S = 3600
_OF = idempotency_claim.c


class ClaimKey(Struct, frozen=True):
    """What names a claim. `digest`: SHA-256 of the key's value."""

    key_id: UUID
    digest: bytes


class NewClaim(Struct, frozen=True, kw_only=True):
    """A request that claims a key. `request_digest`: of all that decides over its answer."""

    key: ClaimKey
    tenant_id: UUID
    project_id: UUID
    request_id: UUID
    request_digest: bytes
    lifetime_s: int


class KeptAnswer(Struct, frozen=True):
    """An answer as it was sent. `lane`: of its request, "" where it is not known."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    lane: str = ""


class Claim(Struct, frozen=True, kw_only=True):
    """A claim as it stands. `worker`: who runs its request, None after its end. `answer`: sealed, None where none is
    kept."""

    request_id: UUID
    request_digest: bytes
    worker: str | None
    model: str
    answer: bytes | None


class IdempotencyClaims:
    """The claims of all API keys. `worker`: who claims here. One that is silent for `silent_s` seconds is dead."""

    def __init__(self, store: ResponseStore, worker: str, silent_s: float = 10.0) -> None:
        self._store = store
        self._database = store.database
        self._worker = worker
        self._silent = int(silent_s * _SECOND)

    async def claim(self, new: NewClaim) -> Claim | None:
        """Claim a key. None if this request has it now, else the claim of the request that has it. A claim that has
        expired, or whose worker is dead, goes to this request. Raises DatabaseUnavailable."""
        clock = self._database.clock
        values: dict[str, Any] = {
            "tenant_id": new.tenant_id,
            "project_id": new.project_id,
            "request_id": new.request_id,
            "request_digest": new.request_digest,
            "worker": self._worker,
            "beat_at": clock,
            "expires_at": clock + new.lifetime_s * _SECOND,
            "model": "",
            "answer": None,
            "bytes": 0,
        }
        insert = self._database.insert(idempotency_claim).values(key_id=new.key.key_id, digest=new.key.digest, **values)
        dead = and_(
            _OF.worker.is_not(None), _OF.beat_at < clock - self._silent, _OF.request_digest == new.request_digest
        )
        taken = insert.on_conflict_do_update(
            index_elements=["key_id", "digest"], set_=values, where=or_(_OF.expires_at <= clock, dead)
        )
        async with self._database.transaction() as session:
            if (await session.execute(taken.returning(_OF.request_id))).scalar_one_or_none() is not None:
                return None
            row = (await session.execute(select(idempotency_claim).where(*_named(new.key)))).one_or_none()
        return await self.claim(new) if row is None else _claim(row)

    async def runs(self, key: ClaimKey) -> bool:
        """Whether a worker that is not dead runs the request of a key. Raises DatabaseUnavailable."""
        alive = (_OF.worker.is_not(None), _OF.beat_at >= self._database.clock - self._silent)
        async with self._database.reading() as session:
            return await session.scalar(select(_OF.key_id).where(*_named(key), *alive)) is not None

    async def beat(self, requests: Sequence[UUID]) -> None:
        """Say that this worker still runs these requests. A claim that was made when nobody waited for it any more is
        not among them, and goes to the next who asks. Raises DatabaseUnavailable."""
        # all tenants: a worker runs those of everybody
        mine = (one_of(self._database, _OF.request_id, requests), _OF.worker == self._worker)
        async with self._database.transaction() as session:
            await session.execute(update(idempotency_claim).where(*mine).values(beat_at=self._database.clock))

    async def release(self, key: ClaimKey, request_id: UUID) -> None:
        """Give a key back: its request was refused, or failed without being billed. Raises DatabaseUnavailable."""
        # all tenants: the API key's id says whose it is
        async with self._database.transaction() as session:
            await session.execute(delete(idempotency_claim).where(*self._own(key, request_id)))

    async def finish(self, new: NewClaim, model: str, answer: KeptAnswer | None) -> None:
        """Note that a claim's request has ended, and its answer if that is kept. Raises ScopeKeyUnreadable,
        DatabaseUnavailable."""
        sealed, size = None, 0
        if answer is not None:
            content = msgspec.msgpack.encode(answer)
            seal = await self._store.seal_of(new.tenant_id, new.project_id)
            sealed, size = seal.seal(content, _content_of(new.request_id)), len(content)
        values = {"worker": None, "beat_at": None, "model": model, "answer": sealed, "bytes": size}
        async with self._database.transaction() as session:
            await session.execute(update(idempotency_claim).where(*self._own(new.key, new.request_id)).values(values))

    async def open(self, tenant_id: UUID, project_id: UUID, claim: Claim) -> KeptAnswer | None:
        """The answer of a claim; None where none is kept, or its project's key was destroyed. Raises
        ScopeKeyUnreadable, DatabaseUnavailable."""
        if claim.answer is None:
            return None
        seal: ContentSeal = await self._store.seal_of(tenant_id, project_id)
        try:
            content = seal.open(claim.answer, _content_of(claim.request_id))
        except Unreadable:
            return None
        return msgspec.msgpack.decode(content, type=KeptAnswer)

    def _own(self, key: ClaimKey, request_id: UUID) -> tuple[Any, ...]:
        return *_named(key), _OF.request_id == request_id, _OF.worker == self._worker


async def forget_expired_claims(database: Database) -> int:
    """Remove claims that have expired and run no more, or whose worker is long dead, FORGOTTEN at a time; how many.
    Raises DatabaseUnavailable."""
    # all tenants: time passes for everybody
    async with database.transaction() as session:
        silent = _OF.beat_at < database.clock - _LONG_SILENT_S * _SECOND
        over = (_OF.expires_at <= database.clock, or_(_OF.worker.is_(None), silent))
        query = select(_OF.key_id, _OF.digest).where(*over).limit(FORGOTTEN)
        named = (await session.execute(query)).all()
        for key_id, digest in named:
            await session.execute(delete(idempotency_claim).where(_OF.key_id == key_id, _OF.digest == digest, *over))
    return len(named)


def _named(key: ClaimKey) -> tuple[Any, ...]:
    # an API key belongs to one tenant
    return _OF.key_id == key.key_id, _OF.digest == key.digest


def _claim(row: Row[Any]) -> Claim:
    return Claim(
        request_id=row.request_id,
        request_digest=row.request_digest,
        worker=row.worker,
        model=row.model,
        answer=row.answer,
    )


def _content_of(request_id: UUID) -> bytes:
    return request_id.bytes + b"idempotent"
