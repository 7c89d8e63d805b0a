"""U+0000 in names, ids and parameters: PostgreSQL cannot even look for it, and whoever sends it is told so."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.gateway.admin.desk import Desks
from tests.gateway.stack import running_stack

PATHS = (
    "/tenants/a%00b",
    "/tenants/demo/projects/a%00b",
    "/tenants/demo/keys/a%00b",
    "/tenants/demo/invoices/a%00b",
    "/tenants/demo/cache/leases?model=a%00b",
    "/tenants/demo/usage?model=a%00b",
    "/limits/keys/a%00b",
    "/periods/a%00b",
    "/audit?action=a%00b",
)


async def test_they_are_refused_and_no_failure_of_ours(
    fresh_postgres_url: str,
    tmp_path: Path,
    model_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_stack(fresh_postgres_url, tmp_path, model_folder) as stack:
        desk = Desks(stack, monkeypatch).operator()
        for path in PATHS:
            answer = await desk.call("GET", path)
            assert answer.status_code in (400, 404), f"{path}: {answer.text}"
        error = (await desk.get(PATHS[0], 400))["error"]
        assert error["code"] == "invalid_value"
        assert "U+0000" in error["message"]
        assert (await desk.get("/tenants/demo"))["name"] == "demo"
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
