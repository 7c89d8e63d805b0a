"""Multipliers become prices exactly or not at all; and prices travel through a spreadsheet unchanged."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from billing.calendar import InvalidInstant, format_instant, parse_instant
from billing.money import InvalidPrice
from billing.prices import LANES, in_every_lane
from billing.prices.errors import PriceRefused
from billing.prices.grid import amount, check_rows, derived, difference, parse_factor, parse_rows, unusual
from billing.prices.spreadsheet import read_csv, write_csv
from billing.usage import METERS
from protocol import requests

PLAIN = in_every_lane({"uncached": 400_000, "read_automatic": 40_000, "output": 1_600_000})


def test_the_lanes_that_have_prices_are_those_that_requests_have() -> None:
    assert LANES == requests.LANES


def factors(**given: str) -> dict[str, Fraction]:
    return {name.replace("__", ":"): parse_factor(text, name) for name, text in given.items()}


def test_multiples_become_absolute_prices() -> None:
    rows = derived(PLAIN, factors(write_5m="1.25x", batch="0.5x", interactive="1.75x"))
    assert rows["write_5m", "*", 0] == 500_000
    assert rows["write_5m", "batch", 0] == 250_000
    assert rows["output", "interactive", 0] == 2_800_000
    check_rows(rows, whole=True)
    assert unusual(rows) == []
    tiers = derived(PLAIN, {"200000": Fraction(2), "200000:output": Fraction(3, 2), "batch": Fraction(1, 2)})
    assert tiers["uncached", "*", 200_000] == 800_000
    assert tiers["output", "*", 200_000] == 2_400_000
    assert tiers["output", "batch", 200_000] == 1_200_000
    check_rows(tiers, whole=True)


@pytest.mark.parametrize(
    ("rows", "given_factors"),
    [
        (in_every_lane({"uncached": 1, "read_automatic": 1, "output": 1}), {"batch": Fraction(1, 2)}),
        (PLAIN, {"write_5m": Fraction(1, 3)}),
        (PLAIN, {"express": Fraction(1, 2)}),
        (PLAIN, {"batch:write_5m": Fraction(1, 2)}),
        (in_every_lane({"output": 1}), {"write_5m": Fraction(2)}),
    ],
)
def test_multiples_that_cannot_be_are_refused(
    rows: dict[tuple[str, str, int], int], given_factors: dict[str, Fraction]
) -> None:
    with pytest.raises(InvalidPrice):
        derived(rows, given_factors)


@pytest.mark.parametrize("text", ["1.25", "x", "-1x", "1e3x", "1.5X", "", "1,5x"])
def test_a_factor_is_a_number_and_an_x(text: str) -> None:
    with pytest.raises(InvalidPrice, match="multiplier"):
        parse_factor(text, "batch")


def test_lanes_in_the_wrong_order_are_unusual() -> None:
    for lane, factor in (("batch", "2x"), ("interactive", "0.5x")):
        (first, *_) = unusual(derived(PLAIN, factors(**{lane: factor})))
        assert first.meter == "uncached"
        assert "dearer" in first.problem


grids = st.builds(
    lambda meters, lanes, tiers, seed: {
        (meter, lane, tier): (seed * (n + 7) * (tier + 1)) % 10**10
        for n, meter in enumerate(["uncached", "read_automatic", "output", *meters])
        for lane in {"*", *lanes}
        for tier in {0, *tiers}
    },
    st.sets(st.sampled_from(METERS)).map(sorted),
    st.sets(st.sampled_from(LANES)),
    st.sets(st.integers(1, 10**6), max_size=2),
    st.integers(0, 10**10),
)
names = st.text("abcXYZ-/.,\"'; é", min_size=1, max_size=9).map(str.strip).filter(bool)


@given(st.dictionaries(names, grids, max_size=3))
def test_prices_travel_through_a_spreadsheet_unchanged(models: dict[str, dict[tuple[str, str, int], int]]) -> None:
    text = write_csv((model, "USD", rows) for model, rows in models.items())
    assert read_csv(text) == {model: ("USD", rows) for model, rows in models.items()}
    assert read_csv("\ufeff" + text.replace("\n", "\r\n")) == read_csv(text)
    for rows in models.values():
        assert parse_rows({cell: amount(micro) for cell, micro in rows.items()}) == rows
        check_rows(rows, whole=True)
        assert difference(rows, rows) == []
        assert len(difference({}, rows)) == len(difference(rows, {})) == len(rows)


HEADER = "model,meter,lane,context_from,price_per_million,currency\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no column 'model'"),
        ("model,meter\n", "no column 'lane'"),
        (HEADER + "m,output,*,x,1,USD\n", "line 2: context_from"),
        (HEADER + "m,output,*,,1,USD\n", "line 2: context_from"),
        (HEADER + "m,output,*,0,1,USD\nm,output,,0,2,USD\n", "line 3: an earlier line has the price of output"),
        (HEADER + "m,output,*,0,1,USD\nm,uncached,*,0,2,EUR\n", "line 3: m has prices in USD and EUR"),
        (HEADER + "m,output,*,0,1e3,USD\n", "price of output"),
        (HEADER + "m,output,*," + "9" * 5000 + ",1,USD\n", "line 2: context_from"),
        (HEADER + "m" * 200_000, "the CSV is wrong after line 1"),
        (HEADER + "m,output\n", "context_from"),
    ],
)
def test_a_spreadsheet_that_is_wrong_says_where(text: str, problem: str) -> None:
    with pytest.raises((PriceRefused, InvalidPrice), match=problem):
        read_csv(text)


@given(st.text(max_size=100))
@example("0\r0")
def test_any_text_is_prices_or_refused(text: str) -> None:
    for content in (text, HEADER + text, HEADER + f"m,output,*,0,{text},USD"):
        try:
            found = read_csv(content)
        except (PriceRefused, InvalidPrice):
            continue
        assert read_csv(write_csv((model, *of) for model, of in found.items())) == found


@pytest.mark.parametrize(
    ("text", "instant"),
    [("0", 0), ("1798761600", 1_798_761_600_000_000), ("2027-01-01", 1_798_761_600_000_000),
     ("2027-01-01T00:00:00Z", 1_798_761_600_000_000), ("2027-01-01t01:00+01:00", 1_798_761_600_000_000),
     ("2027-01-01T00:00:00.000001z", 1_798_761_600_000_001)],
)  # fmt: skip
def test_an_instant_is_read(text: str, instant: int) -> None:
    assert parse_instant(text) == instant
    assert parse_instant(format_instant(instant)) == instant


@pytest.mark.parametrize(
    "text",
    ["", "now", "-1", "1.5", "2027-13-01", "2027-01-01T25:00:00Z", "2027-01-01T00:00:00", "9" * 13,
     "1969-12-31T23:59:59Z", "2027-01-01T00:00:00 00:00", "2027-W01", "٣", "9" * 12, "0001-01-01T00:00:00+23:59",
     "9999-12-31T23:59:59.999999Z", "9999-01-01"],
)  # fmt: skip
def test_what_is_no_instant_is_refused(text: str) -> None:
    with pytest.raises(InvalidInstant):
        parse_instant(text)
