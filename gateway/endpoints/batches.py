"""/v1/batches: OpenAI's batches. A project orders one of a file's lines, looks at it, lists and cancels.

Ids of other projects are as unknown as ids that never were.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

import msgspec
from litestar import Request, Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.types import ASGIApp
from msgspec import UNSET, Meta, Struct, UnsetType

from batch_store.records import Batch, BatchProblem, NewBatch
from batch_store.store import MOST_UNFINISHED, TooManyBatches
from gateway.admission.prepared_request import Payer
from gateway.batches.input_lines import OPENAI_ENDPOINTS
from gateway.batches.runner import BatchRunner
from gateway.dialects.query_parameters import Parameters
from gateway.endpoints.files import file_id, file_store, find_file, lifetime_of, storage_full
from gateway.endpoints.generation_description import IDEMPOTENCY_KEY, KEY_ERRORS
from gateway.endpoints.idempotent import idempotent
from gateway.endpoints.rate_limits import count_request
from gateway.endpoints.request_body import read_management_body
from gateway.errors import Conflict, InvalidField, NotAllowed, NotFound, RateLimited
from gateway.http.authentication import project_payer
from gateway.http.operations import describes, page
from gateway.http.policies import demands
from gateway.http.responses import json_answer, json_response
from gateway.services import Gateway
from prompt_cache.promise.scope_keys import ScopeKeyUnreadable
from storage.database.base import new_id
from storage.database.public_ids import prefixed_id, public_id

OUTPUT_LIFETIME_S = 30 * 86_400
_MOST_METADATA, _LONGEST_NAME, _LONGEST_VALUE = 16, 64, 512
_BUSY_S = 30.0
_SECOND = 1_000_000
_ID = "batch_01934f6e0d2a7b3c8e51a9c4d7f60b12"
_FILE = "file_01934f6e0d2a7b3c8e51a9c4d7f60b12"
_PATH = {"batch": _ID}
FileName: TypeAlias = Annotated[str, Meta(examples=[_FILE])]
BatchName: TypeAlias = Annotated[str, Meta(examples=[_ID])]
Metadata: TypeAlias = Annotated[dict[str, str] | None, Meta(examples=[{"night": "2026-11-22"}])]
Endpoint: TypeAlias = Literal["/v1/chat/completions", "/v1/completions", "/v1/responses"]
Instant: TypeAlias = Annotated[int | None, Meta(examples=[None])]


class OutputExpiry(Struct, frozen=True, forbid_unknown_fields=True):
    """How long the files of results are kept from when they are made."""

    anchor: str
    seconds: int


class BatchOrder(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of a new batch."""

    input_file_id: FileName
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: OutputExpiry | None = None


class Problem(Struct, frozen=True):
    """What is wrong with the input, or why the batch was stopped. `line`: of the input, from 1."""

    code: Annotated[str, Meta(examples=["duplicate_custom_id"])]
    message: Annotated[str, Meta(examples=["Line 7: an earlier line has the custom_id 'a' too."])]
    param: Annotated[str | None, Meta(examples=["custom_id"])]
    line: Annotated[int | None, Meta(examples=[7])]


class Problems(Struct, frozen=True):
    """What is wrong with the input."""

    data: list[Problem]
    object: Literal["list"] = "list"


class RequestCounts(Struct, frozen=True):
    """The lines of a batch: all, those that were answered well, and those that failed."""

    total: int
    completed: int
    failed: int


class InputDetails(Struct, frozen=True):
    cached_tokens: int


class OutputDetails(Struct, frozen=True):
    reasoning_tokens: int


