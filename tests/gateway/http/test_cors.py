"""Pages of other origins: those that are named may call /v1, and read what its answers say."""

from __future__ import annotations

from pathlib import Path

from gateway.services import GatewayOptions
from tests.gateway.stack import quick_timeouts, running_stack

ORIGIN = "https://app.example"


async def test_pages_of_named_origins_may_call(database_url: str, tmp_path: Path, model_folder: Path) -> None:
    options = GatewayOptions(timeouts=quick_timeouts(), drain_timeout=20.0, cors_origins=(ORIGIN,))
    async with running_stack(database_url, tmp_path, model_folder, options=options) as stack:
        asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
        before = await stack.http.options("/v1/chat/completions", headers=asked | {"origin": ORIGIN})
        assert before.status_code == 204
        assert before.headers["access-control-allow-origin"] == ORIGIN
        assert before.headers["access-control-allow-headers"] == "authorization"
        allowed = before.headers["access-control-allow-methods"].lower().split(", ")
        paths = (await stack.http.get("/openapi.json")).json()["paths"]
        assert {method for path, methods in paths.items() if path.startswith("/v1/") for method in methods} <= {
            *allowed
        }
        answer = await stack.http.get("/v1/models", headers={"authorization": "Bearer wrong", "origin": ORIGIN})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (401, ORIGIN)
        assert "access-control-allow-credentials" not in answer.headers
        stack.say("said")
        said = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
        asked_with = {"authorization": f"Bearer {stack.key}", "origin": ORIGIN}
        answer = await stack.http.post("/v1/chat/completions", headers=asked_with, json=said)
        exposed = set(answer.headers["access-control-expose-headers"].split(", "))
        ours = {name for name in answer.headers if name.startswith("x-") or name == "cache-status"}
        assert {"x-request-id", "cache-status"} <= ours <= exposed
        for path, origin in (("/v1/models", "https://other.example"), ("/admin/v1/session", ORIGIN)):
            refused = await stack.http.options(path, headers=asked | {"origin": origin})
            assert "access-control-allow-origin" not in refused.headers
            assert refused.status_code != 204
