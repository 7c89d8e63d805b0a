"""Reads a body of the Responses API: what it asks for, with what the earlier responses say that it goes on from."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeAlias

from litestar import Request

from gateway.admission.prepared_request import Payer
from gateway.dialects.large_bodies import LARGE_BYTES
from gateway.dialects.openai.responses import request as responses_request
from gateway.dialects.openai.responses.input_items import json_size
from gateway.dialects.openai.responses.request import ResponsesCall, ResponsesRequest
from gateway.endpoints.request_body import read_call
from gateway.http.body_budget import BodyShare
from gateway.services import Gateway
from prompt_cache.promise.scope_keys import ScopeKeyUnreadable
from response_store.sealing import ReasoningSeal

ReadBody: TypeAlias = tuple[ResponsesRequest, ResponsesCall | None]


async def read_responses(
    gateway: Gateway, request: Request[Any, Any, Any], payer: Payer, share: BodyShare
) -> tuple[ResponsesRequest, ResponsesCall, ReasoningSeal | None]:
    """What a request asks for, and what seals its reasoning, if that is needed. Raises GatewayError,
    DatabaseUnavailable."""
    return await completed(gateway, payer, share, *await read_call(gateway, request, payer, read_body, share))


async def completed(
    gateway: Gateway, payer: Payer, share: BodyShare, asked: ResponsesRequest, call: ResponsesCall | None
) -> tuple[ResponsesRequest, ResponsesCall, ReasoningSeal | None]:
    """The same for a body that was read. What it goes on from counts in `share` before it is loaded. Raises
    GatewayError, DatabaseUnavailable."""
    seal = await _seal(gateway, payer) if asked.encrypted or _has_sealed(asked) else None
    if call is not None:
        return asked, call, seal
    asked, earlier = await gateway.response_keeper.earlier(payer, asked, share.load)
    unseal = _nothing if seal is None else seal.open
    work = partial(responses_request.generation_of, asked, earlier, unseal)
    large = sum(map(json_size, (*earlier, *asked.items))) > LARGE_BYTES
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
