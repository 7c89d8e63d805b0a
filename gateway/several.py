"""Several requests answered as one: their deliveries one after the other, while all of them run."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from billing.usage import Counts, Usage
from gateway.delivery import Delivery, Failed, Finished, Item, Left, Piece


class Several:
    """Reads deliveries in order. `choices` is how many each has; what is behind waits on its own credit."""

    def __init__(self, deliveries: Sequence[Delivery], choices: int) -> None:
        self._deliveries = deliveries
        self._choices = choices
        self._ends: list[Finished] = []

    async def next(self, timeout: float | None = None) -> Item | None:  # noqa: ASYNC109  # None is an answer here
        """All that is ready of the first that has not ended, or the end of all."""
        while len(self._ends) < len(self._deliveries):
            item = await self._deliveries[len(self._ends)].next(timeout)
            if isinstance(item, Piece):
                first = len(self._ends) * self._choices
                parts = tuple(msgspec.structs.replace(part, choice=first + part.choice) for part in item.parts)
                return Piece(parts, item.tokens)
            if item is None or isinstance(item, Failed | Left):
                return item
            self._ends.append(item)
        return together(self._ends)

    def confirm(self, tokens: int) -> None:
        """The pieces of the delivery that was read last were sent, up to `tokens` of its output tokens."""
        self._deliveries[min(len(self._ends), len(self._deliveries) - 1)].confirm(tokens)


def together(ends: Sequence[Finished]) -> Finished:
    """The good ends of requests of one model as one: what was counted, used and paid added up."""
    if len(ends) == 1:
        return ends[0]
    return Finished(
        tuple(reason for end in ends for reason in end.reasons),
        Counts(*map(sum, zip(*(msgspec.structs.astuple(end.counts) for end in ends), strict=True))),
        Usage(
            uncached=sum(end.usage.uncached for end in ends),
            read=_summed([end.usage.read for end in ends]),
            write=_summed([end.usage.write for end in ends]),
            output=sum(end.usage.output for end in ends),
        ),
        sum(end.cost_pico for end in ends),
        ends[0].currency,
    )


def _summed(meters: Sequence[dict[str, int]]) -> dict[str, int]:
    names = dict.fromkeys(name for meter in meters for name in meter)
    return {name: sum(meter.get(name, 0) for meter in meters) for name in names}
