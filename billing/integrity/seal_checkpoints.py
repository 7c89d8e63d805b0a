"""Checkpoints: MACs, by a key that is not in the database, of what seals by other keys say and of the audit log's head.

New seals are made with the current key of the database's keyring (`storage.database.keyring`). Those that were there
before it, by an earlier key or by none, are covered by the checkpoints of the current key: who has the database alone
can neither change one of them, nor add one. A checkpoint has the witness of the audit log too (`audit_log.anchors`), so
that no entry before it can be rewritten either. Checkpoints are numbered from 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import func, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.anchors import latest_witness
from billing.tables.books import seal, seal_checkpoint
from storage.database.database import Database
from storage.database.keyring import Keyring

_CHUNK = 1000
_BYTES = 32
_MODULUS = 1 << 8 * _BYTES
_SAID = ("id", "key", "at", "others", "digest", "witness")
_encode = msgspec.msgpack.encode


def checkpoint_message(row: Mapping[Any, Any]) -> bytes:
    """What the MAC of a checkpoint is made of."""
    return _encode(["turnpike seal checkpoint", *(row[name] for name in _SAID)])


async def seals_of_other_keys(session: AsyncSession, keyring: Keyring) -> tuple[int, bytes]:
    """How many seals were not made by the current key, and the sum of their MACs by it: the same in whatever order they
    are read, and nobody without the key finds others with the same sum."""
    count, total = 0, 0
    query = select(seal.c.kind, seal.c.id, seal.c.sha256, seal.c.form, seal.c.key)
    # all tenants: seals are of all the books
    stream = await session.stream(query.where(seal.c.key != keyring.current).execution_options(yield_per=_CHUNK))
    async for row in stream:
        count += 1
        total += int.from_bytes(keyring.mac(_encode(["turnpike seal", *row]), keyring.current), "big")
    return count, (total % _MODULUS).to_bytes(_BYTES, "big")


async def write_checkpoint(database: Database, *, anew: bool = False) -> int:
    """Write a checkpoint by the current key; its number, or 0 if there is no key or another process writes one now.

    Seals of other keys are counted again if the current key has no checkpoint yet, or `anew`: which is for who has just
    seen that they are right. Raises DatabaseUnavailable.
    """
    keyring = database.keyring
    if not keyring.current:
        return 0
    witness = await latest_witness(database)
    mine = select(seal_checkpoint).where(seal_checkpoint.c.key == keyring.current)
    async with database.reading() as session:
        last = (await session.execute(mine.order_by(seal_checkpoint.c.id.desc()).limit(1))).one_or_none()
        number = (await session.scalar(select(func.max(seal_checkpoint.c.id))) or 0) + 1
        if last is None or anew:
            others, digest = await seals_of_other_keys(session, keyring)
        else:
            others, digest = last.others, last.digest
    row: dict[str, Any] = {"id": number, "key": keyring.current, "at": await database.now(), "others": others}
    row |= {"digest": digest, "witness": "" if witness is None else witness.text}
    row["mac"] = keyring.mac(checkpoint_message(row), keyring.current)
    try:
        async with database.transaction() as session:
            await session.execute(insert(seal_checkpoint).values(row))
    except IntegrityError:
        return 0
    return number
