"""A database with what a gateway needs, as the gateway's own tests have it."""

from __future__ import annotations

from tests.gateway.conftest import stocked_sqlite_url

__all__ = ["stocked_sqlite_url"]
