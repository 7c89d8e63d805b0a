"""Counts of ready adapters: however often they are reported, an hour of a project's adapter is recorded once."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from uuid import UUID

from file_store.adapter_residency import GRACE, HOUR, AdapterResidency, ReadyHour, ResidencyCount
from file_store.adapters import AdapterFacts, StoredAdapter
from storage.database.database import Database

TENANT, PROJECT, OTHER = UUID(int=1), UUID(int=2), UUID(int=3)
START = 1_795_000_000_000_000 // HOUR * HOUR


def adapter(name: str = "support", project: UUID = PROJECT) -> StoredAdapter:
    return StoredAdapter(
        id=UUID(int=9), tenant_id=TENANT, project_id=project, model="tiny", name=name, digest=f"digest of {name}",
        facts=AdapterFacts(rank=4, alpha=8, targets=("q_proj",), layers=2), bytes=10, created_at=1,
    )  # fmt: skip


def count(milliseconds: int, *, replica: str = "r", epoch: int = 1, hour: int = 0, **of: object) -> ResidencyCount:
    return ResidencyCount(replica, epoch, START + hour * HOUR, adapter(**of), milliseconds)  # type: ignore[arg-type]


async def recorded(residency: AdapterResidency) -> list[ReadyHour]:
    """What is recorded until nothing is left."""
    found: list[ReadyHour] = []

    async def record(hours: Sequence[ReadyHour]) -> None:
        found.extend(hours)

    while await residency.record_next(record):
        pass
    return found


async def test_reports_that_come_again_late_or_from_two_gateways_change_nothing(database: Database) -> None:
    residency = AdapterResidency(database)
    for milliseconds in (1000, 36_000, 36_000, 20_000):
        await residency.report([count(milliseconds)])
    await residency.report([])
    (hour,) = await recorded(residency)
    assert (hour.model, hour.base, hour.hour, hour.millihours) == ("tiny:support", "tiny", START, 10)
    assert await recorded(residency) == []


async def test_a_replica_that_is_killed_counts_beside_its_next_run(database: Database) -> None:
    residency = AdapterResidency(database)
    await residency.report([count(1_800_000), count(36_000, name="other"), count(72_000, project=OTHER)])
    await residency.report([count(900_000, epoch=2), count(3_600_000, replica="q"), count(3599, hour=1)])
    found = await recorded(residency)
    assert {(one.project_id, one.model): one.millihours for one in found} == {
        (PROJECT, "tiny:support"): 1750,
        (PROJECT, "tiny:other"): 10,
        (OTHER, "tiny:support"): 20,
    }


async def test_an_hour_waits_until_reports_of_it_have_come(database: Database) -> None:
    now = await database.now()
    early, late = AdapterResidency(database, grace=2 * HOUR), AdapterResidency(database, grace=GRACE)
    hour = (now // HOUR - 2) * HOUR
    await early.report([ResidencyCount("r", 1, hour, adapter(), 36_000)])
    assert await recorded(early) == []
    async with database.reading() as session:
        assert await early.first_unrecorded(session, now) == hour
        assert await early.first_unrecorded(session, hour) is None
    assert len(await recorded(late)) == 1


async def test_a_failure_to_record_is_tried_again(database: Database) -> None:
    residency = AdapterResidency(database)
    await residency.report([count(36_000)])

    async def fail(hours: Sequence[ReadyHour]) -> None:
        raise RuntimeError

    try:
        await residency.record_next(fail)
    except RuntimeError:
        assert [one.millihours for one in await recorded(residency)] == [10]


async def test_the_highest_count_of_each_run_and_hour_is_recorded(database: Database) -> None:
    """Reports in any order, again and again, are one count each."""
    chance, residency, highest = Random(7), AdapterResidency(database), dict[tuple[str, int, int], int]()
    for _ in range(60):
        replica, epoch, hour = chance.choice("rq"), chance.randint(1, 2), chance.randint(0, 1)
        milliseconds = chance.randint(0, 3_600_000)
        await residency.report([count(milliseconds, replica=replica, epoch=epoch, hour=hour)] * chance.randint(1, 2))
        highest[replica, epoch, hour] = max(milliseconds, highest.get((replica, epoch, hour), 0))
    expected = [sum(ms for (*_, of), ms in highest.items() if of == hour) // 3600 for hour in (0, 1)]
    assert [one.millihours for one in await recorded(residency)] == expected
