"""The cache savings statement: what the same tokens would have cost without a cache, from the period's own lines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from billing.invoices.document import ModelSavings, Savings
from billing.prices import PriceVersion
from billing.rating.lines import RatedLine


def savings(lines: Iterable[RatedLine], versions: Mapping[int, PriceVersion]) -> Savings:
    """By model, from lines of usage: each prompt token at the uncached price of its version, lane and context tier.

    Corrections are left out: they are usage of another period.
    """
    sums: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for line in lines:
        if line.kind != "usage" or line.corrects_period or not (line.model and line.meter and line.price_version):
            continue
        of_model = sums[line.model]
        of_model["cost"] += line.exact_pico
        if line.meter == "output":
            of_model["uncached"] += line.exact_pico
            continue
        version = versions[line.price_version]
        of_model["uncached"] += line.units * version.price("uncached", line.lane or "standard", line.context_from)
        of_model["prompt"] += line.units
        for kind, name in (("read_", "read"), ("write_", "written")):
            if line.meter.startswith(kind):
                of_model[name] += line.units
    names = ("prompt", "read", "written", "cost", "uncached")
    return Savings(
        models=[
            ModelSavings(model=model, **{name: str(of_model[name]) for name in names})
            for model, of_model in sorted(sums.items())
        ]
    )
