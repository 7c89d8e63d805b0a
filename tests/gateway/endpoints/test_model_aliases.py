"""Aliases: clients with fixed names of models run, and everything is counted under the model's own name."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.served_models.registry import ModelRegistry, UnusableAlias
from gateway.served_models.served_model import load_served_model
from gateway.services import GatewayOptions
from tests.gateway.stack import quick_timeouts, running_stack

ALIASES = {"gpt-4o": "tiny", "claude-sonnet-4-5": "tiny"}
ORIGIN = "https://app.example"


async def test_an_alias_answers_as_its_model(database_url: str, tmp_path: Path, model_folder: Path) -> None:
    async with running_stack(database_url, tmp_path, model_folder, aliases=ALIASES) as stack:
        stack.say("said")
        answer = await stack.post({"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]})
        assert (answer.status_code, answer.json()["model"]) == (200, "tiny")
        (event,) = await stack.settled(1)
        assert event.model == "tiny"
        key = {"authorization": f"Bearer {stack.key}"}
        listed = (await stack.http.get("/v1/models", headers=key)).json()["data"]
        assert [(one["id"], one.get("alias_of")) for one in listed] == [
            ("tiny", None), ("gpt-4o", "tiny"), ("claude-sonnet-4-5", "tiny"),
        ]  # fmt: skip
        one = (await stack.http.get("/v1/models/gpt-4o", headers=key | {"anthropic-version": "2023-06-01"})).json()
        assert (one["id"], one["display_name"]) == ("gpt-4o", "tiny")
        only = (await stack.tenancy.create_key(stack.tenant.id, None)).key
        seen = (await stack.http.get("/v1/models", headers={"authorization": f"Bearer {only}"})).json()["data"]
        assert len(seen) == 3


def test_an_alias_stands_for_a_served_model(model_folder: Path) -> None:
    model = load_served_model(model_folder)
    with pytest.raises(UnusableAlias, match="not served"):
        ModelRegistry([model], {"gpt-4o": "other"})
    with pytest.raises(UnusableAlias, match="served model itself"):
        ModelRegistry([model], {model.name: model.name})


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
        for path, origin in (("/v1/models", "https://other.example"), ("/admin/v1/session", ORIGIN)):
            refused = await stack.http.options(path, headers=asked | {"origin": origin})
            assert "access-control-allow-origin" not in refused.headers
            assert refused.status_code != 204


async def test_unknown_paths_answer_in_their_dialect(database_url: str, tmp_path: Path, model_folder: Path) -> None:
    async with running_stack(database_url, tmp_path, model_folder) as stack:
        theirs = await stack.http.post("/v1/messages/nothing", json={})
        assert (theirs.status_code, theirs.json()["type"]) == (404, "error")
        assert theirs.json()["error"]["type"] == "not_found_error"
        ours = await stack.http.get("/v1/nothing")
        assert (ours.status_code, ours.json()["error"]["code"]) == (404, "not_found")
        assert "access-control-allow-origin" not in ours.headers
