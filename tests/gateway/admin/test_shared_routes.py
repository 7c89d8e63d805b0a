"""Exports and webhooks of a tenant below /admin/v1: the same as below /v1, for whoever has a role there."""

from __future__ import annotations

from tests.gateway.admin.desk import Desk, Desks
from tests.gateway.stack import Stack

D = "/tenants/demo"


async def test_exports_are_the_same_on_both_paths(stack: Stack, desks: Desks) -> None:
    finance, viewer, developer = desks.own("finance"), desks.own("viewer"), desks.own("developer")
    job = await finance.post(f"{D}/exports", {"dataset": "usage", "period": "2026-11"}, 202)
    assert (await viewer.get(f"{D}/exports"))["data"] == [job]
    assert await viewer.get(f"{D}/exports/{job['id']}") == job
    await viewer.get(f"{D}/exports/{job['id']}/content", 409)
    own = await stack.http.get("/v1/exports", headers={"x-api-key": stack.admin_key})
    assert own.json()["data"] == [job]
    for path, method in (("/exports", "GET"), (f"/exports/{job['id']}", "GET"), ("/exports", "POST")):
        assert (await developer.call(method, f"{D}{path}", {} if method == "POST" else None)).status_code == 403
    await viewer.post(f"{D}/exports", {"dataset": "usage", "period": "2026-11"}, 403)
    await desks.operator("finance").get(f"{D}/exports/{job['id']}")
    await finance.post(f"{D}/exports", {"dataset": "none", "period": "2026-11"}, 400)
    stranger = desks.role("owner", (await stack.tenancy.create_tenant("stranger")).id)
    await stranger.get(f"{D}/exports", 404)
    await stranger.get(f"/tenants/stranger/exports/{job['id']}", 404)
    assert (await stranger.get("/tenants/stranger/exports"))["data"] == []
    for key in (stack.key, stack.admin_key):  # nothing changed for keys on their own path
        status = 200 if key == stack.admin_key else 403
        assert (await stack.http.get("/v1/exports", headers={"x-api-key": key})).status_code == status
    await Desk(stack, stack.admin_key).get(f"{D}/exports")
    await Desk(stack, stack.key).get(f"{D}/exports", 403)


async def test_webhooks_are_the_same_on_both_paths(stack: Stack, desks: Desks) -> None:
    admin, viewer = desks.own("admin"), desks.own("viewer")
    new = {"url": "https://8.8.8.8/hook", "topics": ["*"]}
    made = await admin.post(f"{D}/webhooks", new, 201)
    assert made.pop("secret")
    assert (await viewer.get(f"{D}/webhooks"))["data"] == [made]
    at = f"{D}/webhooks/{made['id']}"
    assert await viewer.get(at) == made
    assert (await admin.post(f"{at}/rotate", {"overlap_s": 60}))["secret"]
    sent = await admin.post(f"{at}/test", status=202)
    (delivery,) = (await viewer.get(f"{D}/webhook_deliveries"))["data"]
    assert delivery["id"] == sent["id"]
    await viewer.get(f"{D}/webhook_deliveries/{sent['id']}")
    for change in (at + "/rotate", at + "/test", at + "/enable", f"{D}/webhook_deliveries/{sent['id']}/resend"):
        await viewer.post(change, status=403)
    await viewer.delete(at, 403)
    await viewer.post(f"{D}/webhooks", new, 403)
    stranger = desks.role("owner", (await stack.tenancy.create_tenant("stranger")).id)
    for path in (f"webhooks/{made['id']}", f"webhook_deliveries/{sent['id']}"):
        await stranger.get(f"{D}/{path}", 404)
        await stranger.get(f"/tenants/stranger/{path}", 404)
    await stranger.delete(f"/tenants/stranger/webhooks/{made['id']}", 404)
    assert (await admin.delete(at))["deleted"] is True
    own = await stack.http.get("/v1/webhooks", headers={"x-api-key": stack.admin_key})
    assert own.json()["data"] == []
