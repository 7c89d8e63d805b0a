"""/v1/messages/batches: Anthropic's message batches, on the same tables and by the same runner as OpenAI's batches.

Ids of other projects are as unknown as ids that never were.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

from litestar import Request, Response, delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.types import ASGIApp
from msgspec import Meta, Raw, Struct

from batch_store.records import Batch, NewBatch
from billing.calendar import format_instant
from file_store.store import HIDDEN, NewFile, QuotaExceeded
from gateway.admission.prepared_request import Payer
from gateway.batches.input_lines import MESSAGES_ENDPOINT
from gateway.batches.message_requests import MOST_BYTES, MessageRequest, MessageRequests, lines_of
from gateway.dialects.query_parameters import Parameters
from gateway.endpoints.batches import batch_id, batch_runner, check_may_order, find_batch, too_many, unknown
from gateway.endpoints.files import download, file_store, room_for
from gateway.endpoints.generation_description import IDEMPOTENCY_KEY, KEY_ERRORS
from gateway.endpoints.idempotent import idempotent
from gateway.endpoints.messages import api_version
from gateway.endpoints.rate_limits import count_request
from gateway.endpoints.request_body import read_body
from gateway.errors import BodyTooLarge, InvalidField, InvalidRequest, NotAllowed, RateLimited
from gateway.http.authentication import project_payer
from gateway.http.body_budget import BodyShare
from gateway.http.operations import describes, files, query
from gateway.http.policies import demands
from gateway.http.responses import json_answer, json_response
from gateway.services import Gateway
from storage.database.base import new_id, to_instant
from storage.database.public_ids import public_id

RESULTS_LIFETIME_S = 29 * 86_400
_SECOND = 1_000_000
_ID = "msgbatch_01934f6e0d2a7b3c8e51a9c4d7f60b12"
_PATH = {"batch": _ID}
BatchName: TypeAlias = Annotated[str, Meta(examples=[_ID])]
Instant: TypeAlias = Annotated[str | None, Meta(examples=["2026-11-22T09:30:00Z"])]


class MessageCounts(Struct, frozen=True):
    """The requests of a batch. Until it has ended all of them are `processing`."""

    processing: int
    succeeded: int
    errored: int
    canceled: int
    expired: int


class MessageBatch(Struct, frozen=True, kw_only=True):
    """A message batch. Instants are RFC 3339 timestamps."""

    id: BatchName
    type: Literal["message_batch"] = "message_batch"
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: MessageCounts
    created_at: Instant
    expires_at: Instant
    ended_at: Instant
    cancel_initiated_at: Instant
    archived_at: Instant
    results_url: Annotated[str | None, Meta(examples=[f"/v1/messages/batches/{_ID}/results"])]


class MessageBatchList(Struct, frozen=True, kw_only=True):
    """A page of message batches."""

    data: list[MessageBatch]
    has_more: bool
    first_id: BatchName | None
    last_id: BatchName | None


class DeletedMessageBatch(Struct, frozen=True):
    """A message batch that was deleted."""

    id: BatchName
    type: Literal["message_batch_deleted"] = "message_batch_deleted"


_BODY = MessageRequests(
    [MessageRequest("a", Raw(b'{"model":"tiny","max_tokens":30,"messages":[{"role":"user","content":"Hi"}]}'))]
)
_RESULT = '{"custom_id": "a", "result": {"type": "succeeded", "message": {}}}\n'
_QUERY = (
    query("limit", Annotated[int, Meta(ge=1, le=1000)], "How many batches to list; 20 without it.", example=20),
    query("after_id", str, "The last batch of the page before.", example=_ID),
    query("before_id", str, "The first batch of the page behind.", example=_ID),
)


def message_batch_routes(gateway: Gateway) -> list[HTTPRouteHandler]:  # noqa: PLR0915  # six routes
    """The routes, for one worker."""
    wait = gateway.questions.wait

    @post(
        "/v1/messages/batches",
        status_code=200,
        request_max_body_size=None,
        opt=demands("inference", "project_key", dialect="anthropic")
        | describes(
            MessageBatch, body=_BODY, headers=[IDEMPOTENCY_KEY], errors={"rate_limit_exceeded": 429, **KEY_ERRORS}
        ),
    )
    @idempotent(gateway)
    async def create_message_batch(request: Request[Any, Any, Any]) -> ASGIApp:
        """Run up to 100,000 requests within 24 hours, each on the batch lane."""
        payer = project_payer(request.scope)
        await count_request(gateway, request, payer)
        api_version(request)
        check_may_order(payer)
        if not await gateway.response_keeper.keeps_content(payer):
            raise NotAllowed("This project keeps nothing of its content, so no batches.", code="content_not_kept")
        with gateway.bodies.share(payer.tenant_id) as share:
            timeout = gateway.services.options.client_timeout
            body = await read_body(request, timeout, _Bounded(share))
            batch = await _order(gateway, payer, body)
        batch_runner(gateway).look()
        return json_answer(_shown(batch))

    @get(
        "/v1/messages/batches",
        opt=demands("inference", "project_key", dialect="anthropic") | describes(MessageBatchList, query=_QUERY),
    )
    async def list_message_batches(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The project's message batches, the newest first."""
        payer, parameters = project_payer(request.scope), Parameters.of(request)
        limit = parameters.page_size(most=1000)
        after, before = parameters.text("after_id"), parameters.text("before_id")
        parameters.reject_unknown()
        if after is not None and before is not None:
            raise InvalidField("before_id", "it cannot be combined with after_id")
        found = await wait(
            batch_runner(gateway).store.page(
                payer.tenant_id,
                payer.project_id,
                limit=limit + 1,
                surface="anthropic",
                before=None if after is None else batch_id(after, "message_batch"),
                after=None if before is None else batch_id(before, "message_batch"),
            )
        )
        more = len(found) > limit
        shown = [_shown(one) for one in (found[-limit:] if before is not None else found[:limit])]
        first, last = (shown[0].id, shown[-1].id) if shown else (None, None)
        return json_response(MessageBatchList(data=shown, has_more=more, first_id=first, last_id=last))

    @get(
        "/v1/messages/batches/{batch:str}",
        opt=demands("inference", "project_key", dialect="anthropic") | describes(MessageBatch, path=_PATH),
    )
    async def retrieve_message_batch(request: Request[Any, Any, Any], batch: FromPath[str]) -> Response[bytes]:
        """A message batch as it stands."""
        return json_response(_shown(await _find(gateway, project_payer(request.scope), batch)))

    @post(
        "/v1/messages/batches/{batch:str}/cancel",
        status_code=200,
        opt=demands("inference", "project_key", dialect="anthropic") | describes(MessageBatch, path=_PATH),
    )
    async def cancel_message_batch(request: Request[Any, Any, Any], batch: FromPath[str]) -> Response[bytes]:
        """Begin no further request of a batch. Requests that run are finished, and paid for."""
        payer = project_payer(request.scope)
        found = await _find(gateway, payer, batch)
        if not await wait(batch_runner(gateway).store.cancel(payer.tenant_id, payer.project_id, found.id)):
            found = await _find(gateway, payer, batch)
            if found.ended and found.status != "cancelled":
                raise InvalidRequest(f"The batch {batch[:80]} has ended; it cannot be canceled any more.")
        batch_runner(gateway).look()
        return json_response(_shown(await _find(gateway, payer, batch)))

    @delete(
        "/v1/messages/batches/{batch:str}",
        status_code=200,
        opt=demands("inference", "project_key", dialect="anthropic") | describes(DeletedMessageBatch, path=_PATH),
    )
    async def delete_message_batch(request: Request[Any, Any, Any], batch: FromPath[str]) -> Response[bytes]:
        """Delete a message batch that has ended, with its results."""
        payer = project_payer(request.scope)
        found = await _find(gateway, payer, batch)
        if not await wait(batch_runner(gateway).store.delete(payer.tenant_id, payer.project_id, found.id)):
            raise InvalidRequest(f"The batch {batch[:80]} has not ended; cancel it first.")
        return json_response(DeletedMessageBatch(public_id("message_batch", found.id)))

    @get(
        "/v1/messages/batches/{batch:str}/results",
        opt=demands("inference", "project_key", dialect="anthropic")
        | describes(files("application/x-jsonl", description="A result a line.", example=_RESULT), path=_PATH),
    )
    async def download_message_batch_results(request: Request[Any, Any, Any], batch: FromPath[str]) -> ASGIApp:
        """The results of a message batch that has ended, in any order."""
        payer = project_payer(request.scope)
        found = await _find(gateway, payer, batch)
        if not found.ended:
            raise InvalidRequest(f"The batch {batch[:80]} has not ended, so it has no results yet.")
        file = None
        if found.output_file_id is not None:
            store = file_store(gateway)
            file = await wait(store.get(payer.tenant_id, payer.project_id, found.output_file_id))
        if file is None:
            raise unknown(batch)
        return await download(gateway, file, "application/x-jsonl")

    return [
        create_message_batch,
        list_message_batches,
        retrieve_message_batch,
        cancel_message_batch,
        delete_message_batch,
        download_message_batch_results,
    ]


