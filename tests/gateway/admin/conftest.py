"""Desks for everybody who calls the admin API."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.gateway.admin.desk import Desks
    from tests.gateway.stack import Stack


@pytest.fixture
def desks(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Desks:
    from tests.gateway.admin.desk import Desks  # its imports warn before pytest is configured

    return Desks(stack, monkeypatch)
