"""Why prompts missed, as clients and operators are told: in responses, by id, by day, and on the terminal."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai.types.responses.response as openai_types
import pytest
from msgspec.structs import replace
from pydantic import TypeAdapter
from sqlalchemy import select, update

from billing.holds.records import Hold, HoldRequest
from billing.money import PICO, format_pico
from billing.prices import PriceCatalog
from prompt_cache.history.diagnosis import pack as pack_diagnosis
from prompt_cache.history.diagnosis import unpack as unpack_diagnosis
from prompt_cache.history.records import Computed, pack, unpack
from prompt_cache.tables import cache_request, lease
from protocol.requests import Lost
from storage.database.database import Database
from tests.gateway.endpoints.test_message_caching import LEASED
from tests.gateway.endpoints.test_messages import events_of, raw
from tests.gateway.stack import Stack, running_stack
from turnpike.commands.cache import explain

RULES = "Remove any common leading whitespace from every line in text, and return what the quick brown fox does. "
CHAT: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 5,
    "messages": [
        {"role": "system", "content": RULES * 3},
        {"role": "user", "content": "What does textwrap.dedent do?"},
    ],
}
OPENAI = TypeAdapter(openai_types.PromptCacheDiagnostics)


@pytest.fixture
async def stack(stocked_sqlite_url: str, tmp_path: Path, model_folder: Path) -> AsyncIterator[Stack]:
    database = await Database.open(stocked_sqlite_url)
    await PriceCatalog(database).set("tiny", "USD", LEASED)
    await database.close()
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder) as running:
        running.say("ok")
        yield running


def asking(question: str, system: str = RULES * 3, **fields: Any) -> dict[str, Any]:
    return {
        **CHAT,
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": question}],
        **fields,
    }


async def get(stack: Stack, path: str, key: str | None = None) -> httpx.Response:
    return await stack.http.get(path, headers={"authorization": f"Bearer {key or stack.key}"})


async def explained(stack: Stack, name: str) -> dict[str, Any]:
    """The explanation, once it is written."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        answer = await get(stack, f"/v1/requests/{name}/cache")
        if answer.status_code == 200 and await stack.rows("SELECT 1 FROM cache_request"):
            return answer.json()
        await asyncio.sleep(0.05)
    raise AssertionError(f"{name} is not explained")


async def written(stack: Stack, count: int) -> None:
    end = time.monotonic() + 60
    while len(await stack.rows("SELECT 1 FROM cache_request")) < count:
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


async def test_a_changed_prompt_is_explained_by_any_of_its_ids(stack: Stack) -> None:
    first = (await stack.post(asking("Why?"))).json()
    second = await stack.post(asking("Why?", f"It is 12:34. {RULES * 3}"))
    await written(stack, 2)
    found = await explained(stack, second.json()["id"])
    assert found == await explained(stack, second.headers["x-request-id"])
    assert found["request_id"] == second.headers["x-request-id"]
    (miss, *rest) = found["misses"]
    assert (miss["cause"], miss["path"], miss["start"]) == ("diverged", "$.messages[0].content", 0)
    assert first["id"].removeprefix("chatcmpl-") in miss["against"]
    assert found["read_tokens"] + sum(m["tokens"] for m in [miss, *rest]) == found["prompt_tokens"]
    # 0.40 was paid and 0.04 would have been, per million
    assert miss["cost"] == format_pico(miss["tokens"] * (400_000 - 40_000))
    assert PICO == 10**12


async def test_what_a_newer_gateway_wrote_is_told_in_its_words(stack: Stack) -> None:
    """While gateways of two versions run beside each other, one reads causes that it does not know."""
    first = await stack.post(asking("Why?"))
    await written(stack, 1)
    async with stack.database.transaction() as session:
        row = (await session.execute(select(cache_request))).one()
        told = unpack_diagnosis(row.diagnosis)
        misses = (replace(told.misses[0], cause="rotted"), *told.misses[1:])
        newer = {
            "record": pack(replace(unpack(row.record), store="tape", lost=(Computed(0, 64, "rotted"),))),
            "diagnosis": pack_diagnosis(replace(told, misses=misses)),
        }
        await session.execute(update(cache_request).values(newer))
    found = await explained(stack, first.json()["id"])
    assert found["misses"][0]["cause"] == "rotted"
    assert found["misses"][0]["advice"]
    second = await stack.post(asking("Why?"))
    await written(stack, 2)
    assert (await explained(stack, second.json()["id"]))["nearest"] == first.headers["x-request-id"]


