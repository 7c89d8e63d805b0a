"""Usage and its identities."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given

from billing.calendar import InvalidPeriod, check_period, period_of
from billing.usage import METERS, Counts, InvalidUsage, Release, SpoolRecord, Usage, UsageEvent
from storage.database.base import new_id
from tests.billing.prices.test_prices import usages
from tests.billing.spool.test_spool import some_event


def test_meters_are_these() -> None:
    reads = ["read_automatic", "read_5m", "read_30m", "read_1h", "read_12h", "read_24h"]
    writes = ["write_5m", "write_30m", "write_1h", "write_12h", "write_24h"]
    assert list(METERS) == ["uncached", *reads, *writes, "output"]
    assert list(Usage().meters()) == list(METERS)


@given(usages)
def test_usage_is_its_meters(usage: Usage) -> None:
    meters = usage.meters()
    assert sum(meters.values()) == usage.prompt + usage.output
    assert Usage.from_meters(meters).meters() == meters


@pytest.mark.parametrize(
    "wrong",
    [{"uncached": -1}, {"output": -1}, {"read": {"2h": 1}}, {"write": {"automatic": 1}}, {"read": {"5m": -1}},
     {"output": True}, {"output": 1.0}, {"output": 2**63}],
)  # fmt: skip
def test_usage_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidUsage):
        Usage(**wrong)
    with pytest.raises(InvalidUsage):
        Usage.from_meters({"reads": 1})


@pytest.mark.parametrize(
    "wrong", [{"prompt": 1}, {"computed": 1}, {"output": -1}, {"accepted": 1}, {"prompt": 3, "computed": 1}]
)
def test_counts_that_break_their_identity_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidUsage):
        Counts(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"usage": Usage(uncached=9, output=1)},
        {"usage": Usage(uncached=10, output=2)},
        {"usage": Usage(output=1)},
        {"usage": Usage()},  # nothing is billed, and yet it costs
        {"cost_pico": -1},
        {"status": "done"},
        {"delivery": ""},
        {"source": "client"},
        {"sequence": -1},
        {"admitted_at": -1},
    ],
)
def test_an_event_that_contradicts_itself_is_refused(wrong: dict[str, Any]) -> None:
    event = some_event()
    with pytest.raises(InvalidUsage):
        msgspec.structs.replace(event, **wrong)
    assert msgspec.structs.replace(event, usage=Usage(), cost_pico=0).usage.prompt == 0


@pytest.mark.parametrize("period", ["2026-13", "2026-00", "2026-1", "26-11", "2026-11-01", "", "2026/11", "2026-11\n"])
def test_a_malformed_period_is_refused(period: str) -> None:
    with pytest.raises(InvalidPeriod):
        check_period(period)
    with pytest.raises(InvalidPeriod):
        msgspec.structs.replace(some_event(), period=period)


def test_a_month_ends_at_midnight_in_utc() -> None:
    assert period_of(1_798_761_600_000_000 - 1) == "2026-12"
    assert period_of(1_798_761_600_000_000) == "2027-01"


def test_records_survive_encoding() -> None:
    for record in (some_event(), Release(new_id(), "rejected")):
        again = msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=UsageEvent | Release)
        assert again == record
    body = msgspec.to_builtins(some_event()) | {"cost_pico": -1}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(body, type=SpoolRecord)  # type: ignore[arg-type]
