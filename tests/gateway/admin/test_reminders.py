"""A tenant opts out of reminders; what was sent, and would be, finance alone sees of all."""

from __future__ import annotations

from tests.gateway.admin.desk import Desks


async def test_a_tenant_opts_out_and_finance_sees_what_is_due(desks: Desks) -> None:
    owner, viewer, finance = desks.own("finance"), desks.own("viewer"), desks.operator("finance")
    policy = f"/tenants/{desks.stack.tenant.name}/reminder-policy"
    shown = await viewer.get(policy)
    assert (shown["enabled"], shown["days"]) == (True, [3, 14, 30])
    await viewer.put(policy, {"enabled": False, "reason": "not mine to say"}, 403)
    refused = await owner.put(policy, {"enabled": False, "reason": ""}, 400)
    assert refused["error"]["param"] == "reason"
    assert (await owner.put(policy, {"enabled": False, "reason": "to our accountant"}))["enabled"] is False
    assert (await viewer.get(policy))["enabled"] is False
    for path in ("/payments/due-reminders", "/payments/reminders"):
        assert (await finance.get(path))["data"] == []
        await owner.get(path, 403)
    unknown = "019aa1f0-0000-7000-8000-0000000000aa"
    await finance.post(f"/payments/reminders/{unknown}/send-again", {"reason": "none"}, 404)
