"""Every table is either audited, or it is said why not: a new one cannot be forgotten."""

from __future__ import annotations

import importlib
from pathlib import Path

from storage.database.base import Base
from tests.architecture import AUDITED_TABLES, ROOMS, UNAUDITED_TABLES

ROOT = Path(__file__).resolve().parents[2]


def test_every_table_is_audited_or_it_is_said_why_not() -> None:
    importlib.import_module("storage.database.outbox")
    for path in (path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))):
        if path.stem == "tables" or path.parent.name == "tables":
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    assert set(Base.metadata.tables) - {"usage_event"} == AUDITED_TABLES | UNAUDITED_TABLES
    assert not AUDITED_TABLES & UNAUDITED_TABLES
