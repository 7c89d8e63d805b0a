"""Public prices in FOCUS: what a row of usage would have cost without the tenant's own price book."""

from __future__ import annotations

from uuid import UUID

from billing.exports.datasets import ExportSnapshot
from billing.prices import PriceMissing
from billing.prices.price_books import PriceBook, all_books
from billing.rating.lines import RatedLine


class ListPrices:
    """Knows the prices of base books, at which tenants without a book of their own are billed."""

    def __init__(self, snapshot: ExportSnapshot, books: list[PriceBook]) -> None:
        self._snapshot = snapshot
        by_id = {book.id: book for book in books}
        self._base = {book.tenant_id: by_id[book.base] for book in books if book.tenant_id and book.base}

    @classmethod
    async def read(cls, snapshot: ExportSnapshot) -> ListPrices:
        """The books as the snapshot has them."""
        return cls(snapshot, await all_books(snapshot.session))

    async def price(self, tenant_id: UUID, line: RatedLine, at: int) -> int:
        """The public price of a line's meter at an instant, in micro-units per million; the line's own where nothing is
        published for it."""
        own = line.price_micro
        assert own is not None, "usage has a price"
        base = self._base.get(tenant_id)
        if base is None or line.model is None or line.lane is None or line.meter is None:
            return own
        try:
            tiers = (await self._snapshot.prices.in_book(base, line.model, at)).tiers(line.lane)
        except PriceMissing:
            return own
        reached = [prices for begins, prices in sorted(tiers, key=lambda tier: tier[0]) if begins <= line.context_from]
        return reached[-1].get(line.meter, own) if reached else own
