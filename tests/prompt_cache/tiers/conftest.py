"""What the tests of the tiers share."""

from __future__ import annotations

from typing import Any

import pytest

from tests.prompt_cache.tiers.stores import memory_folder


@pytest.fixture
def folder() -> Any:
    with memory_folder() as made:
        yield made
