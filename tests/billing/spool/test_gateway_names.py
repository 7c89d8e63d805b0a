"""No two gateways that live have one name; one whose run is over finds that out and stops."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import literal, select, update

from billing.spool.gateway_epochs import EpochKeeper, GatewayNameTaken
from billing.spool.spool import Spool
from billing.tables.books import gateway_epoch
from storage.database.base import Count
from storage.database.database import Database

SECOND = 1_000_000


async def _keeper(database: Database, folder: Path, epoch: str, name: str = "g1") -> EpochKeeper:
    return EpochKeeper(database, Spool(folder / "spool", epoch), name, folder=str(folder))


async def _states(database: Database) -> dict[str, str]:
    async with database.reading() as session:
        return {row.epoch: row.state for row in await session.execute(select(gateway_epoch))}


@pytest.mark.both_databases
async def test_a_name_is_one_gateway_s(database: Database, tmp_path: Path) -> None:
    first = await _keeper(database, tmp_path / "a", "g1-a")
    await first.start()
    with pytest.raises(GatewayNameTaken, match="another data folder"):
        await (await _keeper(database, tmp_path / "b", "g1-b")).start()
    with pytest.raises(GatewayNameTaken, match="runs already"):
        await (await _keeper(database, tmp_path / "a", "g1-c")).start()
    other = await _keeper(database, tmp_path / "b", "g2-d", "g2")
    await other.start()
    await first.stop()
    second = await _keeper(database, tmp_path / "b", "g1-e")
    await second.start()
    await second.stop()
    await other.stop()
    assert set((await _states(database)).values()) == {"ended"}


@pytest.mark.both_databases
async def test_many_start_with_one_name_at_once(database: Database, tmp_path: Path) -> None:
    keepers = [await _keeper(database, tmp_path / str(n), f"g1-{n}") for n in range(6)]
    outcomes = await asyncio.gather(*(keeper.start() for keeper in keepers), return_exceptions=True)
    refused = [outcome for outcome in outcomes if outcome is not None]
    assert all(isinstance(outcome, GatewayNameTaken) for outcome in refused), refused
    assert len(refused) == 5
    await keepers[outcomes.index(None)].stop()


async def test_a_killed_gateway_s_name_is_free_at_once_where_its_files_say_so(
    database: Database, tmp_path: Path
) -> None:
    """Its lock is gone with it. From elsewhere nobody can tell, but by its silence."""
    killed = await _keeper(database, tmp_path / "a", "g1-a")
    await killed.start()
    await killed.stop()
    (tmp_path / "a" / "spool" / "g1-a.epoch").touch()  # what a killed process leaves
    async with database.transaction() as session:
        await session.execute(update(gateway_epoch).values(state="live"))
        now = (await session.execute(select(database.clock))).scalar_one()
    elsewhere = await _keeper(database, tmp_path / "b", "g1-b")
    with pytest.raises(GatewayNameTaken, match="after 30 s"):
        await elsewhere.start()
    here = await _keeper(database, tmp_path / "a", "g1-c")
    await here.start()
    assert await here.end_gone() == ["g1-a"]
    await here.stop()
    async with database.transaction() as session:
        await session.execute(update(gateway_epoch).values(state="live"))
    database.clock = literal(now + 60 * SECOND, Count())
    await elsewhere.start()
    await elsewhere.stop()


async def test_who_was_paused_until_its_name_was_another_s_stops(database: Database, tmp_path: Path) -> None:
    paused = await _keeper(database, tmp_path / "a", "g1-a")
    over: list[str] = []
    paused.on_over = over.append
    await paused.publish()
    async with database.reading() as session:
        now = (await session.execute(select(database.clock))).scalar_one()
    database.clock = literal(now + 60 * SECOND, Count())
    second = await _keeper(database, tmp_path / "b", "g1-b")
    await second.start()
    for _ in range(2):
        await paused.publish()
    assert len(over) == 1
    assert "another gateway has taken its name" in over[0]
    await second.publish()
    await second.stop()


async def test_what_had_ended_before_a_restored_dump_ends_again(database: Database, tmp_path: Path) -> None:
    ended = await _keeper(database, tmp_path / "a", "g1-a")
    await ended.start()
    await ended.stop()
    async with database.transaction() as session:
        await session.execute(update(gateway_epoch).values(state="live"))  # as the dump has it
    later = await _keeper(database, tmp_path / "a", "g1-b")
    await later.start()
    assert "g1-a" in await later.end_gone() or (await _states(database))["g1-a"] == "ended"
    await later.stop()
