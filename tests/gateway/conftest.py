"""A tiny model for the session, and a whole gateway for a test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.served_models.served_model import ServedModel, load_served_model
from storage.database import migrate
from storage.database.database import Database
from tests.conftest import sqlite_copy
from tests.gateway.tiny_model import make_model_folder

if TYPE_CHECKING:
    from tests.gateway.stack import Stack


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def model(model_folder: Path) -> ServedModel:
    return load_served_model(model_folder)


@pytest.fixture
async def stocked_sqlite_url(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a SQLite database with what `stack.stock` puts in."""
    return await sqlite_copy("stocked", _make_stocked, tmp_path, tmp_path_factory)


async def _make_stocked(url: str) -> None:
    from tests.gateway.stack import stock  # its imports warn before pytest is configured

    await migrate.upgrade(url)
    database = await Database.open(url)
    await stock(database)
    await database.close()


@pytest.fixture
async def stack(stocked_sqlite_url: str, tmp_path: Path, model_folder: Path) -> AsyncIterator[Stack]:
    from tests.gateway.stack import running_stack

    async with running_stack(stocked_sqlite_url, tmp_path, model_folder) as running:
        yield running
