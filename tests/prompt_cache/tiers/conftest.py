"""What the tests of the tiers share."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.prompt_cache.tiers import fault_counts
from tests.prompt_cache.tiers.stores import memory_folder


@pytest.fixture
def folder() -> Any:
    with memory_folder() as made:
        yield made


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What became of the faults in cache records, where a long run injected many."""
    if "TIER_FAULTS" in os.environ and fault_counts.COUNTS:
        terminalreporter.section("faults in cache records")
        for line in fault_counts.lines():
            terminalreporter.write_line(line)