class BatchUsage(Struct, frozen=True, kw_only=True):
    """The tokens of the answers together."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class BatchObject(Struct, frozen=True, kw_only=True):
    """A batch. Instants are in seconds since the Unix epoch."""

    id: BatchName
    object: Literal["batch"] = "batch"
    endpoint: Endpoint
    errors: Problems | None
    input_file_id: FileName
    completion_window: Literal["24h"] = "24h"
    status: Literal[
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
    ]
    output_file_id: FileName | None
    error_file_id: FileName | None
    created_at: int
    in_progress_at: Instant
    expires_at: int
    finalizing_at: Instant
    completed_at: Instant
    failed_at: Instant
    expired_at: Instant
    cancelling_at: Instant
    cancelled_at: Instant
    request_counts: RequestCounts
    metadata: Metadata
    usage: BatchUsage | UnsetType = UNSET


class BatchList(Struct, frozen=True, kw_only=True):
    """A page of batches."""

    object: Literal["list"] = "list"
    data: list[BatchObject]
    first_id: BatchName | None
    last_id: BatchName | None
    has_more: bool


_ORDER = msgspec.json.Decoder(BatchOrder)
_EXAMPLE = BatchOrder(input_file_id=_FILE, endpoint="/v1/chat/completions", completion_window="24h")


def batch_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    wait = gateway.questions.wait

    @post(
        "/v1/batches",
        status_code=200,
        opt=demands("inference", "project_key", dialect="openai")
        | describes(
            BatchObject,
            body=_EXAMPLE,
            headers=[IDEMPOTENCY_KEY],
            errors={"not_found": 404, "rate_limit_exceeded": 429, **KEY_ERRORS},
        ),
    )
    @idempotent(gateway)
    async def create_batch(request: Request[Any, Any, Any]) -> ASGIApp:
        """Run the lines of a file within 24 hours, each as a request on the batch lane."""
        payer, runner = project_payer(request.scope), batch_runner(gateway)
        await count_request(gateway, request, payer)
        order = await read_management_body(request, gateway.services.options.client_timeout, _ORDER)
        lifetime = _checked(order)
        check_may_order(payer)
        await check_may_keep(gateway, payer)
        file = await find_file(gateway, payer, order.input_file_id)
        if file.purpose != "batch":
            raise InvalidField("$.input_file_id", f"the purpose of this file is {file.purpose}, and not batch")
        new = NewBatch(
            id=new_id(),
            tenant_id=payer.tenant_id,
            project_id=payer.project_id,
            key=payer.key,
            surface="openai",
            endpoint=order.endpoint,
            input_file_id=file.id,
            output_lifetime_s=lifetime,
            metadata=order.metadata,
        )
        with too_many():
            batch = await wait(runner.store.order(new))
        runner.look()
        return json_answer(_shown(batch))

    @get("/v1/batches", opt=demands("inference", "project_key", dialect="openai") | describes(BatchList, query=page()))
    async def list_batches(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The project's batches of this surface, the newest first."""
        payer, parameters = project_payer(request.scope), Parameters.of(request)
        limit, after = parameters.page_size(), parameters.text("after")
        parameters.reject_unknown()
        before = None if after is None else batch_id(after)
        store = batch_runner(gateway).store
        found = await wait(
            store.page(payer.tenant_id, payer.project_id, limit=limit + 1, surface="openai", before=before)
        )
        objects = [_shown(one) for one in found[:limit]]
        ends = (objects[0].id, objects[-1].id) if objects else (None, None)
        return json_response(BatchList(data=objects, first_id=ends[0], last_id=ends[1], has_more=len(found) > limit))

    @get(
        "/v1/batches/{batch:str}",
        opt=demands("inference", "project_key", dialect="openai") | describes(BatchObject, path=_PATH),
    )
    async def retrieve_batch(request: Request[Any, Any, Any], batch: FromPath[str]) -> Response[bytes]:
        """A batch as it stands."""
        return json_response(_shown(await _find(gateway, project_payer(request.scope), batch)))

    @post(
        "/v1/batches/{batch:str}/cancel",
        status_code=200,
        opt=demands("inference", "project_key", dialect="openai")
        | describes(BatchObject, path=_PATH, errors={"conflict": 409}),
    )
    async def cancel_batch(request: Request[Any, Any, Any], batch: FromPath[str]) -> Response[bytes]:
        """Begin no further line of a batch. Lines that run are finished, and paid for."""
        payer = project_payer(request.scope)
        found = await _find(gateway, payer, batch)
        if not await wait(batch_runner(gateway).store.cancel(payer.tenant_id, payer.project_id, found.id)):
            found = await _find(gateway, payer, batch)
            if found.status not in ("cancelling", "cancelled"):
                raise Conflict(f"The batch is {found.status}; it cannot be cancelled any more.")
        batch_runner(gateway).look()
        return json_response(_shown(await _find(gateway, payer, batch)))

    return [create_batch, list_batches, retrieve_batch, cancel_batch]


def batch_runner(gateway: Gateway) -> BatchRunner:
    """What runs the gateway's batches. Raises NotFound where there are none."""
    if gateway.batches is None:
        raise NotFound("This gateway runs no batches.")
    return gateway.batches


def check_may_order(payer: Payer) -> None:
    """Raise NotAllowed unless the key may use the batch lane."""
    if not payer.limits.allows_lane("batch"):
        raise NotAllowed("This key may not use the lane 'batch'.", code="lane_not_allowed")