class _Bounded:
    """Counts the bytes of a body, of one batch and of all requests that are held."""

    def __init__(self, share: BodyShare) -> None:
        self._share = share

    def take(self, size: int) -> None:
        """Count `size` more bytes. Raises BodyTooLarge, RateLimited."""
        if self._share.taken + size > MOST_BYTES:
            raise BodyTooLarge(f"A batch may have at most {MOST_BYTES} bytes; make several of it.")
        self._share.take(size)


async def _order(gateway: Gateway, payer: Payer, body: bytes) -> Batch:
    """Keep the requests of a batch as a file of its own, and let them be run. Raises InvalidRequest, RateLimited,
    DatabaseUnavailable."""
    lines, content = await gateway.threads.run(payer.tenant_id, partial(lines_of, body))
    store, wait = file_store(gateway), gateway.questions.wait
    size = lines[-1].offset + lines[-1].length
    async with room_for(gateway, payer, "$.requests", size, size) as room:
        file_id, writer = await wait(store.begin(payer.tenant_id, payer.project_id, room))
        try:
            for line in content:
                await writer.append(line)
            await writer.commit()
        except BaseException:
            await writer.discard()
            raise
        try:
            with too_many():
                return await wait(batch_runner(gateway).store.order(*_new(payer, file_id, writer.size), lines))
        except (RateLimited, QuotaExceeded):
            await store.discard(file_id)
            raise


