"""What is kept of responses: gone on from, read, listed, expired and deleted, and never by another project."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import tracemalloc
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from openai import NotFoundError
from sqlalchemy import text

from gateway.dialects.openai.responses import request as responses_request
from gateway.http.body_budget import BodyBudget
from gateway.kept_responses.storage_bound import StorageBound
from gateway.services import GatewayOptions
from response_store import store
from response_store.policies import ResponsePolicies
from response_store.records import NewResponse
from response_store.store import forget_expired
from storage.database.base import new_id
from tests.gateway.endpoints.test_responses import ARGUMENTS, CALLS, TOOLS, create, sent, streamed
from tests.gateway.stack import Stack, quick_timeouts, running_stack
from tests.gateway.tiny_model import make_model_folder

REASONING = """\
{%- if tools %}{{ tools | tojson }}{% endif -%}
{%- for message in messages -%}
{{- '<|' ~ message['role'] ~ '|>' -}}
{%- if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif -%}
{{- message['content'] ~ '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}
"""


@pytest.fixture
async def reasoning_stack(stocked_sqlite_url: str, tmp_path: Path) -> AsyncIterator[Stack]:
    folder = make_model_folder(tmp_path / "reasons", template=REASONING)
    async with running_stack(stocked_sqlite_url, tmp_path, folder) as running:
        yield running


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def another_project(stack: Stack) -> str:
    project = await stack.tenancy.create_project(stack.tenant.id, "second")
    return (await stack.tenancy.create_key(stack.tenant.id, project.id)).key


async def test_a_conversation_goes_on_from_an_earlier_response(stack: Stack) -> None:
    stack.say(CALLS)
    _, first = await streamed(stack, input="Weather?", tools=TOOLS, instructions="Not carried over.")
    outputs: Any = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "sun"} for call in first.output[1:]
    ]
    stack.say("Sunny.")
    second = await create(stack, input=outputs, tools=TOOLS, previous_response_id=first.id)
    stack.say("Sure.")
    third = await create(stack, input="Sure?", tools=TOOLS, previous_response_id=second.id)
    assert third.previous_response_id == second.id
    chained = sent(stack).tokens
    stack.say("Sure.")
    await create(
        stack,
        tools=TOOLS,
        input=[
            {"role": "user", "content": "Weather?"},
            *[item.to_dict() for item in first.output],
            *outputs,
            *[item.to_dict() for item in second.output],
            {"role": "user", "content": "Sure?"},
        ],
    )
    assert sent(stack).tokens == chained
    assert json.loads(first.output[1].arguments) == ARGUMENTS


async def test_a_reference_stands_for_the_item(stack: Stack) -> None:
    stack.say("The fox.")
    first = await create(stack, input="Who?")
    stack.say("Yes.")
    await create(
        stack, input=[{"role": "user", "content": "Who?"}, first.output[0].to_dict(), {"role": "user", "content": "?"}]
    )
    spelled = sent(stack).tokens
    stack.say("Yes.")
    reference: Any = {"type": "item_reference", "id": first.output[0].id}
    await create(stack, input=[{"role": "user", "content": "Who?"}, reference, {"role": "user", "content": "?"}])
    assert sent(stack).tokens == spelled


async def test_an_item_is_referred_to_by_the_id_that_it_is_listed_by(stack: Stack) -> None:
    """Whatever id its client gave it: one that stands there twice, or is another response's."""
    stack.say("The fox.")
    first = await create(stack, input="Who?")
    said: Any = [
        {"role": "user", "content": "One."},
        {"id": "mine", "role": "user", "content": "Two."},
        {"id": "mine", "role": "user", "content": "Three."},
        {**first.output[0].to_dict(), "content": [{"type": "output_text", "text": "Other.", "annotations": []}]},
        {"role": "user", "content": "Five."},
    ]
    kept = await create(stack, input=said, store=True)
    spelled = sent(stack).tokens
    async with stack.openai() as client:
        for order in ("asc", "desc"):
            pages = client.responses.input_items.list(kept.id, order=order, limit=1)  # type: ignore[arg-type]
            ids = [item.id async for item in pages]
            assert len(set(ids)) == len(ids) == 5
    references: Any = [{"type": "item_reference", "id": id_} for id_ in reversed(ids)]
    await create(stack, input=references)
    assert sent(stack).tokens == spelled
    own: Any = {"type": "item_reference", "id": first.output[0].id}
    ask: Any = {"role": "user", "content": "?"}
    await create(stack, input=[ask, references[0], own, ask])
    spelled = sent(stack).tokens
    await create(stack, input=[ask, said[0], first.output[0].to_dict(), ask])
    assert sent(stack).tokens == spelled


async def test_references_to_too_much_content_are_refused(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    stack.say("The fox.")
    first = await create(stack, input="Who?" * 100)
    monkeypatch.setattr("response_store.store.MOST_CHAIN_BYTES", 100)
    body = {"model": "tiny", "input": [{"type": "item_reference", "id": first.output[0].id}]}
    refused = await stack.http.post("/v1/responses", headers=bearer(stack.key), json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")


async def test_what_a_request_goes_on_from_counts_as_its_body_does(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From before it is read until what is asked for is known; and threads unpack it, in which tenants take turns."""
    id_, said = new_id(), {"type": "message", "id": "msg_1", "role": "assistant", "content": "x"}
    large = NewResponse(
        id=id_,
        tenant_id=stack.tenant.id,
        project_id=stack.project.id,
        previous_id=None,
        kind="chain",
        status="completed",
        model="tiny",
        request=json.dumps({"input": "Who?" * 30_000}).encode(),
        response=json.dumps({"output": [{**said, "id": f"msg_{id_.hex}00"}]}).encode(),
        lifetime_s=60,
    )
    kept = stack.gateway.response_keeper.store
    assert kept is not None
    await kept.save(large)
    held: list[int] = []
    threads: list[threading.Thread] = []
    opened, generation_of = store._opened, responses_request.generation_of

    def opening(*args: Any) -> Any:
        threads.append(threading.current_thread())
        return opened(*args)

    def reading(*args: Any, **kwargs: Any) -> Any:
        held.append(stack.gateway.bodies._held[stack.tenant.id])
        return generation_of(*args, **kwargs)

    monkeypatch.setattr(store, "_opened", opening)
    monkeypatch.setattr(responses_request, "generation_of", reading)
    question = {"role": "user", "content": "?"}
    goes_on = {"model": "tiny", "input": [question], "previous_response_id": f"resp_{id_.hex}"}
    refers = {"model": "tiny", "input": [{"type": "item_reference", "id": f"msg_{id_.hex}00"}, question]}
    path, headers = "/v1/responses/input_tokens", bearer(stack.key)
    for body in (goes_on, refers):
        await stack.http.post(path, headers=headers, json=body)
    assert len(held) == 2
    assert min(held) > 120_000
    assert {thread.name.partition("_")[0] for thread in threads} == {"large-request"}
    assert not stack.gateway.bodies._held
    monkeypatch.setattr(stack.gateway.bodies, "_most", 100_000)
    monkeypatch.setattr(store, "_opened", lambda *_: pytest.fail("it was opened"))
    for body in (goes_on, refers):
        refused = await stack.http.post(path, headers=headers, json=body)
        assert refused.status_code == 429, refused.text
    assert not stack.gateway.bodies._held


@pytest.mark.parametrize("as_parts", [False, True])
async def test_a_conversation_of_more_items_than_a_request_may_have_ends(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, as_parts: bool
) -> None:
    """Else each request that goes on from it would decode a million of them."""
    monkeypatch.setattr("gateway.kept_responses.keeper.LARGE_BYTES", 0)
    texts: Any = [{"type": "input_text", "text": "a"} for _ in range(11)]
    items: Any = [{"role": "user", "content": texts}] if as_parts else [{"role": "user", "content": "a"}] * 12
    stack.say("A.")
    first = await create(stack, input=items)
    stack.say("A.")
    second = await create(stack, input=items, previous_response_id=first.id)
    question = {"role": "user", "content": "?"}
    references = [{"type": "item_reference", "id": one.output[0].id} for one in (first, second, second)]
    goes_on = {"model": "tiny", "input": [question], "previous_response_id": second.id}
    refers = {"model": "tiny", "input": [*references, question]}
    for most, status in ((28, 200), (27, 400)):  # each response: 12 of its input, a message and its part
        monkeypatch.setattr("gateway.kept_responses.earlier_items.MOST_PARTS", most)
        for path in ("/v1/responses", "/v1/responses/input_tokens"):
            for body, field in ((goes_on, "$.previous_response_id"), (refers, "$.input")):
                answer = await stack.http.post(path, headers=bearer(stack.key), json=body)
                assert answer.status_code == status, answer.text
                assert status == 200 or answer.json()["error"]["param"] == field.removeprefix("$.")


async def test_what_is_stored_can_be_read_listed_and_deleted(stack: Stack) -> None:
    stack.say("The fox.")
    async with stack.openai() as client:
        kept = await client.responses.create(
            model="tiny", input=[{"role": "user", "content": "Who?"}, {"role": "user", "content": "Well?"}], store=True
        )
        assert (await client.responses.retrieve(kept.id)).to_dict() == kept.to_dict()
        items = await client.responses.input_items.list(kept.id, order="asc", limit=1)
        (item,) = items.data
        assert (item.type, item.content[0].text, items.has_more) == ("message", "Who?", True)  # type: ignore[union-attr]
        rest = [each async for each in client.responses.input_items.list(kept.id, order="asc", limit=1)]
        assert len(rest) == 2
        listed = (await stack.http.get("/v1/responses", headers=bearer(stack.key))).json()
        assert [(one["id"], one["kept_for"]) for one in listed["data"]] == [(kept.id, "stored")]
        await client.responses.delete(kept.id)
        with pytest.raises(NotFoundError):
            await client.responses.retrieve(kept.id)
    with pytest.raises(NotFoundError) as caught:
        await create(stack, input="x", previous_response_id=kept.id)
    assert caught.value.code == "previous_response_not_found"
    assert [row.action for row in await stack.rows("SELECT action FROM audit_entry WHERE target = 'response'")] == [
        "response.deleted"
    ]


async def test_without_store_a_response_is_kept_for_chaining_alone(stack: Stack) -> None:
    stack.say("The fox.")
    kept = await create(stack, input="Who?")
    path = f"/v1/responses/{kept.id}"
    for answer in (
        await stack.http.get(path, headers=bearer(stack.key)),
        await stack.http.get(f"{path}/input_items", headers=bearer(stack.key)),
    ):
        assert answer.status_code == 404
        assert "previous_response_id" in answer.text
    assert (await stack.http.delete(path, headers=bearer(stack.key))).status_code == 200


async def test_store_false_keeps_nothing(stack: Stack) -> None:
    stack.say("The fox.")
    kept = await create(stack, input="Who?", store=False)
    assert await stack.rows("SELECT id FROM stored_response") == []
    with pytest.raises(NotFoundError):
        await create(stack, input="x", previous_response_id=kept.id)


async def test_a_project_without_retention_stores_nothing(stack: Stack) -> None:
    await ResponsePolicies(stack.database).set(stack.tenant.id, stack.project.id, retention_s=0)
    stack.say("The fox.")
    kept = await create(stack, input="Who?", store=True)
    assert kept.to_dict()["store"] is False
    refused = await stack.http.post(
        "/v1/responses", headers=bearer(stack.key), json={"model": "tiny", "input": "x", "background": True}
    )
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "background")
    assert await stack.rows("SELECT id FROM stored_response") == []


async def test_a_project_keeps_no_more_than_it_may(stack: Stack) -> None:
    """What this worker wrote counts at once, and all that is kept once the database was asked."""
    bound, store = stack.gateway.response_keeper.bound, stack.gateway.response_keeper.store
    assert bound is not None
    assert store is not None
    bound.most = 1
    stack.say("The fox.")
    await create(stack, input="Who?", store=True)
    await create(stack, input="Who?")
    elsewhere = StorageBound(store, most=1)
    assert not elsewhere.full(stack.tenant.id, stack.project.id), "it is asked first"
    await stack.until(lambda: elsewhere.full(stack.tenant.id, stack.project.id))
    assert len(await stack.rows("SELECT id FROM stored_response")) == 1
    for field in ("store", "background"):
        body = {"model": "tiny", "input": "x", field: True}
        refused = await stack.http.post("/v1/responses", headers=bearer(stack.key), json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "storage_exceeded")


async def test_a_balance_that_runs_out_within_a_conversation_loses_nothing(stack: Stack) -> None:
    """Refused at once with the code that clients know, in the background too, and not kept; paid again, it goes on."""
    stack.say("The fox.")
    first = await create(stack, input="Who?", store=True)
    await stack.settled(1)
    balance = await stack.balances.get(stack.tenant.id)
    assert balance is not None
    taken = balance.available - 10**5
    await stack.balances.refund(stack.tenant.id, taken, "USD")
    body = {"model": "tiny", "input": "And?", "previous_response_id": first.id, "max_output_tokens": 9, "store": True}
    for more in ({}, {"stream": True}, {"background": True}, {"background": True, "stream": True}):
        refused = await stack.http.post("/v1/responses", headers=bearer(stack.key), json=body | more)
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (402, "insufficient_quota"), refused.text
    assert len(await stack.rows("SELECT id FROM stored_response")) == 1
    async with stack.openai() as client:
        assert (await client.responses.retrieve(first.id)).to_dict() == first.to_dict()
    assert len(await stack.events()) == 1
    await stack.balances.grant(stack.tenant.id, taken, "USD")
    stack.say("The dog.")
    second = await create(stack, **{name: value for name, value in body.items() if name != "model"})
    chained = sent(stack).tokens
    stack.say("The dog.")
    question: Any = {"role": "user", "content": "And?"}
    await create(stack, input=[{"role": "user", "content": "Who?"}, first.output[0].to_dict(), question])
    assert sent(stack).tokens == chained
    assert second.previous_response_id == first.id
    await stack.settled(3)


async def test_a_response_that_the_money_ends_is_kept_and_gone_on_from(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    """It is incomplete, says why, and its client pays for what there is of it."""
    options = GatewayOptions(timeouts=quick_timeouts(), drain_timeout=2.0, hold_slice=8)
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, options=options) as stack:
        stack.say("The fox.")
        first = await create(stack, input="Who?")
        (event,) = await stack.settled(1)
        balance = await stack.balances.get(stack.tenant.id)
        assert balance is not None
        left = 20 * event.cost_pico
        await stack.balances.refund(stack.tenant.id, balance.available - left, "USD")
        stack.say("so long " * 100, end=False)
        asks: dict[str, Any] = {"input": "And?", "previous_response_id": first.id, "max_output_tokens": 400}
        cut = await create(stack, **asks, store=True)
        assert (cut.status, cut.incomplete_details.to_dict()) == (
            "incomplete", {"reason": "max_output_tokens", "limited_by": "budget"}
        )  # fmt: skip
        assert cut.output_text
        await stack.settled(2)
        await stack.balances.grant(stack.tenant.id, balance.available, "USD")
        async with stack.openai() as client:
            assert (await client.responses.retrieve(cut.id)).to_dict() == cut.to_dict()
        stack.say("Yes.")
        assert (await create(stack, input="Go on.", previous_response_id=cut.id)).output_text == "Yes."
        await stack.settled(3)


async def test_another_project_knows_nothing_of_it(stack: Stack) -> None:
    stack.say("The fox.")
    kept = await create(stack, input="Who?", store=True)
    other = await another_project(stack)
    path = f"/v1/responses/{kept.id}"
    headers = bearer(other)
    for method, at in (("GET", path), ("DELETE", path), ("POST", f"{path}/cancel"), ("GET", f"{path}/input_items")):
        answer = await stack.http.request(method, at, headers=headers)
        assert answer.status_code == 404, at
    body = {"model": "tiny", "input": "x", "previous_response_id": kept.id}
    answer = await stack.http.post("/v1/responses", headers=headers, json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "previous_response_not_found")
    assert (await stack.http.get("/v1/responses", headers=headers)).json()["data"] == []


async def test_content_is_sealed_and_gone_with_the_projects_key(stack: Stack) -> None:
    stack.say("The secret fox.")
    kept = await create(stack, input="A secret question?", store=True)
    (row,) = await stack.rows("SELECT request, response FROM stored_response")
    assert b"secret" not in bytes(row.request) + bytes(row.response)
    keys = stack.gateway.services.scope_keys
    assert keys is not None
    await keys.destroy(stack.tenant.id, stack.project.id, "asked for")
    assert (await stack.http.get(f"/v1/responses/{kept.id}", headers=bearer(stack.key))).status_code == 404


async def test_what_has_expired_is_gone(stack: Stack) -> None:
    stack.say("The fox.")
    kept = await create(stack, input="Who?", store=True)
    assert await forget_expired(stack.database) == 0
    async with stack.database.transaction() as session:
        await session.execute(text("UPDATE stored_response SET expires_at = 1"))
    assert (await stack.http.get(f"/v1/responses/{kept.id}", headers=bearer(stack.key))).status_code == 404
    assert await forget_expired(stack.database) == 1
    assert await stack.rows("SELECT id FROM stored_response") == []


async def test_sealed_reasoning_comes_back(reasoning_stack: Stack) -> None:
    stack = reasoning_stack
    stack.say("<think>I think.</think>The fox.")
    first = await create(stack, input="Who?", store=False, include=["reasoning.encrypted_content"])
    reasoning, message = first.output
    assert (reasoning.type, reasoning.content[0].text, reasoning.status) == ("reasoning", "I think.", "completed")
    assert "think" not in reasoning.encrypted_content
    assert message.content[0].text == "The fox."
    said = {**reasoning.to_dict(), "content": None}
    for changed, thought in ((said, True), (said | {"encrypted_content": "Zm9yZWlnbg=="}, False)):
        stack.say("Yes.")
        question: Any = {"role": "user", "content": "Who?"}
        await create(stack, input=[question, changed, message.to_dict(), question], store=False)
        model = next(iter(stack.models))
        prompt = "".join(model.tokenizer.spelled(token)[0] for token in sent(stack).tokens)
        assert ("I think." in prompt) is thought


async def test_sealed_reasoning_is_bounded_as_it_is_when_opened(
    reasoning_stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = reasoning_stack
    stack.say(f"<think>{'no ' * 400}</think>The fox.")
    first = await create(stack, input="Who?", store=False, include=["reasoning.encrypted_content"])
    said = {**first.output[0].to_dict(), "content": None}
    most = 5 * len(first.output[0].content[0].text) // 2
    monkeypatch.setattr("gateway.dialects.openai.responses.turns.MOST_UNSEALED", most)
    question = {"role": "user", "content": "Who?"}
    for times, status in ((2, 200), (3, 400)):
        body = {"model": "tiny", "input": [*[said] * times, question], "store": False, "truncation": "auto"}
        answer = await stack.http.post("/v1/responses", headers=bearer(stack.key), json=body)
        assert answer.status_code == status, answer.text
    assert answer.json()["error"]["param"] == "input[2].encrypted_content"


async def test_people_read_content_only_where_the_project_opted_in(stack: Stack) -> None:
    stack.say("The fox.")
    kept = await create(stack, input="Who?")
    base = f"/admin/v1/tenants/demo/projects/{stack.project.name}"
    headers = bearer(stack.admin_key)
    listed = (await stack.http.get(f"{base}/responses", headers=headers)).json()
    assert [one["id"] for one in listed["data"]] == [kept.id]
    refused = await stack.http.get(f"{base}/responses/{kept.id}", headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "content_not_readable")
    policy = (await stack.http.get(f"{base}/response-policy", headers=headers)).json()
    assert (policy["readable"], policy["retention_seconds"]) == (False, None)
    changed = await stack.http.patch(f"{base}/response-policy", headers=headers, json={"readable": True})
    assert changed.json()["readable"] is True
    read = (await stack.http.get(f"{base}/responses/{kept.id}", headers=headers)).json()
    assert read["response"]["output"][0]["content"][0]["text"] == "The fox."
    assert read["input"][0]["content"][0]["text"] == "Who?"
    actions = [row.action for row in await stack.rows("SELECT action FROM audit_entry ORDER BY at")]
    assert actions[-2:] == ["response_policy.set", "response.read"]
    gone = await stack.http.delete(f"{base}/responses/{kept.id}", headers=headers)
    assert gone.json()["deleted"] is True


def test_the_default_retention_is_thirty_days() -> None:
    assert GatewayOptions().response_retention == 30 * 86_400


def kept(stack: Stack, items: list[dict[str, Any]], kind: Literal["chain", "stored"] = "chain") -> NewResponse:
    """A response with this input, which somebody once sent."""
    return NewResponse(
        id=new_id(),
        tenant_id=stack.tenant.id,
        project_id=stack.project.id,
        previous_id=None,
        kind=kind,
        status="completed",
        model="tiny",
        request=json.dumps({"input": items}).encode(),
        response=json.dumps({"output": []}).encode(),
        lifetime_s=60,
    )


async def test_small_requests_that_become_large_stay_within_the_budget(stack: Stack) -> None:
    """Each goes on from 4 MB, and is shortened to what fits. Six at a time may hold 16 MiB, not the 100 that they would
    become; then nothing of it is held, and the next one is answered."""
    large = kept(stack, [{"role": "user", "content": "What does the fox say? " * 22_000} for _ in range(8)])
    assert stack.gateway.response_keeper.store is not None
    await stack.gateway.response_keeper.store.save(large)
    stack.gateway.bodies = BodyBudget(16 << 20)
    body = {
        "model": "tiny",
        "input": "Go on.",
        "previous_response_id": f"resp_{large.id.hex}",
        "truncation": "auto",
        "store": False,
        "max_output_tokens": 4,
    }
    ask = partial(stack.http.post, "/v1/responses", headers=bearer(stack.key), json=body)
    stack.say("Yes.")
    tracemalloc.start(1)
    try:
        answers = await asyncio.gather(*(ask() for _ in range(6)))
        _, peak = tracemalloc.get_traced_memory()
        alone = await ask()
        gc.collect()
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert {answer.status_code for answer in answers} == {200, 429}
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert (refused.json()["error"]["type"], "retry-after" in refused.headers) == ("rate_limit_error", True)
    assert alone.status_code == 200, alone.text
    assert peak < 32 << 20
    assert left < 4 << 20
    assert not stack.gateway.bodies._held


async def test_an_item_that_is_referred_to_again_and_again_counts_each_time(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = kept(stack, [{"role": "user", "content": "Who?" * 1000}], "stored")
    assert stack.gateway.response_keeper.store is not None
    await stack.gateway.response_keeper.store.save(large)
    monkeypatch.setattr("gateway.kept_responses.keeper.MOST_CHAIN_BYTES", 20_000, raising=False)
    reference = {"type": "item_reference", "id": f"item_{large.id.hex}0000"}
    statuses = []
    for times in (4, 5):
        body = {"model": "tiny", "input": [reference] * times, "truncation": "disabled"}
        answer = await stack.http.post("/v1/responses/input_tokens", headers=bearer(stack.key), json=body)
        statuses.append((answer.json()["error"]["code"], answer.json()["error"]["param"]))
    assert statuses == [("context_length_exceeded", "input"), ("invalid_value", "input")]


async def test_reading_what_is_kept_counts_as_a_body_does(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    large = kept(stack, [{"role": "user", "content": "Who?" * 30_000}], "stored")
    assert stack.gateway.response_keeper.store is not None
    await stack.gateway.response_keeper.store.save(large)
    path = f"/v1/responses/resp_{large.id.hex}"
    for of in (path, f"{path}/input_items"):
        assert (await stack.http.get(of, headers=bearer(stack.key))).status_code == 200
    monkeypatch.setattr(stack.gateway.bodies, "_most", 100_000)
    for of in (path, f"{path}/input_items"):
        refused = await stack.http.get(of, headers=bearer(stack.key))
        assert refused.status_code == 429, refused.text
    assert not stack.gateway.bodies._held