async def check_may_keep(gateway: Gateway, payer: Payer) -> None:
    """Raise NotAllowed for a project that keeps nothing, and InvalidField for one that has no room for results: what
    they take is not known before. Raises DatabaseUnavailable."""
    if not await gateway.response_keeper.keeps_content(payer):
        raise NotAllowed("This project keeps nothing of its content, so no batches.", code="content_not_kept")
    store = file_store(gateway)
    if await gateway.questions.wait(store.used_bytes(payer.tenant_id, payer.project_id)) >= store.quota:
        raise storage_full("$.input_file_id")


class too_many:  # noqa: N801  # a context manager, used as one
    """Turns TooManyBatches into the error of the request."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, TooManyBatches):
            message = f"The project has {MOST_UNFINISHED} batches that have not ended; wait for one of them."
            raise RateLimited(message, retry_after=_BUSY_S) from error


def batch_id(name: str, kind: str = "batch") -> UUID:
    """The id in a batch's name. Raises NotFound."""
    found = prefixed_id(name, public_id(kind, UUID(int=0))[: -len(UUID(int=0).hex)])
    if found is None:
        raise unknown(name)
    return found


def unknown(name: str) -> NotFound:
    """The error for a batch that is not there, or not the project's."""
    return NotFound(f"There is no batch {name[:80]!r}.")


async def find_batch(gateway: Gateway, payer: Payer, name: str, surface: str) -> Batch:
    """A project's batch of this surface. Raises NotFound, DatabaseUnavailable."""
    id_ = batch_id(name, "batch" if surface == "openai" else "message_batch")
    store = batch_runner(gateway).store
    try:
        found = await gateway.questions.wait(store.get(payer.tenant_id, payer.project_id, id_))
    except ScopeKeyUnreadable as error:
        raise unknown(name) from error
    if found is None or found.surface != surface:
        raise unknown(name)
    return found


async def _find(gateway: Gateway, payer: Payer, name: str) -> Batch:
    return await find_batch(gateway, payer, name, "openai")


def _checked(order: BatchOrder) -> int:
    """For how many seconds results are kept. Raises InvalidField."""
    if order.endpoint not in OPENAI_ENDPOINTS:
        raise InvalidField("$.endpoint", f"it must be one of {', '.join(OPENAI_ENDPOINTS)}")
    if order.completion_window != "24h":
        raise InvalidField("$.completion_window", "it must be 24h")
    metadata = order.metadata or {}
    too_long = any(len(name) > _LONGEST_NAME or len(value) > _LONGEST_VALUE for name, value in metadata.items())
    if len(metadata) > _MOST_METADATA or too_long:
        limits = f"{_MOST_METADATA} entries of {_LONGEST_NAME} and {_LONGEST_VALUE} characters at most"
        raise InvalidField("$.metadata", limits)
    file_id(order.input_file_id)
    expiry = order.output_expires_after
    if expiry is None:
        return OUTPUT_LIFETIME_S
    return lifetime_of(expiry.anchor, expiry.seconds, "$.output_expires_after")


def _shown(batch: Batch) -> BatchObject:
    ended = {batch.status: _seconds(batch.ended_at)} if batch.ended else {}
    tokens = batch.tokens
    return BatchObject(
        id=public_id("batch", batch.id),
        endpoint=msgspec.convert(batch.endpoint, Endpoint),
        errors=Problems([_problem(one) for one in batch.problems]) if batch.problems else None,
        input_file_id=public_id("file", batch.input_file_id),
        status=batch.status,
        output_file_id=None if batch.output_file_id is None else public_id("file", batch.output_file_id),
        error_file_id=None if batch.error_file_id is None else public_id("file", batch.error_file_id),
        created_at=batch.created_at // _SECOND,
        in_progress_at=_seconds(batch.in_progress_at),
        expires_at=batch.expires_at // _SECOND,
        finalizing_at=_seconds(batch.finalizing_at),
        completed_at=ended.get("completed"),
        failed_at=ended.get("failed"),
        expired_at=ended.get("expired"),
        cancelling_at=_seconds(batch.cancelling_at),
        cancelled_at=ended.get("cancelled"),
        request_counts=RequestCounts(batch.total, batch.completed, batch.failed),
        metadata=batch.metadata,
        usage=BatchUsage(
            input_tokens=tokens.input,
            input_tokens_details=InputDetails(tokens.cached),
            output_tokens=tokens.output,
            output_tokens_details=OutputDetails(tokens.reasoning),
            total_tokens=tokens.input + tokens.output,
        ),
    )


def _problem(problem: BatchProblem) -> Problem:
    return Problem(problem.code, problem.message, problem.param, problem.line)


def _seconds(instant: int | None) -> int | None:
    return None if instant is None else instant // _SECOND
