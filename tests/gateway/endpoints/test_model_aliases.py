"""Aliases: clients with fixed names of models run, and everything is counted under the model's own name."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.served_models.registry import ModelRegistry, UnusableAlias
from gateway.served_models.served_model import load_served_model
from tests.gateway.stack import running_stack

ALIASES = {"gpt-4o": "tiny", "claude-sonnet-4-5": "tiny"}


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
