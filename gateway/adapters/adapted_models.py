"""Finds the adapter that a request names behind its model: `base:name`.

The request is one of the base model's in all else: its limits, its replicas, its prompt. It is billed under the adapted
name, by that name's own prices or else by those of the base model.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from uuid import UUID

from msgspec.structs import replace

from billing.prices import PriceCatalog, PriceMissing, PriceVersion
from file_store.adapters import AdapterStore, StoredAdapter
from gateway.errors import ModelNotFound, Unavailable
from gateway.fleet.adapter_sender import AdapterSender
from gateway.served_models.registry import ModelRegistry
from gateway.served_models.served_model import ServedAdapter, ServedModel
from protocol.adapters import adapter_name
from storage.database.circuit_breaker import CircuitBreaker
from storage.database.database import DatabaseUnavailable


class AdaptedModels:
    """`store` None: this gateway has no adapters. `sender` sends to replicas what requests have named."""

    def __init__(self, models: ModelRegistry, store: AdapterStore | None, sender: AdapterSender) -> None:
        self._models = models
        self._store = store
        self._sender = sender

    async def adapted(self, tenant_id: UUID, project_id: UUID, model: ServedModel, asked: str) -> ServedModel:
        """The served model `model` as `asked` for: itself, or adapted. Raises ModelNotFound, DatabaseUnavailable."""
        name = self._models.adapter_name(asked)
        if name is None:
            return model
        found = None
        if self._store is not None:
            found = await self._store.named(tenant_id, project_id, model.name, name)
        if found is None:
            raise ModelNotFound(f"The model {asked!r} does not exist.", path="$.model")
        self._sender.offer(wire_name(found), found.bytes, partial(self._content, found))
        return adapted_model(model, found)

    async def adapted_in_time(
        self, tenant_id: UUID, project_id: UUID, model: ServedModel, asked: str, breaker: CircuitBreaker
    ) -> ServedModel:
        """As `adapted`, but it waits no longer for the database than `breaker` says. Raises ModelNotFound,
        Unavailable."""
        if self._models.adapter_name(asked) is None:
            return model
        try:
            return await breaker.wait(self.adapted(tenant_id, project_id, model, asked))
        except DatabaseUnavailable as error:
            problem = "The database is away, so the adapter is not known; try again shortly."
            raise Unavailable(problem, retry_after=2.0) from error

    async def own(self, tenant_id: UUID, project_id: UUID) -> list[ServedModel]:
        """The project's adapted models, the newest first. Raises DatabaseUnavailable."""
        if self._store is None:
            return []
        stored = await self._store.all(tenant_id, project_id)
        return [adapted_model(base, one) for one in stored if (base := self._models.find(one.model)) is not None]

    async def _content(self, found: StoredAdapter) -> AsyncIterator[bytes]:
        assert self._store is not None
        reader = await self._store.reader(found.tenant_id, found.project_id, found.id, found.bytes)
        async for piece in reader.pieces():
            yield piece


async def price_of(prices: PriceCatalog, tenant_id: UUID, model: ServedModel, breaker: CircuitBreaker) -> PriceVersion:
    """An adapted model's own prices, or else those of its base. Raises PriceMissing, DatabaseUnavailable."""
    try:
        price = prices.known(model.full_name, tenant_id)
        if price is None:
            price = await breaker.wait(prices.current(model.full_name, tenant_id=tenant_id))
    except PriceMissing:
        if model.adapter is None:
            raise
        return await price_of(prices, tenant_id, replace(model, adapter=None), breaker)
    return price


def adapted_model(model: ServedModel, stored: StoredAdapter) -> ServedModel:
    """The served model with this adapter."""
    created = stored.created_at // 1_000_000
    return replace(model, adapter=ServedAdapter(stored.name, stored.digest, created, wire_name(stored)))


def wire_name(stored: StoredAdapter) -> str:
    """What replicas know an adapter by: that of another project is another one to them, whatever its digest."""
    return adapter_name(stored.digest, stored.project_id.hex)
