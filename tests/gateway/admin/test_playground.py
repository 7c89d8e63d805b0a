"""…/playground: whoever may ask a project's models does so signed in, and it is billed as an ordinary request."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
from sqlalchemy import select, update

from billing.prices import in_every_lane
from billing.prices.approval import PriceSheets
from billing.prices.sheets import PriceProposal
from tenancy.tables import ApiKey
from tests.gateway.admin.desk import Desks
from tests.gateway.browser import Browser, browser_of, make_user
from tests.gateway.stack import Stack

ANN, BEN = "ann@example.com", "ben@example.com"
ASK: Any = {"model": "tiny", "messages": [{"role": "user", "content": "How much is it?"}], "max_tokens": 4}
SAID = "one two three four"


def place_of(stack: Stack, project: str | None = None) -> str:
    return f"/tenants/{stack.tenant.name}/projects/{project or stack.project.name}/playground"


def as_id(value: Any) -> UUID:
    """An id as the database has it."""
    return value if isinstance(value, UUID) else UUID(bytes=value)


async def signed_in(stack: Stack, browser: Browser, email: str = ANN) -> Browser:
    await make_user(stack.users, email, ("developer", stack.tenant.id, stack.project.id))
    await browser.sign_in(email)
    return browser


async def ask(browser: Browser, stack: Stack, **more: Any) -> httpx.Response:
    stack.say(SAID, end=False)
    path = f"/admin/v1{place_of(stack)}/chat/completions"
    return await browser.http.post(path, json=ASK | more, headers={"x-turnpike-csrf": "1", "origin": browser.base})


async def test_a_session_asks_and_each_token_is_billed_once_by_who_asked(stack: Stack) -> None:
    async with browser_of(stack) as ann, browser_of(stack) as ben:
        await signed_in(stack, ann)
        await signed_in(stack, ben, BEN)
        offered = await ann.get(place_of(stack))
        assert [model["id"] for model in offered["models"]] == ["tiny"]
        estimate = await ann.post(f"{place_of(stack)}/estimate", ASK)
        assert await stack.events() == [], "an estimate bills nothing"
        answer = await ask(ann, stack)
        assert answer.status_code == 200, answer.text
        (event,) = await stack.settled(1)
        usage = answer.json()["usage"]
        assert event.uncached == usage["prompt_tokens"] == estimate["input"]["tokens"]
        assert (as_id(event.tenant_id), as_id(event.project_id)) == (stack.tenant.id, stack.project.id)
        assert (await ask(ann, stack)).status_code == (await ask(ben, stack)).status_code == 200
        events = await stack.settled(3)
        by_whom = {as_id(event.key_id) for event in events}
        keys = {key.id: key for key in await stack.tenancy.list_keys(stack.tenant.id)}
        names = sorted(keys[one].name for one in by_whom)
        assert names == [f"playground, {ANN}", f"playground, {BEN}"], "one key for each, made once"
        listed = await browser_requests(ann, stack, answer.headers["x-request-id"])
        assert listed["key"] == keys[as_id(event.key_id)].public_id


async def browser_requests(browser: Browser, stack: Stack, name: str) -> Any:
    return await browser.get(f"/tenants/{stack.tenant.name}/requests/{name}")


async def test_a_stream_ends_with_its_cost(stack: Stack) -> None:
    async with browser_of(stack) as ann:
        await signed_in(stack, ann)
        answer = await ask(ann, stack, stream=True, stream_options={"include_usage": True})
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
        assert lines[-1] == "[DONE]"
        chunks = [json.loads(line) for line in lines[:-1]]
        assert chunks[-1]["usage"]["cost"]["currency"] == "USD"
        (event,) = await stack.settled(1)
        assert event.output == chunks[-1]["usage"]["completion_tokens"]


async def key_of_the_request(stack: Stack) -> str:
    """The public id of the key of the only request."""
    (event,) = await stack.settled(1)
    keys = {key.id: key for key in await stack.tenancy.list_keys(stack.tenant.id)}
    return keys[as_id(event.key_id)].public_id


async def test_the_key_is_made_by_the_user_and_ends_it_when_revoked(stack: Stack, desks: Desks) -> None:
    async with browser_of(stack) as ann:
        await signed_in(stack, ann)
        assert (await ask(ann, stack)).status_code == 200
        key = await key_of_the_request(stack)
        entries = await desks.own().get("/audit?limit=100&action=key.created")
        made = [entry for entry in entries["data"] if entry["target"]["id"] == key]
        assert len(made) == 1, entries
        assert ANN in json.dumps(made[0]["actor"])
        await stack.tenancy.revoke(key, stack.tenant.id)
        refused = await ask(ann, stack)
        assert refused.status_code == 403
        assert key in refused.json()["error"]["message"]
        assert len(await stack.events()) == 1


async def test_a_key_that_has_expired_is_made_anew_and_a_revoked_one_is_not(stack: Stack) -> None:
    async with browser_of(stack) as ann:
        await signed_in(stack, ann)
        used = []
        for number in range(3):
            assert (await ask(ann, stack)).status_code == 200
            events = await stack.settled(number + 1)
            keys = {key.id: key for key in await stack.tenancy.list_keys(stack.tenant.id)}
            (key,) = {as_id(event.key_id) for event in events} - {key.id for key in used}
            used.append(keys[key])
            await expire(stack, key)
        assert {key.name for key in used} == {f"playground, {ANN}"}
        assert (await ask(ann, stack)).status_code == 200
        (last,) = {as_id(event.key_id) for event in await stack.settled(4)} - {key.id for key in used}
        keys = {key.id: key for key in await stack.tenancy.list_keys(stack.tenant.id)}
        await stack.tenancy.revoke(keys[last].public_id, stack.tenant.id)
        refused = await ask(ann, stack)
        assert (refused.status_code, len(await stack.events())) == (403, 4)
        assert keys[last].public_id in refused.json()["error"]["message"]


async def test_nobody_gets_a_secret_of_the_key_that_stands_for_a_colleague(stack: Stack, desks: Desks) -> None:
    async with browser_of(stack) as ann:
        await signed_in(stack, ann)
        assert (await ask(ann, stack)).status_code == 200
    key = await key_of_the_request(stack)
    for role in ("developer", "owner"):
        refused = await desks.own(role).post(f"/tenants/{stack.tenant.name}/keys/{key}/rotate", {}, 409)
        assert refused["error"]["code"] == "wrong_state"

    # One whose secret somebody got before that was refused is no key either.
    own = await stack.tenancy.create_key(stack.tenant.id, stack.project.id)
    presented = own.key.replace(own.public_id, key)
    async with stack.database.transaction() as session:
        mac = select(ApiKey.mac).where(ApiKey.public_id == own.public_id).scalar_subquery()
        await session.execute(update(ApiKey).where(ApiKey.public_id == key).values(mac=mac))
    for secret, status in ((own.key, 200), (presented, 401)):
        answer = await stack.http.get("/v1/models", headers={"authorization": f"Bearer {secret}"})
        assert answer.status_code == status, answer.text


async def expire(stack: Stack, key: UUID) -> None:
    """Let a key have expired a minute ago."""
    async with stack.database.transaction() as session:
        past = datetime.now(UTC) - timedelta(minutes=1)
        await session.execute(update(ApiKey).where(ApiKey.id == key).values(expires_at=past))


async def test_nobody_asks_elsewhere_or_without_the_right(stack: Stack, desks: Desks) -> None:
    second = await stack.tenancy.create_project(stack.tenant.id, "second")
    body = ASK
    own = desks.role("developer", stack.tenant.id, stack.project.id)
    await own.post(f"{place_of(stack, second.name)}/chat/completions", body, 404)
    await own.post(f"{place_of(stack, 'none')}/estimate", body, 404)
    other = await stack.tenancy.create_tenant("other")
    await desks.role("owner", other.id).post(f"{place_of(stack)}/chat/completions", body, 404)
    await desks.own("viewer").post(f"{place_of(stack)}/chat/completions", body, 403)
    async with browser_of(stack) as ann:
        await signed_in(stack, ann)
        path = f"/admin/v1{place_of(stack)}/chat/completions"
        forged = await ann.http.post(path, json=body)
        assert (forged.status_code, forged.json()["error"]["code"]) == (403, "csrf")
        elsewhere = await ann.http.post("/v1/chat/completions", json=body)
        assert elsewhere.status_code == 401, "a cookie means nothing at /v1"
    assert await stack.events() == []


async def test_a_suspended_project_refuses_operators_too(stack: Stack, desks: Desks) -> None:
    async with browser_of(stack) as ann:
        await signed_in(stack, ann)
        at = f"/tenants/{stack.tenant.name}/projects/{stack.project.name}"
        await desks.operator().post(f"{at}/suspend", {"reason": "test"})
        refused = await ask(ann, stack)
        assert refused.status_code == 403
        assert "suspended" in refused.text
        await desks.operator().post(f"{place_of(stack)}/chat/completions", ASK, 403)
        assert await stack.events() == []


async def test_what_cannot_be_paid_for_is_refused_in_the_words_of_every_request(stack: Stack) -> None:
    dear = in_every_lane({"uncached": 400_000, "read_automatic": 40_000, "output": 10**13})
    await PriceSheets(stack.database).put(PriceProposal(model="tiny", rows=dear), by="ann", force="it must be dear")
    stack.gateway.services.prices.forget()
    async with browser_of(stack) as ann:
        await signed_in(stack, ann)
        refused = await ask(ann, stack)
        ordinary = await stack.post(ASK)
        assert refused.status_code == ordinary.status_code == 402
        assert refused.json()["error"]["message"] == ordinary.json()["error"]["message"]
        assert await stack.events() == []
