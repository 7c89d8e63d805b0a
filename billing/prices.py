"""The price book: what each meter of a model costs, in versions that never change once made."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping

import msgspec
from sqlalchemy import insert, select

from billing.money import InvalidPrice, check_currency, parse_price
from billing.tables import price, price_version
from billing.usage import CLASSES, METERS, InvalidUsage, Usage
from storage.database import Database

ALWAYS_PRICED = ("uncached", "read_automatic", "output")
"""Meters that any request may use, so that every version prices them; the classes are priced where they are offered."""

_CACHE_SECONDS = 2


class PriceMissing(LookupError):
    """A model, or one meter of it, has no price."""

    def __init__(self, model: str, meter: str | None = None) -> None:
        super().__init__(f"model {model} has no price" + (f" for {meter}" if meter else ""))
        self.model = model
        self.meter = meter


class UnknownPriceVersion(LookupError):
    """There is no price version of this id."""

    def __init__(self, version: int) -> None:
        super().__init__(f"price version {version} does not exist")
        self.version = version


class PriceVersion(msgspec.Struct, frozen=True):
    """The prices of one model from `effective_at` on, in micro-units of `currency` per 1,000,000 units, by meter."""

    id: int
    model: str
    currency: str
    prices: dict[str, int]
    effective_at: int = 0

    def price(self, meter: str) -> int:
        """The price of a meter. Raises PriceMissing."""
        try:
            return self.prices[meter]
        except KeyError:
            raise PriceMissing(self.model, meter) from None

    def cost(self, usage: Usage) -> int:
        """What the usage costs, in pico-units, exactly. Raises PriceMissing if it uses a meter without a price."""
        return sum([units * self.price(meter) for meter, units in usage.used()])

    def bound(self, prompt_tokens: int, max_output: int, classes: Iterable[str] = ()) -> int:
        """The most that a request can cost, in pico-units: each prompt token at the dearest meter that it may fall on.

        `classes` are those that the request may write or read by a lease. Raises PriceMissing, InvalidUsage.
        """
        if prompt_tokens < 0 or max_output < 0:
            raise InvalidUsage(f"a bound for {prompt_tokens} prompt and {max_output} output tokens")
        meters = ["uncached", "read_automatic"]
        for name in classes:
            if name not in CLASSES:
                raise InvalidUsage(f"unknown class {name}")
            meters += [f"write_{name}", f"read_{name}"]
        return prompt_tokens * max(map(self.price, meters)) + max_output * self.price("output")


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
                rows = await session.execute(_PRICES.where(price.c.version == version))
                prices = {meter: micro for _, meter, micro in rows}
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
        micro = check_prices(prices)
        async with self._database.transaction() as session:
            now = (await session.execute(select(self._database.clock))).scalar_one()
            effective = now if effective_at is None else effective_at
            digest = hashlib.sha256(msgspec.json.encode([model, currency, effective, micro])).hexdigest()
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
                    {"version": version, "meter": meter, "lane": "*", "context_from": 0, "price_micro": amount}
                    for meter, amount in micro.items()
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
            prices: dict[int, dict[str, int]] = {row.id: {} for row in rows}
            of_model = price.join(price_version, price.c.version == price_version.c.id)
            for version, meter, micro in await session.execute(
                _PRICES.select_from(of_model).where(price_version.c.model == model)
            ):
                prices[version][meter] = micro
        versions = [PriceVersion(row.id, row.model, row.currency, prices[row.id], row.effective_at) for row in rows]
        self._versions |= {version.id: version for version in versions}
        return versions


_PRICES = select(price.c.version, price.c.meter, price.c.price_micro).where(
    price.c.lane == "*", price.c.context_from == 0
)
