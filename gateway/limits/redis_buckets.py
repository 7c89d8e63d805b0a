"""The buckets in Redis, which all gateways share: operations in batches, one call of the script for each tenant."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from gateway.limits.bucket_script import SCRIPT
from gateway.limits.operations import Operation, Verdict
from storage.redis_script import TIMEOUT_S, RedisScript

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Verdict | bool])
_counts = msgspec.msgpack.Decoder(list[tuple[int, int]])
_WORKERS = "turnpike:limits:{workers}"


class RedisBuckets:
    """The buckets of all tenants. `lease_us`: microseconds of a place; `keep_us`: those of a reservation's record."""

    def __init__(self, url: str, lease_us: int, keep_us: int, *, timeout: float = TIMEOUT_S) -> None:
        """Does not connect yet. Raises InvalidRedisUrl."""
        self._script = RedisScript(url, SCRIPT, timeout=timeout)
        self._times = (lease_us // 1000, keep_us // 1000)

    @property
    def asks(self) -> bool:
        """Whether an operation would be tried now."""
        return self._script.asks

    async def run(self, operations: Sequence[tuple[UUID, Operation]]) -> list[Verdict | None]:
        """Carry out operations of tenants, each tenant's in order; only `Reserve` has an answer.

        Raises ScriptUnavailable; some may have been carried out nevertheless.
        """
        by_tenant: dict[UUID, list[int]] = {}
        for index, (tenant, _) in enumerate(operations):
            by_tenant.setdefault(tenant, []).append(index)
        calls = [
            (prefix(tenant), (_encoder.encode([operations[index][1] for index in own]), *self._times))
            for tenant, own in by_tenant.items()
        ]
        answers: list[Verdict | None] = [None] * len(operations)
        for own, reply in zip(by_tenant.values(), await self._script.run(calls), strict=True):
            for index, answer in zip(own, _decoder.decode(reply), strict=True):
                answers[index] = answer if isinstance(answer, Verdict) else None
        return answers

    async def workers(self, name: str) -> tuple[int, int]:
        """Say that this gateway worker lives; how many do, and how many of them are before it by name. Raises
        ScriptUnavailable."""
        operation = _encoder.encode([("alive", name)])
        return _counts.decode((await self._script.run([(_WORKERS, (operation, *self._times))]))[0])[0]

    async def close(self) -> None:
        """Close the connections."""
        await self._script.close()


def prefix(tenant: UUID) -> str:
    """What the tenant's keys begin with; the braces are a hash tag."""
    return f"turnpike:limits:{{{tenant.hex}}}"
