"""The same logs in each test, whichever tests ran before it in its process.

Commands run in a test configure structlog and the root logger. A plain Litestar application installs a handler with a
stream of its own. What a later test found in its captured output depended on them.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
import structlog

_configure = structlog.configure


def _configure_uncached(**options: Any) -> None:
    """Never keep a logger's first configuration: a module's logger would stay with the test that first wrote to it."""
    _configure(**{**options, "cache_logger_on_first_use": False})


def pytest_configure() -> None:
    structlog.configure = _configure_uncached


@pytest.fixture(autouse=True)
def _fresh_logs() -> None:
    """Send what is logged to `caplog` alone, at once and in this thread."""
    root = logging.getLogger()
    root.handlers[:] = [handler for handler in root.handlers if type(handler).__module__ == "_pytest.logging"]
    root.setLevel(logging.INFO)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.stdlib.add_log_level,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=repr),
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        context_class=dict,
    )
