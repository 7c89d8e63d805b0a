"""The cache savings statement: never more is called unread than was, and advice is worth what it says."""

from __future__ import annotations

from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.integrity.canonical_json import canonical
from billing.invoices.document import ClassSavings, ModelSavings, Savings
from billing.invoices.rendering.presentation import shown
from billing.invoices.savings import CacheHour, cache_advice, savings_statement, savings_summary
from billing.prices import PriceVersion, in_every_lane
from billing.usage import LEASE_CLASSES
from tests.billing.invoices.documents import document

PROJECT = UUID(int=7)
MINUTES = {"5m": 5, "30m": 30, "1h": 60, "12h": 720, "24h": 1440}
HOURS = 48
PICO = 10**12
PRICES = {"uncached": 400_000, "read_automatic": 40_000, "output": 1_600_000} | {
    f"{kind}_{name}": price
    for name, writing in {"5m": 500_000, "30m": 600_000, "1h": 800_000, "12h": 900_000, "24h": 1_000_000}.items()
    for kind, price in (("read", 40_000), ("write", writing))
}
VERSION = PriceVersion(1, "sage", "EUR", in_every_lane(PRICES))

write = st.tuples(st.integers(0, HOURS * 60 - 1), st.integers(1, 1000), st.integers(0, 60))
"""When in minutes, how many tokens, and for how long the request runs."""


def _statement(name: str, read: dict[int, int], written: dict[int, int], hours: int = HOURS) -> ClassSavings:
    rows = [
        CacheHour(PROJECT, "sage", "standard", 0, 1, hour, _of(name, read, hour), _of(name, written, hour))
        for hour in sorted(read.keys() | written.keys())
    ]
    (found,) = savings_statement([], {1: VERSION}, rows, hours - 1, {PROJECT: "chat"}).classes
    return found


def _of(name: str, tokens: dict[int, int], hour: int) -> dict[str, int]:
    return {name: tokens[hour]} if tokens.get(hour) else {}


@given(st.sampled_from(LEASE_CLASSES), st.lists(write, min_size=1, max_size=12), st.data())
def test_no_more_is_called_unread_than_was(name: str, writes: list[tuple[int, int, int]], data: st.DataObject) -> None:
    """Prefixes are written and some of them read while their leases live: the statement sees hours alone."""
    read: dict[int, int] = {}
    written: dict[int, int] = {}
    unread = 0
    for at, tokens, runs in writes:
        written[at // 60] = written.get(at // 60, 0) + tokens
        left = data.draw(st.integers(0, 3))
        unread += tokens if not left else 0
        ends = at + runs + MINUTES[name]
        for _ in range(left):
            asked = data.draw(st.integers(at + runs, ends - 1))
            if asked < HOURS * 60:  # else it is of the next period, and no part of this one
                read[asked // 60] = read.get(asked // 60, 0) + tokens
            ends = max(ends, asked + MINUTES[name])
    found = _statement(name, read, written)
    assert int(found.written) == sum(written.values())
    assert 0 <= int(found.unread) <= unread
    if not read and all(hour + 26 < HOURS for hour in written):
        assert int(found.unread) == unread  # and of what nobody read, all of it


def test_what_is_beyond_all_that_was_read_was_not() -> None:
    found = _statement("1h", {3: 100}, {3: 1_000, 9: 50})
    assert (found.unread, found.unread_cost, found.unread_extra) == ("950", str(950 * 800_000), str(950 * 400_000))
    assert found.read_saved == str(100 * 360_000)
    assert _statement("1h", {}, {HOURS - 2: 1_000}).unread == "0"  # the next period may read it


MILLION = 10**6


@pytest.mark.parametrize(
    ("name", "read", "written", "told"),
    [
        (
            "5m", {}, {3: 2 * MILLION},
            ["chat, sage: at least 2,000,000 of the 2,000,000 tokens written for 5 min (100 %) were never read. "
             "Writing them cost EUR 1.00, EUR 0.20 more than plain input: mark for caching only what is sent again "
             "in time."],
        ),
        (
            "1h", {3: MILLION}, {3: MILLION},
            ["chat, sage: written for 5 min instead of 1 h, the same 1,000,000 tokens would have cost EUR 0.30 less. "
             "That pays if at most 652,173 of the 1,000,000 tokens read came later than 5 min after their last use.",
             "chat, sage: caching for 1 h cost EUR 0.04 more than it saved. Each written token was read 1.00 times; it "
             "pays from 1.12 times on."],
        ),
        ("5m", {3: 10 * MILLION}, {3: MILLION}, []),
        ("5m", {}, {3: 20_000}, []),  # worth less than a cent
    ],
)  # fmt: skip
def test_advice_with_its_figures(name: str, read: dict[int, int], written: dict[int, int], told: list[str]) -> None:
    assert cache_advice([_statement(name, read, written)], "EUR") == told


def test_the_token_that_is_one_too_many() -> None:
    """The figure of misses is the break-even: with so many the shorter class costs no more, with one more it does."""
    longer = MILLION * PRICES["write_1h"] + MILLION * PRICES["read_1h"]

    def shorter(misses: int) -> int:
        hits = MILLION - misses
        return (MILLION + misses) * PRICES["write_5m"] + hits * PRICES["read_5m"]

    assert shorter(652_173) <= longer < shorter(652_174)


def test_older_statements_keep_their_hash() -> None:
    model = ModelSavings(model="sage", prompt="10", read="5", written="1", cost=str(PICO), uncached=str(3 * PICO))
    older = Savings(models=[model])
    assert canonical(older) == canonical({"models": [msgspec.to_builtins(model)]})
    assert savings_summary(older, "EUR") == ["cache: saved EUR 2.00; 50.0 % of the prompt tokens were read from it"]


CENT = PICO // 100


@pytest.mark.parametrize(
    ("cost", "uncached", "saved"),
    [
        (9_554 * CENT // 100, 20_040 * CENT // 100, "1.05"),  # 0.96 and 2.00 when each is rounded: 1.04
        (9_546 * CENT // 100, 20_054 * CENT // 100, "1.05"),
        (104 * CENT, 100 * CENT, "−0.04"),
        (1_204 * CENT, 100_000 * CENT, "987.96"),
    ],
)
def test_what_was_saved_is_one_figure_on_every_page(cost: int, uncached: int, saved: str) -> None:
    model = ModelSavings(model="sage", prompt="10", read="5", written="1", cost=str(cost), uncached=str(uncached))
    statement = Savings(models=[model])
    assert savings_summary(statement, "EUR")[0].startswith(f"cache: saved EUR {saved};")
    words = shown(document(savings=statement), "finalized", "")["savings"]
    for row in (words["total"], *words["rows"]):
        assert row["saved"] == saved
        exact, less = (int(row[name].replace(".", "").replace(",", "")) for name in ("uncached", "cost"))
        assert exact - less == int(saved.replace(".", "").replace("−", "-"))  # what a reader finds who subtracts
