"""What happens when money runs short: whose, what would fit, and who gets a shorter answer instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import openai
import pytest

from billing.accounts.balances import Balances
from billing.accounts.budgets import BudgetSettings
from gateway.endpoints.generation_response import AFFORDABLE_TOKENS_HEADER
from tests.fast import only_fast
from tests.gateway.stack import running_stack

OK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


async def test_a_budget_refuses_with_its_name_and_its_end(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder) as stack:
        budgets = BudgetSettings(stack.database)
        limit = await budgets.set(stack.tenant.id, "tag", "nightly", "month", limit_pico=1000, currency="USD")
        stack.say("ok")
        async with stack.openai(max_retries=2) as client:
            answered = await client.chat.completions.create(**OK, max_tokens=5)
            assert answered.choices[0].message.content
            with pytest.raises(openai.APIStatusError) as caught:
                await client.chat.completions.create(**OK, max_tokens=5, metadata={"tag": "nightly"})
        error = caught.value
        assert (error.status_code, error.code) == (402, "insufficient_quota")
        assert isinstance(error.body, dict)
        shortage = error.body["insufficient_funds"]
        assert (shortage["scope"], shortage["budget"]) == ("tag", f"budget_{limit.hex}")
        assert (shortage["affordable"], shortage["affordable_max_tokens"]) == ("0.000000001000", 0)
        (window,) = await budgets.list(stack.tenant.id)
        assert shortage["resets_at"].endswith("-01T00:00:00Z")
        assert "monthly budget of the tag nightly" in error.message
        assert (window.held, window.spent) == (0, 0)


@pytest.mark.parametrize("scope", only_fast("key", of=["project", "key"]))
async def test_a_refusal_calls_projects_and_keys_what_people_call_them(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path, scope: Literal["project", "key"]
) -> None:
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder) as stack:
        mine = [key for key in await stack.tenancy.list_keys(stack.tenant.id) if key.public_id in stack.key]
        (project,) = await stack.tenancy.list_projects(stack.tenant.id)
        subject, name = (str(project.id), project.name) if scope == "project" else (str(mine[0].id), mine[0].public_id)
        await BudgetSettings(stack.database).set(
            stack.tenant.id, scope, subject, "day", limit_pico=1000, currency="USD"
        )
        error = (await stack.post({**OK, "max_tokens": 5})).json()["error"]
        assert error["insufficient_funds"]["scope"] == scope
        assert (
            f"under the daily budget of the {scope} {name}. The daily budget of the {scope} {name} does not"
            in (error["message"])
        )


async def test_a_grant_for_a_model_admits_it_alone(fresh_sqlite_url: str, tmp_path: Path, model_folder: Path) -> None:
    async with running_stack(fresh_sqlite_url, tmp_path, model_folder, grant=0) as stack:
        balances = Balances(stack.database)
        await balances.grant(stack.tenant.id, 10**9, "USD", kind="promo", model="another")
        refused = await stack.post({**OK, "max_tokens": 5})
        assert refused.status_code == 402
        error = refused.json()["error"]
        shortage = error["insufficient_funds"]
        assert (shortage["scope"], shortage["affordable"]) == ("tenant", "0.000000000000")
        assert shortage["elsewhere"] == "0.001000000000"
        assert "0.001 USD more can be used for other models or projects only" in error["message"]
        await balances.grant(stack.tenant.id, 10**9, "USD", kind="promo", model="tiny")
        stack.say("ok")
        assert (await stack.post({**OK, "max_tokens": 5})).status_code == 200
        (event,) = await stack.settled(1)
        left = {grant.model: grant.remaining for grant in await balances.grants(stack.tenant.id)}
        assert left == {"another": 10**9, "tiny": 10**9 - event.cost_pico}


@pytest.mark.parametrize("stream", only_fast(False, of=[False, True]))
async def test_an_open_ended_answer_is_as_long_as_can_be_paid(
    fresh_sqlite_url: str, tmp_path: Path, model_folder: Path, stream: bool
) -> None:
    async with running_stack(fresh_sqlite_url, tmp_path, model_folder, grant=100_000_000) as stack:
        stack.say("ok")
        refused = await stack.post({**OK, "max_tokens": 100})
        assert refused.status_code == 402
        fits = refused.json()["error"]["insufficient_funds"]["affordable_max_tokens"]
        answer = await stack.post({**OK, "stream": stream})
        assert answer.status_code == 200
        assert answer.headers[AFFORDABLE_TOKENS_HEADER] == str(fits)
        assert next(iter(stack.replica.runs.values())).generate.sampling.max_tokens == fits
        await stack.settled(1)
        assert (await stack.events())[0].reason == "stop"  # it ended before its money did
        short = await stack.post({**OK, "max_tokens": 1, "stream": stream})
        assert (short.status_code, AFFORDABLE_TOKENS_HEADER in short.headers) == (200, False)


@pytest.mark.parametrize("stream", only_fast(True, of=[False, True]))
async def test_an_answer_that_money_ends_says_so(
    fresh_sqlite_url: str, tmp_path: Path, model_folder: Path, stream: bool
) -> None:
    async with running_stack(fresh_sqlite_url, tmp_path, model_folder, grant=100_000_000) as stack:
        stack.say("so long " * 100, end=False)
        answer = await stack.post({**OK, "stream": stream})
        assert answer.status_code == 200
        assert '"finish_reason":"length"' in answer.text
        assert '"limited_by":"budget"' in answer.text
        (event,) = await stack.settled(1)
        assert (event.status, event.reason, event.output) == (
            "ok",
            "budget",
            int(answer.headers[AFFORDABLE_TOKENS_HEADER]),
        )
        asked = await stack.post({**OK, "max_tokens": 1})
        assert asked.status_code == 402
