"""How requests were served: histograms add up, quantiles err by one bucket at most, counts wait for a database."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.events.rollups import HOUR
from billing.service_levels import service_hours
from billing.service_levels.service_hours import (
    BOUNDS,
    BUCKETS,
    Served,
    ServiceHours,
    added,
    bucket_of,
    forget_old,
    quantile,
    served,
)
from storage.database.base import new_id
from storage.database.database import Database, DatabaseUnavailable

NOON = 1_795_003_200_000_000 // HOUR * HOUR


@given(st.lists(st.integers(0, BOUNDS[-1]), min_size=1), st.integers(1, 1000))
def test_a_quantile_is_at_most_one_bucket_too_large(durations: list[int], thousandths: int) -> None:
    counts = Counter(map(bucket_of, durations))
    exact = sorted(durations)[-(-len(durations) * thousandths // 1000) - 1]
    found = quantile(counts, thousandths)
    assert found is not None
    assert exact <= found <= max(BOUNDS[0], exact * 1.42 + 1)


@given(*[st.lists(st.integers(0, 10**10), max_size=20)] * 2)
def test_histograms_are_added_up_without_an_error(one: list[int], other: list[int]) -> None:
    assert added(Counter(map(bucket_of, one)), Counter(map(bucket_of, other))) == Counter(map(bucket_of, one + other))
    assert quantile({}, 500) is None
    assert bucket_of(10**12) == BUCKETS - 1


async def test_counts_of_several_workers_are_added_up(database: Database) -> None:
    tenant, other, project, second = (new_id() for _ in range(4))
    workers = [ServiceHours(database), ServiceHours(database)]
    for round_ in range(2):
        for worker in workers:
            worker.count((tenant, project, "tiny", "standard", NOON + 5), "first_token", 20_000)
            worker.count((tenant, second, "tiny", "batch", NOON + HOUR), "first_token", 20_000)
            worker.count((other, project, "tiny", "standard", NOON), "failed", 5)
            await worker.write()
            assert (round_, await worker.write()) == (round_, None)  # what is written is not counted again
    both = {"start_at": NOON, "end_at": NOON + 2 * HOUR}
    assert await served(database, [tenant], **both) == [
        Served("first_token", "batch", bucket_of(20_000), 4),
        Served("first_token", "standard", bucket_of(20_000), 4),
    ]
    assert sum(one.requests for one in await served(database, None, **both)) == 12
    assert await served(database, [tenant], start_at=NOON, end_at=NOON + HOUR, lanes=["batch"]) == []
    assert [one.lane for one in await served(database, [tenant], projects=[second], **both)] == ["batch"]
    for worker in workers:
        await worker.stop()


async def test_counts_wait_for_the_database_within_bounds(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_hours, "MOST_COUNTERS", 3)
    worker, tenant, project = ServiceHours(database), new_id(), new_id()
    for number in range(5):
        for _ in range(2):
            worker.count((tenant, project, "tiny", "standard", NOON + number * HOUR), "ok", 5)
    assert worker.left_out == 4

    def away() -> None:
        raise DatabaseUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(database, "transaction", away)
        with pytest.raises(DatabaseUnavailable):
            await worker.write()
    worker.count((tenant, project, "tiny", "standard", NOON), "ok", 5)
    await worker.stop()
    found = await served(database, [tenant], start_at=NOON, end_at=NOON + 9 * HOUR)
    assert [one.requests for one in found] == [7]


async def test_old_hours_are_forgotten(database: Database) -> None:
    worker, tenant, project, now = ServiceHours(database), new_id(), new_id(), await database.now()
    old = now - (service_hours.KEEP_DAYS + 1) * 24 * HOUR
    for at in (now, old):
        worker.count((tenant, project, "tiny", "standard", at), "ok", 5)
    await worker.stop()
    assert await forget_old(database) == 1
    (left,) = await served(database, [tenant], start_at=0, end_at=now + HOUR)
    assert left.requests == 1
    assert await forget_old(database) == 0


async def test_an_hour_of_more_rows_than_a_batch_is_forgotten_too(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_hours, "_DELETED", 3)
    worker, tenant, now = ServiceHours(database), new_id(), await database.now()
    old = now - (service_hours.KEEP_DAYS + 1) * 24 * HOUR
    for at in (*[old] * 7, old + HOUR, now):
        worker.count((tenant, new_id(), "tiny", "standard", at), "ok", 5)
    await worker.stop()
    assert [await forget_old(database) for _ in range(4)] == [3, 3, 2, 0]
    (left,) = await served(database, [tenant], start_at=0, end_at=now + HOUR)
    assert left.requests == 1
