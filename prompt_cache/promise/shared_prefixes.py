"""Beginnings of prompts whose KV operators share beyond a project: within its tenant, or with everybody.

KV of a shared prefix lies in a scope of its own, so that a replica computes and stores it once for all projects. Leases
and bills know nothing of it: each project is billed for what was promised to it. Sharing is an act with actor and
reason. What is shared is found by a digest of its tokens, whole blocks only; its text is kept nowhere.

Each gateway asks the database every few seconds what is shared, and has the data keys of these scopes in memory.
"""

from __future__ import annotations

import asyncio
import hashlib
from array import array
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Literal, TypeAlias
from uuid import UUID

import msgspec
import structlog
from sqlalchemy import func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.actors import current_actor
from audit_log.record import record_change
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.promise.scope_keys import ScopeKeys, ScopeKeyUnreadable
from prompt_cache.tables import shared_prefix
from storage.database.base import new_id
from storage.database.database import Database, DatabaseUnavailable
from storage.free_text import REASON, check_text
from storage.reported_error import ReportedError

log = structlog.get_logger("prompt_cache.shared_prefixes")

Reach: TypeAlias = Literal["tenant", "public"]
EVERYBODY = UUID(int=0)
"""Whose prefixes with `public` reach are."""
MOST_SHARED = 256
_EVERY_S = 3.0


class SharingRefused(ReportedError):
    """This cannot be shared, or is not."""


class SharedPrefix(msgspec.Struct, frozen=True):
    """A shared beginning of prompts. Instants are microseconds of the database's clock since the Unix epoch."""

    id: UUID
    reach: Reach
    tenant_id: UUID
    model: str
    tokens: int
    digest: bytes
    shared_by: str
    reason: str
    shared_at: int
    ended_at: int | None = None
    ended_by: str | None = None
    end_reason: str | None = None


def digests_of(model: tuple[str, str], tokens: Sequence[int], lengths: Iterable[int]) -> Iterable[tuple[int, bytes]]:
    """The digest of the first tokens of a prompt, for each of these lengths, in ascending order. `model`: the served
    model's name, and the digest of its tokenizer and template."""
    digest = hashlib.sha256(b"turnpike/shared-prefix/v1")
    for part in model:
        digest.update(len(part.encode()).to_bytes(4, "big") + part.encode())
    start = 0
    for length in lengths:
        digest.update(array("I", tokens[start:length]))
        start = length
        yield length, digest.copy().digest()


