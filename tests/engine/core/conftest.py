"""What tests of the engine with its tiers share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.memory_store import MemoryStore


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    store = MemoryStore()
    yield store
    store.gate.set()
