"""A month of usage events of many tenants: ten million requests in the order of time, two fifths of one tenant."""

from __future__ import annotations

import random
from collections.abc import Iterator

from billing.calendar import period_of
from billing.prices import PriceCatalog, PriceVersion
from billing.usage import Counts, Usage, UsageEvent
from storage.database.base import id_of, new_id

PRICES = {"uncached": "0.40", "read_automatic": "0.04", "read_5m": "0.04", "write_5m": "0.50", "output": "1.60"}
TENANTS = 200
_KEYS = 4
_MODELS = ("small", "large")
_LANES = ("standard", "standard", "standard", "interactive", "batch")
_START = 1_793_491_200_000_000  # 2026-11-01
MOST = 10_000_000
"""The events of the month."""
_APART = 29 * 86_400_000_000 // MOST
PERIOD = period_of(_START)


class Traffic:
    """Finished requests of 200 tenants with four keys each, of two models in three lanes."""

    def __init__(self, versions: list[PriceVersion], count: int) -> None:
        self.tenants = [new_id() for _ in range(TENANTS)]
        self._rng = random.Random()
        self._count = count
        self._kinds = []
        for version in versions:
            for n in range(25):
                usage = Usage(
                    uncached=100 + n,
                    read={"automatic": 64 * n} if n % 2 else {"5m": 64 * n},
                    write={"5m": 8 * n} if n % 5 == 0 else {},
                    output=10 + n,
                )
                for lane in _LANES:
                    counts = Counts(prompt=usage.prompt, computed=usage.prompt, output=usage.output)
                    self._kinds.append((version, usage, counts, lane, version.cost(usage, lane)))
        self._keys = {tenant: [(new_id(), new_id()) for _ in range(_KEYS)] for tenant in self.tenants}

    @classmethod
    async def of(cls, catalog: PriceCatalog, count: int) -> Traffic:
        """Traffic at prices that are made for it."""
        return cls([await catalog.set(model, "USD", PRICES) for model in _MODELS], count)

    def batches(self, size: int, share: int = 0, of: int = 1) -> Iterator[list[UsageEvent]]:
        """The events, so many at a time: every so manyth batch, so that each share is another's beside it."""
        self._rng.seed(share)
        for start in range(share * size, self._count, size * of):
            yield [self._event(n) for n in range(start, min(start + size, self._count))]

    def _event(self, n: int) -> UsageEvent:
        rng = self._rng
        at = _START + n * _APART
        tenant = self.tenants[min(int(rng.paretovariate(0.8)) - 1, TENANTS - 1)]
        project, key = rng.choice(self._keys[tenant])
        version, usage, counts, lane, cost = rng.choice(self._kinds)
        number = (at // 1000) << 80 | 7 << 76 | rng.getrandbits(12) << 64 | 2 << 62 | rng.getrandbits(62)
        return UsageEvent(
            id=id_of(number.to_bytes(16, "big")),
            tenant_id=tenant,
            project_id=project,
            key_id=key,
            model=version.model,
            model_digest="digest",
            lane=lane,
            price_version=version.id,
            admitted_at=at,
            finished_at=at + 1_500_000,
            period=PERIOD,
            status="ok",
            reason="stop",
            delivery="confirmed",
            source="gateway",
            replica="r",
            sequence=n + 1,
            attempt=1,
            counts=counts,
            usage=usage,
            cost_pico=cost,
        )
