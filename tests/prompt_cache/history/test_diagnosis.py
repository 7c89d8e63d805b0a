"""Whatever the history holds: every missed token has exactly one cause, and the prices of misses add up."""

from __future__ import annotations

import itertools
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.usage import AUTOMATIC, Usage
from gateway.metering.miss_prices import billed_as, price_misses
from prompt_cache.history.diagnosis import CAUSES, Diagnosis, Earlier, Ended, Evidence, Miss, diagnose, pack, unpack
from prompt_cache.history.records import Entry, RequestRecord, SpanNote
from prompt_cache.promise.lease_decisions import LeasePart, split_prompt
from tests.fast import examples
from tests.prompt_cache.history.cache_world import PRICE
from tests.prompt_cache.history.test_store import noted

CLASSES = ("5m", "30m", "1h")
HOUR = 3600 * 1_000_000


@st.composite
def records(draw: st.DrawFn, number: int) -> RequestRecord:
    tokens = draw(st.integers(1, 900))
    cuts = sorted(draw(st.lists(st.integers(0, tokens), max_size=6)))
    pairs = enumerate(itertools.pairwise(cuts))
    spans = tuple(SpanNote(f"$.messages[{at}].content", *pair) for at, pair in pairs if pair[0] < pair[1])
    ends = sorted(set(draw(st.lists(st.integers(1, tokens), max_size=3))))
    at = draw(st.integers(0, 3 * HOUR))
    entries = tuple(
        Entry(end, draw(st.sampled_from(CLASSES)), at, draw(st.integers(0, 4 * HOUR)), refused=draw(st.booleans()))
        for end in ends
    )
    read_until = draw(st.integers(0, len(ends)))
    parts = tuple(
        LeasePart(end, "read" if index < read_until else "write", draw(st.sampled_from(CLASSES)))
        for index, end in enumerate(ends)
    )
    leased = ends[read_until - 1] if read_until else 0
    automatic = draw(st.booleans())
    more = draw(st.integers(0, tokens)) if automatic and (not parts or parts[-1].kind == "read") else 0
    changes: dict[str, Any] = {
        "id": UUID(int=number),
        "visible_at": draw(st.none() | st.integers(0, 4 * HOUR)),
        "model": draw(st.sampled_from(("m", "n"))),
        "text_digest": draw(st.sampled_from("de")),
        "spans": spans,
        "automatic": automatic,
        "read": draw(st.sampled_from(("longest", "marked", "none"))),
        "store": draw(st.sampled_from(("all", "hbm", "none"))),
        "read_min": draw(st.sampled_from((1, 64, 300))),
        "lookups": draw(st.none() | st.lists(st.sampled_from(ends or [0]), max_size=3).map(tuple)),
        "max_age": draw(st.none() | st.integers(0, 7200)),
        "entries": entries,
        "breakpoints": tuple((entry.tokens, entry.lease) for entry in entries),
        "parts": parts,
        "billed_read": max(leased, min(tokens, leased + more)),
        "found": draw(st.integers(0, tokens)),
        "replica": draw(st.sampled_from("ab")),
    }
    return noted([0] * tokens, at, **changes).record


@st.composite
def evidence(draw: st.DrawFn, new: RequestRecord) -> Evidence:
    def earlier(number: int) -> Earlier:
        record = draw(records(number))
        return Earlier(record, draw(st.integers(1, min(record.tokens, new.tokens))))

    same = sorted((earlier(number) for number in range(2, 2 + draw(st.integers(0, 3)))), key=lambda one: -one.common)
    other = earlier(9) if draw(st.booleans()) else None
    causes = st.sampled_from(("lease_expired", "purged", "lease_limit"))
    ended = draw(st.lists(st.builds(Ended, st.integers(1, new.tokens), causes, st.integers(0, 4 * HOUR)), max_size=2))
    return Evidence(tuple(same), other, tuple(ended))


@given(st.data())
@settings(max_examples=examples(200))
def test_causes_cover_every_missed_token_once(data: st.DataObject) -> None:
    new = data.draw(records(1))
    known = data.draw(evidence(new))
    found = diagnose(new, known)
    end = found.read
    assert end == new.billed_read
    for miss in found.misses:
        assert (miss.start, miss.cause in CAUSES) == (end, True)
        assert miss.end > miss.start
        assert miss.path.startswith("$")
        end = miss.end
    assert end == new.tokens, "the causes' tokens are all that were not read"
    assert all(miss.cause in CAUSES and miss.end <= found.read for miss in found.recomputed)
    assert unpack(pack(found)) == found


@given(st.data())
@settings(max_examples=examples(100))
def test_prices_of_misses_are_what_reading_would_have_saved(data: st.DataObject) -> None:
    new = data.draw(records(1))
    found = diagnose(new, data.draw(evidence(new)))
    read, write, covered = split_prompt(new.parts, new.tokens)
    automatic = max(0, new.billed_read - sum(read.values()))
    if automatic:
        read[AUTOMATIC] = automatic
        covered += automatic
    usage = Usage(uncached=new.tokens - covered, read=read, write=write)
    billed = dict.fromkeys((meter for _, meter in billed_as(new)), 0)
    start = 0
    for until, meter in billed_as(new):
        billed[meter] += until - start
        start = until
    assert billed == dict(usage.used())
    priced = price_misses(new, found, PRICE)
    saved = sum(miss.tokens for miss in found.misses if miss.lease)
    unpriced = sum(price.cost_pico for miss, price in zip(found.misses, priced, strict=True) if not miss.lease)
    assert unpriced == 0, "what nothing could have read costs nothing more"
    reading = Usage(read={AUTOMATIC: saved}) if saved else Usage()
    missed = sum(
        (min(until, miss.end) - max(before, miss.start)) * PRICE.price(meter, "*", 0)
        for miss in found.misses
        if miss.lease
        for before, (until, meter) in zip([0, *(u for u, _ in billed_as(new))], billed_as(new), strict=False)
        if min(until, miss.end) > max(before, miss.start)
    )
    assert sum(price.cost_pico for price in priced) == missed - PRICE.cost(reading, "standard")


@pytest.mark.parametrize(
    ("surface", "later", "longer"),
    [
        ("anthropic", HOUR // 4, "1h"),
        ("anthropic", 2 * HOUR, None),
        ("openai", HOUR // 4, "30m"),
        ("openai", 2 * HOUR, "12h"),
        ("a newer dialect", HOUR // 4, None),
    ],
)
def test_the_class_that_would_have_hit_is_one_of_the_dialect(surface: str, later: int, longer: str | None) -> None:
    written = 10 * HOUR
    record = noted([0] * 900, written + later, surface=surface).record
    miss = Miss(0, 800, "lease_expired", at=written + HOUR // 12, lease="5m")
    (price,) = price_misses(record, Diagnosis(900, 0, (miss,)), PRICE)
    assert (None if price.longer is None else price.longer.lease) == longer
