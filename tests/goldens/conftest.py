"""The gateway of tests/gateway, for what is frozen of its answers."""

from __future__ import annotations

from tests.gateway.conftest import model_folder, stack, stocked_sqlite_url

__all__ = ["model_folder", "stack", "stocked_sqlite_url"]
