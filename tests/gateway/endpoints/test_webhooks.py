"""/v1/webhooks: endpoints and deliveries by the API, only for the tenant's own administrator."""

from __future__ import annotations

from typing import Any

from standardwebhooks.webhooks import Webhook

from tests.gateway.stack import Stack
from tests.webhooks.receiver import Names, receiver
from webhooks.addresses import AddressPolicy, parse_networks
from webhooks.dispatch import Dispatcher
from webhooks.sending import WebhookSender
from webhooks.signing import SecretCipher


async def test_endpoints_and_deliveries(stack: Stack) -> None:
    admin = {"authorization": f"Bearer {stack.admin_key}"}
    stranger = await stack.tenancy.create_tenant("stranger")
    strange = {"x-api-key": (await stack.tenancy.create_key(stranger.id, None)).key}

    async def call(method: str, path: str, body: Any = None, headers: Any = admin) -> tuple[int, Any]:
        answer = await stack.http.request(method, f"/v1/{path}", json=body, headers=headers)
        return answer.status_code, answer.json()

    status, made = await call("POST", "webhooks", {"url": "https://hook.test/in", "topics": ["invoice.*"]})
    assert (status, made["status"], made["topics"]) == (201, "enabled", ["invoice.*"])
    at = f"webhooks/{made['id']}"
    assert "secret" not in (await call("GET", at))[1]
    status, rotated = await call("POST", f"{at}/rotate", {"overlap_s": 0})
    assert (status, rotated["previous_secret_until"]) == (200, None)
    assert rotated["secret"] not in ("", made["secret"])
    status, delivery = await call("POST", f"{at}/test")
    assert (status, delivery["status"], delivery["attempts"], delivery["body"]["type"]) == (
        202, "pending", [], "webhook.test",
    )  # fmt: skip
    async with receiver() as right:
        # The name leads to the receiver, which has no TLS: what is seen is that it was called, and how it failed.
        policy = AddressPolicy(networks=parse_networks("127.0.0.1/32"), resolve=Names(["127.0.0.1"]))
        await Dispatcher(stack.database, SecretCipher(b"m" * 32), WebhookSender(policy)).run()
        assert right.received == []
    there = f"webhook_deliveries/{delivery['id']}"
    status, tried = await call("GET", there)
    assert (status, tried["status"], tried["attempt_count"], len(tried["attempts"])) == (200, "pending", 1, 1)
    assert "ConnectError" in tried["last_error"]
    assert (await call("POST", f"{there}/resend"))[0] == 202
    status, listed = await call("GET", f"webhook_deliveries?endpoint_id={made['id']}&limit=5")
    assert ([each["id"] for each in listed["data"]], listed["has_more"]) == ([delivery["id"]], False)
    assert Webhook(rotated["secret"])
    for method, path in (
        ("GET", at),
        ("DELETE", at),
        *(("POST", f"{at}/{verb}") for verb in ("rotate", "test", "enable")),
        ("GET", there),
        ("POST", f"{there}/resend"),
        ("GET", "webhooks/x"),
    ):
        assert (await call(method, path, headers=strange))[0] == 404, path
        assert (await call(method, path, headers={"x-api-key": stack.key}))[0] == 403, path
    for path in ("webhooks", "webhook_deliveries"):
        assert (await call("GET", path, headers=strange))[1]["data"] == []
    for body, field in (
        ({}, "$.url"),
        ({"url": "http://hook.test/"}, "$.url"),
        ({"url": "https://127.0.0.1/"}, "$.url"),
        ({"url": "https://hook.test/", "topics": ["Invoice"]}, "$.topics"),
        ({"url": "https://hook.test/", "secret": "mine"}, "$"),
    ):
        status, refusal = await call("POST", "webhooks", body)
        assert (status, refusal["error"]["param"]) == (400, None if field == "$" else field.removeprefix("$."))
    assert (await call("POST", f"{at}/rotate", {"overlap_s": -1}))[0] == 400
    assert (await call("POST", f"{at}/rotate"))[1]["previous_secret_until"]
    status, refusal = await call("POST", f"{at}/rotate")
    assert (status, refusal["error"]["param"]) == (400, "overlap_s")
    assert (await call("DELETE", at))[1]["deleted"] is True
    assert (await call("GET", "webhooks"))[1]["data"] == []
    assert (await call("GET", at))[0] == 404
