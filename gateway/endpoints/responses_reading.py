"""Reads a body of the Responses API: what it asks for, with what the earlier responses say that it goes on from."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeAlias

from litestar import Request

from gateway.admission.prepared_request import Payer
from gateway.dialects.large_bodies import LARGE_BYTES
from gateway.dialects.openai.responses import request as responses_request
from gateway.dialects.openai.responses.input_items import InputItem
from gateway.dialects.openai.responses.request import ResponsesCall, ResponsesRequest
from gateway.endpoints.request_body import read_call
from gateway.services import Gateway
from prompt_cache.promise.scope_keys import ScopeKeyUnreadable
from response_store.sealing import ReasoningSeal

_ENTRY = 32
"""About how many bytes an item or a part has in JSON, without what it says."""
ReadBody: TypeAlias = tuple[ResponsesRequest, ResponsesCall | None]


async def read_responses(
    gateway: Gateway, request: Request[Any, Any, Any], payer: Payer
) -> tuple[ResponsesRequest, ResponsesCall, ReasoningSeal | None]:
    """What a request asks for, and what seals its reasoning, if that is needed. Raises GatewayError,
    DatabaseUnavailable."""
    return await completed(gateway, payer, *await read_call(gateway, request, payer, read_body))


async def completed(
    gateway: Gateway, payer: Payer, asked: ResponsesRequest, call: ResponsesCall | None
) -> tuple[ResponsesRequest, ResponsesCall, ReasoningSeal | None]:
    """The same for a body that was read. What it goes on from counts as its body does, until that is read. Raises
    GatewayError, DatabaseUnavailable."""
    seal = await _seal(gateway, payer) if asked.encrypted or _has_sealed(asked) else None
    if call is not None:
        return asked, call, seal
    with gateway.bodies.share(payer.tenant_id) as share:
        asked, earlier = await gateway.response_keeper.earlier(payer, asked, share.take)
        unseal = _nothing if seal is None else seal.open
        work = partial(responses_request.generation_of, asked, earlier, unseal)
        large = sum(_size(item) for item in (*earlier, *asked.items)) > LARGE_BYTES
        return asked, await gateway.threads.run(payer.tenant_id, work) if large else work(), seal


def read_body(body: bytes) -> ReadBody:
    """The request, and what it asks for unless that needs more than the body. Raises InvalidRequest."""
    asked = responses_request.decode_request(body)
    needs_more = asked.previous_response_id is not None or _has_sealed(asked) or _refers(asked)
    return asked, None if needs_more else responses_request.generation_of(asked)


def _has_sealed(asked: ResponsesRequest) -> bool:
    return isinstance(asked.input, list) and any(item.encrypted_content and not item.content for item in asked.input)


def _refers(asked: ResponsesRequest) -> bool:
    return isinstance(asked.input, list) and any(item.type == "item_reference" for item in asked.input)


async def _seal(gateway: Gateway, payer: Payer) -> ReasoningSeal | None:
    store = gateway.response_keeper.store
    if store is None:
        return None
    try:
        return ReasoningSeal(await store.seal_of(payer.tenant_id, payer.project_id))
    except ScopeKeyUnreadable:
        return None


def _nothing(sealed: str) -> None:
    """Nothing can be unsealed."""


def _size(item: InputItem) -> int:
    """About how many bytes an item has in JSON, where reading it costs something even if it says nothing."""
    lists = [field for field in (item.content, item.output, item.summary) if isinstance(field, list)]
    texts = (item.content, item.output, item.arguments, item.input, item.encrypted_content, item.call_id, item.name)
    said = sum(len(text) for text in texts if isinstance(text, str))
    return said + _ENTRY + sum(_ENTRY + len(part.text) + len(part.refusal or "") for parts in lists for part in parts)
