"""/v1/exports: ordered, made, downloaded; only by the tenant's own administrator."""

from __future__ import annotations

import hashlib
from typing import Any

from billing.exports.datasets import DisplayNames
from tests.billing.money import Tenant
from tests.billing.recorded import record
from tests.gateway.stack import Stack


async def _names() -> DisplayNames:
    return DisplayNames()


async def test_an_export_by_the_api(stack: Stack) -> None:
    tenant = await Tenant.rich(stack.database, 0)
    tenant.id = stack.tenant.id
    await record(stack.database, tenant, count=25)
    admin = {"authorization": f"Bearer {stack.admin_key}"}
    stranger = await stack.tenancy.create_tenant("stranger")
    strange = {"x-api-key": (await stack.tenancy.create_key(stranger.id, None)).key}

    async def ask(body: Any, headers: Any = admin) -> tuple[int, Any]:
        answer = await stack.http.post("/v1/exports", json=body, headers=headers)
        return answer.status_code, answer.json()

    status, job = await ask({"dataset": "usage", "period": "2026-11"})
    assert status == 202
    assert (job["status"], job["rows"], job["manifest"], job["format"]) == ("queued", 0, None, "csv")
    at = f"/v1/exports/{job['id']}"
    early = await stack.http.get(f"{at}/content", headers=admin)
    assert (early.status_code, early.json()["error"]["code"]) == (409, "export_not_ready")
    jobs = stack.gateway.services.exports
    assert await jobs.run_next(_names)
    done = (await stack.http.get(at, headers=admin)).json()
    assert (done["status"], done["rows"], done["manifest"]["rows"]) == ("done", 25, 25)
    content = await stack.http.get(f"{at}/content", headers=admin)
    assert content.status_code == 200
    assert content.headers["content-type"] == "text/csv; charset=utf-8; header=present"
    assert "usage-2026-11.csv" in content.headers["content-disposition"]
    assert hashlib.sha256(content.content).hexdigest() == done["manifest"]["sha256"]
    listed = (await stack.http.get("/v1/exports?limit=1", headers=admin)).json()
    assert ([each["id"] for each in listed["data"]], listed["has_more"]) == ([job["id"]], False)
    for path in (at, f"{at}/content", "/v1/exports/nothing"):
        assert (await stack.http.get(path, headers=strange)).status_code == 404
    assert (await stack.http.get("/v1/exports", headers=strange)).json()["data"] == []
    project = {"x-api-key": stack.key}
    assert (await ask({"dataset": "usage", "period": "2026-11"}, project))[0] == 403
    assert (await stack.http.get(at, headers=project)).status_code == 403
    for body, path in (
        ({"dataset": "usage"}, "$.period"),
        ({"dataset": "prompts", "period": "2026-11"}, "$.dataset"),
        ({"dataset": "usage", "period": "November"}, "$.period"),
        ({"dataset": "usage", "period": "2026-11", "format": "doc"}, "$.format"),
        ({"dataset": "usage", "period": "2026-11", "tenant": "other"}, "$"),
    ):
        status, answer = await ask(body)
        assert (status, answer["error"]["param"]) == (400, None if path == "$" else path.removeprefix("$."))
    jobs.path(await jobs.get(stack.tenant.id, (await jobs.list(stack.tenant.id))[0].id)).unlink()
    lost = await stack.http.get(f"{at}/content", headers=admin)
    assert (lost.status_code, "TURNPIKE_EXPORT_DIR" in lost.text) == (503, True)
