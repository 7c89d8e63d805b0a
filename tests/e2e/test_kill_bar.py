"""Random kills under load: what clients were told is in the books, once, and the books are right.

`KILL_SECONDS`: for how long; a minute in `make test-long`.
"""

from __future__ import annotations

import os

import pytest

from benchmarks.random_kills import is_clean, kill

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]


def test_nothing_acknowledged_is_lost_and_nothing_is_doubled() -> None:
    figures = kill(seconds=float(os.environ.get("KILL_SECONDS", "20")), clients=16, least=3)
    assert is_clean(figures), figures
    assert figures["acknowledged"] > 0
    assert sum(figures["kills"].values()) >= 3