async def test_what_was_damaged_or_came_too_late_is_told_as_that(stack: Stack) -> None:
    await stack.post(asking("Why?", RULES * 12))
    lost = (Lost(0, 64, "late"), Lost(64, 128, "corrupted"))
    stack.say("ok", read_nvme=192, lost=lost)
    second = await stack.post(asking("Why?", RULES * 12))
    await written(stack, 2)
    found = await explained(stack, second.json()["id"])
    told = [(miss["cause"], miss["tokens"]) for miss in found["misses"]]
    assert found["read_tokens"] == 64
    assert told[:3] == [("late", 64), ("corrupted", 64), ("evicted", told[2][1])]
    assert all(miss["advice"] for miss in found["misses"])


async def test_what_was_admitted_late_is_visible_once_it_is_answered(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks after an answer finds what it wrote, however long that request waited for its hold."""
    reserve = stack.gateway.services.holds.reserve

    async def late(asked: HoldRequest) -> Hold:
        await asyncio.sleep(0.5)
        return await reserve(asked)

    with monkeypatch.context() as patch:
        patch.setattr(stack.gateway.services.holds, "reserve", late)
        await stack.post(asking("Why?", RULES * 12))
    second = await stack.post(asking("Why?", RULES * 12))
    await written(stack, 2)
    found = await explained(stack, second.json()["id"])
    assert found["misses"]
    assert "not_yet_visible" not in {miss["cause"] for miss in found["misses"]}


@pytest.mark.slow
async def test_nobody_is_told_of_others(stack: Stack) -> None:
    mine = (await stack.post(asking("Why?"))).json()["id"]
    await written(stack, 1)
    other = await stack.tenancy.create_project(stack.tenant.id, "other")
    foreign = (await stack.tenancy.create_key(stack.tenant.id, other.id)).key
    stranger = await stack.tenancy.create_tenant("stranger")
    there = await stack.tenancy.create_project(stranger.id, "there")
    keys = [foreign, (await stack.tenancy.create_key(stranger.id, there.id)).key]
    unknown = "chatcmpl-" + "0" * 32
    for key in keys:
        answers = [await get(stack, f"/v1/requests/{name}/cache", key) for name in (mine, unknown, "nonsense")]
        assert [answer.status_code for answer in answers] == [404, 404, 404]
        told = [answer.text.replace(mine, "ID").replace(unknown, "ID") for answer in answers]
        assert told[0].split("ID")[0] == told[1].split("ID")[0]
        assert (await get(stack, "/v1/usage/cache", key)).json()["data"] == []
        compared = await stack.post(asking("Why?", prompt_cache_options={"comparison_response_id": mine}), key)
        if compared.status_code == 200:
            assert compared.json()["prompt_cache_diagnostics"] == {"type": "comparison_response_not_found"}
    assert (await get(stack, f"/v1/requests/{mine}/cache", stack.admin_key)).status_code == 200


async def test_days_say_what_misses_cost(stack: Stack) -> None:
    for question in ("Why?", "How?", "Who?"):
        await stack.post(asking(question))
    await written(stack, 3)
    answer = await get(stack, "/v1/usage/cache")
    (day,) = answer.json()["data"]
    assert (day["model"], day["project_id"]) == ("tiny", str(stack.project.id))
    assert day["read_tokens"] + sum(one["tokens"] for one in day["causes"]) == day["prompt_tokens"]
    assert {one["cause"] for one in day["causes"]} >= {"cold"}
    for wrong in ("start_date=2026-13-01", "end_date=yesterday", "days=3"):
        assert (await get(stack, f"/v1/usage/cache?{wrong}")).status_code == 400


async def test_openai_diagnostics(stack: Stack) -> None:
    async def compared(body: dict[str, Any], named: str, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        answer = await stack.post(body | {"prompt_cache_options": {"comparison_response_id": named, **options}})
        told = answer.json()
        OPENAI.validate_python(told["prompt_cache_diagnostics"])
        return told["prompt_cache_diagnostics"], told["cache_explanation"]

    first = (await stack.post(asking("Why?", prompt_cache_options={"ttl": "30m"}))).json()["id"]
    told, ours = await compared(asking("Why?"), first)
    assert (told, ours["read_tokens"] > 0) == ({"type": "cache_hit"}, True)
    told, ours = await compared(asking("Why?", "Be brief. " + RULES * 3), first)
    assert (told["type"], told["reason"]) == ("cache_miss", "input_changed")
    assert told["comparison_reusable_tokens"] == ours["misses"][0]["start"] + 2, "what the template begins with"
    told, _ = await compared(asking("Why?", prompt_cache_key="another"), first)
    assert (told["type"], told["reason"]) == ("cache_miss", "prompt_cache_key_changed")
    told, _ = await compared(asking("Why?"), "chatcmpl-" + "1" * 32)
    assert told == {"type": "comparison_response_not_found"}
    plain = (await stack.post(asking("Why?"))).json()
    assert not {"prompt_cache_diagnostics", "cache_explanation"} & set(plain)
    stream = await stack.post(asking("Why?", stream=True, prompt_cache_options={"comparison_response_id": first}))
    last = json.loads(stream.text.strip().split("\n\n")[-2].removeprefix("data: "))
    assert last["prompt_cache_diagnostics"] == {"type": "cache_hit"}


async def test_text_completions_are_explained_too(stack: Stack) -> None:
    async def continued(**fields: Any) -> Any:
        options = fields.pop("options", {})
        body = {"model": "tiny", "prompt": f"{RULES} Why?", "max_tokens": 5, "prompt_cache_options": options, **fields}
        headers = {"authorization": f"Bearer {stack.key}"}
        return await stack.http.post("/v1/completions", json=body, headers=headers)

    first = (await continued()).json()
    assert not {"prompt_cache_diagnostics", "cache_explanation"} & set(first)
    named = {"comparison_response_id": first["id"]}
    told = (await continued(options=named)).json()
    assert told["prompt_cache_diagnostics"] == {"type": "cache_hit"}
    assert told["cache_explanation"]["read_tokens"] > 0
    stream = await continued(options=named, stream=True)
    last = json.loads(stream.text.strip().split("\n\n")[-2].removeprefix("data: "))
    assert (last["prompt_cache_diagnostics"], last["choices"]) == ({"type": "cache_hit"}, [])


@pytest.mark.slow
async def test_anthropic_diagnostics(stack: Stack) -> None:
    import anthropic.types

    marked: Any = {"type": "ephemeral"}

    def asked(question: str, system: str = RULES * 2) -> dict[str, Any]:
        messages = [{"role": "user", "content": question}]
        return {"model": "tiny", "max_tokens": 5, "system": system, "messages": messages, "cache_control": marked}

    async with stack.anthropic() as client:
        first = await client.messages.create(**asked("Why?"), diagnostics={"previous_message_id": None})
        assert first.diagnostics is not None
        assert first.diagnostics.cache_miss_reason is None
        same = await client.messages.create(**asked("Why?"), diagnostics={"previous_message_id": first.id})
        assert same.diagnostics is not None
        assert (same.diagnostics.cache_miss_reason, same.usage.cache_read_input_tokens > 0) == (None, True)
        named: Any = {"previous_message_id": first.id}
        changed = await client.messages.create(**asked("Why?", f"Now. {RULES * 2}"), diagnostics=named)
        assert changed.diagnostics is not None
        reason = changed.diagnostics.cache_miss_reason
        assert isinstance(reason, anthropic.types.CacheMissSystemChanged)
        assert reason.cache_missed_input_tokens == first.usage.cache_creation_input_tokens
        asked_else = await client.messages.create(**asked("How?"), diagnostics=named)
        assert asked_else.diagnostics is not None
        assert isinstance(asked_else.diagnostics.cache_miss_reason, anthropic.types.CacheMissMessagesChanged)
        lost = await client.messages.create(**asked("Why?"), diagnostics={"previous_message_id": "msg_" + "2" * 32})
        assert lost.diagnostics is not None
        missing = lost.diagnostics.cache_miss_reason
        assert isinstance(missing, anthropic.types.CacheMissPreviousMessageNotFound)
        unasked = await client.messages.create(**asked("Why?"))
        assert unasked.diagnostics is None
    streamed = await raw(stack, asked("Who?") | {"stream": True, "diagnostics": named})
    told = dict(events_of(streamed.text))["message_delta"]["diagnostics"]
    assert told["cache_miss_reason"]["type"] == "messages_changed"
    assert told["cache_explanation"]["misses"][0]["path"] == "$.messages[0].content"


async def test_a_system_prompt_that_goes_on_was_changed(stack: Stack) -> None:
    """All that was cached begins the prompt, and is not found: the marked text ends elsewhere."""

    async def told(system: str, **fields: Any) -> dict[str, Any]:
        marked = [{"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}]
        messages = [{"role": "user", "content": "Why?"}]
        return (await raw(stack, {**CHAT, "system": marked, "messages": messages, **fields})).json()

    first = await told(RULES * 3)
    written_tokens = first["usage"]["cache_creation_input_tokens"]
    assert written_tokens > 0
    named = {"diagnostics": {"previous_message_id": first["id"]}}
    changed = await told(RULES * 3 + "Be brief.", **named)
    assert changed["usage"]["cache_read_input_tokens"] == 0
    reason = {"type": "system_changed", "cache_missed_input_tokens": written_tokens}
    assert changed["diagnostics"]["cache_miss_reason"] == reason
    assert (await told(RULES * 3, **named))["diagnostics"]["cache_miss_reason"] is None
    shorter = await told(RULES * 2, **named)
    missed = shorter["diagnostics"]["cache_miss_reason"]
    assert missed["type"] == "system_changed"
    assert missed["cache_missed_input_tokens"] > shorter["usage"]["cache_creation_input_tokens"] > 0


@pytest.mark.slow
async def test_an_ended_lease_says_which_would_have_lived(stack: Stack) -> None:
    body = asking("Why?", cache_control={"type": "ephemeral"})
    await stack.post(body)
    await written(stack, 1)
    long_ago = 600 * 1_000_000
    async with stack.database.transaction() as session:  # as if all of it had been ten minutes earlier
        await session.execute(
            update(lease).values(
                created_at=lease.c.created_at - long_ago,
                written_at=lease.c.written_at - long_ago,
                expires_at=lease.c.expires_at - long_ago,
            )
        )
        row = (await session.execute(select(cache_request))).one()
        record = unpack(row.record)
        (entry,) = record.entries
        entry = replace(entry, written_at=entry.written_at - long_ago, expires_at=entry.expires_at - long_ago)
        aged = pack(replace(record, entries=(entry,), at=record.at - long_ago))
        await session.execute(update(cache_request).values(record=aged))
    found = await explained(stack, (await stack.post(body)).json()["id"])
    ended = found["misses"][0]
    assert (ended["cause"], ended["ttl"], ended["tokens"]) == ("lease_expired", "5m", entry.tokens)
    assert ended["cost"] == format_pico(entry.tokens * (500_000 - 40_000)), "it was written again"
    longer = ended["longer_ttl"]
    assert longer == {
        "ttl": "30m",
        "premium": format_pico(entry.tokens * (600_000 - 500_000)),
        "saved": format_pico(entry.tokens * (500_000 - 40_000)),
    }


@pytest.mark.slow
async def test_the_terminal_shows_it(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    await stack.post(asking("Why?"))
    name = (await stack.post(asking("Why?", f"It is 12:34. {RULES * 3}"))).json()["id"]
    await written(stack, 2)

    class Admin:
        database, tenancy, prices = stack.database, stack.tenancy, stack.gateway.services.prices

    def words(**given: Any) -> argparse.Namespace:
        return argparse.Namespace(tenant="demo", request=None, project=None, day=None, format="table", **given)

    arguments = words()
    arguments.request = name
    await explain.explain_misses.__wrapped__(Admin(), arguments)  # type: ignore[attr-defined]
    page = capsys.readouterr().out
    assert "diverged" in page
    assert "$.messages[0].content" in page
    assert "move what changes behind what stays" in page
    arguments = words()
    arguments.project = "default"
    await explain.explain_misses.__wrapped__(Admin(), arguments)  # type: ignore[attr-defined]
    page = capsys.readouterr().out
    assert "diverged" in page
    assert "share" in page


async def test_a_request_that_is_written_while_it_is_looked_for_is_found(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = (await stack.post(asking("What does it do?"))).headers["x-request-id"]
    await explained(stack, name)
    store = stack.gateway.history.history
    read, asked = store.get, 0

    async def too_early_at_first(*of: Any) -> Any:
        nonlocal asked
        asked += 1
        return None if asked == 1 else await read(*of)

    monkeypatch.setattr(store, "get", too_early_at_first)
    assert (await get(stack, f"/v1/requests/{name}/cache")).status_code == 200
    assert asked == 2