class SharedPrefixes:
    """What is shared. `keys`: the data keys; a prefix whose key cannot be read is not shared for now."""

    def __init__(
        self,
        database: Database,
        keys: ScopeKeys,
        pause: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(_EVERY_S),
    ) -> None:
        self._database, self._keys, self._pause = database, keys, pause
        self._by_owner: dict[tuple[UUID, str], dict[int, dict[bytes, SharedPrefix]]] = {}

    # ------------------------------------------------ what gateways ask

    async def run(self) -> None:
        """Look again and again until cancelled."""
        while True:
            try:
                await self.look()
            except DatabaseUnavailable:
                log.info("shared prefixes cannot be read: the database is away")
            except Exception:  # this must not end: what operators share or take back would not be known
                log.exception("shared prefixes could not be read, trying again")
            await self._pause()

    async def look(self) -> None:
        """Learn what is shared now. Raises DatabaseUnavailable."""
        found: dict[tuple[UUID, str], dict[int, dict[bytes, SharedPrefix]]] = {}
        for one in await self.listed():
            try:
                await self._keys.load(one.tenant_id, one.id)
            except ScopeKeyUnreadable as error:
                log.error("a shared prefix is computed for each project", cause=str(error))
                continue
            lengths = found.setdefault((one.tenant_id, one.model), defaultdict(dict))
            lengths[one.tokens][one.digest] = one
        self._by_owner = found

    def of_prompt(self, tenant_id: UUID, model: tuple[str, str], tokens: Sequence[int]) -> tuple[SharedPrefix, ...]:
        """The longest public beginning of this prompt and the tenant's longest one beyond it, where there are any.
        `model`: as for `digests_of`."""
        if not self._by_owner:
            return ()
        shared: list[SharedPrefix] = []
        for owner in (EVERYBODY, tenant_id):
            known = self._by_owner.get((owner, model[0]), {})
            reached = shared[-1].tokens if shared else 0
            lengths = sorted(length for length in known if reached < length <= len(tokens))
            found = [known[length].get(digest) for length, digest in digests_of(model, tokens, lengths)]
            shared += [one for one in found if one is not None][-1:]
        return tuple(shared)

    # ------------------------------------------------ what operators do

    async def share(
        self, reach: Reach, tenant_id: UUID, model: tuple[str, str], tokens: Sequence[int], *, reason: str
    ) -> SharedPrefix:
        """Share the whole blocks of these tokens with the tenant, or with everybody. What is shared already is
        returned. Raises SharingRefused, InvalidText, DatabaseUnavailable."""
        check_text("reason", reason, REASON)
        whole = len(tokens) // BLOCK_TOKENS * BLOCK_TOKENS
        if not whole:
            raise SharingRefused(f"{len(tokens)} tokens are too few to be shared: a block has {BLOCK_TOKENS}")
        owner = EVERYBODY if reach == "public" else tenant_id
        ((_, digest),) = digests_of(model, tokens, [whole])
        of = shared_prefix.c
        async with self._database.transaction() as session:
            await self._database.lock_rows_of(session, shared_prefix, EVERYBODY)  # those of all are counted
            now = (await session.execute(select(self._database.clock))).scalar_one()
            same = (of.ended_at.is_(None), of.digest == digest, of.tenant_id == owner)
            row = (await session.execute(select(shared_prefix).where(*same))).one_or_none()
            if row is not None:
                return SharedPrefix(*row)
            # all tenants: what is shared is looked at for each request
            count = await session.scalar(select(func.count()).select_from(shared_prefix).where(of.ended_at.is_(None)))
            if (count or 0) >= MOST_SHARED:
                raise SharingRefused(f"{MOST_SHARED} prefixes are shared, which is the most")
            made = SharedPrefix(new_id(), reach, owner, model[0], whole, digest, current_actor().name, reason, now)
            await session.execute(insert(shared_prefix).values(msgspec.structs.asdict(made)))
            await _record(session, "cache.shared", made, reason)
        await self._keys.load(owner, made.id)
        return made

    async def end(self, identity: UUID, *, reason: str) -> SharedPrefix:
        """Share this no longer, and destroy the data key of its scope: replicas forget what they have of it. What is
        not shared any more, and whose key lives, has it destroyed. Raises SharingRefused, InvalidText,
        DatabaseUnavailable."""
        check_text("reason", reason, REASON)
        async with self._database.transaction() as session:
            now = (await session.execute(select(self._database.clock))).scalar_one()
            # all tenants: an operator's act, on one row
            mine = shared_prefix.c.id == identity
            row = (await session.execute(self._database.locked(select(shared_prefix).where(mine)))).one_or_none()
            if row is None:
                raise SharingRefused(f"no prefix {identity} is shared")
            found = SharedPrefix(*row)
            destroyed = await self._keys.destroy_with(session, found.tenant_id, found.id, reason)
            if found.ended_at is None:
                ended = {"ended_at": now, "ended_by": current_actor().name, "end_reason": reason}
                await session.execute(update(shared_prefix).where(mine).values(ended))
                await _record(session, "cache.unshared", found, reason)
                found = msgspec.structs.replace(found, **ended)
            elif not destroyed:
                raise SharingRefused(f"no prefix {identity} is shared")
        self._keys.drop(found.id)
        return found

    async def listed(self, *, ended: bool = False) -> list[SharedPrefix]:
        """What is shared, the oldest first; with `ended`, also what was. Raises DatabaseUnavailable."""
        # all tenants: operators and gateways alone ask
        query = select(shared_prefix).order_by(shared_prefix.c.shared_at, shared_prefix.c.id)
        if not ended:
            query = query.where(shared_prefix.c.ended_at.is_(None))
        async with self._database.reading() as session:
            return [SharedPrefix(*row) for row in await session.execute(query)]


async def _record(session: AsyncSession, action: str, one: SharedPrefix, reason: str) -> None:
    what = {"with": one.reach, "model": one.model, "tokens": one.tokens, "digest": one.digest.hex()}
    tenant_id = None if one.tenant_id == EVERYBODY else one.tenant_id
    shares = action == "cache.shared"
    await record_change(
        session, action, target="shared_prefix", target_id=one.id, tenant_id=tenant_id, reason=reason,
        before=None if shares else what, after=what if shares else None,
    )  # fmt: skip