def _new(payer: Payer, file_id: UUID, size: int) -> tuple[NewBatch, NewFile]:
    """A batch, and the file that has its requests."""
    own_file = NewFile(
        id=file_id,
        tenant_id=payer.tenant_id,
        project_id=payer.project_id,
        purpose=HIDDEN,
        filename="requests.jsonl",
        bytes=size,
        lifetime_s=RESULTS_LIFETIME_S,
    )
    new = NewBatch(
        id=new_id(),
        tenant_id=payer.tenant_id,
        project_id=payer.project_id,
        key=payer.key,
        surface="anthropic",
        endpoint=MESSAGES_ENDPOINT,
        input_file_id=file_id,
        output_lifetime_s=RESULTS_LIFETIME_S,
    )
    return new, own_file


async def _find(gateway: Gateway, payer: Payer, name: str) -> Batch:
    return await find_batch(gateway, payer, name, "anthropic")


def _shown(batch: Batch) -> MessageBatch:
    name, gone_at = public_id("message_batch", batch.id), None
    if batch.ended_at is not None:
        gone_at = batch.ended_at + batch.output_lifetime_s * _SECOND
    archived = gone_at is not None and gone_at <= to_instant(datetime.now(UTC))
    has_results = batch.output_file_id is not None and not archived
    return MessageBatch(
        id=name,
        processing_status="ended" if batch.ended else "canceling" if batch.status == "cancelling" else "in_progress",
        request_counts=_counts(batch),
        created_at=_instant(batch.created_at),
        expires_at=_instant(batch.expires_at),
        ended_at=_instant(batch.ended_at),
        cancel_initiated_at=_instant(batch.cancelling_at),
        archived_at=_instant(gone_at) if archived else None,
        results_url=f"/v1/messages/batches/{name}/results" if has_results else None,
    )


def _counts(batch: Batch) -> MessageCounts:
    if not batch.ended:
        return MessageCounts(batch.total, 0, 0, 0, 0)
    return MessageCounts(0, batch.completed, batch.failed, batch.cancelled, batch.expired)


def _instant(instant: int | None) -> str | None:
    return None if instant is None else format_instant(instant)
