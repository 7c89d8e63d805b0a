"""What would have cost less: advice about markers and lifetimes, with the amount where one can be told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from billing.money import format_pico
from billing.reports.cache_savings import ClassSavings
from billing.usage import AUTOMATIC
from prompt_cache.history.diagnosis import Cause
from prompt_cache.history.store import MissSums

Basis = Literal["exact", "at_most"]

_OF_CAUSES: dict[Cause, tuple[str, str]] = {
    "lease_expired": ("longer_ttl", "Prefixes came again after their lease had ended: ask for a longer lifetime."),
    "unmarked": ("add_markers", "Prefixes came again that no marker promised: set a marker at their end."),
    "diverged": ("stable_prefix", "Prompts differ where earlier ones went on: move what changes behind what stays."),
    "lookback_exceeded": ("closer_markers", "Markers stood too far behind the lease: set one nearer to it."),
    "no_read": ("allow_reads", "Requests asked not to read: leave that out where an old answer would do."),
    "no_store": ("allow_store", "Requests asked that nothing be kept: leave that out where it may be."),
    "lease_limit": (
        "more_leases",
        "The project had as many tokens in leases as it may: purge some, or raise the limit.",
    ),
    "model_changed": ("one_model", "The same prompts came under another model, which has a cache of its own."),
    "partition_changed": ("one_partition", "The same prompts came under another partition, which shares nothing."),
    "not_yet_visible": ("send_later", "Requests came before the first of them had begun: send the others after it."),
}


class Advice(Struct, frozen=True, kw_only=True):
    """`amount`, by currency: what the span would have cost less. `exact`: it is a sum of the bill. `at_most`: all
    misses of the cause would have had to be reads, and what their writes cost is not taken off."""

    code: str
    text: str
    basis: Basis
    amount: dict[str, str]
    tokens: int


def advice_of(classes: Mapping[str, ClassSavings], misses: MissSums) -> list[Advice]:
    """The advice, that with the largest amounts first."""
    found: list[tuple[int, Advice]] = []
    for name, one in classes.items():
        lost = {currency: -pico for currency, pico in one.net_pico().items() if pico < 0}
        if name != AUTOMATIC and lost:
            text = f"Writes for {name} cost more than their reads saved: leave those markers out, or send more often."
            found.append((sum(lost.values()), _advice("fewer_markers", text, "exact", lost, one.written)))
    for cause in misses.causes:
        if cause.cause in _OF_CAUSES and any(pico > 0 for pico in cause.cost_pico.values()):
            code, text = _OF_CAUSES[cause.cause]
            advice = _advice(code, text, "at_most", cause.cost_pico, cause.tokens)
            found.append((sum(cause.cost_pico.values()), advice))
    return [advice for _, advice in sorted(found, key=lambda each: (-each[0], each[1].code))]


def _advice(code: str, text: str, basis: Basis, pico: Mapping[str, int], tokens: int) -> Advice:
    amount = {currency: format_pico(each) for currency, each in sorted(pico.items())}
    return Advice(code=code, text=text, basis=basis, amount=amount, tokens=tokens)


def shares(parts: list[int]) -> list[str]:
    """Each part of their sum in per cent with two decimals, so rounded that they add up to 100.00 (or all are 0.00):
    those with the largest remainders are rounded up. None may be less than zero."""
    total = sum(parts)
    if total == 0:
        return ["0.00"] * len(parts)
    whole = [part * 10_000 // total for part in parts]
    by_remainder = sorted(range(len(parts)), key=lambda place: (-(parts[place] * 10_000 % total), place))
    for place in by_remainder[: 10_000 - sum(whole)]:
        whole[place] += 1
    return [f"{each // 100}.{each % 100:02d}" for each in whole]
