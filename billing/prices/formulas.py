"""The rules by which a usage and the prices of a context tier make a cost, by version.

A price version names its formula, and events name their price version: so a cost is recomputed by the rule that it was
made by, whatever the rule of later versions is. A formula never changes. Another rule is another entry behind the last
one, and price versions from then on have it. Invoice lines are units × price: a formula whose cost is not that sum
needs lines of its own too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from billing.usage import Usage

Formula: TypeAlias = Callable[[Mapping[str, int], Usage], int]
"""The cost in pico-units by micro-units per 1,000,000 units of each meter. Raises KeyError for a meter without a
price."""


def sum_of_meters(prices: Mapping[str, int], usage: Usage) -> int:
    """Each meter's units × its price."""
    cost = usage.uncached * prices["uncached"] + usage.output * prices["output"]
    for name, tokens in usage.read.items():
        if tokens:
            cost += tokens * prices["read_" + name]
    for name, tokens in usage.write.items():
        if tokens:
            cost += tokens * prices["write_" + name]
    return cost


SUM_OF_METERS = 1
FORMULAS: dict[int, Formula] = {SUM_OF_METERS: sum_of_meters}
"""Every formula that a price version may name. The last one is that of new price versions."""


def formula_of_new_versions() -> int:
    """The number of the formula of price versions that are made now."""
    return max(FORMULAS)
