"""Price versions: an immutable snapshot of all prices of one model, from which costs can be recomputed.

The rows are a full grid: meter × lane × context tier. A lane without rows of its own has those of `*`. The tiers are
the same in all lanes, and the lowest begins at 0. A request whose prompt reaches a tier is priced there as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from billing.prices.formulas import FORMULAS, SUM_OF_METERS
from billing.usage import LEASE_CLASSES, InvalidUsage, Usage
from storage.reported_error import ReportedError

LANES = ("interactive", "standard", "batch")
"""The same as in `protocol.requests`, which billing does not import: it knows nothing of the engine's messages."""
EVERY_LANE = "*"
"""The lane of rows that apply to each lane without rows of its own."""
ALWAYS_PRICED = ("uncached", "read_automatic", "output")
"""Meters that any request may use, so that every version has their prices. Classes have prices where offered."""

STORAGE = "storage"
"""The meter of cache storage, priced per million token-hours, with one price for all lanes and context tiers.

It is none of METERS: no request counts it, and `billing.rating.hourly_meters` rates it from the hours of leases.
"""
RESIDENT = "resident"
"""The meter of adapters that replicas keep ready, priced for 1,000 hours (a million thousandths of an hour), likewise
with one price. It is rated from the hours that replicas report."""
HOURLY = (STORAGE, RESIDENT)
"""The meters that are counted by the hour, and not by the request."""

Cell: TypeAlias = tuple[str, str, int]
"""The place of a price: meter, lane, lower bound of the context tier in tokens of the prompt."""
Rows: TypeAlias = Mapping[Cell, int]
"""Micro-units of currency per 1,000,000 units, by cell."""


class PriceMissing(ReportedError, LookupError):
    """A model, or one meter of it, has no price."""

    def __init__(self, model: str, meter: str | None = None) -> None:
        super().__init__(f"model {model} has no price" + (f" for {meter}" if meter else ""))
        self.model = model
        self.meter = meter


def in_every_lane(prices: Mapping[str, int]) -> dict[Cell, int]:
    """Rows from prices by meter, the same in every lane and context tier."""
    return {(meter, EVERY_LANE, 0): micro for meter, micro in prices.items()}


class PriceVersion(msgspec.Struct, frozen=True):
    """The prices of one model from `effective_at` on: `rows` in micro-units of `currency` per 1,000,000 units.

    `formula` is the rule by which they make a cost (`billing.prices.formulas`).
    """

    id: int
    model: str
    currency: str
    rows: Rows
    effective_at: int = 0
    formula: int = SUM_OF_METERS
    _tiers: dict[str, list[tuple[int, Mapping[str, int]]]] = {}  # by lane, from the highest tier down to 0

    def __post_init__(self) -> None:
        grid: dict[str, dict[int, dict[str, int]]] = {}
        for (meter, lane, context_from), micro in self.rows.items():
            grid.setdefault(lane, {}).setdefault(context_from, {})[meter] = micro
        tiers = {lane: sorted(of_lane.items(), reverse=True) for lane, of_lane in grid.items()}
        msgspec.structs.force_setattr(self, "_tiers", tiers)

    def context_from(self, prompt_tokens: int, lane: str) -> int:
        """The lower bound of the context tier of a request with this many prompt tokens. Raises PriceMissing."""
        return self._tier(prompt_tokens, lane)[0]

    def rate(self, usage: Usage, lane: str) -> tuple[int, int]:
        """The context tier of a usage, and its exact cost in pico-units.

        Raises PriceMissing if it uses a meter without a price, or where this program does not know the formula.
        """
        formula = FORMULAS.get(self.formula)
        if formula is None:
            raise PriceMissing(self.model, f"formula {self.formula}")
        context_from, prices = self._tier(usage.prompt, lane)
        try:
            cost = formula(prices, usage)
        except KeyError as error:
            raise PriceMissing(self.model, error.args[0]) from None
        return context_from, cost

    def price(self, meter: str, lane: str, context_from: int) -> int:
        """The price of a meter in a lane and tier. Raises PriceMissing."""
        try:
            return dict(self.tiers(lane))[context_from][meter]
        except KeyError:
            raise PriceMissing(self.model, meter) from None

    def cost(self, usage: Usage, lane: str) -> int:
        """The exact cost of a usage, in pico-units. Raises PriceMissing if it uses a meter without a price."""
        return self.rate(usage, lane)[1]

    def bound(
        self,
        prompt_tokens: int,
        max_output: int,
        classes: Iterable[str] = (),
        *,
        reads: Iterable[str] = (),
        lane: str,
    ) -> int:
        """An upper bound of a request's cost, in pico-units: each token at the highest price that may apply to it.

        That is the highest price in the prompt's tier or a lower one, since a request that ends early is billed for a
        shorter prompt. `classes` are those that the request may write, or read by a lease; `reads` others that it may
        only read. Raises PriceMissing, InvalidUsage.
        """
        if prompt_tokens < 0 or max_output < 0:
            raise InvalidUsage(f"a bound for {prompt_tokens} prompt and {max_output} output tokens")
        meters = ["uncached", "read_automatic"]
        for name in classes:
            if name not in LEASE_CLASSES:
                raise InvalidUsage(f"unknown class {name}")
            meters += [f"write_{name}", f"read_{name}"]
        meters += [f"read_{name}" for name in reads]
        tiers = [prices for context_from, prices in self.tiers(lane) if context_from <= prompt_tokens]
        if not tiers:
            raise PriceMissing(self.model)
        try:
            prompt = max(prices[meter] for prices in tiers for meter in meters)
            output = max(prices["output"] for prices in tiers)
        except KeyError as error:
            raise PriceMissing(self.model, error.args[0]) from None
        return prompt_tokens * prompt + max_output * output

    def tiers(self, lane: str) -> list[tuple[int, Mapping[str, int]]]:
        """The context tiers of a lane, highest first, each with its prices by meter; empty if there are no prices."""
        return self._tiers.get(lane) or self._tiers.get(EVERY_LANE, [])

    def _tier(self, prompt_tokens: int, lane: str) -> tuple[int, Mapping[str, int]]:
        for tier in self.tiers(lane):
            if tier[0] <= prompt_tokens:
                return tier
        raise PriceMissing(self.model)
