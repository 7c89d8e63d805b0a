"""The price book: what each meter of a model costs, in versions that never change once made."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping

import msgspec
from sqlalchemy import insert, select

from billing.money import InvalidPrice, check_currency, parse_price
from billing.prices.version import ALWAYS_PRICED, Cell, PriceMissing, PriceVersion, everywhere
from billing.tables import price, price_version
from billing.usage import METERS
from storage.database import Database

_CACHE_SECONDS = 2


class UnknownPriceVersion(LookupError):
    """There is no price version of this id."""

    def __init__(self, version: int) -> None:
        super().__init__(f"price version {version} does not exist")
        self.version = version


def check_prices(prices: Mapping[str, str]) -> dict[str, int]:
    """Micro-units per million by meter, from decimal prices per million. Raises InvalidPrice naming the meter."""
    for meter in prices:
        if meter not in METERS:
            raise InvalidPrice(meter, "there is no such meter")
    for meter in ALWAYS_PRICED:
        if meter not in prices:
            raise InvalidPrice(meter, "missing; any request may use it")
    return {meter: parse_price(prices[meter], meter) for meter in METERS if meter in prices}


class PriceBook:
    """Price versions in the database, remembered for a moment (which one is current) or for ever (what it says)."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._versions: dict[int, PriceVersion] = {}
        self._current: dict[str, tuple[int, list[PriceVersion]]] = {}

    async def current(self, model: str, at: int) -> PriceVersion:
        """The version in force at an instant: the last to become effective, then the last made.

        Another process's new price is seen within two seconds. Raises PriceMissing.
        """
        loaded_at, versions = self._current.get(model, (0, []))
        if not versions or time.monotonic_ns() - loaded_at > _CACHE_SECONDS * 1_000_000_000:
            versions = await self._load(model)
            self._current[model] = (time.monotonic_ns(), versions)
        for version in versions:
            if version.effective_at <= at:
                return version
        raise PriceMissing(model)

    async def version(self, version: int) -> PriceVersion:
        """The version with this id. Raises UnknownPriceVersion."""
        known = self._versions.get(version)
        if known is None:
            async with self._database.reading() as session:
                row = (await session.execute(select(price_version).where(price_version.c.id == version))).one_or_none()
                if row is None:
                    raise UnknownPriceVersion(version)
                rows = await session.execute(select(price).where(price.c.version == version))
                prices = {(each.meter, each.lane, each.context_from): each.price_micro for each in rows}
            known = PriceVersion(row.id, row.model, row.currency, prices, row.effective_at)
            self._versions[version] = known
        return known

    async def models(self) -> list[str]:
        """The models that have had a price, by name."""
        async with self._database.reading() as session:
            rows = await session.execute(select(price_version.c.model).distinct().order_by(price_version.c.model))
            return list(rows.scalars())

    async def set(
        self, model: str, currency: str, prices: Mapping[str, str], effective_at: int | None = None
    ) -> PriceVersion:
        """Add a version: decimal prices per million by meter, in force from `effective_at` (now if absent).

        Raises InvalidPrice naming the meter, InvalidMoney for the currency; then nothing is written.
        """
        check_currency(currency)
        micro = everywhere(check_prices(prices))
        async with self._database.transaction() as session:
            now = (await session.execute(select(self._database.clock))).scalar_one()
            effective = now if effective_at is None else effective_at
            digest = hashlib.sha256(
                msgspec.json.encode([model, currency, effective, sorted(micro.items())])
            ).hexdigest()
            row = {
                "model": model,
                "currency": currency,
                "effective_at": effective,
                "created_at": now,
                "sha256": digest,
            }
            made = await session.execute(insert(price_version).values(row).returning(price_version.c.id))
            version = made.scalar_one()
            await session.execute(
                insert(price),
                [
                    {"version": version, "meter": meter, "lane": lane, "context_from": tier, "price_micro": amount}
                    for (meter, lane, tier), amount in micro.items()
                ],
            )
        self._current.pop(model, None)
        return PriceVersion(version, model, currency, micro, effective)

    async def _load(self, model: str) -> list[PriceVersion]:
        async with self._database.reading() as session:
            newest_first = (price_version.c.effective_at.desc(), price_version.c.id.desc())
            rows = (
                await session.execute(
                    select(price_version).where(price_version.c.model == model).order_by(*newest_first)
                )
            ).all()
            prices: dict[int, dict[Cell, int]] = {row.id: {} for row in rows}
            of_model = price.join(price_version, price.c.version == price_version.c.id)
            for row in await session.execute(select(price).select_from(of_model).where(price_version.c.model == model)):
                prices[row.version][row.meter, row.lane, row.context_from] = row.price_micro
        versions = [PriceVersion(row.id, row.model, row.currency, prices[row.id], row.effective_at) for row in rows]
        self._versions |= {version.id: version for version in versions}
        return versions
