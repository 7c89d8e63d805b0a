"""The header `Cache-Control` of requests: what is understood, what is ignored, what contradicts the body."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidField
from gateway.generation_request import CacheDirectives, CacheMarker, GenerationRequest
from gateway.http.cache_control import CacheControl, apply_cache_control, parse_cache_control

NAMES = ("no-store", "no-cache", "only-if-cached")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], None),
        ([""], None),
        ([" , ,"], None),
        (["no-transform, min-fresh=5, stale-while-revalidate=\"a,b\""], None),
        (["no-store"], CacheControl(no_store=True)),
        (["NO-Store , no-Cache"], CacheControl(no_store=True, no_cache=True)),
        (["no-store", "max-age=7"], CacheControl(no_store=True, max_age=7)),
        (["no-cache=\"set-cookie, no-store\""], CacheControl(no_cache=True)),
        (["x=\"\\\", no-store\", only-if-cached"], CacheControl(only_if_cached=True)),
        (["=, no-store, @@, \"no-cache\""], CacheControl(no_store=True)),
        (["max-age = 60"], CacheControl(max_age=60)),
        (["max-age=\"60\""], CacheControl(max_age=60)),
        (["max-age=5, max-age=5"], CacheControl(max_age=5)),
        (["max-age=0"], CacheControl(no_cache=True, max_age=0)),
        (["max-age=99999999999999999999"], CacheControl(max_age=2**31)),
        (["max-age=9999999999"], CacheControl(max_age=2**31)),
        (["x=\"never closed, no-store"], CacheControl(no_store=True)),
    ],
)  # fmt: skip
def test_what_a_header_says(lines: list[str], said: CacheControl | None) -> None:
    assert parse_cache_control(lines) == said


@pytest.mark.parametrize(
    "line",
    [
        "max-age", "max-age=", "max-age=-1", "max-age=1.5", "max-age=ten", "max-age=1 2", "max-age=٣",
        "max-age=1, max-age=2", "only-if-cached, no-cache", "only-if-cached, max-age=0",
    ],
)  # fmt: skip
def test_what_is_wrong(line: str) -> None:
    with pytest.raises(InvalidField) as caught:
        parse_cache_control([line])
    assert caught.value.path == "Cache-Control"


@given(st.text(max_size=200))
def test_any_header_is_understood_or_named(line: str) -> None:
    try:
        parse_cache_control([line])
    except InvalidField as error:
        assert error.path == "Cache-Control"  # noqa: PT017  # it may, but need not, be raised


@given(st.lists(st.sampled_from([*NAMES, "max-age=9", "x=1", 'y="a,\\"b"', "z", ""]), max_size=8))
def test_order_and_lines_do_not_matter(directives: list[str]) -> None:
    joined, reverse = ",".join(directives), ", ".join(reversed(directives))
    try:
        said = parse_cache_control([joined])
    except InvalidField:
        with pytest.raises(InvalidField):
            parse_cache_control(directives)
        return
    assert said == parse_cache_control(directives) == parse_cache_control([reverse])
    flags = (said.no_store, said.no_cache, said.only_if_cached) if said else (False, False, False)
    assert flags == tuple(name in directives for name in NAMES)


@pytest.mark.parametrize("piece", ['a="', '"', ",", "a=", 'a="\\', "a ", 'a="b" ', " ", "\t", "a"])
def test_a_long_header_takes_no_longer_than_its_length(piece: str) -> None:
    header = ("a," + piece * 4096)[:4094] + '"'
    started = time.process_time()
    for _ in range(20):
        parse_cache_control([header])
    assert time.process_time() - started < 1, "50 ms each: what is quadratic takes 130"
    with pytest.raises(InvalidField):
        parse_cache_control([header, "xxx"])


# ---------------------------------------------------------------- beside a body

MARKED = CacheDirectives(markers=(CacheMarker("$.a", "$.a.marker"),))


def applied(control: CacheControl, said: CacheDirectives) -> CacheDirectives:
    generation = GenerationRequest(surface="openai", model="m", turns=(), turns_path="$.messages", cache=said)
    return apply_cache_control(control, generation).cache


def test_a_header_adds_to_what_the_body_says() -> None:
    assert applied(CacheControl(no_store=True), CacheDirectives()) == CacheDirectives(store="hbm")
    both = applied(CacheControl(no_cache=True), MARKED)
    assert (both.read, both.store, both.markers) == (False, "all", MARKED.markers)
    both = applied(CacheControl(only_if_cached=True, max_age=5), MARKED)
    assert (both.only_if_cached, both.max_age, both.read) == (True, 5, True)
    off = CacheDirectives(read=False, store="none")
    assert applied(CacheControl(no_store=True), off) == off


@pytest.mark.parametrize(
    ("control", "said"),
    [
        (CacheControl(no_store=True), MARKED),
        (CacheControl(no_store=True), CacheDirectives(automatic=True)),
        (CacheControl(no_store=True), CacheDirectives(automatic=True, prewarm=True)),
        (CacheControl(only_if_cached=True), CacheDirectives(read=False, store="none")),
    ],
)
def test_a_header_that_contradicts_the_body_is_refused(control: CacheControl, said: CacheDirectives) -> None:
    with pytest.raises(InvalidField, match="contradicts the body") as caught:
        applied(control, said)
    assert caught.value.path == "Cache-Control"
