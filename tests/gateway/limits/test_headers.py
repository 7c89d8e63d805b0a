"""Durations and instants in headers, and which of two limits is told."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.generation_request import Dialect
from gateway.limits.headers import go_duration, limit_headers, rfc3339
from gateway.limits.limiter import Standing
from gateway.limits.operations import MICRO, Bounds, Levels


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0, "0ms"),
        (1, "1ms"),
        (20_000, "20ms"),
        (999_001, "1s"),
        (1_250_000, "1.25s"),
        (60 * MICRO, "1m0s"),
        (360 * MICRO, "6m0s"),
        (3_661_500_000, "1h1m1.5s"),
    ],
)
def test_durations_as_go_writes_them(microseconds: int, text: str) -> None:
    assert go_duration(microseconds) == text


@given(now=st.integers(0, 4_000_000_000), wait=st.integers(0, 10**10))
def test_an_instant_is_never_too_early_and_less_than_a_second_late(now: int, wait: int) -> None:
    told = datetime.fromisoformat(rfc3339(float(now), wait)).timestamp()
    assert 0 <= told - (now + wait / MICRO) < 1


def told(bounds: tuple[Bounds, ...], levels: tuple[Levels, ...], dialect: Dialect = "openai") -> dict[str, str]:
    headers = limit_headers(Standing(bounds, levels), dialect, now=1_800_000_000.0)
    assert len(dict(headers)) == len(headers)
    return {name.decode(): value.decode() for name, value in headers}


def test_the_tighter_of_project_and_key_is_told() -> None:
    bounds = (Bounds("p", 100, 1000, 50, 8), Bounds("k", 60, concurrent=2))
    levels = (Levels(40 * MICRO, 900 * MICRO, -5 * MICRO, 3), Levels(50 * MICRO + 1, 0, 0, 1))
    openai = told(bounds, levels)
    assert openai["x-ratelimit-limit-requests"] == "100"
    assert openai["x-ratelimit-remaining-requests"] == "40"
    assert openai["x-ratelimit-reset-requests"] == "36s"
    assert openai["x-ratelimit-remaining-tokens"] == openai["x-ratelimit-remaining-output-tokens"] == "0"
    assert openai["x-ratelimit-reset-tokens"] == "1m6s"
    assert openai["x-ratelimit-remaining-input-tokens"] == "900"
    assert (openai["x-ratelimit-remaining-concurrent"], openai["x-ratelimit-limit-concurrent"]) == ("1", "2")
    anthropic = told(bounds, levels, "anthropic")
    assert anthropic["anthropic-ratelimit-requests-reset"] == "2027-01-15T08:00:36Z"
    assert anthropic["anthropic-ratelimit-tokens-limit"] == "50"


def test_only_what_is_limited_is_told() -> None:
    assert set(told((Bounds("p", requests=5),), (Levels(MICRO, 0, 0, 0),))) == {
        f"x-ratelimit-{part}-requests" for part in ("limit", "remaining", "reset")
    }
